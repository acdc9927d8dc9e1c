"""A peer that reaches a node's port and means no good: it speaks Flight, and says what it likes."""

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN
from limosa.errors import LimosaError
from limosa.tabular.schema import Table
from limosa.transport import frames
from limosa.transport.failures import from_flight_error
from limosa.transport.security import call_options
from limosa.transport.server import Hello

PATIENCE_SECONDS = 20.0
OPTIONS: Any = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own


class Attacker:
    """One connection."""

    def __init__(self, address: str, token: str | None = None, **arguments: Any) -> None:
        self.token = token
        self.client = flight.FlightClient(address, generic_options=OPTIONS, **arguments)

    def open(self, hello: Hello | bytes | None = None, seconds: float = PATIENCE_SECONDS) -> "Talk":
        said = Hello("", "client") if hello is None else hello
        command = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
        descriptor = flight.FlightDescriptor.for_command(command)
        return Talk(*self.client.do_exchange(descriptor, call_options(self.token, seconds)))

    def act(self, name: str, body: bytes = b"", seconds: float = PATIENCE_SECONDS) -> bytes:
        options = call_options(self.token, seconds)
        results = list(self.client.do_action(flight.Action(name, body), options))
        return results[0].body.to_pybytes()

    def scan(self, ticket: bytes) -> pa.Table:
        options = call_options(self.token, PATIENCE_SECONDS)
        return self.client.do_get(flight.Ticket(ticket), options).read_all()

    def close(self) -> None:
        self.client.close()


class Talk:
    """One open stream."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self.writer = writer
        self.reader = reader

    def send(self, frame: bytes) -> None:
        self.writer.write_metadata(pa.py_buffer(frame))

    def read(self) -> list[Any]:
        """The messages of the next frame, as plain lists: a tag, then its fields."""
        head, _ = frames.unpack(self.reader.read_chunk().app_metadata)
        return list(msgspec.msgpack.decode(head)[1])

    def ask(self, frame: bytes) -> list[Any]:
        """The first answer to a frame."""
        self.send(frame)
        answer: list[Any] = self.read()[0]
        return answer

    def refused(self, frame: bytes | None = None) -> LimosaError:
        """How the stream ends, with nothing of the server's inside in it."""
        try:
            if frame is not None:
                self.send(frame)
            for _ in range(1_000):
                self.read()
        except StopIteration:
            raise AssertionError("the stream ended without an error") from None
        except (pa.ArrowException, OSError) as error:
            self.cancel()
            return told(error)
        raise AssertionError("it answers and answers")

    def cancel(self) -> None:
        """Arrow would complain of a stream that nobody closed."""
        self.reader.cancel()
        with suppress(Exception):
            self.writer.close()


def told(error: BaseException) -> LimosaError:
    """What the peer was told: an error of ours, and no traceback, file or internal error."""
    text = str(error)
    assert "Traceback" not in text, text
    assert ".py" not in text, text
    meant = from_flight_error(error)
    assert "internal error" not in str(meant), meant
    return meant


# ------------------------------------------------------------------------------------ messages


def frame(messages: Sequence[Any], bodies: Sequence[bytes] = (), definitions: Any = ()) -> bytes:
    """Whatever messages and bodies."""
    return frames.pack(msgspec.msgpack.encode([list(definitions), list(messages)]), list(bodies))


versions: dict[str, int] = {}
"""Of the layouts of partitions, as far as they are known."""


def write(table: Table, partition: str, body: bytes, /, **changes: Any) -> list[Any]:
    """A write of one body, as a client would say it, but for what is changed."""
    fields: dict[str, Any] = {
        "id": "w.1",
        "partition": partition,
        "version": versions.get(partition, 1),
        "epoch": 1,
        "producer": f"attacker-{time.monotonic_ns()}",
        "sequence": 1,
        "after": 0,
        "floor": 0,
        "range": {"start": TOKEN_MIN, "end": TOKEN_END},
        "parts": [[table.fingerprint, 0, 0, len(body)]],
        "expected": None,
    }
    assert fields.keys() >= changes.keys()
    return ["Write", *(fields | changes).values()]


def read(table: Table, partition: str, key: Any, /, **changes: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "id": "r.1",
        "partition": partition,
        "version": versions.get(partition, 1),
        "epoch": 1,
        "revision": 1,
        "table": table.fingerprint,
        "key": key,
        "parts": [],
        "eventual": False,
    }
    assert fields.keys() >= changes.keys()
    return ["Read", *(fields | changes).values()]


# ------------------------------------------------------------------------------------ damaged rows

NAMES = ("abc", "defg", "hijkl")
_OFFSETS = struct.pack("<4i", 0, 3, 7, 12)

# Of every table that damaged rows are for.
_FIELDS: list[Any] = [
    pa.field("id", pa.string(), nullable=False),
    ("name", pa.string()),
    ("list", pa.list_(pa.int64())),
    ("pair", pa.struct([("x", pa.string()), ("y", pa.int32())])),
    ("flag", pa.bool_()),
]
SCHEMA = pa.schema(_FIELDS)


def good_rows(count: int = 3) -> pa.RecordBatch:
    names = [NAMES[n % 3] for n in range(count)]
    return pa.RecordBatch.from_pydict(
        {
            "id": [f"key-{n:06}" for n in range(count)],
            "name": names,
            "list": [[n] * 5 for n in range(count)],
            "pair": [{"x": "zz", "y": n} for n in range(count)],
            "flag": [n % 2 == 0 for n in range(count)],
        },
        schema=SCHEMA,
    )


def damaged_bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies that are no sound batch of `SCHEMA`, each in its own way."""
    good = good_rows().serialize().to_pybytes()
    assert good.count(_OFFSETS) == 1
    for what, offsets in {
        "negative": (0, -3, 7, 12),
        "first negative": (-8, 3, 7, 12),
        "beyond the data": (0, 3, 7, 2**31 - 1),
        "far beyond": (0, 3, 1 << 20, 1 << 20),
        "decreasing": (0, 7, 3, 12),
    }.items():
        yield f"offsets {what}", good.replace(_OFFSETS, struct.pack("<4i", *offsets))
    lists = struct.pack("<4i", 0, 5, 10, 15)
    assert good.count(lists) == 1
    for what, offsets in {"negative": (0, -5, 10, 15), "beyond": (0, 5, 10, 1 << 24)}.items():
        yield f"list offsets {what}", good.replace(lists, struct.pack("<4i", *offsets))
    yield "text that is no UTF-8", good.replace(b"abcdefg", b"abc\xff\xfe\xfdg")
    yield "a key that is no UTF-8", good.replace(b"key-000001", b"key-\xc3\x28\xa0\xff01")
    for share in (0.1, 0.5, 0.9):
        yield f"cut to {share}", good[: int(len(good) * share)]
    yield "eight bytes", good[:8]
    yield "zeros", bytes(256)
    yield "no key", _body({"id": pa.array(["a", None, "c"])})
    yield "a schema", SCHEMA.serialize().to_pybytes()
    yield "other columns", pa.record_batch({"z": [1, 2, 3]}).serialize().to_pybytes()
    yield "one column less", good_rows().drop_columns(["flag"]).serialize().to_pybytes()
    yield "other types", _body({"name": pa.array([1, 2, 3])})
    yield "a dictionary", _dictionary()
    codecs: tuple[Literal["lz4"], Literal["zstd"]] = ("lz4", "zstd")
    for codec in codecs:
        yield f"compressed with {codec}", compressed(codec)
    yield from _wrong_numbers()


def compressed(codec: Literal["lz4", "zstd"], rows: int = 3, size: int = 10) -> bytes:
    """A few bytes that are many once they are inflated."""
    batch = good_rows(rows)
    column = pa.array(["\0" * size] * rows)
    place = SCHEMA.get_field_index("name")
    batch = batch.set_column(place, SCHEMA.field(place), column)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return _messages(sink.getvalue())[1]


def _messages(stream: pa.Buffer) -> list[bytes]:
    reader = pa.ipc.MessageReader.open_stream(stream)
    found = []
    while True:
        try:
            found.append(reader.read_next_message().serialize().to_pybytes())
        except StopIteration:
            return found


def _dictionary() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"id": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return _messages(sink.getvalue())[1]


def _body(columns: dict[str, Any]) -> bytes:
    good = good_rows()
    arrays = [columns.get(name, good.column(name)) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.names).serialize().to_pybytes()


def _wrong_numbers() -> Iterator[tuple[str, bytes]]:
    """Lengths, null counts and sizes of buffers in the batch's header that are not so."""
    rows = 1_237  # found nowhere else
    good = good_rows(rows).serialize().to_pybytes()
    size = 8 + struct.unpack_from("<i", good, 4)[0]
    for number, name in ((rows, "rows"), (4 * (rows + 1), "offsets"), (rows * 10, "keys")):
        old = struct.pack("<q", number)
        for wrong in (-1, 0, number - 1, number + 1, 1 << 20, 1 << 40, 2**63 - 1, -(2**63)):
            new = struct.pack("<q", wrong)
            yield f"{wrong} {name} everywhere", good[:size].replace(old, new) + good[size:]
            at = good.find(old, 0, size)
            while at >= 0:
                yield f"{wrong} {name} at {at}", good[:at] + new + good[at + 8 :]
                at = good.find(old, at + 1, size)
