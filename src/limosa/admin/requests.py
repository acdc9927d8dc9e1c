"""How does the service ask for a change? By a request row, whose id is the operation's.

An `Idempotency-Key` determines the id, together with the caller and the path. So a retry finds the
row of the first call, whichever service handles it; with another body it is refused.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
from fastapi import Depends, Header
from msgspec.structs import replace

from limosa.admin.operations import leads_to_transition
from limosa.admin.problems import Problem
from limosa.admin.routing import Accepted, Calling
from limosa.admin.service import Caller
from limosa.core.coordinator.requests import handling
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import Agreed
from limosa.core.model.requests import Request
from limosa.core.model.topology import NodeLease
from limosa.errors import LimosaError

Key: TypeAlias = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A retry with the same key and body returns the same operation.",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
    ),
]


class ChangeRequest:
    """A change that a caller requests."""

    def __init__(self, caller: Caller, key: str | None) -> None:
        self._caller = caller
        self._key = key

    def ask(
        self, build: Callable[[str], Request], body: Any = None, before: Any = None
    ) -> Accepted:
        """Build and check the request, audit it, and store it unless it is refused."""
        caller = self._caller
        id, fingerprint = self._id(), _hash(msgspec.json.encode(body, order="sorted").decode())
        known = caller.cluster.request_state(id) if self._key is not None else None
        if known is not None:
            _check_same(known, fingerprint)
            caller.operation = id
            caller.note("answered", body=body, status=202, answer="requested before")
            return accepted(known)
        request = replace(build(id), fingerprint=fingerprint, author=caller.who.subject)
        caller.operation = id
        try:
            caller.note("asked", body=body, before=before)
        except LimosaError:
            caller.operation = ""
            raise
        row = caller.cluster.ask(request)
        _check_same(row, fingerprint)
        self._note_answer(row)
        caller.service.asked(caller, id)
        return accepted(row)

    def _id(self) -> str:
        if self._key is None:
            return f"op-{secrets.token_hex(16)}"
        caller = self._caller
        return f"op-{_hash(self._key, caller.who.subject, caller.method, caller.path)}"

    def _note_answer(self, row: Request) -> None:
        """The change is already requested, so a failure is only logged."""
        try:
            self._caller.note("answered", status=202, answer=row.answer)
        except LimosaError as error:
            self._caller.service.log("not in the audit log", error=str(error), operation=row.id)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def _check_same(row: Request, fingerprint: str) -> None:
    if row.fingerprint != fingerprint:
        raise Problem(
            409,
            "key-used",
            f"the Idempotency-Key was used with another body, for the operation {row.id}",
            "use a new key for a new operation",
        )


def accepted(row: Request) -> Accepted:
    state = "running" if leads_to_transition(row) else row.state
    return Accepted(row.id, state, f"/v1/operations/{row.id}")


async def change_of(caller: Calling, key: Key = None) -> ChangeRequest:
    return ChangeRequest(caller, key)


Changing: TypeAlias = Annotated[ChangeRequest, Depends(change_of)]


# --- checks


def checked(agreed: Agreed, request: Request) -> Request:
    """Refuse early what the coordinator would refuse, by the same rules."""
    view = ClusterView(agreed, {}, 0, 0.0)
    _, act = handling(view, request, agreed.revision + 1)
    act()
    return request


def all_agreed(caller: Caller) -> Agreed:
    """The topology and the live nodes: enough to check requests about tables and nodes."""
    topology = caller.cluster.refresh()
    live = caller.cluster.agreed()["live"]
    leases = {node: NodeLease(node, 0) for node in live}
    return Agreed(topology.generation, topology, leases=leases)
