"""Does everything that is sent go out, and everything that comes get to somebody?"""

import threading
import time
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest

from limosa.transport.links import Outbound, StreamSender
from limosa.transport.lone import PendingAnswers, ReadingTurns
from tests.waiting import eventually


class FakeStream:
    """The other side says what is put into `said`; None: the stream is broken."""

    def __init__(self) -> None:
        self.said: Queue[bytes | None] = Queue()
        self.link = StreamSender("other", self, lambda messages: [b"".join(messages)], len)

    def write_metadata(self, frame: pa.Buffer) -> None:
        pass

    def read(self) -> pa.Buffer:
        frame = self.said.get()
        if frame is None:
            self.said.put(None)
            raise ConnectionError("cut")
        return pa.py_buffer(frame)

    def cancel(self) -> None:
        self.said.put(None)

    close = cancel


class Ends:
    """A link, its other side, and who was told what."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.heard: list[tuple[bytes, int]] = []
        self.link = Outbound(
            "other",
            self._connect,  # type: ignore[arg-type]
            lambda frame: self.heard.append((frame.to_pybytes(), threading.get_ident())),
            pending=PendingAnswers(),
        )
        self.link.send(b"hello")
        eventually(lambda: bool(self.streams))

    def _connect(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def say(self, frame: bytes) -> None:
        self.streams[-1].said.put(frame)

    def make_room_for_callers(self) -> None:
        """The link's thread reads already: it leaves after the next frame."""
        eventually(self.link.turns._turn.locked)
        self.read_here()
        self.say(b"first")
        eventually(lambda: len(self.heard) == 1 and not self.link.turns._turn.locked())

    def read_here(self) -> None:
        self.link.turns.read_as_caller(lambda: len(self.heard) == 2)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ReadingTurns, "LEFT_SECONDS", 60.0)
    ends = Ends()
    yield ends
    ends.link.close()


def test_a_caller_reads_its_own_answer(ends: Ends) -> None:
    ends.make_room_for_callers()
    ends.say(b"second")
    ends.read_here()
    assert ends.heard[1] == (b"second", threading.get_ident())


def test_what_no_caller_reads_is_read_all_the_same(ends: Ends) -> None:
    ends.link.turns.LEFT_SECONDS = 0.05
    ends.make_room_for_callers()
    ends.say(b"second")
    eventually(lambda: len(ends.heard) == 2)
    assert ends.heard[1][1] != threading.get_ident()


def test_the_links_thread_takes_over_at_once_if_it_is_needed(ends: Ends) -> None:
    ends.make_room_for_callers()
    ends.say(b"second")
    ends.link.wake()
    eventually(lambda: len(ends.heard) == 2)


def test_a_caller_that_waits_for_nothing_any_more_is_let_go_of(ends: Ends) -> None:
    ends.make_room_for_callers()
    caller = threading.Thread(target=ends.read_here)
    caller.start()
    eventually(lambda: ends.link.turns._caller == caller.ident)
    ends.link.turns.release(threading.get_ident())
    assert caller.is_alive()
    assert caller.ident is not None
    ends.link.turns.release(caller.ident)
    caller.join(5.0)
    assert not caller.is_alive()


def test_a_stream_that_broke_under_a_caller_is_opened_again(ends: Ends) -> None:
    ends.make_room_for_callers()
    ends.streams[-1].cancel()
    ends.read_here()
    ends.link.wake()
    eventually(lambda: ends.link._stream is None)
    ends.link.send(b"hello again")
    eventually(lambda: len(ends.streams) == 2)
    ends.say(b"second")
    eventually(lambda: len(ends.heard) == 2)


def test_no_message_stays_behind_whoever_pumps_and_whoever_wakes() -> None:
    sent: list[int] = []

    class Writer:
        def write_metadata(self, frame: pa.Buffer) -> None:
            sent.append(frame.size)

    link = StreamSender("other", Writer(), lambda messages: [b"".join(messages)], len)

    def send(wakes: bool) -> None:
        for number in range(500):
            link.send(b"m", quiet=True)
            if wakes:
                link.wake()
            else:
                link.pump()
            if number % 50 == 0:
                time.sleep(0.001)

    threads = [threading.Thread(target=send, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: sum(sent) == 3_000)
    link.close()
