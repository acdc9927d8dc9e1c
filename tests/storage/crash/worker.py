"""What does a process do to a store until it is killed? Everything that a store can do, at once.

It says in a journal what it is about to do, and what was done; whoever kills it compares. Each
operation writes two marks along with its rows, one in each half of the token space. So what a store
shows says which operations it has, and how far those got that nobody was told of.
"""

import argparse
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    StoreEpoch,
    TrimLog,
    TruncateLog,
)
from limosa.core.events import HeldReplica
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, Position, TokenRange, position
from limosa.core.model.rows import Entry
from limosa.core.tokens import token_of
from limosa.errors import VolumeFailed
from limosa.storage.files import Files, PosixFiles
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Kind, Table
from tests.storage import sole
from tests.storage.faulty_files import FaultyFiles, Moment, Operation, at_label, kill
from tests.storage.sole import SoleOwner

Key: TypeAlias = tuple[str, str]
Mark: TypeAlias = tuple[str, int]
"""An operation, and the half of the token space that it was done in."""

VOLUMES = ("v1", "v2")
SMALL = StorageSettings(
    log_file_bytes=48 << 10,
    log_bytes_max=160 << 10,
    replica_memory_bytes=24 << 10,
    memory_bytes=96 << 10,
    piece_bytes=12 << 10,
)
HALVES = (TokenRange(TOKEN_MIN, 0), TokenRange(0, TOKEN_END))
BOTH = (0, 1)
INCARNATION = "i1"
OWNED = {"p0": "v1", "p1": "v2", "s0": "v1"}
FOLLOWED = {"f0": "v1", "f1": "v2"}
DROPPED = ("d0", "d1")
COLLECTING = ("p1", "s0")
"""Tombstones go only where nothing is adopted twice: older rows could come back."""
KEYS = 300
CELLS_MAX = 12
TARGETS_MAX = 4
LIFE_SECONDS_MAX = 30.0


def table_of(name: str, columns: dict[str, pa.DataType], kind: Kind = "table") -> Table:
    """Its key is the first column."""
    return Table(name, pa.schema(columns), (next(iter(columns)),), kind)


ROWS = table_of("rows", {"k": pa.int64(), "op": pa.string(), "payload": pa.binary()})
CELLS = table_of("cells", {"k": pa.int64(), "op": pa.string()})
MARKS = table_of("marks", {"mark": pa.string(), "op": pa.string()})
EVENTS = table_of("events", {"op": pa.string(), "n": pa.int64()}, "stream")


# ------------------------------------------------------------------------------------- the journal


class Write(Struct, frozen=True, tag="write", omit_defaults=True):
    """Rows, tombstones and records in one entry of the log, or in one for each half."""

    id: str
    replica: Key
    upserts: tuple[int, ...] = ()
    deletes: tuple[int, ...] = ()
    records: int = 0
    size: int = 0
    producer: str = ""
    sequence: int = 0
    halves: tuple[int, ...] = BOTH


class Put(Struct, frozen=True, tag="put"):
    id: str
    replica: Key
    cell: int


class Create(Struct, frozen=True, tag="create"):
    id: str
    replica: Key


class Drop(Struct, frozen=True, tag="drop"):
    id: str
    replica: Key


class Begin(Struct, frozen=True, tag="begin"):
    id: str
    replica: Key


class Cut(Struct, frozen=True, tag="cut"):
    id: str
    replica: Key
    to: Position


class Advance(Struct, frozen=True, tag="advance"):
    id: str
    replica: Key
    to: Position


class Copy(Struct, frozen=True, tag="copy"):
    """Committed rows of another replica, of some halves, by linked files or by rows."""

    id: str
    replica: Key
    source: Key
    halves: tuple[int, ...]


class Raise(Struct, frozen=True, tag="raise"):
    id: str
    replica: Key
    epoch: int


Intent: TypeAlias = Write | Put | Create | Drop | Begin | Cut | Advance | Copy | Raise


class Acked(Struct, frozen=True, tag="acked"):
    """It was done, durably; at -1 it surely was not."""

    id: str
    at: Position = 0


class Opened(Struct, frozen=True, tag="opened"):
    pass


class Dying(Struct, frozen=True, tag="dying"):
    label: str
    moment: str


class Trouble(Struct, frozen=True, tag="trouble"):
    """Something happened that no kill excuses."""

    what: str


class Labels(Struct, frozen=True, tag="labels"):
    """How often each failpoint was passed."""

    seen: dict[str, int]


Line: TypeAlias = Intent | Acked | Opened | Dying | Trouble | Labels
_decoder = msgspec.json.Decoder(Line)


def read_journal(path: str) -> list[Line]:
    """All whole lines: a kill may have come in the middle of one, though none was seen yet."""
    with open(path, "rb") as file:
        lines: list[Line] = [_decoder.decode(line) for line in file if line.endswith(b"\n")]
    return lines


class Journal:
    """Written straight to the kernel, which outlives the process."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640)
        self._encoder = msgspec.json.Encoder()

    def say(self, line: Line) -> None:
        os.write(self._descriptor, self._encoder.encode(line) + b"\n")


# ------------------------------------------------------------------------------------- rows


@cache
def half_of_key(key: int) -> int:
    return int(HALVES[1].holds(token_of((key,), ROWS.key_types)))


@cache
def half_of_op(op: str) -> int:
    return int(HALVES[1].holds(token_of((op,), EVENTS.key_types)))


def mark_of(op: str, half: int) -> str:
    """A key that lies in this half."""
    tries = (f"{op}/{half}/{salt}" for salt in range(1000))
    return next(key for key in tries if HALVES[half].holds(token_of((key,), MARKS.key_types)))


def payload_of(op: str, size: int) -> bytes:
    return (op.encode() * (size // len(op) + 1))[:size]


def bundle_of(op: Write) -> Bundle:
    """What an operation writes: its content follows from its name."""
    batches = []
    if op.upserts:
        payload = payload_of(op.id, op.size)
        rows = [{"k": key, "op": op.id, "payload": payload} for key in op.upserts]
        batches.append(Batch.of(ROWS, pa.RecordBatch.from_pylist(rows, schema=ROWS.physical)))
    if op.deletes:
        keys = pa.RecordBatch.from_pydict({"k": pa.array(op.deletes, pa.int64())})
        batches.append(Batch.tombstones(ROWS, keys))
    if op.records:
        rows = [{"op": op.id, "n": n} for n in range(op.records)]
        batches.append(Batch.of(EVENTS, pa.RecordBatch.from_pylist(rows, schema=EVENTS.physical)))
    marks = [{"mark": mark_of(op.id, half), "op": op.id} for half in BOTH]
    batches.append(Batch.of(MARKS, pa.RecordBatch.from_pylist(marks, schema=MARKS.physical)))
    bundle = Bundle(batches)
    return bundle if op.halves == BOTH else bundle.within(HALVES[op.halves[0]])


def produced(replica: Key, producer: str, sequence: int, halves: tuple[int, ...] = BOTH) -> Write:
    """The same each time, so that it can be sent again by another life."""
    dice = Random(f"{replica} {producer} {sequence}")
    keys = dice.sample(range(KEYS), dice.randint(2, 6))
    op = f"{replica[0]}.{replica[1]}.{producer}.{sequence}"
    return Write(op, replica, tuple(keys), (), 0, 20, producer, sequence, halves)


# ------------------------------------------------------------------------------------- threads


class Worker:
    """One life of a store."""

    def __init__(self, store: Store, journal: Journal, seed: int, life: int) -> None:
        self.store = store
        self.journal = journal
        self.seed = seed
        self.life = life
        self._names = iter(range(1 << 60))
        self.held = {(h.partition, h.replica.incarnation): h for h in store.restored("node")}
        self.stopping = threading.Event()
        self.owners: dict[Key, SoleOwner] = {}

    def name(self, replica: Key) -> str:
        return f"{replica[0]}.{replica[1]}.{self.life}.{next(self._names)}"

    @contextmanager
    def told(self, intent: Intent) -> Iterator[None]:
        self.journal.say(intent)
        yield
        self.journal.say(Acked(intent.id))

    # --- replicas

    def create(self, replica: Key, volume: str, epoch: int = 1) -> None:
        with self.told(Create(self.name(replica), replica)):
            self.store.write(CreateReplica(*replica, 0, volume))
            self.store.write(BeginLog(*replica, 0, 0, epoch))
            self.store.write(StoreEpoch(*replica, 0, epoch))
            self.store.sync()

    def own(self, replica: Key, volume: str) -> SoleOwner:
        """The owner's next epoch is durable before it writes anything."""
        if replica not in self.held:
            self.create(replica, volume)
            epoch = 2
        else:
            epoch = self.held[replica].epoch + 1
        with self.told(Raise(self.name(replica), replica, epoch)):
            return SoleOwner(self.store, *replica, volume)

    def drop(self, replica: Key) -> None:
        with self.told(Drop(self.name(replica), replica)):
            self.store.write(DiscardReplica(*replica, 0))
            self.store.sync()
        self.held.pop(replica, None)

    # --- rows

    def write(self, owner: SoleOwner, op: Write, floor: int = 0) -> None:
        self.journal.say(op)
        held = None if op.halves == BOTH else HALVES[op.halves[0]]
        at = owner.commit(owner.append(bundle_of(op), op.producer, op.sequence, floor, held))
        self.journal.say(Acked(op.id, at))
        for half in op.halves:
            found = owner.view.find(MARKS, (mark_of(op.id, half),))
            if found is None or (found.version != at and not op.producer):
                raise AssertionError(f"{op.id} was acknowledged at {at}, and is not to be seen")

    def any_write(self, replica: Key, dice: Random, streams: bool = False) -> Write:
        many = dice.random() < 0.06
        keys = dice.sample(range(KEYS), dice.randint(80, 200) if many else dice.randint(1, 6))
        cut = dice.randint(0, len(keys)) if dice.random() < 0.4 else len(keys)
        records = dice.choice((1, 3, 40)) if streams and dice.random() < 0.7 else 0
        size = dice.choice((10, 60, 300))
        return Write(
            self.name(replica), replica, tuple(keys[:cut]), tuple(keys[cut:]), records, size
        )

    def put(self, owner: SoleOwner, replica: Key, dice: Random) -> None:
        """Compare and set; now and then with a version that is not there."""
        cell = dice.randrange(CELLS_MAX)
        op = Put(self.name(replica), replica, cell)
        expected = owner.newest(CELLS, (cell,)) + (dice.random() < 0.1)
        rows = pa.RecordBatch.from_pylist([{"k": cell, "op": op.id}], schema=CELLS.physical)
        self.journal.say(op)
        done, at = owner.put_if(Batch.of(CELLS, rows), expected)
        self.journal.say(Acked(op.id, at if done else -1))

    # --- what the threads do

    def run_writer(self, number: int) -> None:
        """Writes of all kinds to replicas that others write to at the same time."""
        dice = Random(f"{self.seed} {self.life} writer {number}")
        sequences = {name: self._next_sequence(name, number) for name in OWNED}
        while not self.stopping.is_set():
            name = dice.choice(list(OWNED))
            replica = (name, INCARNATION)
            owner = self.owners[replica]
            match dice.choices(("any", "put", "produce", "collect", "read"), (8, 3, 5, 1, 1))[0]:
                case "any":
                    self.write(owner, self.any_write(replica, dice, name == "s0"))
                case "put":
                    self.put(owner, replica, dice)
                case "produce":
                    sequences[name] = self.produce(owner, replica, number, sequences[name], dice)
                case "collect" if name in COLLECTING:
                    owner.collect(owner.view.watermark)
                case "read":
                    self.store.tail(*replica, 0)
                    list(owner.view.scan(ROWS))

    def _next_sequence(self, name: str, number: int) -> int:
        """Of the last one that was applied before: whether it was acknowledged, nobody knows."""
        held = self.held.get((name, INCARNATION))
        known = {p[0]: p[2] for p in held.producers} if held else {}
        return max((sequence for sequence, _ in known.get(f"w{number}", ())), default=1)

    def produce(
        self, owner: SoleOwner, replica: Key, number: int, sequence: int, dice: Random
    ) -> int:
        """Whole or in halves, and perhaps again: what is there already must not change."""
        floor = max(0, sequence - 20) if dice.random() < 0.2 else 0
        again = max(1, sequence - dice.randint(0, 2))
        order = dice.choice(((BOTH,), ((0,), (1,)), ((1,), BOTH), (BOTH, BOTH)))
        for halves in order:
            self.write(owner, produced(replica, f"w{number}", sequence, halves), floor)
        if dice.random() < 0.4:
            self.write(owner, produced(replica, f"w{number}", again))
        return sequence + 1

    def run_follower(self) -> None:
        """Replicas whose entries wait for their commit, and may be cut off before."""
        dice = Random(f"{self.seed} {self.life} follower")
        followers = [Follower(self, (name, INCARNATION), v) for name, v in FOLLOWED.items()]
        while not self.stopping.is_set():
            dice.choice(followers).act(dice)

    def run_manager(self) -> None:
        """Replicas that come and go, and get the rows of others."""
        dice = Random(f"{self.seed} {self.life} manager")
        targets = [key for key in sorted(self.held) if key[0].startswith("t")]
        owners = {key: self.own(key, "") for key in targets}
        while not self.stopping.is_set():
            match dice.choices(("drop", "copy", "merge", "raise", "rest"), (4, 4, 2, 2, 2))[0]:
                case "drop":
                    self.come_and_go(dice)
                case "copy":
                    source = (dice.choice(list(OWNED)), INCARNATION)
                    halves = BOTH if source[0] == "s0" else dice.choice(((0,), (1,), BOTH))
                    self.copy(owners, {source: halves}, dice)
                case "merge":
                    # Of what does not overlap, like partitions: elsewhere versions mean nothing.
                    tables = [key for key in sorted(owners) if not self._has_stream(key)]
                    if len(tables) > 1:
                        low, high = dice.sample(tables, 2)
                        self.copy(owners, {low: (0,), high: (1,)}, dice)
                case "raise":
                    self.raise_epoch((dice.choice(list(OWNED)), INCARNATION), dice)
                case "rest":
                    replica = (dice.choice(list(OWNED)), INCARNATION)
                    dice.choice((self.store.flush, self.store.compact))(*replica)
            while len(owners) > TARGETS_MAX:
                victim = dice.choice(sorted(owners))
                del owners[victim]
                self.drop(victim)

    def come_and_go(self, dice: Random) -> None:
        replica = (dice.choice(DROPPED), INCARNATION)
        if replica in self.held:
            self.drop(replica)
        owner = self.own(replica, dice.choice(VOLUMES))
        for _ in range(dice.randint(1, 6)):
            self.write(owner, self.any_write(replica, dice, streams=True))
            if dice.random() < 0.3:
                self.store.flush(*replica)
        if dice.random() < 0.7:
            self.drop(replica)
        else:
            self.held[replica] = self._held(replica)

    def _held(self, replica: Key) -> HeldReplica:
        for held in self.store.restored("node"):
            if (held.partition, held.replica.incarnation) == replica:
                return held
        raise AssertionError(f"{replica} is not here")

    def _has_stream(self, replica: Key) -> bool:
        return EVENTS.id in self.store.view(*replica).tables

    def copy(
        self,
        owners: dict[Key, SoleOwner],
        sources: Mapping[Key, tuple[int, ...]],
        dice: Random,
    ) -> None:
        """A split, a merge or a copy, while the new replica is written to."""
        number = next(self._names)
        target = (f"t{self.life}-{number}", INCARNATION)
        # Above its past, and unlike any other's: targets write to all keys, and may be merged.
        epoch = 100_000 * (self.life + 1) + 10 * number
        assert epoch > max(self._held(source).epoch for source in sources)
        self.create(target, dice.choice(VOLUMES), epoch)
        self.held[target] = self._held(target)
        owner = owners[target] = self.own(target, "")
        streams = any(source[0] == "s0" or self._has_stream(source) for source in sources)
        by_rows = not streams and dice.random() < 0.3

        def fetch() -> None:
            for source, halves in sources.items():
                with self.told(Copy(self.name(target), target, source, halves)):
                    self._fetch(source, target, halves, by_rows)

        thread = self.spawn(fetch)
        while thread.is_alive() and not streams:
            self.write(owner, self.any_write(target, dice))
        thread.join()
        if streams:
            self.write(owner, self.any_write(target, dice, len(sources) == 1))

    def _fetch(self, source: Key, target: Key, halves: tuple[int, ...], by_rows: bool) -> None:
        held = WHOLE if halves == BOTH else HALVES[halves[0]]
        if by_rows:
            view = self.store.view(*source)
            rows = tuple(
                Bundle(view.batches(each.table, held, tombstones=True))
                for each in view.tables.values()
            )
            self.store.write(ApplySlice(*target, 0, rows, ()))
            self.store.sync()
        else:
            self.store.adopt(source, target, held)

    def raise_epoch(self, replica: Key, dice: Random) -> None:
        epoch = self._held(replica).epoch + dice.randint(1, 3)
        with self.told(Raise(self.name(replica), replica, epoch)):
            self.store.write(StoreEpoch(*replica, 0, epoch))
            self.store.sync()

    # --- life

    def spawn(self, act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except VolumeFailed as error:
                self.fail(f"{error}\n{traceback.format_exc()}")
            except BaseException:
                self.fail(traceback.format_exc())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def fail(self, what: str) -> None:
        self.journal.say(Trouble(what))
        os._exit(4)

    def live(self, seconds: float) -> None:
        """Until the time is up, which a kill rarely waits for."""
        parent, end = os.getppid(), time.monotonic() + seconds
        for name, volume in OWNED.items():
            replica = (name, INCARNATION)
            self.owners[replica] = self.own(replica, volume)
        self.store.start_maintenance()
        threads = [self.spawn(lambda number=n: self.run_writer(number)) for n in range(3)]  # type: ignore[misc]
        threads += [self.spawn(self.run_follower), self.spawn(self.run_manager)]
        while time.monotonic() < end:
            time.sleep(0.02)
            if self.store.troubles:
                self.fail("\n".join(self.store.troubles))
            if os.getppid() != parent:
                os._exit(5)
        self.stopping.set()
        for thread in threads:
            thread.join()


class Follower:
    """A replica that is told what to do, as by an owner elsewhere."""

    def __init__(self, worker: Worker, replica: Key, volume: str) -> None:
        self.worker = worker
        self.replica = replica
        before = worker.held.get(replica)
        self.log: list[Position] = []
        self.watermark, self.epoch, self.sequence = 0, 1, 1
        if before is None:
            worker.create(replica, volume)
        else:
            self.log = [at for at, _ in before.log]
            self.watermark = before.watermark
            self.epoch = before.epoch
        self._raise_epoch()

    def _raise_epoch(self) -> None:
        """What comes now is of another owner."""
        self.epoch += 1
        self.counter = 0
        with self._told(Raise(self._name(), self.replica, self.epoch)):
            self.worker.store.write(StoreEpoch(*self.replica, 0, self.epoch))

    def _name(self) -> str:
        return self.worker.name(self.replica)

    @contextmanager
    def _told(self, intent: Intent) -> Iterator[None]:
        with self.worker.told(intent):
            yield
            self.worker.store.sync()

    @property
    def last(self) -> Position:
        return max(self.log[-1], self.watermark) if self.log else self.watermark

    def act(self, dice: Random) -> None:
        weights = (10, 8, 4, 2, 0.3, 1)
        match dice.choices(("append", "advance", "cut", "trim", "begin", "flush"), weights)[0]:
            case "append":
                self.append(dice)
            case "advance":
                self.advance(dice.choice([self.watermark, *self._open()]))
            case "cut":
                self.cut(dice.choice([self.watermark, *self._open()]))
            case "trim":
                self.trim(dice)
            case "begin":
                self.begin()
            case "flush":
                self.worker.store.flush(*self.replica)

    def _open(self) -> list[Position]:
        return [at for at in self.log if at > self.watermark]

    def append(self, dice: Random) -> None:
        ops, entries = [], []
        for _ in range(dice.randint(1, 4)):
            self.counter += 1
            self.sequence += 1
            op = self.worker.any_write(self.replica, dice)
            producer = f"w{self.worker.life}" if dice.random() < 0.5 else ""
            op = msgspec.structs.replace(op, producer=producer, sequence=self.sequence)
            at = position(self.epoch, self.counter)
            ops.append((op, at))
            rows = bundle_of(op)
            entries.append(Entry(at, self.last, rows, producer, self.sequence))
            self.log.append(at)
            self.worker.journal.say(op)
        self.worker.store.write(AppendEntries(*self.replica, 0, tuple(entries)))
        self.worker.store.sync()
        for op, at in ops:
            self.worker.journal.say(Acked(op.id, at))

    def advance(self, to: Position) -> None:
        self.watermark = max(self.watermark, to)
        with self._told(Advance(self._name(), self.replica, to)):
            self.worker.store.write(AdvanceWatermark(*self.replica, 0, to))

    def cut(self, to: Position) -> None:
        self.log = [at for at in self.log if at <= to]
        with self._told(Cut(self._name(), self.replica, to)):
            self.worker.store.write(TruncateLog(*self.replica, 0, to))
        self._raise_epoch()

    def trim(self, dice: Random) -> None:
        done = [at for at in self.log if at <= self.watermark]
        if done:
            to = dice.choice(done)
            self.log = [at for at in self.log if at > to]
            self.worker.store.write(TrimLog(*self.replica, 0, to))

    def begin(self) -> None:
        """Its log is of no use any more, nor are its rows."""
        self.log.clear()
        self.watermark = position(self.epoch, self.counter)
        with self._told(Begin(self._name(), self.replica)):
            self.worker.store.write(BeginLog(*self.replica, 0, self.watermark, self.epoch))
        self._raise_epoch()


# ------------------------------------------------------------------------------------- the process


def files_of(journal: Journal, failpoint: str) -> Files:
    """The real ones; or those that kill at `label:moment:nth`, or count if the label is empty."""
    if not failpoint:
        return PosixFiles()
    label, moment, nth = failpoint.split(":")

    def die() -> None:
        journal.say(Dying(label, moment))
        kill()

    def plan(operation: Operation, now: Moment) -> None:
        at_label(label, int(nth), moment, die)(operation, now)  # type: ignore[arg-type]

    return FaultyFiles(PosixFiles(), plan)


def directories_of(directory: str) -> dict[str, str]:
    return {volume: f"{directory}/{volume}" for volume in VOLUMES}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("journal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=LIFE_SECONDS_MAX)
    parser.add_argument("--failpoint", default="", help="label:moment:nth")
    options: Any = parser.parse_args(arguments)
    sole.ENTRIES_KEPT = 12
    journal = Journal(options.journal)
    files = files_of(journal, options.failpoint)
    try:
        with Store(directories_of(options.directory), files, SMALL) as store:
            if store.refused:
                raise AssertionError(f"refused: {store.refused}")
            worker = Worker(store, journal, options.seed, options.life)
            journal.say(Opened())
            worker.live(options.seconds)
    except BaseException:
        journal.say(Trouble(traceback.format_exc()))
        raise
    if isinstance(files, FaultyFiles):
        journal.say(Labels(dict(files.seen)))


if __name__ == "__main__":
    main()
