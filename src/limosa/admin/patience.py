"""How long does the web server wait for a client? Not for ever: each phase has a time limit.

    headers    `HEADER_SECONDS`, from the start of the connection or the end of the last answer
    body       `BODY_SECONDS`
    answer     `ANSWER_SECONDS`, while the client does not read it

Otherwise a client that sends one byte a minute keeps its connection, of which there are few.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
BODY_SECONDS = 30.0
ANSWER_SECONDS = 30.0


class PatientProtocol(H11Protocol):
    """One connection; closes it when a phase takes too long."""

    _timer: asyncio.TimerHandle | None = None
    _answering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        now = self.conn.their_state
        if now is h11.SEND_BODY and before is not h11.SEND_BODY:
            self._wait(BODY_SECONDS)
        elif now not in (h11.IDLE, h11.SEND_BODY):
            self._wait(None)

    def on_response_complete(self) -> None:
        self._wait(HEADER_SECONDS)  # before the next request, which may have come already
        super().on_response_complete()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._wait(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answering = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering is not None:
            self._answering.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Not `close`, which would wait for the client to read what is left to send."""
        self.transport.abort()
