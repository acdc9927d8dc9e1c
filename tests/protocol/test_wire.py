"""Does a message arrive as it was said, and does a damaged one never arrive as something else?"""

import random
import struct
from datetime import UTC
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core import messages
from limosa.core.messages import (
    Acked,
    Appending,
    Chunk,
    Denied,
    DropReplica,
    End,
    Fetch,
    Fetched,
    Found,
    Landed,
    Link,
    Look,
    Message,
    Mismatched,
    Objection,
    Probe,
    Probed,
    Read,
    Redirect,
    Refuse,
    ReplicaStatus,
    Replicate,
    Seal,
    Status,
    Unheld,
    Verify,
    Wait,
    Write,
    Written,
)
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Applied
from limosa.errors import BadInput, TooManyBytes
from limosa.protocol.wire import (
    KEY_COLUMNS_MAX,
    MESSAGES_MAX,
    PARTS_MAX,
    Decoder,
    Encoder,
    FoundRow,
    FoundRows,
    Goodbye,
    Keys,
    Unreadable,
)
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from limosa.tabular.sizes import CLIENT_HEAD_BYTES_MAX
from limosa.transport import frames
from limosa.transport.lone import AnswerFuture, PendingAnswers
from tests.transport import attacker

_WIDE: list[Any] = [
    pa.field("id", pa.int64()),
    pa.field("part", pa.string()),
    pa.field("bool", pa.bool_()),
    pa.field("int8", pa.int8()),
    pa.field("int32", pa.int32()),
    pa.field("float", pa.float32()),
    pa.field("double", pa.float64()),
    pa.field("decimal", pa.decimal128(20, 3)),
    pa.field("date", pa.date32()),
    pa.field("time", pa.timestamp("us", "UTC")),
    pa.field("text", pa.string()),
    pa.field("long_text", pa.large_string()),
    pa.field("bytes", pa.binary()),
    pa.field("long_bytes", pa.large_binary()),
    pa.field("fixed", pa.binary(4)),
    pa.field("list", pa.list_(pa.int64())),
    pa.field("nest", pa.large_list(pa.struct([("a", pa.string()), ("b", pa.bool_())]))),
]
WIDE = Table("wide", pa.schema(_WIDE), ("id", "part"))
_SMALL: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("v", pa.float64())]
SMALL = Table("small", pa.schema(_SMALL), ("k",))
TABLES = {table.fingerprint: table for table in (WIDE, SMALL)}


# ------------------------------------------------------------------------------------ strategies

words = st.text(max_size=12)
numbers = st.integers(0, 2**63 - 1)
token_ranges = st.tuples(
    st.integers(TOKEN_MIN, TOKEN_END - 1), st.integers(TOKEN_MIN + 1, TOKEN_END)
).map(lambda pair: TokenRange(min(pair), max(*pair, min(pair) + 1)))
replicas = st.builds(Replica, words, words, words)


def _column(of: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(of):
        return st.booleans()
    if pa.types.is_integer(of):
        return st.integers(-(2 ** (of.bit_width - 1)), 2 ** (of.bit_width - 1) - 1)
    if pa.types.is_floating(of):
        return st.floats(width=32 if of.bit_width == 32 else 64)
    if pa.types.is_decimal(of):
        return st.decimals(-(10**16), 10**16, places=3)
    if pa.types.is_date32(of):
        return st.dates()
    if pa.types.is_timestamp(of):
        return st.datetimes().map(lambda at: at.replace(tzinfo=None))
    if pa.types.is_fixed_size_binary(of):
        return st.binary(min_size=4, max_size=4)
    if pa.types.is_string(of) or pa.types.is_large_string(of):
        return st.text(max_size=8)
    if pa.types.is_binary(of) or pa.types.is_large_binary(of):
        return st.binary(max_size=8)
    if pa.types.is_struct(of):
        return st.fixed_dictionaries({inner.name: _maybe(inner.type) for inner in of})
    return st.lists(_maybe(of.value_type), max_size=3)


def _maybe(of: Any) -> st.SearchStrategy[Any]:
    return st.none() | _column(of)


@st.composite
def batches(draw: st.DrawFn, versioned: bool = False, empty: bool = True) -> Batch:
    table = draw(st.sampled_from([WIDE, SMALL]))
    count = draw(st.integers(0 if empty else 1, 4))
    columns = []
    for field in table.physical:
        value = _column(field.type) if field.name in table.key else _maybe(field.type)
        columns.append(pa.array(draw(st.lists(value, min_size=count, max_size=count)), field.type))
    rows = pa.RecordBatch.from_arrays(columns, schema=table.physical)
    batch = Batch(table, rows)
    if draw(st.booleans()):
        flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        batch.deleted = np.array(flags, np.bool_) if any(flags) else None
    return batch.at(draw(st.integers(1, 2**62))) if versioned else batch


def _keys_of_small(some: list[str]) -> pa.RecordBatch:
    schema = pa.schema([SMALL.physical.field("k")])
    return pa.RecordBatch.from_arrays([pa.array(some, pa.string())], schema=schema)


bundles = st.lists(batches(), max_size=3).map(Bundle)
versioned_bundles = st.lists(batches(versioned=True), max_size=3).map(Bundle)
keys = st.one_of(
    st.builds(
        lambda a, b: Keys(WIDE, (a, b)), st.integers(-(2**63), 2**63 - 1), st.text(max_size=9)
    ),
    st.lists(st.text(max_size=9), min_size=1, max_size=5).map(
        lambda some: Keys(SMALL, None, _keys_of_small(some))
    ),
)
founds = st.none() | batches(empty=False).map(
    lambda batch: FoundRows(batch.table, batch.columns, tuple(range(1, 1 + len(batch))))
)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.text()
single = st.builds(FoundRow, st.lists(values | st.floats(allow_nan=False)), numbers)
entries = st.builds(
    Entry,
    numbers,
    numbers,
    st.none() | bundles,
    words,
    numbers,
    numbers,
    st.none() | token_ranges,
    st.none() | numbers,
    numbers,
)
applied = st.builds(Applied, token_ranges, numbers, st.none() | numbers)
producers = st.lists(
    st.tuples(
        words,
        numbers,
        st.lists(st.tuples(numbers, st.lists(applied, max_size=2).map(tuple)), max_size=2).map(
            tuple
        ),
    ),
    max_size=2,
).map(tuple)
digests = st.integers(0, 2**150)
statuses = st.builds(
    ReplicaStatus,
    replicas,
    numbers,
    numbers,
    numbers,
    numbers,
    st.none() | st.tuples(numbers, numbers),
    st.none() | words,
    st.none() | st.tuples(words, numbers, digests),
    st.lists(replicas, max_size=2).map(tuple),
    st.lists(st.tuples(replicas, numbers), max_size=2).map(tuple),
    st.lists(replicas, max_size=2).map(tuple),
    st.none() | st.tuples(numbers, numbers),
    st.floats(0, 1e3),
    numbers,
    numbers,
)

SAID: dict[type[Message], st.SearchStrategy[Any]] = {
    Write: st.builds(
        Write,
        words,
        words,
        numbers,
        numbers,
        words,
        numbers,
        numbers,
        numbers,
        token_ranges,
        bundles,
        st.none() | numbers,
    ),
    Read: st.builds(
        lambda id, partition, version, keys, eventual: Read(
            id, partition, version, 1, 2, keys, keys.table.id, eventual
        ),
        words,
        words,
        numbers,
        keys,
        st.booleans(),
    ),
    Written: st.builds(Written, words, numbers),
    Mismatched: st.builds(Mismatched, words, numbers),
    Found: st.builds(Found, words, founds | single),
    Redirect: st.builds(Redirect, words, st.none() | words, numbers, numbers, st.booleans()),
    Wait: st.builds(Wait, words, words, numbers),
    Refuse: st.builds(Refuse, words, words, words, words),
    Probe: st.builds(Probe, words, words, numbers, numbers),
    Replicate: st.builds(
        Replicate,
        words,
        words,
        numbers,
        numbers,
        numbers,
        st.lists(entries, max_size=3).map(tuple),
        numbers,
        st.sampled_from(get_args(Appending)),
        st.none() | st.tuples(words, numbers),
        numbers,
    ),
    Probed: st.builds(Probed, words, replicas, numbers, numbers, numbers, numbers),
    Acked: st.builds(Acked, words, replicas, numbers, numbers, numbers),
    Unheld: st.builds(
        Unheld, words, replicas, numbers, numbers, st.sampled_from(get_args(Objection))
    ),
    Fetch: st.builds(Fetch, words, words, words, numbers, numbers, numbers),
    Fetched: st.builds(
        Fetched, words, words, numbers, versioned_bundles, numbers, producers, slices=numbers
    ),
    Chunk: st.builds(
        Chunk, words, words, words, numbers, numbers, words, numbers, versioned_bundles
    ),
    End: st.builds(
        End,
        words,
        words,
        words,
        numbers,
        numbers,
        numbers,
        words,
        numbers,
        digests,
        numbers,
        producers,
    ),
    Landed: st.builds(Landed, words, words, numbers, numbers),
    Link: st.builds(Link, words, words, words, numbers, words),
    Denied: st.builds(Denied, words, words, numbers, words, numbers),
    Look: st.builds(Look, numbers),
    Seal: st.builds(Seal, words, numbers),
    Verify: st.builds(Verify, words, words),
    DropReplica: st.builds(DropReplica, words, words, numbers),
    Status: st.builds(
        Status,
        words,
        numbers,
        numbers,
        numbers,
        st.dictionaries(words, numbers, max_size=2),
        st.dictionaries(words, st.lists(statuses, max_size=2).map(tuple), max_size=2),
        st.dictionaries(words, numbers, max_size=2),
    ),
    Goodbye: st.builds(Goodbye),
}
CLIENTS = st.one_of(SAID[Write], SAID[Read])
SPEAKERS = {
    "node": (Probe, Replicate, Probed, Acked, Unheld),
    "coordinator": (Look, Seal, Verify, DropReplica, Link),
    "mover": (Fetch, Chunk, End),
}


def plain(value: Any) -> Any:
    """What can be compared: rows by their bytes, so that NaN equals itself."""
    if isinstance(value, Bundle):
        return [
            (
                batch.table.id,
                batch.columns.serialize().to_pybytes(),
                None if batch.deleted is None else batch.deleted.tolist(),
                None if batch.versions is None else batch.versions.tolist(),
            )
            for batch in value.batches
        ]
    if isinstance(value, Keys | FoundRows):
        return {
            name: plain(getattr(value, name)) for name in value.__struct_fields__ if name != "table"
        }
    if isinstance(value, pa.RecordBatch):
        return value.serialize().to_pybytes()
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return (type(value).__name__, fields)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


# ------------------------------------------------------------------------------------ round trips


def test_every_message_that_there_is_has_a_strategy() -> None:
    shared = {messages.ReplicaMessage, messages.ReplicaReply, messages.SessionMessage}
    abstract = {messages.Answer, *shared}

    def below(kind: type[Message]) -> set[type[Message]]:
        found = {kind}
        for each in kind.__subclasses__():
            found |= below(each)
        return found

    known = {kind for kind in below(Message) if kind.__module__ == messages.__name__}
    assert known - abstract - {Message} <= SAID.keys()


@pytest.mark.parametrize("kind", SAID, ids=lambda kind: str(kind.__name__))
def test_a_message_arrives_as_it_was_said(kind: type[Message]) -> None:
    @settings(max_examples=10)
    @given(st.lists(SAID[kind], min_size=1, max_size=3))
    def check(said: list[Message]) -> None:
        encoder = Encoder(define=True)
        # Keys are asked of a table that is known already; rows bring theirs along.
        decoder = Decoder(TABLES.get if kind is Read else lambda fingerprint: None, trusted=True)
        for _ in range(2):  # the second time, tables have been defined
            assert plain(decoder(pa.py_buffer(encoder(said)))) == plain(said)

    check()


@settings(max_examples=20)
@given(st.lists(CLIENTS, max_size=4))
def test_what_a_client_says_arrives_checked(said: list[Message]) -> None:
    decoder = Decoder(TABLES.get, trusted=False)
    heard = decoder(pa.py_buffer(Encoder(define=False)(said)))
    assert [type(each) for each in heard] == [type(each) for each in said]
    assert plain(heard) == plain(said)


@pytest.mark.parametrize("kind", SAID, ids=lambda kind: str(kind.__name__))
def test_a_client_can_say_nothing_but_writes_and_reads(kind: type[Message]) -> None:
    @settings(max_examples=5)
    @given(SAID[kind])
    def check(said: Message) -> None:
        spoken = pa.py_buffer(Encoder(define=False)([said]))
        if kind in (Write, Read):
            assert isinstance(Decoder(TABLES.get, trusted=False)(spoken)[0], kind)
        else:
            with pytest.raises(BadInput):
                Decoder(TABLES.get, trusted=False)(spoken)
        for speaker, allowed in SPEAKERS.items():
            if kind in allowed:
                assert Decoder(TABLES.get, True, speaker)(spoken)
            else:
                with pytest.raises(BadInput):
                    Decoder(TABLES.get, True, speaker)(spoken)

    check()


# ------------------------------------------------------------------------------------ damage


def _heard(frame: bytes, trusted: bool) -> None:
    """Either it is refused, or it is messages; and a client's rows are sound."""
    try:
        heard = Decoder(TABLES.get, trusted)(pa.py_buffer(frame))
    except BadInput:
        return
    for each in heard:
        assert isinstance(each, Message | Unreadable)
        if isinstance(each, Write) and not trusted:
            assert isinstance(each.rows, Bundle)
            for batch in each.rows.batches:
                batch.columns.validate(full=True)
                assert batch.versions is None
                assert len(batch.tokens) == len(batch)


def mutated(dice: random.Random, frame: bytes) -> bytes:
    """A few bytes changed, cut out, doubled, or cut off."""
    data = bytearray(frame)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(data))
        match dice.randrange(6):
            case 0 | 1:
                data[at] = dice.randrange(256)
            case 2:
                data[at] ^= 1 << dice.randrange(8)
            case 3:
                del data[at : at + dice.randrange(1, 16)]
            case 4:
                data[at:at] = data[at : at + dice.randrange(1, 16)]
            case _:
                wrong = dice.choice((0, -1, 2**31 - 1, -(2**31), 2**16))
                data[at : at + 4] = struct.pack("<i", wrong)
        if not data:
            break
    return bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.1 else data)


def _samples() -> list[list[Message]]:
    wide = pa.RecordBatch.from_pylist(
        [{"id": 1, "part": "a", "text": "x", "list": [1, None]}, {"id": 2, "part": "b"}],
        schema=WIDE.physical,
    )
    small = pa.RecordBatch.from_pydict({"k": ["a", "bc"], "v": [1.0, None]}, schema=SMALL.physical)
    deleted = Batch(SMALL, small, deleted=np.array([True, False]))
    whole = TokenRange(TOKEN_MIN, TOKEN_END)
    rows = Bundle([Batch(WIDE, wide), deleted])
    replica, done = Replica("n1", "i1"), Applied(whole, 1)
    return [
        [Write("1.1", "p", 1, 1, "me", 1, 0, 0, whole, rows, None)],
        [Read("1.1", "p", 1, 1, 1, Keys(WIDE, (7, "seven")), "wide")],
        [Read("1.1", "p", 1, 1, 1, Keys(SMALL, None, small.select(["k"])), "small")],
        [Found("1.1", FoundRows(SMALL, small, (1, 2)))],
        [Replicate("p", "i1", 1, 1, 0, (Entry(1, 0, rows, "me", 1, 0, whole),), 0)],
        [Chunk("p", "i1", "s", 1, 1, "a", 1, Bundle([Batch(WIDE, wide).at(3)]))],
        [Status("n1", 1, 1, 1, {"p": 1}, {"p": (ReplicaStatus(replica, 1, 1, 1),)}), Goodbye()],
        [End("p", "i1", "s", 1, 1, 1, "a", 1, 2**130, 1, (("me", 1, ((1, (done,)),)),))],
    ]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_damaged_frame_is_refused_or_is_a_message(trusted: bool) -> None:
    """Mutations of frames of every shape, by a fixed seed."""
    dice = random.Random(20261115)
    good = [Encoder(define=False)(said) for said in _samples()]
    for number in range(4_000):
        _heard(mutated(dice, good[number % len(good)]), trusted)


def test_random_bytes_are_refused() -> None:
    dice = random.Random(20261115)
    for number in range(4_000):
        head = dice.randbytes(dice.randrange(200))
        size = len(head) if number % 2 else dice.randrange(2**32)
        frame = struct.pack("<I", size) + head + dice.randbytes(dice.choice((0, 100)))
        with pytest.raises(BadInput):
            Decoder(TABLES.get, trusted=bool(number % 3))(pa.py_buffer(frame[: 4 + 300]))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(anything)
def test_any_other_value_is_refused(value: Any) -> None:
    tagged = ["Write", *value] if isinstance(value, list) else value
    for head in (value, [[], [value]], [[], [tagged]], [[], [["Read", tagged]]]):
        frame = frames.pack(msgspec.msgpack.encode(head))
        for trusted in (False, True):
            _heard(frame, trusted)


# ------------------------------------------------------------------------------------ bombs

HOSTILE = Table("hostile", attacker.SCHEMA, ("id",))


def _client(frame: bytes) -> list[Message | Unreadable]:
    return Decoder({HOSTILE.fingerprint: HOSTILE}.get, trusted=False)(pa.py_buffer(frame))


def _nest(depth: int) -> bytes:
    head = b"\x92\x90\x91" + msgspec.msgpack.encode(attacker.read(HOSTILE, "p", ["K"]))
    return head.replace(b"\xa1K", b"\x91" * depth + b"\x90")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"\x92\x90\xdd\xff\xff\xff\xff", id="four billion messages"),
        pytest.param(b"\x92\xdd\xff\xff\xff\xff", id="four billion definitions"),
        pytest.param(b"\x92\x90\x91\x9a\xa4Read\xdb\xff\xff\xff\xff", id="a text of 4 GB"),
        pytest.param(b"\x92\x90\x91\x9a\xa4Read\xa1\xff\xa1b", id="no UTF-8"),
        pytest.param(b"\x92\x90\x91\x9a\xa4\xffead\xa1a\xa1b", id="a tag of no UTF-8"),
        pytest.param(_nest(100), id="a nest in a key"),
        pytest.param(_nest(1_000_000), id="a nest of a million in a key"),
        pytest.param(b"\x91" * 1_000_000, id="a nest of a million"),
        pytest.param(b"\x93\x90\x90" + b"\x91" * 1_000_000, id="a nest in what is not looked at"),
        pytest.param(b"\x92\x91\xc4\x01x\x90", id="a definition"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_head_that_is_a_bomb_is_refused(head: bytes) -> None:
    try:
        heard = _client(frames.pack(head))
    except BadInput:
        return
    assert all(isinstance(each, Unreadable) for each in heard)


def test_a_client_says_only_so_much_at_once() -> None:
    one = attacker.read(HOSTILE, "p", ["k"])
    assert len(_client(attacker.frame([one] * MESSAGES_MAX))) == MESSAGES_MAX
    many_parts = attacker.write(HOSTILE, "p", b"", parts=[[1, 0, 0, 0]] * (PARTS_MAX + 1))
    for frame in (
        attacker.frame([one] * (MESSAGES_MAX + 1)),
        attacker.frame([many_parts]),
        attacker.frame([attacker.read(HOSTILE, "p", ["k"] * (KEY_COLUMNS_MAX + 1))]),
        attacker.frame([attacker.read(HOSTILE, "p", ["k" * CLIENT_HEAD_BYTES_MAX])]),
    ):
        with pytest.raises(BadInput):
            _client(frame)


BODY = attacker.good_rows().serialize().to_pybytes()


def test_good_rows_pass() -> None:
    (heard,) = _client(attacker.frame([attacker.write(HOSTILE, "p", BODY)], [BODY]))
    assert isinstance(heard, Write)


DAMAGED = dict(attacker.damaged_bodies())


@pytest.mark.parametrize("what", [what for what in DAMAGED if what[0].isalpha()])
def test_a_damaged_body_is_refused(what: str) -> None:
    body = DAMAGED[what]
    (heard,) = _client(attacker.frame([attacker.write(HOSTILE, "p", body)], [body]))
    assert isinstance(heard, Unreadable)
    assert isinstance(heard.error, BadInput)


@pytest.mark.parametrize("what", [what for what in DAMAGED if what[0].isalpha()])
def test_damaged_keys_are_refused(what: str) -> None:
    """Of a read only the key's columns are looked at: they are sound, or it is refused."""
    body = DAMAGED[what]
    part = [HOSTILE.fingerprint, 0, 0, len(body)]
    (heard,) = _client(attacker.frame([attacker.read(HOSTILE, "p", None, parts=[part])], [body]))
    if isinstance(heard, Read):
        assert isinstance(heard.keys, Keys)
        assert heard.keys.many is not None
        heard.keys.many.validate(full=True)
    else:
        assert isinstance(heard, Unreadable)


def test_wrong_numbers_in_a_header_are_refused_or_harmless() -> None:
    accepted = 0
    for body in DAMAGED.values():
        (heard,) = _client(attacker.frame([attacker.write(HOSTILE, "p", body)], [body]))
        if isinstance(heard, Write):
            accepted += 1
            assert isinstance(heard.rows, Bundle)
            for batch in heard.rows.batches:
                batch.columns.validate(full=True)
                assert len(batch) < 1_238
    assert accepted < 20


@pytest.mark.parametrize(
    ("extras", "at", "size"),
    [
        *[(extras, 0, len(BODY)) for extras in (1, 2, 3, 5, 6, 7, 8, -1, 1 << 40)],
        (0, -64, len(BODY)),
        (0, 64, len(BODY)),
        (0, 1 << 62, len(BODY)),
        (0, 0, len(BODY) + 4096),
        (0, 0, 0),
        (0, 0, -1),
        (0, 0, 2**63),
        (0, 1, len(BODY) - 1),
        (4, 0, len(BODY)),
    ],
)
def test_a_part_that_lies_is_refused(extras: int, at: int, size: int) -> None:
    part = [HOSTILE.fingerprint, extras, at, size]
    frame = attacker.frame([attacker.write(HOSTILE, "p", BODY, parts=[part])], [BODY])
    try:
        (heard,) = _client(frame)
    except BadInput:
        return
    assert isinstance(heard, Unreadable)


def test_messages_can_not_share_their_rows() -> None:
    """A small frame would be stored a thousand times."""
    with pytest.raises(BadInput, match="share"):
        _client(attacker.frame([attacker.write(HOSTILE, "p", BODY)] * 2, [BODY]))


def test_a_row_is_deleted_or_not() -> None:
    """A null among the flags would make every later read of the partition fail."""
    good = attacker.good_rows()
    for flags, sound in (([True, False, True], True), ([True, None, False], False)):
        arrays = [*good.columns, pa.array(flags, pa.bool_())]
        names = [*good.schema.names, "__deleted"]
        body = pa.RecordBatch.from_arrays(arrays, names=names).serialize().to_pybytes()
        part = [HOSTILE.fingerprint, 4, 0, len(body)]
        frame = attacker.frame([attacker.write(HOSTILE, "p", b"", parts=[part])], [body])
        (heard,) = _client(frame)
        assert isinstance(heard, Write) is sound


def test_a_column_without_nulls_gets_none() -> None:
    """One null, and a scan could no longer show the rows as they were declared."""
    fields: list[Any] = [pa.field("k", pa.int64()), pa.field("v", pa.string(), nullable=False)]
    strict = Table("strict", pa.schema(fields), ("k",))
    columns: list[Any] = [pa.array([1, 2]), pa.array(["a", None])]
    rows = pa.RecordBatch.from_arrays(columns, schema=strict.physical)
    decoder = Decoder({strict.fingerprint: strict}.get, trusted=False)
    whole = TokenRange(TOKEN_MIN, TOKEN_END)
    for deleted, sound in ((None, False), ([False, True], True), ([True, False], False)):
        flags = None if deleted is None else np.array(deleted)
        bundle = Bundle([Batch(strict, rows, deleted=flags)])
        said = Write("1", "p", 1, 1, "me", 1, 0, 0, whole, bundle)
        (heard,) = decoder(pa.py_buffer(Encoder(define=False)([said])))
        assert isinstance(heard, Write) is sound


def test_a_frame_has_the_size_that_it_says() -> None:
    good = attacker.frame([attacker.read(HOSTILE, "p", ["k"])])
    assert _client(good)
    for frame in (b"", good[:3], good[:-1], struct.pack("<I", 2**32 - 1) + good[4:]):
        with pytest.raises(BadInput):
            _client(frame)


def test_a_frame_says_whether_its_request_is_lone() -> None:
    pending = PendingAnswers()
    encoder = Encoder(define=False, pending=pending)
    decoder = Decoder(TABLES.get, trusted=False)
    read = Read("1", "p", 1, 1, 1, Keys(WIDE, (7, "seven")), "wide")

    def is_lone(*said: Message) -> bool:
        decoder(pa.py_buffer(encoder(said)))
        return decoder.lone

    pending["1"] = AnswerFuture()
    assert is_lone(read)
    assert not is_lone(read, read)
    pending["2"] = AnswerFuture()
    assert not is_lone(read)
    decoder(pa.py_buffer(Encoder(define=False)([read])))
    assert not decoder.lone, "nobody waits for it alone"


# ------------------------------------------------------------------------------------ sizes


def _versioned(*lengths: int) -> Batch:
    columns = pa.record_batch({"k": ["x" * each for each in lengths], "v": [0.5] * len(lengths)})
    return Batch(SMALL, SMALL.align(columns), versions=np.arange(1, len(lengths) + 1))


def test_a_frame_gathers_messages_by_their_encoded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """F194: what a sender expected a message to have does not matter."""
    monkeypatch.setattr("limosa.protocol.wire.FRAME_BYTES_AIM", 10_000)
    whole = TokenRange(TOKEN_MIN, TOKEN_END)
    said = [
        Write(f"{number}", "p", 1, 1, "me", number, 0, 0, whole, Bundle([_versioned(length)]))
        for number, length in enumerate([10, 9_000, 10, 30_000, 10, 10])
    ]
    encoded = Encoder(define=False).frames(said)
    heard = [Decoder(TABLES.get, trusted=False)(pa.py_buffer(frame)) for frame in encoded]
    assert [[each.id for each in some if isinstance(each, Write)] for some in heard] == [
        ["0", "1", "2", "3"],
        ["4", "5"],
    ]
    assert max(map(len, encoded)) < 10_000 + 30_000 + 5_000


def test_a_large_slice_travels_in_parts_and_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """F194: the rows of a slice may have more bytes than a frame."""
    monkeypatch.setattr("limosa.protocol.wire.PART_BYTES_MAX", 10_000)
    monkeypatch.setattr("limosa.protocol.wire.FRAME_BYTES_AIM", 10_000)
    rows = Bundle([_versioned(4_000), _versioned(4_000), _versioned(50_000), _versioned(9_000, 1)])
    fetched = Fetched("p", "s", 3, rows, 7, (), rows.digest(), 8)
    other = Fetched("p", "s", 4, Bundle([_versioned(5)]), 7, (), 1, 8)
    encoded = Encoder(define=True).frames([fetched, other])
    assert len(encoded) == 2, "the first has two parts, the second has one, and the other slice"
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    heard = [each for frame in encoded for each in decoder(pa.py_buffer(frame))]
    assert plain(heard) == plain([fetched, other])


def test_a_slice_of_a_node_of_the_version_before_is_understood() -> None:
    """It does not ask for pauses. What it says after the number of slices means that more follows,
    so a later version may only add something behind that."""
    old = ["Fetched", "p", "s", 3, [], 7, [], "1f", 8, False]
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    (heard,) = decoder(pa.py_buffer(attacker.frame([old], [])))
    assert plain([heard]) == plain([Fetched("p", "s", 3, Bundle(), 7, (), 0x1F, 8)])
    pausing = Fetched("p", "s", 3, Bundle(), 7, (), 0x1F, 8, 0.5)
    frame = Encoder(define=True)([pausing])
    assert plain(decoder(pa.py_buffer(frame))) == plain([pausing])


def test_each_message_of_a_client_s_frame_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F194, S124: so that its outcome is known, and the stream goes on."""
    monkeypatch.setattr("limosa.protocol.wire.CLIENT_FRAME_BYTES_MAX", 1_000)
    body = attacker.good_rows().serialize().to_pybytes()
    said = [attacker.write(HOSTILE, "p", body), attacker.read(HOSTILE, "p", ["k"])]
    heard = _client(attacker.frame(said, [body + bytes(2_000)]))
    assert [each.id for each in heard if isinstance(each, Unreadable)] == ["w.1", "r.1"]
    assert all(isinstance(each, Unreadable) and type(each.error) is TooManyBytes for each in heard)
    with pytest.raises(BadInput, match="malformed frame"):
        _client(attacker.frame([["Probe"]], [bytes(2_000)]))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_the_rows_of_a_mover_are_not_compressed(codec: Literal["lz4", "zstd"]) -> None:
    """A few bytes of it could be a gigabyte."""
    body = attacker.compressed(codec)
    part = [HOSTILE.fingerprint, 2, 0, len(body)]
    chunk = ["Chunk", "p", "i", "s", 1, 0, "a", 0, [part]]
    decoder = Decoder({HOSTILE.fingerprint: HOSTILE}.get, True, "mover")
    with pytest.raises(BadInput, match="a compressed batch"):
        decoder(pa.py_buffer(attacker.frame([chunk], [body])))
    part[3] = 100
    with pytest.raises(BadInput, match="an invalid Arrow batch"):
        decoder(pa.py_buffer(attacker.frame([chunk], [body])))
    schema = pa.schema([("a", pa.int64())]).serialize().to_pybytes()
    part[3] = len(schema)
    with pytest.raises(BadInput, match="a body is a schema"):
        decoder(pa.py_buffer(attacker.frame([chunk], [schema])))


def test_a_row_of_the_version_before_still_fits_into_the_messages_between_nodes() -> None:
    """F194, S124: then a row could have 80 MiB, and this one did not fit into a replication frame:
    its partition could not be written any more."""
    before = Batch(SMALL, _versioned(83_885_620).columns)
    entry = Entry(2, 1, Bundle([before]), "p" * 100, 1)
    copied = Bundle([Batch(SMALL, before.columns, before.tokens, np.array([2]), np.array([False]))])
    small = Bundle([_versioned(5_000)] * 800)
    said: list[Message] = [
        Replicate("p", "i", 1, 1, 1, (entry,), 1),
        Fetched("p", "s", 0, Bundle([*small.batches, *copied.batches]), 7, (), 1),
        Chunk("p", "i", "s", 1, 0, "a", 0, copied),
        Found("1", FoundRows(SMALL, before.columns, (2,))),
    ]
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    encoder = Encoder(define=True)
    heard = [each for frame in encoder.frames(said) for each in decoder(pa.py_buffer(frame))]
    assert [type(each) for each in heard] == [Replicate, Fetched, Chunk, Found]
    assert isinstance(heard[0], Replicate)
    rows = heard[0].entries[0].rows
    assert isinstance(rows, Bundle)
    assert rows.batches[0].columns == before.columns
