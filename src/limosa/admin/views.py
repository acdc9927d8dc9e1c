"""What does the cluster contain? Routes that show the cluster, its nodes, tables and partitions."""

from typing import Annotated

from fastapi import Query
from msgspec import Struct

from limosa.admin.moves import look_at
from limosa.admin.names import (
    LIMIT,
    NAME,
    After,
    Limit,
    NodeInPath,
    PartitionInPath,
    TableInPath,
)
from limosa.admin.overview import (
    ClusterStatus,
    NodeFacts,
    PartitionFacts,
    look,
    node_facts,
    partition_facts,
    partitions_of,
    status_of,
)
from limosa.admin.problems import not_found
from limosa.admin.routing import Calling, Routes
from limosa.client.connection import Description
from limosa.core.insight.explaining import Explanation
from limosa.errors import IllegalRequest, UnknownTable

routes = Routes("views")


class NodeList(Struct, frozen=True):
    nodes: list[NodeFacts]


class TableList(Struct, frozen=True):
    tables: list[Description]


class Partitions(Struct, frozen=True):
    partitions: list[PartitionFacts]
    next: str | None
    """Pass it as `after` to get the next page; null: this is the last page."""


@routes.get("/v1/topology", role="viewer", answers=ClusterStatus)
def topology(caller: Calling) -> ClusterStatus:
    """A summary of the cluster: its coordinator, live nodes, tables and partitions."""
    return status_of(look(caller.cluster))


@routes.get("/v1/nodes", role="viewer", answers=NodeList)
def nodes(caller: Calling) -> NodeList:
    """All nodes and what each holds, including removed nodes."""
    overview = look(caller.cluster)
    return NodeList([node_facts(overview, name) for name in sorted(overview.topology.nodes)])


@routes.get("/v1/nodes/{node}", role="viewer", answers=NodeFacts)
def node(caller: Calling, node: NodeInPath) -> NodeFacts:
    """One node."""
    overview = look(caller.cluster)
    if node not in overview.topology.nodes:
        raise not_found("node", node, "/v1/nodes")
    return node_facts(overview, node)


@routes.get("/v1/tables", role="viewer", answers=TableList)
def tables(caller: Calling) -> TableList:
    """All tables."""
    described = []
    for name in caller.cluster.tables():
        try:
            described.append(caller.cluster.describe(name))
        except UnknownTable:
            continue  # dropped meanwhile
    return TableList(described)


@routes.get("/v1/tables/{table}", role="viewer", answers=Description)
def table(caller: Calling, table: TableInPath) -> Description:
    """One table: its columns, partitions and replicas."""
    try:
        return caller.cluster.describe(table)
    except UnknownTable:
        raise not_found("table", table, "/v1/tables") from None


@routes.get("/v1/partitions", role="viewer", answers=Partitions)
def partitions(
    caller: Calling,
    table: Annotated[
        str | None, Query(pattern=NAME, description="Only partitions of this table.")
    ] = None,
    limit: Limit = LIMIT,
    after: After = "",
) -> Partitions:
    """Partitions with their owners and replicas, in pages ordered by name."""
    overview = look(caller.cluster)
    try:
        found = partitions_of(overview, table)
    except UnknownTable:
        raise not_found("table", str(table), "/v1/tables") from None
    left = sorted((each for each in found if each.id > after), key=lambda each: each.id)
    some = [partition_facts(overview, each) for each in left[:limit]]
    return Partitions(some, some[-1].partition if len(left) > limit else None)


@routes.get("/v1/partitions/{partition}", role="viewer", answers=PartitionFacts)
def partition(caller: Calling, partition: PartitionInPath) -> PartitionFacts:
    """One partition."""
    overview = look(caller.cluster)
    record = overview.topology.partitions.get(partition)
    if record is None:
        raise not_found("partition", partition, "/v1/partitions")
    return partition_facts(overview, record)


@routes.get("/v1/partitions/{partition}/explain", role="viewer", answers=Explanation)
def explain(caller: Calling, partition: PartitionInPath) -> Explanation:
    """A partition's stage, what it waits for, what comes next, and what you can do."""
    try:
        return look_at(caller.cluster, partition)
    except IllegalRequest:
        raise not_found("partition", partition, "/v1/partitions") from None
