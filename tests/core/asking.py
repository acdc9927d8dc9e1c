"""Three nodes and somebody who asks: what is answered, and is it sound?"""

import re

from msgspec.structs import replace

from limosa.core import invariants
from limosa.core.coordinator import requests
from limosa.core.model.changes import Agreed, Commit, Put, apply
from limosa.core.model.requests import Request
from limosa.core.model.topology import CoordinatorLease, Node, NodeLease, Record
from tests.core.samples import OFFICE, seen

NODES = ("a", "b", "c")
TRIGGER = 77


def wanting(request: Request, **fields: object) -> Request:
    """The same request, with something else in its wish."""
    return replace(request, what=replace(request.what, **fields))


def world(*more: Record, live: tuple[str, ...] = NODES, nodes: tuple[Node, ...] = ()) -> Agreed:
    """Three nodes and nothing else, then `more`."""
    agreed = Agreed()
    records: list[Record] = [*(nodes or map(Node, NODES)), CoordinatorLease("one", 20)]
    for record in records:
        agreed = apply(agreed, (Put(record),), OFFICE)
    for number, name in enumerate(live):
        agreed = apply(agreed, (Put(NodeLease(name, 11 + number)),), 50 + number)
    for number, record in enumerate(more):
        agreed = apply(agreed, (Put(record),), 60 + number)
    return agreed


def answered(agreed: Agreed, request: Request) -> tuple[Request, Commit, Agreed]:
    """The request's row, the commit that answers it, and the state after that."""
    trigger = max(TRIGGER, agreed.revision + 1)
    before = apply(agreed, (Put(request),), trigger)
    commit = requests.answer(seen(before), request)
    assert all(before.revision_of(key) == value for key, value in commit.guards.items())
    after = apply(before, commit.changes, trigger + 1)
    assert invariants.broken(before, after) == []
    return after.requests[request.id], commit, after


def refused(agreed: Agreed, request: Request) -> str:
    row, commit, _ = answered(agreed, request)
    assert row.state == "refused"
    assert len(commit.changes) == 1
    assert re.search(r" \(.+\)$", row.answer), "a refusal gives advice"
    return row.answer
