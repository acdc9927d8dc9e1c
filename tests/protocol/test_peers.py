"""Is there one link to each node, whatever becomes of the node, its address and its streams?"""

import threading
import time
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest

from limosa.core.messages import Look, Message
from limosa.protocol.peers import Dialer, NodeLinks
from limosa.protocol.wire import Encoder, Goodbye, size_of
from limosa.transport.links import StreamSender
from limosa.transport.lone import PendingAnswers
from limosa.transport.security import Security

PATIENCE_SECONDS = 10.0
FIRST, SECOND = "grpc://127.0.0.1:1", "grpc://127.0.0.1:2"


class FakeStream:
    """The node sends what is put into `frames`; None: the stream is broken."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.frames: Queue[bytes | None] = Queue()
        self.cancelled = threading.Event()
        self.link = StreamSender("n1", self, Encoder(define=False).frames, size_of)

    def write_metadata(self, frame: pa.Buffer) -> None:
        """The node ignores what it is sent."""

    def read(self) -> pa.Buffer:
        frame = self.frames.get()
        if frame is None:
            raise ConnectionError("cut")
        return pa.py_buffer(frame)

    def say(self, *messages: Message) -> None:
        self.frames.put(Encoder(define=False)(messages))

    def cancel(self) -> None:
        self.cancelled.set()
        self.frames.put(None)

    def close(self) -> None:
        self.cancel()


class FakeDialer(Dialer):
    def __init__(self) -> None:
        super().__init__("birds", "client", "test", Security(), lambda: None)
        self.opened: Queue[FakeStream] = Queue()

    def open(self, node: str, address: str, pending: PendingAnswers | None = None) -> Any:
        stream = FakeStream(address)
        self.opened.put(stream)
        return stream


class Scene:
    """A process that sends to node n1."""

    def __init__(self) -> None:
        self.dialer = FakeDialer()
        self.heard: Queue[tuple[str, list[Message]]] = Queue()
        self.lost: Queue[str] = Queue()
        self.links = NodeLinks(
            self.dialer, lambda node, said: self.heard.put((node, said)), self.lost.put
        )

    def send(self, address: str) -> None:
        link = self.links.to("n1", address)
        assert link is not None
        link.send(Look(1))

    def opened(self) -> FakeStream:
        """The next stream that was opened."""
        return self.dialer.opened.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.links.close()


def test_a_node_has_one_link_whose_messages_come_frame_by_frame(scene: Scene) -> None:
    scene.send(FIRST)
    stream = scene.opened()
    stream.say(Look(1), Look(2))
    assert scene.heard.get(timeout=PATIENCE_SECONDS) == ("n1", [Look(1), Look(2)])
    scene.send(FIRST)
    assert scene.links.to("n1", FIRST) is scene.links.to("n1", FIRST)
    assert scene.dialer.opened.empty()


def test_a_broken_stream_is_reported_and_the_next_message_opens_another(scene: Scene) -> None:
    scene.send(FIRST)
    scene.opened().cancel()
    assert scene.lost.get(timeout=PATIENCE_SECONDS) == "n1"
    scene.send(FIRST)
    assert scene.opened().address == FIRST


def test_another_address_replaces_the_link(scene: Scene) -> None:
    scene.send(FIRST)
    old = scene.opened()
    old.say(Look(1))
    scene.heard.get(timeout=PATIENCE_SECONDS)
    scene.send(SECOND)
    assert scene.opened().address == SECOND
    assert old.cancelled.wait(PATIENCE_SECONDS)


def test_a_node_without_an_address_has_no_link(scene: Scene) -> None:
    scene.send(FIRST)
    old = scene.opened()
    old.say(Look(1))
    scene.heard.get(timeout=PATIENCE_SECONDS)
    assert scene.links.to("n1", "") is None
    assert old.cancelled.wait(PATIENCE_SECONDS)
    assert scene.links.to("n1", None) is None


def test_the_link_to_a_node_that_stops_is_given_up(scene: Scene) -> None:
    scene.send(FIRST)
    scene.opened().say(Look(1), Goodbye())
    assert scene.heard.get(timeout=PATIENCE_SECONDS) == ("n1", [Look(1), Goodbye()])
    assert scene.lost.get(timeout=PATIENCE_SECONDS) == "n1"


def test_a_link_is_cut_only_when_its_node_is_silent(scene: Scene) -> None:
    scene.send(FIRST)
    stream = scene.opened()
    scene.links.cut_silent(60.0)
    scene.links.heard("n1")
    scene.links.cut_silent(0.0)
    assert not stream.cancelled.is_set(), "the node was heard on a stream of its own"
    stream.say(Look(1))
    scene.heard.get(timeout=PATIENCE_SECONDS)
    scene.send(FIRST)
    time.sleep(0.001)
    scene.links.cut_silent(0.0)
    assert stream.cancelled.is_set()


def test_closed_links_stay_closed(scene: Scene) -> None:
    scene.send(FIRST)
    stream = scene.opened()
    stream.say(Look(1))
    scene.heard.get(timeout=PATIENCE_SECONDS)
    scene.links.close()
    assert stream.cancelled.is_set()
    assert scene.links.to("n1", FIRST) is None
    assert scene.lost.empty()
