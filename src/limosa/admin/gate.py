"""Who gets in? Before routing, a request needs a valid token and a body that is not too large.

Without a token every path is refused, even one that does not exist, except for the open paths.
"""

from collections.abc import Container
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limosa.admin.problems import Problem
from limosa.admin.service import AdminService, Caller
from limosa.errors import LimosaError

CALLER = "limosa.caller"
HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: AdminService, open_paths: Container[str]) -> None:
        self._app = app
        self._service = service
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._enter(scope, receive, send)
        else:  # WebSocket is not supported
            await send({"type": "websocket.close", "code": 1008})

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller(self._service, scope["method"], scope["path"])
        scope[CALLER] = caller
        answer = Answering(send)
        try:
            if scope["path"] not in self._open_paths:
                shown = _values(scope, b"authorization")
                caller.identity = await self._service.in_thread(self._service.identify, shown)
            body = RequestBody(receive, caller, self._service.settings.body_bytes_max)
            body.check_declared(_values(scope, b"content-length"))
            await self._app(scope, body.receive, answer.send)
        except Exception as error:
            problem = self._service.problem_of(error, caller)
            if isinstance(error, LimosaError):
                self._service.log("refused at the gate", error=str(error))
            if answer.begun:
                raise  # the answer has begun, so the connection must be closed
            response: Response = problem.response(scope["path"])
            await response(scope, receive, answer.send)


class Answering:
    """Sends the answer, and records that it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await self._send(message)


class RequestBody:
    """Limits the size of the body, and keeps it for the audit log."""

    def __init__(self, receive: Receive, caller: Caller, bytes_max: int) -> None:
        self._receive = receive
        self._caller = caller
        self._bytes_max = bytes_max

    def check_declared(self, lengths: list[str]) -> None:
        if any(each.isdecimal() and int(each[:20]) > self._bytes_max for each in lengths):
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        data: bytes = message.get("body", b"")
        if len(self._caller.body) + len(data) > self._bytes_max:
            raise self._too_large()
        self._caller.body += data
        return message

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "too-large",
            f"the body has more than {self._bytes_max} bytes",
            "split it into several requests",
            headers={"Connection": "close"},
        )


def _values(scope: Scope, name: bytes) -> list[str]:
    headers: Any = scope["headers"]
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]
