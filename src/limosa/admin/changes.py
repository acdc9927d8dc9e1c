"""What can be changed over HTTP? Routes that move partitions, change tables, and remove nodes.

Each route requests a change and answers at once, with the operation. What the coordinator would
refuse is refused before it is requested.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from limosa.admin.moves import leaving_replica, record_of, volume_on
from limosa.admin.names import (
    LONG_NAME,
    ChangeBody,
    Name,
    NodeInPath,
    PartitionInPath,
    TableInPath,
)
from limosa.admin.problems import not_found
from limosa.admin.requests import ChangeRequest, Changing, all_agreed, checked
from limosa.admin.routing import Accepted, Calling, Routes
from limosa.admin.service import Caller
from limosa.client.requests import PARTITIONS, creation
from limosa.client.schema import schema_of
from limosa.core.coordinator.limits import PARTITIONS_MAX, REPLICAS_MAX
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    CancelChange,
    CompleteMove,
    DropTable,
    MovePartition,
    MoveToVolume,
    RemoveNode,
    Request,
    ReverseMove,
)
from limosa.errors import IllegalRequest

HOLD_SECONDS_MAX = 7 * 86_400.0

routes = Routes("changes")

ColumnName: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
ColumnType: TypeAlias = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "string",
    "binary",
    "date32",
    "timestamp",
    "timestamp[us]",
]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=HOLD_SECONDS_MAX, allow_inf_nan=False)]


class TableBody(ChangeBody):
    """The table to create."""

    name: Name
    columns: Annotated[dict[ColumnName, ColumnType], Field(min_length=1, max_length=1000)]
    """Types by the columns' names."""
    key: Annotated[list[ColumnName], Field(min_length=1, max_length=16)]
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)] = PARTITIONS
    replicas: Annotated[int | None, Field(ge=1, le=REPLICAS_MAX)] = None
    """Default: three, or the number of nodes if that is less."""
    min_in_sync: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = 0
    """0: a majority of the replicas."""
    zone: Name | None = None
    """Share the partitions of this zone. Default: the table gets its own zone."""


class MoveBody(ChangeBody):
    """A move of one replica."""

    to: Name
    source: Annotated[Name | None, Field(alias="from")] = None
    """The node that loses its replica. Default: the owner."""
    volume: Annotated[str | None, Field(pattern=LONG_NAME)] = None
    """Default: the volume with the fewest replicas."""
    hold_seconds: Seconds = 0.0
    """How long to keep the old replica after the switch."""
    max_pause_seconds: Seconds = 0.0
    """Hand over only when the expected pause of writes is at most this long; 0: no limit."""


# --- tables


@routes.post("/v1/tables", role="operator")
def create_table(caller: Calling, change: Changing, body: TableBody) -> Accepted:
    """Create a table."""

    def build(id: str) -> Request:
        agreed = all_agreed(caller)
        request = creation(
            id,
            agreed.topology,
            body.name,
            schema_of(body.columns),
            tuple(body.key),
            body.partitions,
            body.replicas,
            body.min_in_sync,
            body.zone,
        )
        return checked(agreed, request)

    return change.ask(build, body.model_dump(), None)


@routes.delete("/v1/tables/{table}", role="admin")
def drop_table(caller: Calling, change: Changing, table: TableInPath) -> Accepted:
    """Drop a table and all of its rows."""
    known = caller.cluster.refresh().tables.get(table)

    def build(id: str) -> Request:
        if known is None:
            raise not_found("table", table, "/v1/tables")
        request = Request(id, DropTable(table, known.id))
        return checked(all_agreed(caller), request)

    before = None if known is None else caller.cluster.describe(table)
    return change.ask(build, before=before)


# --- nodes


@routes.delete("/v1/nodes/{node}", role="admin")
def remove_node(caller: Calling, change: Changing, node: NodeInPath) -> Accepted:
    """Remove a stopped node that holds no replicas."""
    known = caller.cluster.refresh().nodes.get(node)

    def build(id: str) -> Request:
        if known is None:
            raise not_found("node", node, "/v1/nodes")
        return checked(all_agreed(caller), Request(id, RemoveNode(node)))

    return change.ask(build, before=known)


# --- partitions


@routes.post("/v1/partitions/{partition}/move", role="operator")
def move(caller: Calling, change: Changing, partition: PartitionInPath, body: MoveBody) -> Accepted:
    """Move one replica of a partition to another node; reads and writes continue."""
    agreed = _state(caller, partition)

    def build(id: str) -> Request:
        record = record_of(agreed, partition)
        leaving, _ = leaving_replica(record, body.source)
        place = Placement(body.to, volume_on(caller.cluster.refresh(), body.to, body.volume))
        if place == Placement(leaving.node, leaving.volume):
            raise IllegalRequest(
                f"{body.to} holds a replica of {partition} already", "choose another node or volume"
            )
        wish = (MoveToVolume if body.to == leaving.node else MovePartition)(
            partition,
            source=leaving.node,
            target=place,
            hold_seconds=body.hold_seconds,
            max_pause_seconds=body.max_pause_seconds,
        )
        return checked(agreed, Request(id, wish))

    before = agreed.topology.partitions[partition]
    return change.ask(build, body.model_dump(by_alias=True), before)


@routes.post("/v1/partitions/{partition}/cancel", role="operator")
def cancel(caller: Calling, change: Changing, partition: PartitionInPath) -> Accepted:
    """Cancel a move before reads have switched; it is rolled back, and no data is lost."""
    agreed = _state(caller, partition)

    def build(id: str) -> Request:
        intent = agreed.intents.get(partition)
        if intent is None or intent.pending is None:
            raise IllegalRequest(
                f"{partition} has no move that can be cancelled",
                f"see GET /v1/partitions/{partition}/explain",
            )
        return checked(agreed, Request(id, CancelChange(partition, intent.pending.trigger)))

    return change.ask(build, before=agreed.topology.partitions[partition])


@routes.post("/v1/partitions/{partition}/complete", role="operator")
def complete(caller: Calling, change: Changing, partition: PartitionInPath) -> Accepted:
    """End the hold of a move: remove its old replica."""
    return _end_hold(caller, change, CompleteMove(partition))


@routes.post("/v1/partitions/{partition}/reverse", role="operator")
def reverse(caller: Calling, change: Changing, partition: PartitionInPath) -> Accepted:
    """Reverse a move during its hold: the partition returns to its old replicas."""
    return _end_hold(caller, change, ReverseMove(partition))


def _end_hold(caller: Caller, change: ChangeRequest, wish: CompleteMove | ReverseMove) -> Accepted:
    agreed = _state(caller, wish.partition)
    return change.ask(
        lambda id: checked(agreed, Request(id, wish)),
        before=agreed.topology.partitions[wish.partition],
    )


def _state(caller: Caller, partition: str) -> Agreed:
    agreed = caller.cluster.state(partition)
    if partition not in agreed.topology.partitions:
        raise not_found("partition", partition, "/v1/partitions")
    return agreed
