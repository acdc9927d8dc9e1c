"""Does a store keep what a killed process was promised, and nothing that it took back?

A chain of rounds uses one store. In each a worker opens it as the last one left it, is killed, and
a copy of what it leaves is compared with the worker's journal, so that looking changes nothing.
What nobody was told of may be there or not; but what is found once must stay, and what is not found
must never come.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct, field

from limosa.core.effects import AdvanceWatermark
from limosa.core.events import HeldReplica
from limosa.core.model.keys import Position, epoch_of
from limosa.core.model.rows import Entry
from limosa.storage.store import Store
from limosa.storage.view import View
from limosa.tabular.digest import Digest
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from tests.storage.crash.worker import (
    BOTH,
    CELLS,
    EVENTS,
    HALVES,
    MARKS,
    ROWS,
    SMALL,
    Acked,
    Advance,
    Begin,
    Copy,
    Create,
    Cut,
    Drop,
    Dying,
    Intent,
    Key,
    Labels,
    Line,
    Mark,
    Opened,
    Put,
    Raise,
    Trouble,
    Write,
    bundle_of,
    directories_of,
    half_of_key,
    half_of_op,
    payload_of,
    read_journal,
)
from tests.storage.samples import table_digest

REPOSITORY = Path(__file__).parents[3]
ROUNDS_IN_CHAIN = 5
START_SECONDS_MAX = 30.0
LIFE_SECONDS = 0.8
"""How long a worker may live after it has opened the store."""
FAILPOINT_SECONDS_MAX = 4.0
"""How long a failpoint is waited for; then it is killed at no particular moment."""
DRY_SECONDS = 1.5
NTH_MAX = 12

LABELS = (
    *(f"make_directory {kind}" for kind in ("other", "log directory", "replicas directory")),
    *(f"make_directory {kind}" for kind in ("trash", "replica directory")),
    *(f"sync_directory {kind}" for kind in ("other", "log directory", "replicas directory")),
    "sync_directory replica directory",
    *(
        f"{name} {kind}"
        for kind in ("log", "volume", "manifest", "flush segment", "merge segment")
        for name in ("create", "append", "sync")
    ),
    *("overwrite log", "remove log", "replace volume", "replace manifest"),
    *(f"{name} {why} segment" for why in ("flush", "merge") for name in ("link", "remove")),
    *("replace trash", "remove trash"),
)
"""Where a store does something to its files; a dry run may find more."""


class Finding(Struct, frozen=True):
    """Something that must not be: lost, revived, inconsistent or refused."""

    kind: str
    what: str


# ------------------------------------------------------------------------------------- the oracle


class Expected(Struct):
    """What is known of one replica."""

    marks: dict[Mark, Position | None] = field(default_factory=dict)
    """What was written, and its version once that is known."""
    dead: set[str] = field(default_factory=set)
    """What was taken back, or never came."""
    cells: dict[str, tuple[int, Position | None]] = field(default_factory=dict)
    origins: set[tuple[Key, int]] = field(default_factory=set)
    """Whose operations may be here, too, and of which half."""
    epoch: int = 0
    watermark: Position = 0


class Oracle:
    """What a store must show, as far as its journals tell."""

    def __init__(self) -> None:
        self.replicas: dict[Key, Expected] = {}
        self.writes: dict[str, Write] = {}
        self.versions: dict[Mark, Position] = {}
        self.homes: dict[str, Key] = {}
        self.acked_rows = 0
        self._pending: dict[str, Intent] = {}
        self._copying: dict[str, dict[Mark, Position]] = {}
        """What a copy has to bring, because it was acknowledged before."""
        self.troubles: list[str] = []

    # --- reading the journal

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            match line:
                case Acked(id=name, at=at):
                    self._done(self._pending.pop(name), at)
                case Trouble(what=what):
                    self.troubles.append(what)
                case Opened() | Dying() | Labels():
                    pass
                case _:
                    self._pending[line.id] = line
                    self._begun(line)

    def _begun(self, intent: Intent) -> None:
        if isinstance(intent, Create):
            dead = self._expected(intent.replica).dead
            self.replicas[intent.replica] = Expected(dead=dead)
        expected = self._expected(intent.replica)
        match intent:
            case Write(id=name, halves=halves):
                self.writes.setdefault(name, intent)
                self.homes[name] = intent.replica
                expected.dead.discard(name)
                for half in halves:
                    expected.marks.setdefault((name, half), None)
            case Put(id=name, cell=cell):
                expected.cells[name] = (cell, None)
            case Copy(id=name, source=source, halves=halves):
                giver = self._expected(source)
                here = {(source, half) for half in BOTH} | giver.origins
                expected.origins |= {each for each in here if each[1] in halves}
                self._copying[name] = {
                    mark: at
                    for mark, at in giver.marks.items()
                    if at is not None and mark[1] in halves
                }

    def _done(self, intent: Intent, at: Position) -> None:
        expected = self._expected(intent.replica)
        match intent:
            case Write(id=name, halves=halves):
                for half in halves:
                    if expected.marks.get((name, half)) is None:
                        expected.marks[name, half] = self.versions[name, half] = at
                write = self.writes[name]
                self.acked_rows += len(write.upserts) + len(write.deletes) + write.records
            case Put(id=name, cell=cell):
                self.acked_rows += at >= 0
                if at >= 0:
                    expected.cells[name] = (cell, at)
                else:
                    del expected.cells[name]
                    expected.dead.add(name)
            case Drop():
                self._forget(intent.replica)
            case Begin():
                self._empty(expected)
            case Cut(to=to):
                self._cut(expected, to)
            case Advance(to=to):
                expected.watermark = max(expected.watermark, to)
            case Raise(epoch=epoch):
                expected.epoch = max(expected.epoch, epoch)
            case Copy(id=name):
                expected.marks.update(self._copying.pop(name))

    def _expected(self, replica: Key) -> Expected:
        return self.replicas.setdefault(replica, Expected())

    def _empty(self, expected: Expected) -> None:
        expected.dead |= {name for name, _ in expected.marks} | set(expected.cells)
        expected.marks.clear()
        expected.cells.clear()

    def _forget(self, replica: Key) -> None:
        """Another one of that name starts with nothing, but remembers what must not come back."""
        expected = self.replicas.pop(replica)
        self._empty(expected)
        self.replicas[replica] = Expected(dead=expected.dead)
        self.replicas[replica].epoch = -1

    def _cut(self, expected: Expected, to: Position) -> None:
        gone = [mark for mark, at in expected.marks.items() if at is not None and at > to]
        for mark in gone:
            del expected.marks[mark]
            expected.dead.add(mark[0])

    # --- what was under way when it was killed

    def settle(self, held: Mapping[Key, HeldReplica], marks: Mapping[Key, set[Mark]]) -> None:
        """See whether it was done; it must have been done as a whole or not at all."""
        pending, self._pending = self._pending, {}
        self._copying.clear()
        for intent in pending.values():
            key = intent.replica
            expected = self._expected(key)
            match intent:
                case Drop() if key not in held:
                    self._forget(key)
                case Create() if key not in held:
                    expected.epoch = -1
                case Begin() if not marks.get(key):
                    self._empty(expected)
                    expected.watermark = 0
                case Cut(to=to):
                    cut = {m for m, at in expected.marks.items() if at is not None and at > to}
                    if not cut & marks.get(key, set()):
                        self._cut(expected, to)

    # --- comparing

    def check(self, store: Store) -> list[Finding]:
        """Compare, and from now on expect what was found."""
        if store.refused:
            return [Finding("refused", str(refusal)) for refusal in store.refused]
        found = {(h.partition, h.replica.incarnation): h for h in store.restored("node")}
        looks = {
            key: Look(store.view(*key), held, store.tail(*key, 0)) for key, held in found.items()
        }
        self.settle(found, {key: look.all_marks for key, look in looks.items()})
        findings: list[Finding] = []
        for key, expected in self.replicas.items():
            if key not in found and expected.epoch >= 0 and _is_created(expected):
                findings.append(Finding("lost", f"replica {key} is not there"))
        for key, look in looks.items():
            if key not in self.replicas or self.replicas[key].epoch < 0:
                findings.append(Finding("revived", f"replica {key} is there"))
                continue
            findings += self._check_replica(key, look, store)
        return findings

    def _check_replica(self, key: Key, look: "Look", store: Store) -> list[Finding]:
        expected, judge = self.replicas[key], Judge(self, key)
        judge.fence(look, expected)
        judge.log(look)
        judge.rows(look.view, "as it was found")
        last = look.entries[-1].at if look.entries else 0
        store.write(AdvanceWatermark(*key, 0, last))
        view = store.view(*key)
        marks = judge.rows(view, "with all that is in its log")
        judge.marks(marks, expected)
        judge.copies(marks, expected)
        judge.cells(view, expected)
        judge.producers(look.held, marks, expected)
        # What is there now was seen, so it must stay; and what is not must not come.
        expected.dead |= {name for name, half in expected.marks if (name, half) not in marks}
        expected.dead -= {name for name, _ in marks}
        expected.marks = dict(marks)
        self.versions.update({m: at for m, at in marks.items() if self.homes.get(m[0]) == key})
        return judge.findings


def _is_created(expected: Expected) -> bool:
    return bool(expected.epoch > 0 or expected.marks or expected.cells)


class Look:
    """What a store shows of a replica."""

    def __init__(self, view: View, held: HeldReplica, entries: list[Entry]) -> None:
        self.view = view
        self.held = held
        self.entries = entries
        self.logged = {m: e.at for e in entries for m in marks_in(e)}
        self.all_marks = set(marks_of(view)) | set(self.logged)


def rows_of(batch: Batch) -> Iterator[tuple[dict[str, Any], Position]]:
    assert batch.versions is not None
    return zip(batch.columns.to_pylist(), batch.versions.tolist(), strict=True)


def rows_in(view: View, table: Table) -> Iterator[tuple[dict[str, Any], Position]]:
    return (row for batch in view.batches(table) for row in rows_of(batch))


def marks_of(view: View) -> dict[Mark, Position]:
    return {(row["op"], int(row["mark"].split("/")[-2])): at for row, at in rows_in(view, MARKS)}


def marks_in(entry: Entry) -> list[Mark]:
    if entry.rows is None:
        return []
    assert isinstance(entry.rows, Bundle)
    return [
        (row["op"], int(row["mark"].split("/")[-2]))
        for batch in entry.rows.batches
        if batch.table.id == MARKS.id
        for row in batch.columns.to_pylist()
    ]


class Judge:
    """Compares one replica with what is expected of it."""

    def __init__(self, oracle: Oracle, key: Key) -> None:
        self.oracle = oracle
        self.key = key
        self.findings: list[Finding] = []

    def say(self, kind: str, what: str) -> None:
        self.findings.append(Finding(kind, f"{self.key[0]}~{self.key[1]}: {what}"))

    def equal(self, found: object, wanted: object, what: str) -> None:
        if found != wanted:
            self.say("inconsistent", f"{what}: {found!s:.400} is not {wanted!s:.400}")

    def fence(self, look: Look, expected: Expected) -> None:
        held = look.held
        if held.epoch < expected.epoch:
            self.say("lost", f"epoch {expected.epoch} was stored, {held.epoch} is there")
        if held.watermark < expected.watermark:
            self.say("lost", f"watermark {expected.watermark}, {held.watermark} is there")
        newest = max([*marks_of(look.view).values(), *look.logged.values()], default=0)
        if epoch_of(newest) > held.epoch:
            self.say("inconsistent", f"rows of {epoch_of(newest)} behind a fence of {held.epoch}")

    def log(self, look: Look) -> None:
        """Entries follow each other, hold what was sent, and are visible if they are committed."""
        entries, visible = look.entries, marks_of(look.view)
        for before, entry in pairwise(entries):
            self.equal(entry.previous, before.at, "an entry's predecessor")
        if entries and not entries[0].at > look.held.first:
            self.say("revived", f"entry {entries[0].at} was trimmed by {look.held.first}")
        for entry in entries:
            marks = marks_in(entry)
            if not marks:
                continue
            self._content(entry, marks)
            for mark in marks:
                wanted = entry.at if entry.at <= look.held.watermark else None
                self.equal(visible.get(mark), wanted, f"{mark} of entry {entry.at}")

    def _content(self, entry: Entry, marks: list[Mark]) -> None:
        name = marks[0][0]
        write = self.oracle.writes.get(name)
        if write is None or entry.rows is None:
            self.say("inconsistent", f"nobody wrote {name}")
            return
        whole = bundle_of(write if write.halves == BOTH else _whole(write))
        wanted = sum(whole.within(HALVES[half]).digest() for _, half in marks)
        self.equal(entry.rows.digest(), wanted, f"the rows of entry {entry.at}")

    def rows(self, view: View, when: str) -> dict[Mark, Position]:
        """What each visible operation wrote, and nothing else; in the order of their versions."""
        marks = marks_of(view)
        wanted: dict[int, tuple[str, Position]] = {}
        records: list[dict[str, Any]] = []
        for (name, half), at in sorted(marks.items(), key=lambda each: (each[1], each[0])):
            write = self.oracle.writes.get(name)
            if write is None:
                self.say("inconsistent", f"nobody wrote {name}")
                continue
            if at > view.watermark and self.oracle.homes[name] == self.key:
                self.say("inconsistent", f"{name} is visible at {at}, but not committed")
            for row in write.upserts:
                if half_of_key(row) == half:
                    wanted[row] = (name, at)
            for row in write.deletes:
                if half_of_key(row) == half:
                    wanted.pop(row, None)
            if half_of_op(name) == half:
                records += [{"op": name, "n": n} for n in range(write.records)]
        found = {row["k"]: (row["op"], at) for row, at in rows_in(view, ROWS)}
        for row in sorted(found.keys() | wanted.keys()):
            if found.get(row) != wanted.get(row):
                self._row(row, found.get(row), wanted.get(row), when)
        self._reads(view, found)
        self._records(view, records)
        return marks

    def _row(
        self,
        row: int,
        found: tuple[str, Position] | None,
        wanted: tuple[str, Position] | None,
        when: str,
    ) -> None:
        older = found is None or (wanted is not None and found[1] < wanted[1])
        kind = "lost" if wanted is not None and older else "revived"
        self.say(kind, f"row {row} is {found}, not {wanted}, {when}")

    def _reads(self, view: View, found: Mapping[int, tuple[str, Position]]) -> None:
        """However one asks, the answer is the same."""
        for row, (name, at) in list(found.items())[:20]:
            one = view.find(ROWS, (row,))
            self.equal(None if one is None else one.version, at, f"the version of row {row}")
            if name not in self.oracle.writes:
                continue
            payload = payload_of(name, self.oracle.writes[name].size)
            wanted = {"k": row, "op": name, "payload": payload}
            self.equal(view.get(ROWS, (row,)), wanted, f"row {row}")
        self.equal(view.count(ROWS), len(found), "the count of rows")
        halves = [table_digest(view, ROWS, held) for held in HALVES]
        self.equal(sum(halves, Digest.EMPTY), table_digest(view, ROWS), "the digest of both halves")

    def _records(self, view: View, wanted: list[dict[str, Any]]) -> None:
        _, records = view.read_from(EVENTS, 0, 1 << 30)
        found = records.to_pylist()
        self.equal(view.next_offset(EVENTS), len(found), "the next offset")
        for offset, (some, other) in enumerate(zip(found, wanted, strict=False)):
            if some != other:
                self.say("inconsistent", f"record {offset} is {some}, not {other}")
                break
        if len(found) < len(wanted):
            self.say("lost", f"{len(wanted) - len(found)} records of {len(wanted)}")
        if len(found) > len(wanted):
            self.say("revived", f"{len(found) - len(wanted)} records after {len(wanted)}")
        middle = len(wanted) // 2
        _, rest = view.read_from(EVENTS, middle, 7)
        self.equal(rest.to_pylist(), found[middle : middle + 7], f"records from {middle} on")

    def marks(self, marks: Mapping[Mark, Position], expected: Expected) -> None:
        """acknowledged ⊆ there ⊆ tried"""
        for mark, at in expected.marks.items():
            if at is not None and mark not in marks:
                self.say("lost", f"{mark} was acknowledged at {at}")
            elif at is not None:
                self.equal(marks[mark], at, f"the version of {mark}")
        for mark, at in marks.items():
            if mark[0] in expected.dead:
                self.say("revived", f"{mark} at {at} was taken back, or never done")
            elif mark not in expected.marks and not self._is_copied(mark, expected):
                self.say("inconsistent", f"nobody wrote {mark} here")
        whole = [name for name, half in marks if self._is_whole(name)]
        for name, count in Counter(whole).items():
            if self.oracle.homes[name] == self.key and count != 2:
                self.say("inconsistent", f"only half of {name} is there")

    def _is_whole(self, name: str) -> bool:
        return name in self.oracle.writes and not self.oracle.writes[name].producer

    def _is_copied(self, mark: Mark, expected: Expected) -> bool:
        return (self.oracle.homes.get(mark[0]), mark[1]) in expected.origins

    def copies(self, marks: Mapping[Mark, Position], expected: Expected) -> None:
        """A copy shows another replica at one moment: no gaps, and the same versions."""
        newest: dict[tuple[Key, int], Position] = {}
        for mark, at in marks.items():
            if mark[0] not in self.oracle.homes:
                continue
            origin = (self.oracle.homes[mark[0]], mark[1])
            newest[origin] = max(at, newest.get(origin, 0))
            if origin[0] != self.key and mark in self.oracle.versions:
                self.equal(at, self.oracle.versions[mark], f"the version of {mark}, a copy")
        for mark, at in self.oracle.versions.items():
            origin = (self.oracle.homes[mark[0]], mark[1])
            is_known = origin in expected.origins and origin[0] != self.key
            if is_known and at <= newest.get(origin, 0) and mark not in marks:
                self.say("lost", f"{mark} at {at}, a copy, though later ones are there")

    def cells(self, view: View, expected: Expected) -> None:
        """Compare-and-set: the last one that was acknowledged, or a later one."""
        found = {row["k"]: (row["op"], at) for row, at in rows_in(view, CELLS)}
        kept: dict[str, tuple[int, Position | None]] = {}
        for cell, (name, at) in found.items():
            if name in expected.dead:
                self.say("revived", f"cell {cell} is {name}")
            known = expected.cells.get(name)
            copied = any(home[0] == name.split(".")[0] for home, _ in expected.origins)
            if known is None and not copied:
                self.say("inconsistent", f"nobody put {name} into cell {cell}")
            elif known is not None:
                self.equal(known, (cell, at if known[1] is not None else None), f"cell {cell}")
            kept[name] = (cell, at)
        for name, (cell, put_at) in expected.cells.items():
            if put_at is not None and put_at > found.get(cell, ("", -1))[1]:
                self.say("lost", f"{name}, put into cell {cell} at {put_at}")
        expected.dead |= expected.cells.keys() - kept.keys()
        expected.cells = kept

    def producers(
        self, held: HeldReplica, marks: Mapping[Mark, Position], expected: Expected
    ) -> None:
        """A sequence counts as applied exactly where its rows are."""
        floors = {producer: floor for producer, floor, _ in held.producers}
        applied: set[tuple[str, int, int, Position]] = set()
        for producer, _, all_parts in held.producers:
            for sequence, parts in all_parts:
                for part in parts:
                    halves = [h for h in BOTH if part.range.holds(HALVES[h].start)]
                    applied |= {(producer, sequence, half, part.at) for half in halves}
        there: set[tuple[str, int, int, Position]] = set()
        for (name, half), at in marks.items():
            write = self.oracle.writes.get(name)
            if write is None or not write.producer or self.oracle.homes[name] != self.key:
                continue
            if write.sequence >= floors.get(write.producer, 0):
                there.add((write.producer, write.sequence, half, at))
        # A whole batch that was sent after one of its halves counts for both, and wrote one.
        first: dict[tuple[str, int, int], Position] = {}
        for producer, sequence, half, at in sorted(applied, reverse=True):
            first[producer, sequence, half] = at
        self.equal(
            first, {each[:3]: each[3] for each in there}, "sequences applied, and rows there"
        )


def _whole(write: Write) -> Write:
    return Write(
        write.id,
        write.replica,
        write.upserts,
        write.deletes,
        write.records,
        write.size,
        write.producer,
        write.sequence,
    )


# ------------------------------------------------------------------------------------- kills


class Kill(Struct, frozen=True):
    """When the worker dies: at a failpoint, or so many seconds after it opened the store."""

    label: str = ""
    moment: str = ""
    nth: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.label}:{self.moment}:{self.nth}" if self.label else f"{self.seconds:.3f}"

    @staticmethod
    def parse(text: str) -> "Kill":
        if ":" not in text:
            return Kill(seconds=float(text))
        label, moment, nth = text.split(":")
        return Kill(label, moment, int(nth))

    @property
    def cell(self) -> str:
        return f"{self.label}:{self.moment}"


def cells_of(labels: Iterable[str]) -> list[str]:
    """Every failpoint: each label, at each moment that it has."""
    return [
        f"{label}:{moment}"
        for label in sorted(labels)
        for moment in ("before", "middle", "after")
        if moment != "middle" or label.startswith("append ")
    ]


def random_kill(dice: Random) -> Kill:
    """Mostly under load; now and then while the store is being opened."""
    return Kill(seconds=-dice.random() if dice.random() < 0.15 else dice.random() * LIFE_SECONDS)


class Result(Struct):
    """What came of a chain of rounds."""

    seed: int
    kills: list[Kill]
    findings: list[Finding] = field(default_factory=list)
    at_failpoints: Counter[str] = field(default_factory=Counter)
    at_random: int = 0
    rounds: int = 0
    acked_rows: int = 0
    directory: str = ""
    """Kept if something was found."""


class Chain:
    """Several kills of one store, one after the other."""

    def __init__(self, seed: int, kills: Sequence[Kill], stop: threading.Event | None = None):
        self._seed = seed
        self._kills = list(kills)
        self._stop = stop or threading.Event()
        self._oracle = Oracle()
        self._result = Result(seed, self._kills)

    def run(self) -> Result:
        directory = tempfile.mkdtemp(prefix="limosa-crash-")
        try:
            for life, kill in enumerate(self._kills):
                if self._stop.is_set() or self._result.findings:
                    break
                self._round(directory, life, kill)
            if not self._result.findings:
                self._check(f"{directory}/store")
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._result.acked_rows = self._oracle.acked_rows
        if self._result.findings and not self._stop.is_set():
            self._result.directory = directory
        else:
            shutil.rmtree(directory, ignore_errors=True)
        return self._result

    def _round(self, directory: str, life: int, kill: Kill) -> None:
        journal = f"{directory}/journal-{life}"
        died = run_worker(f"{directory}/store", journal, self._seed, life, kill, self._stop)
        if self._stop.is_set():
            return
        if isinstance(died, str):
            self._result.findings.append(Finding("inconsistent", died))
        lines = read_journal(journal)
        self._oracle.read(lines)
        dying = [f"{line.label}:{line.moment}" for line in lines if isinstance(line, Dying)]
        self._result.at_failpoints.update(dying)
        self._result.at_random += not dying
        self._result.rounds += 1
        for trouble in self._oracle.troubles:
            kind = "refused" if "refused: " in trouble else "inconsistent"
            self._result.findings.append(Finding(kind, f"the worker of round {life}: {trouble}"))
        if not self._result.findings:
            self._check_copy(directory)

    def _check_copy(self, directory: str) -> None:
        copy = f"{directory}/copy"
        shutil.copytree(f"{directory}/store", copy)
        try:
            self._check(copy)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _check(self, path: str) -> None:
        with Store(directories_of(path), settings=SMALL) as store:
            self._result.findings += self._oracle.check(store)


def run_worker(
    store: str, journal: str, seed: int, life: int, kill: Kill, stop: threading.Event
) -> str | None:
    """Start a worker and see it die; what it died of, if it was not killed."""
    arguments = [store, journal, "--seed", str(seed), "--life", str(life)]
    if kill.label:
        arguments += ["--failpoint", str(kill)]
    os.makedirs(store, exist_ok=True)
    worker = start_worker(arguments)
    try:
        if kill.seconds < 0:
            _wait(worker, 1.0 + kill.seconds, stop)
        else:
            _wait(worker, START_SECONDS_MAX, stop, journal)
            _wait(worker, FAILPOINT_SECONDS_MAX if kill.label else kill.seconds, stop)
    finally:
        worker.send_signal(signal.SIGKILL)
        _, errors = worker.communicate(timeout=START_SECONDS_MAX)
    open(journal, "ab").close()  # perhaps it was killed before it could say anything
    if worker.returncode in (-signal.SIGKILL, 4):  # 4: the journal says why
        return None
    return f"the worker of round {life} ended with {worker.returncode}: {errors}"


def start_worker(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.storage.crash.worker", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for whoever started it
    )


def _wait(
    worker: "subprocess.Popen[str]", seconds: float, stop: threading.Event, journal: str = ""
) -> None:
    """For so long, or until it has died or has said something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and worker.poll() is None and not stop.is_set():
        if journal and os.path.exists(journal) and os.path.getsize(journal):
            return
        time.sleep(min(0.005, max(0.0, end - time.monotonic())))


def dry_run(seed: int) -> dict[str, int]:
    """Which failpoints there are, and how often a worker passes each: in a new store, and again."""
    directory = tempfile.mkdtemp(prefix="limosa-crash-")
    seen: Counter[str] = Counter()
    try:
        os.makedirs(f"{directory}/store")
        for life in range(2):
            journal = f"{directory}/journal-{life}"
            arguments = [f"{directory}/store", journal, "--seed", str(seed), "--life", str(life)]
            arguments += ["--failpoint", "none:before:0", "--seconds", str(DRY_SECONDS)]
            worker = start_worker(arguments)
            try:
                _, errors = worker.communicate(timeout=START_SECONDS_MAX)
            finally:
                worker.kill()
                worker.wait()
            lines = read_journal(journal)
            if worker.returncode or not isinstance(lines[-1], Labels):
                raise RuntimeError(f"a worker that nobody killed failed: {lines[-1]} {errors}")
            seen |= Counter(lines[-1].seen)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return dict(seen)


def failpoint_kill(cell: str, seen: Mapping[str, int], dice: Random) -> Kill:
    """Early enough that it is reached before long."""
    label, moment = cell.split(":")
    return Kill(label, moment, dice.randint(1, max(1, min(NTH_MAX, seen.get(label, 1) // 4))))
