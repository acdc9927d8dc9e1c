"""How is a lone request fast? Its caller does the work that threads do for other requests.

A request is lone while its caller waits for the answer and its connection has no other request
under way, as in a loop of puts. Passing such a request from thread to thread would take longer than
the work itself, so every step stays on the thread that is there already:

    step                  other requests                 a lone request
    send the request      the link's sending thread      the caller: `PendingAnswers.may_send_here`
    sync the node's log   the node's sync thread         the thread that received it: its frame says
                                                         `lone`, see `wire` and `NodeDriver.write`
    read the answer       the link's reading thread      the caller: `AnswerFuture.result`

Only the first step decides whether a request is lone; the others fall back to the threads by
themselves. The wire carries the mark as a hint: a node that ignores it answers a little later.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

SMALL_BYTES = 16 << 10
"""A request of this size fits into the connection's window, unless the peer has stopped reading:
then the caller blocks until the link is cut (`Outbound.cut_if_stuck`)."""

T = TypeVar("T")


class ReadingTurns:
    """Who reads a stream's next frame: the link's own thread, or a caller with a lone request.

    While callers come to read, the link's thread leaves the stream to them.
    """

    LEFT_SECONDS = 0.01
    """The link's thread waits this long for the next caller before it reads itself."""

    def __init__(
        self,
        read: Callable[[], None],
        cut: Callable[[], None],
        pending: "PendingAnswers | None",
    ) -> None:
        self._read = read
        """Reads for a caller: raises nothing, since the link's thread finds a failure again."""
        self._cut = cut
        self._pending = pending
        self._turn = threading.Lock()
        """Held by the thread that reads."""
        self._caller: int | None = None
        """The caller's thread while a caller reads."""
        self._needed = threading.Event()
        """There are answers to come that no caller reads."""
        self._visits = 0
        """How often callers came to read."""

    def read_as_link(self, read: Callable[[], None]) -> None:
        """Read one frame on the link's own thread, then let callers read while they come."""
        visits = self._visits
        with self._turn:
            read()
        if self._visits == visits or self._pending is None:
            return
        self._needed.clear()
        visits = -1
        while self._visits != visits and self._pending.are_read_by_callers():
            visits = self._visits
            if self._needed.wait(self.LEFT_SECONDS):
                return

    def read_as_caller(self, is_done: Callable[[], bool]) -> None:
        """Read one frame on the caller's thread, unless another thread reads already."""
        self._visits += 1
        if self._turn.acquire(blocking=False):
            self._caller = threading.get_ident()
            try:
                if not is_done():
                    self._read()
            finally:
                self._caller = None
                self._turn.release()

    def release(self, caller: int) -> None:
        """That caller has its answer; if it is still reading, only a cut can stop it."""
        if self._caller == caller:
            self._cut()

    def resume(self) -> None:
        """Let the link's thread read: there are answers to come that no caller reads."""
        self._needed.set()


class AnswerFuture(Future[T]):
    """The answer to one request."""

    turns: ReadingTurns | None = None
    """Turns on the link that brings the answer of a lone request: its caller reads there."""
    reader: int | None = None
    """The caller's thread while it reads there."""

    def cancel(self) -> bool:
        """A request that was sent can't be cancelled."""
        return False

    def result(self, timeout: float | None = None) -> T:
        turns = self.turns
        if turns is not None and timeout is None and not self.done():
            self.reader = threading.get_ident()
            try:
                turns.read_as_caller(self.done)
            finally:
                self.reader = None
                if not self.done():
                    turns.resume()
        return super().result(timeout)

    def end(self, result: T) -> None:
        self.set_result(result)
        reader = self.reader
        if reader is not None and reader != threading.get_ident() and self.turns is not None:
            self.turns.release(reader)  # the answer arrived otherwise, or will not arrive

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call back on a new thread: `fn` may wait for another answer, and must not block the
        thread that receives answers."""

        def observe(future: Future[T]) -> None:
            threading.Thread(target=fn, args=(future,), name="limosa-callback", daemon=True).start()

        super().add_done_callback(observe)


class PendingAnswers(dict[str, AnswerFuture[Any]]):
    """A connection's requests without an answer yet, by their ids."""

    def is_lone(self) -> bool:
        """The request that is sent now is the only one."""
        return len(self) <= 1

    def may_send_here(self, size: int) -> bool:
        """The caller of the request that was added last may send it on its own thread."""
        return len(self) == 1 and size <= SMALL_BYTES

    def are_read_by_callers(self) -> bool:
        """No link's thread need read: every answer has a caller that reads it."""
        return all(answer.reader is not None for answer in list(self.values()))
