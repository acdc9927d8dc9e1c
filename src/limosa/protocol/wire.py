"""How are the core's messages encoded? As frames: msgpack for messages, Arrow for rows.

Rows travel as the log stores them, so that a node stores and forwards the bytes that it received.
A fingerprint names the table. Between nodes, a table's definition precedes its first rows on a
stream; rows from a client are refused if the node does not know their table.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import asdict, astuple, replace

from limosa.core import messages
from limosa.core.messages import (
    Chunk,
    End,
    Fetched,
    Found,
    Message,
    Read,
    Replicate,
    Status,
    Write,
)
from limosa.core.model.keys import Position, Revision
from limosa.core.producers import ProducersValue
from limosa.errors import BadInput, InvalidSchema, LimosaError, TooManyBytes, UnknownSchema
from limosa.protocol.statuses import StatusNews, packed, unpacked
from limosa.tabular.bodies import (
    ALIGNMENT,
    Bodies,
    BodyPart,
    LoggedEntry,
    log_entries,
    read_entry,
    stored_schema,
    unpack,
)
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from limosa.tabular.sizes import (
    CLIENT_FRAME_BYTES_MAX,
    CLIENT_HEAD_BYTES_MAX,
    FRAME_BYTES_AIM,
    HEAD_BYTES_MAX,
    PART_BYTES_MAX,
    WRITE_BYTES_MAX,
)
from limosa.tabular.soundness import brief, check_uncompressed, sound_batch
from limosa.transport import frames
from limosa.transport.lone import PendingAnswers

Said = TypeVar("Said", bound=Message)

MESSAGES_MAX = 1_024
PARTS_MAX = 256
KEY_COLUMNS_MAX = 256

_FLAGGED = 4


class Goodbye(Message, frozen=True):
    """This process is stopping: close the stream, and use another node."""


class Keys(Struct, frozen=True):
    """The rows to read: one key of plain values, or a batch of keys."""

    table: Table
    one: tuple[Any, ...] | None = None
    many: pa.RecordBatch | None = None


class FoundRows(Struct, frozen=True):
    """The rows that exist, in the order of the keys, and their versions."""

    table: Table
    rows: pa.RecordBatch
    versions: tuple[Position, ...]


class FoundRow(Struct, frozen=True):
    """One row of plain values, in the order of the table's columns, and its version."""

    values: list[Any]
    version: Position


class Unreadable(Struct, frozen=True):
    """A client's request that failed its checks; only this request is refused."""

    id: str
    error: LimosaError


# Messages with rows, as encoded: the same tags, with references to bodies instead of rows. Digests
# are longer than msgpack numbers, so they travel as text.

_Parts: TypeAlias = tuple[BodyPart, ...]
_FewParts: TypeAlias = Annotated[tuple[BodyPart, ...], Meta(max_length=PARTS_MAX)]
_Key: TypeAlias = Annotated[list[msgspec.Raw], Meta(max_length=KEY_COLUMNS_MAX)]
"""Values are decoded one by one: nested empty lists would take seventy times their bytes."""


class _Write(Write, frozen=True, tag="Write"):
    rows: _FewParts  # type: ignore[assignment]
    expected: Position | None


class _Replicate(Replicate, frozen=True, tag="Replicate"):
    entries: tuple[LoggedEntry, ...]  # type: ignore[assignment]


class _Chunk(Chunk, frozen=True, tag="Chunk"):
    rows: _Parts  # type: ignore[assignment]


class _End(End, frozen=True, tag="End"):
    digest: str  # type: ignore[assignment]


class _Wire(Struct, frozen=True, array_like=True):
    pass


class _Fetched(_Wire, frozen=True, tag="Fetched"):
    partition: str
    session: str
    slice: int
    rows: _Parts
    through: Position
    producers: ProducersValue
    digest: str
    slices: int = 0
    more: bool = False
    """Further rows of this slice follow in the next message."""
    pause_seconds: float = 0.0


class _Read(_Wire, frozen=True, tag="Read"):
    id: str
    partition: str
    version: int
    epoch: int
    revision: Revision
    table: int
    key: _Key | None
    parts: _FewParts
    eventual: bool


class _Found(_Wire, frozen=True, tag="Found"):
    id: str
    versions: tuple[Position, ...]
    parts: _Parts


class _FoundRow(_Wire, frozen=True, tag="FoundRow"):
    id: str
    version: Position
    values: list[Any]


_Any: TypeAlias = (
    _Write
    | _Read
    | _Found
    | _FoundRow
    | _Replicate
    | _Fetched
    | _Chunk
    | Goodbye
    | messages.Written
    | messages.Mismatched
    | messages.Redirect
    | messages.Wait
    | messages.Refuse
    | messages.Probe
    | messages.Probed
    | messages.Acked
    | messages.Unheld
    | messages.Fetch
    | _End
    | messages.Landed
    | messages.Denied
    | messages.Link
    | messages.Look
    | messages.Seal
    | messages.Verify
    | messages.DropReplica
    | StatusNews
)


class _Head(Struct, frozen=True, array_like=True):
    definitions: tuple[bytes, ...]
    """Tables whose rows appear on this stream for the first time."""
    messages: tuple[_Any, ...]
    lone: bool = False
    """The sender waits for the answer to this message and to no other: see `transport.lone`."""


class _ClientHead(Struct, frozen=True, array_like=True):
    """The messages that a client may send; others are not even decoded."""

    definitions: Annotated[tuple[bytes, ...], Meta(max_length=0)]
    messages: Annotated[tuple[_Write | _Read, ...], Meta(max_length=MESSAGES_MAX)]
    lone: bool = False


_Order: TypeAlias = (
    messages.Look | messages.Seal | messages.Verify | messages.DropReplica | messages.Link
)
_Copying: TypeAlias = messages.Fetch | _Chunk | _End


_Replicating: TypeAlias = (
    messages.Probe | _Replicate | messages.Probed | messages.Acked | messages.Unheld
)


class _NodeHead(Struct, frozen=True, array_like=True):
    """The messages that a node may send to another node."""

    definitions: tuple[bytes, ...]
    messages: tuple[_Replicating, ...]


class _CoordinatorHead(Struct, frozen=True, array_like=True):
    """The messages that a coordinator may send to a node."""

    definitions: Annotated[tuple[bytes, ...], Meta(max_length=0)]
    messages: tuple[_Order, ...]


class _MoverHead(Struct, frozen=True, array_like=True):
    """The messages that a mover may send to a node."""

    definitions: tuple[bytes, ...]
    messages: tuple[_Copying, ...]


_encoder = msgspec.msgpack.Encoder()
_heads: dict[str, Any] = {
    "client": msgspec.msgpack.Decoder(_ClientHead),
    "coordinator": msgspec.msgpack.Decoder(_CoordinatorHead),
    "mover": msgspec.msgpack.Decoder(_MoverHead),
    "node": msgspec.msgpack.Decoder(_NodeHead),
    "": msgspec.msgpack.Decoder(_Head),
}

# Errors besides `BadInput` that a stranger's bytes can cause: text that is not UTF-8, nesting that
# is too deep, and Arrow's errors about damaged batches.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    AssertionError,
    RecursionError,
    EOFError,
    MemoryError,
    pa.ArrowException,
)


class _Part(Struct, frozen=True):
    """Some rows of a slice."""

    of: Fetched
    rows: Bundle
    more: bool


class Encoder:
    """Encodes messages as frames, on one stream."""

    def __init__(self, define: bool, pending: PendingAnswers | None = None) -> None:
        self._define = define
        self._pending = pending
        self._told: set[int] = set()

    def __call__(self, said: Sequence[Message]) -> bytes:
        """Small messages, as one frame."""
        (frame,) = self.frames(said)
        return frame

    def frames(self, said: Sequence[Message]) -> list[bytes]:
        """Usually one frame. What is too large for it goes into further ones: see `sizes`."""
        if any(isinstance(each, Fetched) for each in said):
            parts = [part for each in said for part in _in_parts(each)]
        else:
            parts = list(said)
        encoded: list[bytes] = []
        done = 0
        while not encoded or done < len(parts):
            frame, done = self._frame(parts, done)
            encoded.append(frame)
        return encoded

    def _frame(self, said: Sequence[Message | _Part], first: int) -> tuple[bytes, int]:
        """A frame of messages from the first on, and the number of those that are encoded now."""
        definitions: list[bytes] = []

        def schema_of(table: Table) -> int:
            if self._define and table.fingerprint not in self._told:
                self._told.add(table.fingerprint)
                definitions.append(table.encoded)
            return table.fingerprint

        bodies = Bodies(schema_of)
        encoded: list[Any] = []
        for message in said[first:] if first else said:
            encoded.append(
                packed(message)
                if isinstance(message, Status)
                else _pack(message, bodies, schema_of)
            )
            if bodies.size >= FRAME_BYTES_AIM:
                break
        pending = self._pending
        lone = len(said) == 1 and pending is not None and pending.is_lone()
        head = _Head(tuple(definitions), tuple(encoded), lone)
        return frames.pack(_encoder.encode(head), bodies.pieces), first + len(encoded)


def _in_parts(message: Message) -> list[Message | _Part]:
    """A slice as parts that fit into frames; any other message as it is."""
    if not isinstance(message, Fetched) or message.rows.bytes <= PART_BYTES_MAX:
        return [message]
    assert isinstance(message.rows, Bundle)
    parts: list[list[Batch]] = [[]]
    size = 0
    for batch in message.rows.batches:
        if parts[-1] and size + batch.bytes > PART_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(batch)
        size += batch.bytes
    last = len(parts) - 1
    return [_Part(message, Bundle(part), at < last) for at, part in enumerate(parts)]


def _pack(message: Message | _Part, bodies: Bodies, schema_of: Callable[[Table], int]) -> Any:
    match message:
        case Replicate():
            return replace(message, entries=log_entries(message.entries, bodies))
        case Write():
            return replace(message, rows=bodies.add_bundle(_without_tokens(message.rows)))
        case Fetched():
            return _fetched(message, bodies.add_bundle(message.rows), more=False)
        case _Part(of=fetched):
            return _fetched(fetched, bodies.add_bundle(message.rows), more=message.more)
        case Chunk():
            return replace(message, rows=bodies.add_bundle(message.rows))
        case End():
            return replace(message, digest=f"{message.digest:x}")
        case Read(keys=Keys() as keys):
            many = () if keys.many is None else (_add_columns(bodies, keys.table, keys.many),)
            return _Read(
                message.id,
                message.partition,
                message.version,
                message.epoch,
                message.revision,
                keys.table.fingerprint,
                None if keys.one is None else list(keys.one),
                many,
                message.eventual,
            )
        case Found(rows=FoundRows() as found):
            return _Found(
                message.id, found.versions, (_add_columns(bodies, found.table, found.rows),)
            )
        case Found(rows=FoundRow() as row):
            return _FoundRow(message.id, row.version, row.values)
        case Found():
            return _Found(message.id, (), ())
        case _:
            return message


def _without_tokens(rows: object) -> Bundle:
    """Rows without tokens: the owner computes them, since it would have to check them anyway."""
    assert isinstance(rows, Bundle)
    return Bundle(Batch(each.table, each.columns, deleted=each.deleted) for each in rows.batches)


def _add_columns(bodies: Bodies, table: Table, columns: pa.RecordBatch) -> BodyPart:
    return bodies.add(Batch(table, columns))


class Decoder:
    """Decodes frames to messages, on one stream; raises `BadInput` for a malformed frame.

    `tables` finds the tables that this process knows; a trusted peer may define others. `speaker`
    is the kind of the peer that opened the stream, and may send the messages of its kind only;
    empty: a node that answers.
    """

    def __init__(
        self, tables: Callable[[int], Table | None], trusted: bool, speaker: str = ""
    ) -> None:
        self._tables = tables
        self._trusted = trusted
        self._speaker = speaker if trusted else "client"
        self._heads = _heads[self._speaker]
        self._head_bytes_max = HEAD_BYTES_MAX if trusted else CLIENT_HEAD_BYTES_MAX
        self._fetched: list[Batch] = []
        """The rows of a slice that has not arrived completely."""
        self._learned: dict[int, Table] = {}
        self._required: dict[int, tuple[int, ...]] = {}
        self.lone = False
        """The last frame was a lone request: see `transport.lone`."""

    def __call__(self, frame: pa.Buffer) -> list[Message | Unreadable]:
        if not self._trusted and frame.size > CLIENT_FRAME_BYTES_MAX:
            return self._refused(frame)
        head_bytes, bodies = frames.unpack(frame, self._head_bytes_max)
        try:
            head = self._heads.decode(head_bytes)
            for definition in head.definitions:
                table = Table.decode(definition)
                self._learned[table.fingerprint] = table
            if not self._trusted:
                _check_total(head.messages, bodies)
                self.lone = head.lone and len(head.messages) == 1
            said = [self._unpack(message, bodies) for message in head.messages]
            return [each for each in said if each is not None]
        except BadInput:
            raise
        except msgspec.ValidationError as error:
            raise BadInput(
                f"a {self._speaker or 'node'} may not send this: {brief(error)}",
                "check the version of the sender, and the kind of its stream",
            ) from None
        except (LimosaError, *_UNREADABLE) as error:
            raise BadInput(
                f"malformed frame: {brief(error)}", "check the version of the sender"
            ) from None

    def _refused(self, frame: pa.Buffer) -> list[Message | Unreadable]:
        """Refuse each message of a frame that is too large: then their outcome is known."""
        head_bytes, _ = frames.unpack_head(frame, self._head_bytes_max)
        try:
            head = self._heads.decode(head_bytes)
        except _UNREADABLE as error:
            raise BadInput(
                f"malformed frame: {brief(error)}", "check the version of the sender"
            ) from None
        refusal = TooManyBytes(
            f"a message has {frame.size:,} bytes, and a message may have "
            f"{CLIENT_FRAME_BYTES_MAX:,}",
            f"write at most {WRITE_BYTES_MAX:,} bytes at once",
        )
        return [Unreadable(message.id, refusal) for message in head.messages]

    def _unpack(self, message: Any, bodies: pa.Buffer) -> Message | Unreadable | None:
        match message:
            case _Replicate():
                entries = tuple(read_entry(each, self._bundle, bodies) for each in message.entries)
                return _plain(Replicate, message, entries=entries)
            case _Write() | _Read():
                try:
                    if isinstance(message, _Read):
                        return self._read(message, bodies)
                    return _plain(Write, message, rows=self._bundle(message.rows, bodies))
                except LimosaError as error:
                    return Unreadable(message.id, error)
                except _UNREADABLE as error:
                    return Unreadable(message.id, _damaged(error))
            case _FoundRow():
                return Found(message.id, FoundRow(message.values, message.version))
            case _Found():
                return Found(message.id, self._found(message, bodies))
            case _Fetched():
                self._fetched += self._bundle(message.rows, bodies).batches
                if message.more:
                    return None
                rows, self._fetched = Bundle(self._fetched), []
                told = asdict(message)
                del told["more"]
                return Fetched(**told | {"rows": rows, "digest": int(message.digest, 16)})
            case _Chunk():
                return _plain(Chunk, message, rows=self._bundle(message.rows, bodies))
            case _End():
                return _plain(End, message, digest=int(message.digest, 16))
            case StatusNews():
                return unpacked(message)
            case _:
                return message  # type: ignore[no-any-return]

    def _read(self, message: _Read, bodies: pa.Buffer) -> Read:
        table = self._table(message.table)
        keys = Keys(table, None if message.key is None else tuple(map(_simple, message.key)))
        if message.key is None:
            if len(message.parts) != 1:
                raise BadInput("a read without keys", "send the keys as one batch")
            (part,) = message.parts
            schema = pa.schema([table.physical.field(name) for name in table.key])
            many = sound_batch(_slice(bodies, part), schema, trusted=self._trusted)
            keys = Keys(table, None, many)
        elif len(message.key) != len(table.key) or message.parts:
            raise BadInput(
                "a key with another number of columns than the table's", "give every key column"
            )
        return Read(
            message.id,
            message.partition,
            message.version,
            message.epoch,
            message.revision,
            keys,
            table.id,
            message.eventual,
        )

    def _found(self, message: _Found, bodies: pa.Buffer) -> FoundRows | None:
        if not message.versions:
            return None
        (part,) = message.parts
        table = self._table(part.schema)
        rows = sound_batch(_slice(bodies, part), table.physical, trusted=True)
        return FoundRows(table, rows, message.versions)

    def _bundle(self, parts: Iterable[BodyPart], bodies: pa.Buffer) -> Bundle:
        return Bundle(self._batch(part, bodies) for part in parts)

    def _batch(self, part: BodyPart, bodies: pa.Buffer) -> Batch:
        table = self._table(part.schema)
        if not self._trusted and part.extras & ~_FLAGGED:
            raise BadInput("rows with versions or tokens", "leave them out: the owner assigns them")
        body = _slice(bodies, part)
        if self._speaker == "mover":
            check_uncompressed(body)
        stored = sound_batch(body, stored_schema(table, part.extras), trusted=self._trusted)
        if not self._trusted and part.extras and stored.columns[-1].null_count:
            raise BadInput("rows with a null deletion mark", "mark each row as deleted or not")
        batch = unpack(table, part.extras, stored)
        if not self._trusted:
            table.align(batch.columns)
            self._check_required(table, batch)
        batch.body = (part.extras, body)
        batch.note_bytes(part.size)
        return batch

    def _check_required(self, table: Table, batch: Batch) -> None:
        """Refuse nulls in required columns: one null would make every scan of its rows fail."""
        places = self._required.get(table.fingerprint)
        if places is None:
            declared = [one.nullable or one.name in table.key for one in table.columns]
            places = tuple(place for place, may_be_null in enumerate(declared) if not may_be_null)
            self._required[table.fingerprint] = places
        for place in places:
            column = batch.columns.column(place)
            if column.null_count and batch.deleted is not None:
                column = column.filter(pa.array(~batch.deleted))
            if column.null_count:
                raise InvalidSchema(
                    f"column {table.names[place]} has nulls, but is declared as not null",
                    "give every row a value",
                )

    def _table(self, fingerprint: int) -> Table:
        table = self._learned.get(fingerprint) or self._tables(fingerprint)
        if table is None:
            raise unknown_schema(fingerprint)
        return table


def unknown_schema(fingerprint: int) -> UnknownSchema:
    return UnknownSchema(
        "this node does not know this version of the table",
        "the table was changed or dropped: refresh the topology",
        fingerprint,
    )


def _fetched(fetched: Fetched, rows: _Parts, more: bool) -> _Fetched:
    told = asdict(fetched) | {"rows": rows, "digest": f"{fetched.digest:x}"}
    return _Fetched(**told, more=more)


def _plain(kind: Callable[..., Said], message: Message, **changed: object) -> Said:
    """A decoded message as the class that the core knows, with its rows or its digest."""
    return kind(*astuple(replace(message, **changed)))


def _slice(bodies: pa.Buffer, part: BodyPart) -> pa.Buffer:
    if part.at < 0 or part.size <= 0 or part.at + part.size > bodies.size:
        raise BadInput("rows outside of their frame", "send the whole frame")
    if part.at % ALIGNMENT:
        raise BadInput("rows that are not aligned", f"align bodies to {ALIGNMENT} bytes")
    return bodies.slice(part.at, part.size)


def _simple(value: msgspec.Raw) -> Any:
    """Accept a number, text, bytes or a boolean; other types travel as Arrow."""
    first = memoryview(value)[0]
    if 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF:
        raise BadInput("a key with a list or a map in it", "use the types of the key columns")
    return msgspec.msgpack.decode(value)


def _check_total(said: Iterable[_Write | _Read], bodies: pa.Buffer) -> None:
    """Refuse shared bodies: a thousand messages about one body would store it as often."""
    referred = (each.rows if isinstance(each, _Write) else each.parts for each in said)
    total = sum(part.size for parts in referred for part in parts)
    if total > bodies.size:
        raise BadInput("messages that share rows", "send each message's rows separately")


def _damaged(error: BaseException) -> BadInput:
    return BadInput(f"malformed rows: {brief(error)}", "check the client's version")


def size_of(message: Message) -> int:
    """Approximate bytes of a message on the wire."""
    match message:
        case Write(rows=Bundle() as rows) | Chunk(rows=Bundle() as rows):
            return 200 + rows.bytes
        case Replicate(entries=entries):
            return 200 + sum(entry.bytes for entry in entries)
        case Read(keys=Keys(many=pa.RecordBatch() as many)):
            return 200 + many.nbytes
        case Fetched(rows=Bundle() as rows):
            return 200 + rows.bytes
        case Found(rows=FoundRows() as found):
            return 200 + found.rows.nbytes
        case messages.Status():
            return 200 * (1 + len(message.replicas))
        case _:
            return 200
