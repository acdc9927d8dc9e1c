"""How is a change requested? A node stores the request, and the coordinator answers it."""

import time
import uuid

import pyarrow as pa
from msgspec.structs import replace

from limosa.client.session import Session
from limosa.core.model.changes import Topology
from limosa.core.model.codec import decode, encode
from limosa.core.model.requests import CreateTable, Request
from limosa.core.model.topology import NamedTable
from limosa.errors import OutcomeUnknown
from limosa.tabular.schema import Table

REQUEST_SECONDS = 30.0
PARTITIONS = 16


def request_id(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:16]}"


def answered(session: Session, request: Request) -> Request:
    """Store the request and wait for its answer; raises `IllegalRequest` if it is refused."""
    try:
        return as_request(session.call("request", dated(request), REQUEST_SECONDS))
    except OutcomeUnknown:
        raise OutcomeUnknown(
            f"the request {request.id} was not answered in time",
            f"see `limosa operations show {request.id}`; is the cluster locked?",
        ) from None


def dated(request: Request) -> bytes:
    """With the current time, so that people see how long it has waited."""
    return encode(replace(request, asked=time.time()))


def as_request(body: bytes) -> Request:
    answer = decode(body)
    assert isinstance(answer, Request)
    return answer


def creation(
    id: str,
    topology: Topology,
    name: str,
    columns: pa.Schema,
    key: tuple[str, ...],
    partitions: int = PARTITIONS,
    replicas: int | None = None,
    min_in_sync: int = 0,
    zone: str | None = None,
) -> Request:
    """The request for a new table; an existing zone determines partitions and replicas."""
    definition = Table(f"t{uuid.uuid4().hex[:16]}", columns, key)
    if replicas is None:
        holders = [n for n in topology.nodes.values() if n.tokens and n.state == "normal"]
        replicas = min(3, len(holders))
    joins = zone is not None and zone in topology.zones
    table = NamedTable(name, zone or name, definition.id, definition.encode())
    numbers = () if joins else (partitions, replicas, min_in_sync)
    return Request(id, CreateTable(table, *numbers))
