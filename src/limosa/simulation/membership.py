"""What does an operator of members do? Nodes join and leave, zones and tables come and go.

The operator has dice of its own, so that worlds without such requests do not change.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from limosa.core.model.changes import Commit, Put, request_key
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    AnyWish,
    CreateTable,
    DropTable,
    FollowNodes,
    JoinCluster,
    MovePartition,
    RemoveNode,
    Request,
    SetReplicas,
)
from limosa.core.model.topology import NamedTable

if TYPE_CHECKING:
    from limosa.simulation.world import World

CLUSTER = "world"
NODES_MAX = 6
TABLES_MAX = 2
STOPPED_SECONDS = 1.0
"""A node that shall be removed has been stopped for so long."""


class Membership:
    """An operator that changes what the cluster consists of."""

    def __init__(self, world: "World", zone: str) -> None:
        self.world = world
        self.zone = zone
        self.dice = Random(f"members {world.seed}")
        self.asked = 0

    def operate(self) -> None:
        act = self.dice.choices(tuple(MEMBER_OPERATIONS), tuple(MEMBER_OPERATIONS.values()))[0]
        act(self)

    def ask(self, wish: AnyWish) -> None:
        self.asked += 1
        request = Request(f"m{self.asked:03}", wish)
        guards = {request_key(request.id): 0}
        self.world.commit(Commit(guards, (Put(request),), f"{wish.kind} is asked for"), "operator")

    # --- zones

    def set_replicas(self) -> None:
        least = max(1, self.world.shape.min_in_sync)
        self.ask(SetReplicas(self.zone, self.dice.randint(least, 4)))

    def follow_nodes(self) -> None:
        self.ask(FollowNodes(self.zone))

    def move_all(self) -> None:
        """Move several replicas of a partition at once."""
        topology = self.world.agreed.topology
        record = self.dice.choice(list(topology.partitions.values()))
        nodes = [name for name, node in topology.nodes.items() if node.state == "normal"]
        if len(nodes) >= len(record.replicas):
            chosen = self.dice.sample(nodes, len(record.replicas))
            self.ask(MovePartition(record.id, tuple(map(Placement, chosen)), after_pending=True))

    # --- nodes

    def join(self) -> None:
        world = self.world
        if len(world.nodes) < NODES_MAX:
            node = world.add_node()
            self.ask(JoinCluster(world.member(node.name), CLUSTER))
            world.schedule(0.1, self._start_member, node.name)

    def _start_member(self, name: str) -> None:
        """A node that joins starts once it is a member."""
        if name in self.world.agreed.topology.nodes:
            node = self.world.nodes[name]
            if not node.run:
                node.start()
        else:
            self.world.schedule(0.5, self._start_member, name)

    def remove(self) -> None:
        """Stop a node, ask for its removal, and start it again unless it has left."""
        node = self.world.nodes[self.dice.choice(list(self.world.agreed.topology.nodes))]
        if node.run and not self.world.healed:
            node.stop()
            self.world.schedule(0.04, node.crash)
            self.world.schedule(STOPPED_SECONDS, self.ask, RemoveNode(node.name))
            self.world.schedule(2 * STOPPED_SECONDS, self.world.start, node)

    # --- tables

    def create_table(self) -> None:
        number = self.asked
        if len(self.world.agreed.topology.tables) < TABLES_MAX:
            table = NamedTable(f"t{number}", f"z{number}", f"id{number}", b"")
            count = self.dice.choice((1, 2, 3))
            self.ask(CreateTable(table, self.dice.choice((1, 2)), count))

    def drop_table(self) -> None:
        tables = list(self.world.agreed.topology.tables.values())
        if tables:
            table = self.dice.choice(tables)
            self.ask(DropTable(table.name, table.id))


MEMBER_OPERATIONS: dict[Callable[[Membership], None], float] = {
    Membership.set_replicas: 8.0,
    Membership.follow_nodes: 4.0,
    Membership.move_all: 8.0,
    Membership.join: 4.0,
    Membership.remove: 3.0,
    Membership.create_table: 4.0,
    Membership.drop_table: 4.0,
}
"""An operator's acts, and their weights."""
