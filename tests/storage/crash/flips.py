"""Is every bit that rots found out? Each bit of a small store is flipped, and each file cut.

The store has what a store can have: tables with tombstones, a stream, flushed, merged and linked
segments, a log of several files with entries that were written again, and entries that are not
committed. After each flip everything is read. What is returned must be what was written, and
somebody must have complained, naming the file. No bit is too unimportant: there is none that no
checksum covers.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    CreateReplica,
    StoreEpoch,
    TrimLog,
)
from limosa.core.model.keys import TOKEN_MIN, TokenRange, position
from limosa.core.model.rows import Entry
from limosa.errors import UnusableFile
from limosa.storage.files import Files, PosixFiles
from limosa.storage.store import Store
from limosa.storage.view import View
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from tests.storage.medium import MediumFiles
from tests.storage.sole import SoleOwner

DIRECTORY = "/v"
SHORT = StorageSettings(log_file_bytes=5_500, log_bytes_max=9_000)
COLUMNS: list[tuple[str, pa.DataType]] = [("k", pa.int64()), ("v", pa.string())]
BIRDS = Table("birds", pa.schema(COLUMNS), ("k",))
SONGS = Table("songs", pa.schema(COLUMNS), ("k",), "stream")
TABLES = (BIRDS, SONGS)
KEYS = range(12)

Snapshot: TypeAlias = dict[str, bytes]
Shown: TypeAlias = dict[tuple[str, ...], object]


class Flip(Struct, frozen=True):
    path: str
    bit: int

    def spoil(self, content: bytes) -> bytes:
        spoiled = bytearray(content)
        spoiled[self.bit // 8] ^= 1 << self.bit % 8
        return bytes(spoiled)


class Cut(Struct, frozen=True):
    path: str
    length: int

    def spoil(self, content: bytes) -> bytes:
        return content[: self.length]


Damage: TypeAlias = Flip | Cut


# ------------------------------------------------------------------------------------- the store


def rows(table: Table, keys: Iterable[int], value: str) -> Batch:
    some = [{"k": key, "v": f"{value} {key}"} for key in keys]
    return Batch.of(table, pa.RecordBatch.from_pylist(some, schema=table.physical))


def tombstones(*keys: int) -> Batch:
    return Batch.tombstones(BIRDS, pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64())}))


def build(files: Files, directory: str = DIRECTORY) -> None:
    """A store, closed as it should be, and as small as can be."""
    with Store({"v": directory}, files, SHORT) as store:
        owner = SoleOwner(store, "p", "i", "v")
        owner.upsert(rows(BIRDS, range(8), "merged"), "producer", 1)
        owner.append(Bundle([rows(SONGS, range(3), "first")]))
        store.flush("p", "i")
        owner.upsert(rows(BIRDS, range(4, 10), "newer"), "producer", 2)
        owner.delete(tombstones(1, 2))
        store.compact("p", "i")
        half = SoleOwner(store, "half", "i", "v")
        half.upsert(rows(BIRDS, (3, 11), "half"), "other", 7)
        owner.upsert(rows(SONGS, range(2), "second"))
        owner.delete(tombstones(5))
        store.flush("p", "i")
        store.write(CreateReplica("open", "i", 0, "v"))
        store.write(StoreEpoch("open", "i", 0, 3))
        first = Entry(position(3, 1), 0, Bundle([rows(BIRDS, (1,), "committed")]), "third", 1)
        second = Entry(position(3, 2), first.at, Bundle([rows(BIRDS, (2,), "open")]), "third", 2)
        store.write(AppendEntries("open", "i", 0, (first, second)))
        store.write(AdvanceWatermark("open", "i", 0, first.at))
        store.sync()
        store.write(TrimLog("p", "i", 0, owner.view.watermark))
        while store.maintain():
            pass
        _split(store)
        owner.upsert(rows(BIRDS, (0, 9), "last"))


def _split(store: Store) -> None:
    """Streams can't be sliced, so what is split has none."""
    SoleOwner(store, "source", "i", "v").upsert(rows(BIRDS, range(5), "split"))
    store.flush("half", "i")
    store.adopt(("source", "i"), ("half", "i"), TokenRange(TOKEN_MIN, 0))


def filled(snapshot: Snapshot) -> MediumFiles:
    files = MediumFiles()
    for path, content in snapshot.items():
        files.make_directory(path.rpartition("/")[0])
        files.create(path).append([content])
    return files


@cache
def sound() -> Snapshot:
    """A volume's files; the lock is empty and says nothing."""
    files = MediumFiles()
    build(files)
    return {path: data for path, data in files.snapshot().items() if data}


# ------------------------------------------------------------------------------------- reading


def show(store: Store, complaints: list[str]) -> Shown:
    """All that a store returns, in every way there is to ask."""
    shown: Shown = {}
    for held in _or_complaint(lambda: store.restored("node"), complaints) or ():
        key = (held.partition, held.replica.incarnation)
        shown["held", *key] = (held.epoch, held.begun, held.first, held.watermark)
        shown["producers", *key] = held.producers
        entries = _or_complaint(partial(store.tail, *key, 0), complaints)
        if entries is not None:
            shown["entries", *key] = [_entry(entry) for entry in entries]
    for key, size in (_or_complaint(store.sizes, complaints) or {}).items():
        shown["size", *key] = (size.rows, size.bytes)
    for key in [(name[1], name[2]) for name in shown if name[0] == "held"]:
        view = store.view(*key)
        asked = {
            "collected": partial(getattr, view, "collected"),
            "scan": partial(_scan, view),
            "get": partial(_get, view),
            "read": partial(_read, view),
        }
        for name, ask in asked.items():
            answer = _or_complaint(ask, complaints)
            if answer is not None:
                shown[name, *key] = answer
    return shown


def _scan(view: View) -> list[object]:
    return [row for table in TABLES for row in _rows(view.batches(table, tombstones=True))]


def _get(view: View) -> list[object]:
    return [view.get(BIRDS, (key,)) for key in KEYS]


def _read(view: View) -> list[Any]:
    return view.read_from(SONGS, 0)[1].to_pylist()


def _or_complaint(ask: Any, complaints: list[str]) -> Any:
    try:
        return ask()
    except UnusableFile as error:
        complaints.append(str(error))
        return None


def _entry(entry: Entry) -> tuple[object, ...]:
    assert entry.rows is None or isinstance(entry.rows, Bundle)
    batches = () if entry.rows is None else entry.rows.batches
    content = [
        (batch.table.id, batch.columns.to_pylist(), batch.tokens.tolist(), _deleted(batch))
        for batch in batches
    ]
    return (entry.at, entry.previous, entry.producer, entry.sequence, entry.collects, content)


def _rows(batches: Iterable[Batch]) -> Iterator[tuple[object, ...]]:
    for batch in batches:
        assert batch.versions is not None
        tokens, versions = batch.tokens.tolist(), batch.versions.tolist()
        yield batch.table.id, batch.columns.to_pylist(), tokens, versions, _deleted(batch)


def _deleted(batch: Batch) -> list[bool] | None:
    return None if batch.deleted is None else batch.deleted.tolist()


@cache
def truth() -> Shown:
    complaints: list[str] = []
    with Store({"v": DIRECTORY}, filled(sound()), SHORT) as store:
        shown = show(store, complaints)
        complaints += [refusal.why for refusal in store.refused]
    assert not complaints, complaints
    return shown


# ------------------------------------------------------------------------------------- damage


def every_flip() -> list[Flip]:
    return [Flip(path, bit) for path, data in sound().items() for bit in range(8 * len(data))]


def every_cut() -> list[Cut]:
    return [Cut(path, length) for path, data in sound().items() for length in range(len(data))]


def try_in_memory(damage: Damage) -> str | None:
    """What went undetected, or was returned though it is wrong; None: all is well."""
    snapshot = sound()
    spoiled = {**snapshot, damage.path: damage.spoil(snapshot[damage.path])}
    return _verdict(damage, filled(spoiled), DIRECTORY)


def try_on_disk(damage: Damage, directory: Path) -> str | None:
    """The same with real files, in an empty directory."""
    snapshot = sound()
    for path, data in snapshot.items():
        file = Path(f"{directory}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(damage.spoil(data) if path == damage.path else data)
    return _verdict(damage, PosixFiles(), f"{directory}{DIRECTORY}")


def _verdict(damage: Damage, files: Files, directory: str) -> str | None:
    complaints: list[str] = []
    try:
        with Store({"v": directory}, files, SHORT) as store:
            complaints += [refusal.why for refusal in store.refused]
            shown = show(store, complaints)
    except Exception as error:
        return f"{damage} raised {type(error).__name__}: {error}"
    wrong = [key for key, answer in shown.items() if truth().get(key) != answer]
    if wrong:
        return f"{damage} changed what is returned: {wrong}"
    if not complaints:
        return f"{damage} went unseen"
    name = damage.path.removeprefix(f"{DIRECTORY}/")
    if not any(name in complaint for complaint in complaints):
        return f"{damage} is not named: {complaints}"
    return None


def try_all(damages: Sequence[Damage]) -> list[str]:
    """What a process of its own does."""
    return [problem for damage in damages if (problem := try_in_memory(damage)) is not None]


def size_of_store() -> int:
    return sum(len(data) for data in sound().values())


if __name__ == "__main__":
    for path, data in sound().items():
        print(f"{len(data):6} {os.path.relpath(path, DIRECTORY)}")
    print(f"{size_of_store():6} bytes")
