"""Nodes that answer movers as a test tells them to: a real server, and no brain."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from limosa.core.messages import Chunk, Denied, End, Fetch, Fetched, Landed, Message
from limosa.errors import Refused
from limosa.pipeline.loads import CopyLoad, Task
from limosa.pipeline.pipe import Access
from limosa.protocol.peers import Dialer
from limosa.protocol.wire import Decoder, Encoder, size_of
from limosa.tabular.rows import Bundle
from limosa.transport.links import Encode
from limosa.transport.security import Security
from limosa.transport.server import Inbound, Server
from limosa.transport.tokens import Identity
from tests.storage.samples import Row, birds

CLUSTER = "birds"

Answer = Callable[[Message], Iterable[Message] | None]
"""What to say to a message; None: what a node would say."""


def slice_rows(number: int) -> tuple[Row, ...]:
    """A few, of two batches."""
    return tuple((f"{number}-{each}", each) for each in range(10))


def slice_bundle(number: int) -> Bundle:
    rows = slice_rows(number)
    return Bundle([birds(*rows[:6]), birds(*rows[6:])])


class ScriptedNode:
    """Gives slices and takes them. `answer` is asked first."""

    def __init__(self, name: str) -> None:
        self.cluster = CLUSTER
        self.node = name
        self.answer: Answer = lambda message: None
        self.rows: Callable[[int], Bundle] = slice_bundle
        self.heard: list[Message] = []
        self.landed: dict[tuple[str, int], list[Row]] = {}
        """By partition and slice."""
        self._chunks: dict[tuple[str, int, str], list[Chunk]] = {}
        self._decoders: dict[int, Decoder] = {}
        self._lock = threading.Lock()
        self.server = Server("127.0.0.1", 0, Security(insecure=True), self)

    @property
    def address(self) -> str:
        return self.server.address

    def fetches(self) -> list[tuple[str, int]]:
        return [(each.partition, each.slice) for each in self.heard if isinstance(each, Fetch)]

    def ends(self) -> list[End]:
        return [each for each in self.heard if isinstance(each, End)]

    def stop(self) -> None:
        self.server.stop(2.0, lambda inbound: inbound.link.close())

    # --- what a server asks of its service

    def encoder(self, kind: str) -> Encode:
        return Encoder(define=True).frames

    def size_of(self, message: Any) -> int:
        return size_of(message)

    def opened(self, inbound: Inbound) -> None:
        self._decoders[id(inbound)] = Decoder(lambda fingerprint: None, True, inbound.hello.kind)

    def closed(self, inbound: Inbound) -> None:
        self._decoders.pop(id(inbound), None)

    def received(self, inbound: Inbound, frame: pa.Buffer) -> None:
        for message in self._decoders[id(inbound)](frame):
            assert isinstance(message, Message)
            with self._lock:
                self.heard.append(message)
                answers = self.answer(message)
                said = self._serve(message) if answers is None else list(answers)
            for each in said:
                inbound.link.send(each)

    def act(self, identity: Identity, name: str, body: bytes) -> bytes:
        raise Refused("movers make no calls")

    def scan(self, identity: Identity, ticket: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        raise Refused("movers scan nothing")

    def log(self, what: str, **details: object) -> None:
        pass

    # --- what a node does

    def _serve(self, message: Message) -> list[Message]:
        match message:
            case Fetch():
                head = (message.partition, message.session, message.slice)
                return [
                    Fetched(
                        *head,
                        self.rows(message.slice),
                        7,
                        (),
                        self.rows(message.slice).digest(),
                        message.slices,
                    )
                ]
            case Chunk():
                key = (message.partition, message.slice, message.attempt)
                self._chunks.setdefault(key, []).append(message)
                return []
            case End():
                return [self._end(message)]
        raise AssertionError(message)

    def _end(self, end: End) -> Message:
        head = (end.partition, end.session, end.slice)
        if (end.partition, end.slice) in self.landed:
            return Landed(*head, end.slices)
        chunks = self._chunks.pop((end.partition, end.slice, end.attempt), [])
        bundles = [chunk.rows for chunk in chunks]
        whole = sum(map(len, bundles)) == end.count
        if not chunks or not whole or sum(each.digest() for each in bundles) != end.digest:
            return Denied(*head, "rows are missing", end.slices)
        rows = [row for bundle in bundles for row in _rows_of(bundle)]
        self.landed[end.partition, end.slice] = sorted(rows)
        return Landed(*head, end.slices)


def _rows_of(bundle: object) -> Iterator[Row]:
    assert isinstance(bundle, Bundle)
    for batch in bundle.batches:
        for row in batch.columns.to_pylist():
            yield row["name"], row["eggs"]


def dialer() -> Dialer:
    return Access(CLUSTER).dialer("test")


def task(nodes: Iterable[ScriptedNode], *loads: CopyLoad, bytes_per_second: float = 0.0) -> Task:
    return Task(loads, {node.node: node.address for node in nodes}, bytes_per_second)
