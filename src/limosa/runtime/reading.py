"""How does a node answer a read? Beside the event loop, as `core.participant.reading` decides."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa

from limosa.core.messages import Answer, Found, Read, Redirect, Refuse, Wait
from limosa.core.participant.brain import Participant
from limosa.core.participant.reading import Admitted
from limosa.errors import (
    BadInput,
    DamagedFile,
    InvalidKey,
    LimosaError,
    Redirected,
    Refused,
    TooManyBytes,
)
from limosa.protocol.scan import Scan
from limosa.protocol.wire import FoundRow, FoundRows, Keys
from limosa.runtime.traffic import Traffic
from limosa.storage.maintenance import OnDamage
from limosa.storage.store import Store
from limosa.storage.view import StoredRow, View
from limosa.tabular.conditions import condition_of
from limosa.tabular.rows import concat_columns
from limosa.tabular.schema import Table
from limosa.tabular.sizes import FOUND_BYTES_MAX, INLINE_ROW_BYTES
from limosa.tabular.soundness import brief

_LONG = (str, bytes)
ALIVE_SECONDS = 1.0
KEYS_MAX = 100_000
KEYS_AT_ONCE = 8
FOUND_BYTES_AIM = 2 << 20


class ViewReader:
    """Carries out reads as the core decides them: admit, take a view, check."""

    def __init__(
        self,
        brain: Participant,
        store: Store,
        now: Callable[[], float],
        traffic: Traffic,
        on_damage: OnDamage,
    ) -> None:
        self._decide = brain.reading
        self._store = store
        self._now = now
        self._traffic = traffic
        self._on_damage = on_damage

    def read(self, message: Read) -> Answer:
        admitted = self._decide.admit(self._now(), message)
        if not isinstance(admitted, Admitted):
            return admitted
        assert isinstance(message.keys, Keys)
        many = message.keys.many
        self._traffic.read(message.partition, 1 if many is None else many.num_rows)
        view = self._view(admitted)
        try:
            rows = None if view is None else look_up(view, message.keys)
        except DamagedFile as error:
            self._on_damage(*admitted.replica, error)
            return self._decide.unreadable(admitted)
        refusal = self._check(admitted, view)
        return Found(message.id, rows) if refusal is None else refusal

    def scan(self, scan: Scan, table: Table) -> Iterator[pa.RecordBatch]:
        """The rows of one snapshot; raises before the first row if this node may not serve them."""
        where = (scan.partition, scan.version, scan.epoch, scan.revision)
        read = Read("scan", *where, None, table.id, scan.eventual)
        admitted = self._decide.admit(self._now(), read)
        if not isinstance(admitted, Admitted):
            raise Redirected(_words(admitted), "refresh the topology and ask again")
        view = self._view(admitted)
        refusal = self._check(admitted, view)
        if view is None or refusal is not None:
            raise Redirected("the partition changed hands", "refresh the topology and ask again")
        condition = condition_of(table, scan.where)
        rows = view.scan(table, scan.columns, condition, empty_too=True)
        return _alive(self._readable(admitted, rows))

    def _readable(
        self, admitted: Admitted, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except DamagedFile as error:
            self._on_damage(*admitted.replica, error)
            answer = self._decide.unreadable(admitted)
            if isinstance(answer, Refuse):
                raise Refused(answer.why, answer.advice) from None
            raise Redirected(_words(answer), "refresh the topology and ask again") from None

    def _check(self, admitted: Admitted, view: View | None) -> Answer | None:
        through = None if view is None else view.watermark
        return self._decide.check(self._now(), admitted, through)

    def _view(self, admitted: Admitted) -> View | None:
        try:
            return self._store.view(*admitted.replica)
        except LimosaError:
            return None


def _alive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out empty batches, but send one now and then to show that the node is alive."""
    given_at = time.monotonic()
    for batch in batches:
        if batch.num_rows or time.monotonic() - given_at > ALIVE_SECONDS:
            yield batch
            given_at = time.monotonic()


def look_up(view: View, keys: Keys) -> FoundRow | FoundRows | None:
    table = keys.table
    if keys.one is not None:
        try:
            found = view.find(table, keys.one)
        except (TypeError, ValueError, OverflowError, AttributeError, pa.ArrowException) as error:
            raise InvalidKey(
                f"not a key of {table.id}: {brief(error)}", "use the types of the key columns"
            ) from None
        if found is None:
            return None
        return _found(table, found)
    assert keys.many is not None
    return _look_up_many(view, table, keys.many)


def _found(table: Table, found: StoredRow) -> FoundRow | FoundRows:
    """Plain values are sent as they are; values that Python cannot hold, and others, as Arrow."""
    if table.is_plain:
        with suppress(BadInput):
            values = list(found.values(table).values())
            if sum([len(value) for value in values if type(value) in _LONG]) <= INLINE_ROW_BYTES:
                return FoundRow(values, found.version)
    return FoundRows(table, found.columns(table), (found.version,))


def _look_up_many(view: View, table: Table, keys: pa.RecordBatch) -> FoundRows | None:
    """A few keys at a time, because a few bytes of keys can ask for any amount of rows."""
    if keys.num_rows > KEYS_MAX:
        raise BadInput(f"{keys.num_rows} keys", f"ask for at most {KEYS_MAX} at once")
    parts: list[pa.RecordBatch] = []
    versions: list[int] = []
    done, size, step = 0, 0, KEYS_AT_ONCE
    while done < keys.num_rows:
        rows, more = view.get_many(table, keys.slice(done, step))
        done += step
        if more:
            parts.append(rows)
            versions += more
            size += rows.nbytes
        if size > FOUND_BYTES_MAX and keys.num_rows > 1:
            raise TooManyBytes(
                f"the rows of these keys have more than {FOUND_BYTES_MAX:,} bytes",
                "ask for fewer keys at once",
            )
        step = max(1, min(16 * step, FOUND_BYTES_AIM * done // max(1, size)))
    if not versions:
        return None
    return FoundRows(table, concat_columns(parts), tuple(versions))


def _words(answer: Answer) -> str:
    match answer:
        case Wait(why=why):
            return why
        case Redirect(owner=owner):
            return f"the owner is {owner or 'not elected yet'}"
        case _:
            return "not here"
