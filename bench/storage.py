"""What does the storage engine cost, beside a bare log, and beside others?

Rows of 123 bytes: (key, moment, price, amount, text). Contenders take turns in one process, so that
a noisy machine disturbs all alike. Everything is durable: one sync for each upsert, on both sides;
pipelined, one for each group of them. The last line is JSON.

    python bench/storage.py [--quick]
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from limosa.core.tokens import tokens
from limosa.storage.store import Store
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._storage_peers import DuckDb, Peer, RocksDb, Sqlite
from tests.storage.sole import SoleOwner

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "upsert_1k_to_raw_log":            (">=", 0.7),
    "upsert_10k_to_raw_log":           (">=", 0.7),
    "pipelined_1k_to_raw_log":         (">=", 0.7),
    "pipelined_10k_to_raw_log":        (">=", 0.7),
    "upsert_into_5m_to_empty":         (">=", 0.7),
    "upsert_10k_to_duckdb":            (">=", 3.0),
    "upsert_10k_to_sqlite":            (">=", 20.0),
    "upsert_10k_to_rocksdb":           (">=", 20.0),
    "get_p50_to_sqlite":               ("<=", 1.0),
    "scan_to_plain_read":              (">=", 0.7),
    "compaction_to_sort_in_memory":    ("<=", 2.0),
    "resident_gigabytes":              ("<=", 1.5),
    "space_amplification":             ("<=", 2.0),
}
# fmt: on

COLUMNS: dict[str, pa.DataType] = {
    "key": pa.int64(),
    "moment": pa.int64(),
    "price": pa.float64(),
    "amount": pa.int64(),
    "text": pa.string(),
}
SCHEMA = pa.schema(COLUMNS)
TABLE = Table("ticks", SCHEMA, ("key",))
TEXT_BYTES = 91


def make(dice: np.random.Generator, rows: int, keys: int) -> pa.RecordBatch:
    key = dice.integers(0, keys, rows)
    letters = dice.integers(97, 123, rows * TEXT_BYTES, dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes())]
    text = pa.Array.from_buffers(pa.string(), rows, buffers)
    columns: list[Any] = [
        pa.array(key),
        pa.array(dice.integers(0, 1 << 50, rows)),
        pa.array(dice.random(rows)),
        pa.array(dice.integers(0, 1000, rows)),
        text,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def sequential(dice: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    batch = make(dice, rows, 1)
    keys = pa.array(np.arange(first, first + rows))
    return pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], schema=SCHEMA)


# ---------------------------------------------------------------- contenders


class RawLog:
    """Serialise, write, sync: what no durable store can do without."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "raw.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append(self, batch: pa.RecordBatch) -> pa.Buffer:
        return batch.serialize()

    def sync(self, bodies: Sequence[pa.Buffer]) -> None:
        os.writev(self._file, bodies)
        os.fdatasync(self._file)

    def upsert(self, batch: pa.RecordBatch) -> None:
        self.sync([self.append(batch)])

    def close(self) -> None:
        os.close(self._file)


class Limosa:
    """One replica on one volume."""

    def __init__(self, directory: Path, maintained: bool = True) -> None:
        self.store = Store({"v1": str(directory / "limosa")})
        self.owner = SoleOwner(self.store, "p1", "i1")
        if maintained:
            self.store.start_maintenance()

    def upsert(self, batch: pa.RecordBatch) -> None:
        self.owner.upsert(Batch.of(TABLE, batch))

    def append(self, batch: pa.RecordBatch) -> int:
        return self.owner.append(Bundle([Batch.of(TABLE, batch)]))

    def sync(self, positions: Sequence[int]) -> None:
        self.owner.commit(positions[-1])

    def settle(self) -> None:
        self.store.compact("p1", "i1")

    def close(self) -> None:
        self.store.close()


def seconds(act: Callable[[], Any]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def race(contenders: dict[str, Peer], batches: Sequence[pa.RecordBatch]) -> dict[str, float]:
    """Median seconds of an upsert; all take the same batches, in turn, and each is first in turn:
    whoever comes first brings a batch into the processor's cache."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for batch in batches:
        order.append(order.pop(0))
        for name, contender in order:
            taken[name].append(seconds(lambda c=contender, b=batch: c.upsert(b)))  # type: ignore[misc]
    return {name: statistics.median(times) for name, times in taken.items()}


def pipelined(contender: Any, batches: Sequence[pa.RecordBatch], group: int) -> float:
    """Seconds for all: while a group of batches is being synced, the next one is prepared."""
    start = perf_counter()
    syncing: Thread | None = None
    for first in range(0, len(batches), group):
        ready = [contender.append(batch) for batch in batches[first : first + group]]
        if syncing is not None:
            syncing.join()
        syncing = Thread(target=contender.sync, args=(ready,))
        syncing.start()
    if syncing is not None:
        syncing.join()
    return perf_counter() - start


# ---------------------------------------------------------------- what is measured


class Report:
    """Ratios as they come in, and what else is worth knowing."""

    def __init__(self) -> None:
        self.ratios: dict[str, float] = {}
        self.notes: dict[str, float] = {}

    def ratio(self, name: str, value: float) -> None:
        self.ratios[name] = round(value, 3)
        sign, aim = AIMS[name]
        print(f"  {name:32} {value:9.3f}   aim {sign} {aim}", flush=True)

    def note(self, name: str, value: float) -> None:
        self.notes[name] = round(value, 3)
        print(f"  {name:32} {value:9.3f}", flush=True)


def against_the_raw_log(report: Report, root: Path, quick: bool) -> None:
    dice = np.random.default_rng(1)
    for rows, count, group in ((1_000, 400, 8), (10_000, 120, 2)):
        count = count // 8 if quick else count
        batches = [make(dice, rows, 1_000_000) for _ in range(count)]
        name = f"{rows // 1000}k"
        with contenders(root, Limosa=Limosa, RawLog=RawLog) as both:
            race(both, batches[:10])
            times = race(both, batches)
            report.ratio(f"upsert_{name}_to_raw_log", times["RawLog"] / times["Limosa"])
            report.note(f"upsert_{name}_mrows_per_second", rows / times["Limosa"] / 1e6)
        with contenders(root, Limosa=Limosa, RawLog=RawLog) as both:
            rounds = [
                {each: pipelined(both[each], batches[at : at + 10 * group], group) for each in both}
                for at in range(0, count, 10 * group)
            ]
            ratios = [times["RawLog"] / times["Limosa"] for times in rounds]
            report.ratio(f"pipelined_{name}_to_raw_log", statistics.median(ratios))


def with_size(report: Report, root: Path, quick: bool) -> None:
    """Half of the rows of each batch are in the large partition already."""
    dice = np.random.default_rng(2)
    rows = 500_000 if quick else 5_000_000
    with contenders(root, large=Limosa, empty=Limosa) as both:
        for first in range(0, rows, 100_000):
            both["large"].upsert(sequential(dice, 100_000, first))
        while both["large"].store.maintain():
            pass
        batches = [make(dice, 10_000, 2 * rows) for _ in range(20 if quick else 100)]
        times = race(both, batches)
        report.ratio("upsert_into_5m_to_empty", times["empty"] / times["large"])


def against_others(report: Report, root: Path, quick: bool) -> None:
    dice = np.random.default_rng(3)
    rows = 100_000 if quick else 1_000_000
    makers = {"Limosa": Limosa, "DuckDb": DuckDb, "Sqlite": Sqlite, "RocksDb": RocksDb}
    with contenders(root, **makers) as everyone:
        for first in range(0, rows, 50_000):
            loaded = sequential(dice, 50_000, first)
            for contender in everyone.values():
                contender.upsert(loaded)
        for contender in everyone.values():
            contender.settle()
        batches = [make(dice, 10_000, 2 * rows) for _ in range(4 if quick else 12)]
        times = race(everyone, batches)
        for name in ("DuckDb", "Sqlite", "RocksDb"):
            report.ratio(f"upsert_10k_to_{name.lower()}", times[name] / times["Limosa"])
        gets(report, everyone, dice, rows)


def gets(report: Report, everyone: dict[str, Any], dice: np.random.Generator, rows: int) -> None:
    """Both return Python values; of ours some rows are in memory and some in segments."""
    ours, theirs = everyone["Limosa"].owner, everyone["Sqlite"]
    keys = dice.integers(0, rows, 4_000).tolist()
    view = ours.view
    assert view.get(TABLE, (keys[0],))["moment"] == theirs.get(keys[0])[1]
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for key in keys:
        taken["ours"].append(seconds(lambda k=key: view.get(TABLE, (k,))))  # type: ignore[misc]
        taken["theirs"].append(seconds(lambda k=key: theirs.get(k)))  # type: ignore[misc]
    medians = {name: statistics.median(times) for name, times in taken.items()}
    report.ratio("get_p50_to_sqlite", medians["ours"] / medians["theirs"])
    report.note("get_p50_microseconds", medians["ours"] * 1e6)
    many = pa.record_batch({"key": keys})
    each = seconds(lambda: view.get_many(TABLE, many)) / len(keys)
    report.note("get_many_microseconds_a_row", each * 1e6)


def scan_and_compaction(report: Report, root: Path, quick: bool) -> None:
    dice = np.random.default_rng(4)
    rows = 300_000 if quick else 3_000_000
    with contenders(root, Limosa=lambda directory: Limosa(directory, maintained=False)) as only:
        limosa = only["Limosa"]
        written = []
        processor = 0.0
        for number in range(rows // 100_000):
            batch = make(dice, 100_000, rows)
            written.append(batch)
            limosa.upsert(batch)
            if number % 5 == 4:
                processor -= process_time()
                limosa.store.flush("p1", "i1")
                processor += process_time()
        report.note("flush_cpu_microseconds_a_row", processor / rows * 1e6)
        report.note("segments_to_compact", len(limosa.owner.view.tables[TABLE.id].segments))
        processor -= process_time()
        compacting = seconds(limosa.settle)
        processor += process_time()
        report.note("flush_and_merge_cpu_microseconds", processor / rows * 1e6)
        report.ratio("compaction_to_sort_in_memory", compacting / sort_in_memory(written))
        plain = root / "plain.arrow"
        view = limosa.owner.view
        with pa.OSFile(str(plain), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in view.scan(TABLE):
                writer.write_batch(batch.cast(SCHEMA))
        read(lambda: view.scan(TABLE))
        ratios = []
        for _ in range(5):
            theirs = read(lambda: plain_batches(plain))
            ratios.append(theirs / read(lambda: view.scan(TABLE)))
        report.ratio("scan_to_plain_read", statistics.median(ratios))


def sort_in_memory(batches: Sequence[pa.RecordBatch]) -> float:
    """Sort the same rows by token and keep the last of each key."""

    def sort() -> None:
        table = pa.Table.from_batches(batches).combine_chunks()
        order = np.argsort(tokens([table.column("key")]), kind="stable")
        table.take(order)

    return seconds(sort)


def plain_batches(path: Path) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


def read(batches: Callable[[], Iterator[pa.RecordBatch]]) -> float:
    """Seconds to have every byte ready to be sent."""
    return seconds(lambda: [batch.serialize() for batch in batches()])


def large_node(report: Report, root: Path, quick: bool) -> None:
    """A node with 64 partitions and 5M rows, half of them written twice, killed at the end."""
    directory = root / "node"
    rows = 500_000 if quick else 5_000_000
    command = [sys.executable, __file__, "--node", str(directory), "--rows", str(rows)]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=900)
    assert child.returncode == -signal.SIGKILL, child.returncode
    found = json.loads(child.stdout)
    report.ratio("resident_gigabytes", found["resident_bytes"] / 1e9)
    report.ratio("space_amplification", found["stored_bytes"] / found["live_bytes"])
    start = perf_counter()
    with Store({"v1": str(directory)}) as store:
        report.note("open_after_a_crash_seconds", perf_counter() - start)
        assert not store.refused
        counted = sum(store.view(*key).count(TABLE) for key in store.sizes())
        assert counted == rows, counted


def be_a_node(directory: str, rows: int) -> None:
    dice = np.random.default_rng(5)
    store = Store({"v1": directory})
    owners = [SoleOwner(store, f"p{number}", "i1") for number in range(64)]
    store.start_maintenance()
    for first in range(0, rows, 20_000):
        owner = owners[first // 20_000 % 64]
        owner.upsert(Batch.of(TABLE, sequential(dice, 20_000, first)))
        if first // 20_000 % 2:
            owner.upsert(Batch.of(TABLE, sequential(dice, 20_000, first)))
    for owner in owners:
        store.flush(owner.partition, "i1")
    while store.maintain():
        pass
    owners[0].upsert(Batch.of(TABLE, sequential(dice, 1_000, 0)))
    for owner in owners:
        for _ in owner.view.scan(TABLE):
            pass
    live = sum(b.nbytes for owner in owners for b in owner.view.scan(TABLE))
    found = {"resident_bytes": resident(), "stored_bytes": stored(directory), "live_bytes": live}
    print(json.dumps(found), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def resident() -> int:
    """The most that this process ever had in memory, mapped files included."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def stored(directory: str) -> int:
    replicas = Path(directory, "replicas").rglob("*")
    return sum(path.stat().st_size for path in replicas if path.is_file())


# ---------------------------------------------------------------- running it


class contenders:  # noqa: N801  reads as a function
    """Each in an empty directory; closed and removed at the end."""

    def __init__(self, root: Path, **makers: Callable[[Path], Any]) -> None:
        self._root = root
        self._makers = makers
        self._made: dict[str, Any] = {}

    def __enter__(self) -> dict[str, Any]:
        for name, maker in self._makers.items():
            directory = self._root / name
            directory.mkdir()
            self._made[name] = maker(directory)
        return self._made

    def __exit__(self, *error: object) -> None:
        for name, contender in self._made.items():
            contender.close()
            shutil.rmtree(self._root / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.node:
        be_a_node(given.node, given.rows)
    report = Report()
    parts = [against_the_raw_log, with_size, against_others, scan_and_compaction, large_node]
    for part in parts:
        print(part.__name__.replace("_", " "), flush=True)
        with tempfile.TemporaryDirectory(prefix="limosa-bench-") as root:
            part(report, Path(root), given.quick)
    missing = [name for name in AIMS if name not in report.ratios]
    met = not missing and all(_holds(name, value) for name, value in report.ratios.items())
    aims = {name: f"{sign} {aim}" for name, (sign, aim) in AIMS.items()}
    result = {"bench": "storage", "ratios": report.ratios, "aims": aims, "met": met}
    print(json.dumps({**result, "missing": missing, "notes": report.notes}))
    return 0 if met else 1


def _holds(name: str, value: float) -> bool:
    sign, aim = AIMS[name]
    return value >= aim if sign == ">=" else value <= aim


if __name__ == "__main__":
    sys.exit(main())
