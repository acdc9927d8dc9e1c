"""What do all requests share? The cluster, the tokens, the audit log, and threads to work in."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi.exceptions import RequestValidationError
from msgspec import Struct
from starlette.exceptions import HTTPException

from limosa.admin import problems
from limosa.admin.problems import Problem
from limosa.admin.readiness import Readiness
from limosa.admin.roles import Role, allows
from limosa.admin.runs import Runs
from limosa.admin.tokens import AdminIdentity, Tokens
from limosa.client.access import ClusterAccess
from limosa.errors import LimosaError
from limosa.runtime.audit import AuditLog

Result = TypeVar("Result")

THREADS = 32


class Logger(Protocol):
    def __call__(self, what: str, **details: object) -> None: ...


class AdminSettings(Struct, frozen=True):
    deadline_seconds: float = 15.0
    """The longest time that a caller waits; a change in flight continues."""
    body_bytes_max: int = 1 << 20
    follow_seconds: float = 1.0
    """How often an operation is polled, until its end is in the audit log."""


class AdminService:
    """Runs handlers in its own threads, so that the event loop never blocks."""

    def __init__(
        self,
        cluster: ClusterAccess,
        tokens: Tokens,
        audit: AuditLog,
        log: Logger,
        runs: Runs,
        settings: AdminSettings | None = None,
    ) -> None:
        self.cluster = cluster
        self.tokens = tokens
        self.audit = audit
        self.log = log
        self.runs = runs
        self.settings = settings or AdminSettings()
        self.readiness = Readiness(cluster, log)
        self.asked: Callable[[Caller, str], None] = lambda caller, operation: None
        """Called with each operation that was requested."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="limosa-admin")
        self._refusals = 0
        self._refusals_told_at = 0.0

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """A caller that stops waiting leaves the thread running: calls to the cluster time out."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- authentication

    def identify(self, authorization: list[str]) -> AdminIdentity:
        """The caller, by its token; raises a problem if the token is not valid."""
        if not self.tokens.entries():
            raise problems.unauthenticated(
                "no token exists yet", "make one: `limosa admin-token add NAME --role admin`"
            )
        if not authorization:
            raise problems.unauthenticated(
                "there is no token", "send the header `Authorization: Bearer TOKEN`"
            )
        scheme, _, token = authorization[0].partition(" ")
        identity = None
        if len(authorization) == 1 and scheme.lower() == "bearer":
            identity = self.tokens.identify(token.strip())
        if identity is None:
            self._note_refusal()
            raise problems.unauthenticated(
                "the token is not valid", "make one: `limosa admin-token add NAME --role ROLE`"
            )
        return identity

    def _note_refusal(self) -> None:
        """Log at most one line a second: guessed tokens must not fill the disk."""
        self._refusals += 1
        now = time.monotonic()
        if now - self._refusals_told_at >= 1.0:
            self.log("refused tokens", count=self._refusals)
            self._refusals, self._refusals_told_at = 0, now

    # --- errors

    def problem_of(self, error: Exception, caller: "Caller | None" = None) -> Problem:
        problem = self._problem_of(error, caller)
        if caller is not None and caller.operation and problem.status_code >= 500:
            problem.operation = caller.operation
        return problem

    def _problem_of(self, error: Exception, caller: "Caller | None") -> Problem:
        match error:
            case Problem():
                return error
            case LimosaError():
                problem = problems.of_error(error)
                if problem.status_code >= 500:
                    self.log("the cluster refused", error=str(error))
                if problem.status_code == 504 and caller is not None:
                    return problems.too_late(caller.operation)
                return problem
            case TimeoutError():
                return problems.too_late("" if caller is None else caller.operation)
            case RequestValidationError():
                return problems.of_validation(error.errors())
            case HTTPException():
                return problems.of_http(error.status_code, error.headers)
        incident = secrets.token_hex(6)
        with suppress(Exception):
            self.log("internal error", incident=incident, error=error)
        return problems.internal(incident)


class Caller:
    """One HTTP request and its caller."""

    def __init__(self, service: AdminService, method: str, path: str) -> None:
        self.service = service
        self.method = method
        self.path = path
        self.route = path
        """The declared path, with the names of its parameters."""
        self.identity: AdminIdentity | None = None
        self.body = bytearray()
        """The part of the body that was read."""
        self.operation = ""
        """The id of the requested operation, once there is one."""

    @property
    def cluster(self) -> ClusterAccess:
        return self.service.cluster

    @property
    def who(self) -> AdminIdentity:
        assert self.identity is not None
        return self.identity

    def must_be(self, role: Role) -> None:
        if not allows(self.who.role, role):
            raise Problem(
                403,
                "forbidden",
                f"{self.who.subject} has the role {self.who.role}, but this needs {role}",
                f"use a token of the role {role}",
            )

    def note(self, event: str, **facts: Any) -> None:
        """Write to the audit log; raises if that fails."""
        self.service.audit.write(
            event,
            subject=self.who.subject,
            role=self.who.role,
            route=f"{self.method} {self.route}",
            path=self.path.encode("utf-8", "replace").decode(),
            operation=self.operation or None,
            **facts,
        )

    def note_refusal(self, problem: Problem) -> None:
        """Write a refusal to the audit log, if possible."""
        event = "answered" if self.operation else "refused"
        try:
            self.note(
                event,
                body=self.sent,
                status=problem.status_code,
                answer=problem.detail.encode("utf-8", "replace").decode(),
            )
        except LimosaError as error:
            self.service.log("not in the audit log", error=str(error), event=event)

    @property
    def sent(self) -> Any:
        """The body as JSON, or as text if it is not JSON."""
        if not self.body:
            return None
        try:
            return msgspec.json.decode(bytes(self.body))
        except (ValueError, RecursionError):
            return bytes(self.body[:1000]).decode("utf-8", "replace")
