"""What can be asked for, and what is answered? One struct for each kind of request.

Operators, the balancer and the coordinator itself ask by a row, the `Request`. The revision of the
row's key is the request's trigger: it names the transition or run that the request leads to.
"""

from typing import Literal, TypeAlias, cast

from msgspec import Struct

from limosa.core.model.keys import NodeId, PartitionId, Revision, ZoneId
from limosa.core.model.runs import Policy, RunPlan
from limosa.core.model.topology import NamedTable, Node, Placement, Record

# fmt: off
RequestKind: TypeAlias = Literal[
    "move", "rebuild", "volume_move", "repair", "cancel", "reverse", "complete",
    "set_replicas", "follow_nodes", "create_table", "drop_table",
    "join", "remove_node", "replace_node", "undrain_nodes",
    "start_run", "drain_nodes", "pause_run", "resume_run", "cancel_run",
    "set_balancing", "set_policy", "lock", "unlock", "withdraw",
]
# fmt: on
RequestState: TypeAlias = Literal["waiting", "done", "refused"]


class Wish(Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """What somebody asks for."""

    @property
    def kind(self) -> RequestKind:
        return cast(RequestKind, self.__struct_config__.tag)

    @property
    def about(self) -> str:
        """The partition, zone, table, node, run or request that the wish concerns."""
        match self:
            case PartitionWish(partition=name) | ZoneWish(zone=name) | RunWish(run=name):
                return name or "cluster"
            case DropTable(name=name) | WithdrawRequest(request=name):
                return name
            case RemoveNode(node=name) | ReplaceNode(node=name):
                return name
            case CreateTable(table=table):
                return table.name
            case JoinCluster(node=node):
                return node.id
        return "cluster"


# --- of one partition


class PartitionWish(Wish, frozen=True):
    partition: PartitionId


class PlaceReplicas(PartitionWish, frozen=True):
    """Move all replicas to `placements`, or one replica from `source` to `target`."""

    placements: tuple[Placement, ...] = ()
    source: NodeId = ""
    target: Placement | None = None
    hold_seconds: float = 0.0
    max_pause_seconds: float = 0.0
    """For how long the hand-over may pause writes; 0: there is no limit."""


class MovePartition(PlaceReplicas, frozen=True, tag="move"):
    """Move replicas to other nodes."""

    after_pending: bool = False
    """If another change of the partition is pending, plan this one behind it."""


class MoveToVolume(PlaceReplicas, frozen=True, tag="volume_move"):
    """Move replicas to other volumes of their nodes."""


class RebuildReplicas(PartitionWish, frozen=True, tag="rebuild"):
    """Rebuild the replicas on these nodes from the others."""

    renewed: tuple[NodeId, ...] = ()
    hold_seconds: float = 0.0
    max_pause_seconds: float = 0.0
    placements: tuple[Placement, ...] = ()
    """All places of the replicas, if one of them is rebuilt in another place."""


class RepairPartition(PartitionWish, frozen=True, tag="repair"):
    """Compare the replicas with their owner, and repair them."""


class CancelChange(PartitionWish, frozen=True, tag="cancel"):
    """Cancel the pending change."""

    cancels: Revision = 0
    """The trigger of the pending assignment that the caller saw."""


class ReverseMove(PartitionWish, frozen=True, tag="reverse"):
    """Revert a held move."""


class CompleteMove(PartitionWish, frozen=True, tag="complete"):
    """End the hold of a move."""


# --- of a zone


class ZoneWish(Wish, frozen=True):
    zone: ZoneId


class SetReplicas(ZoneWish, frozen=True, tag="set_replicas"):
    """Change the number of replicas of every partition of a zone."""

    count: int


class FollowNodes(ZoneWish, frozen=True, tag="follow_nodes"):
    """Place the partitions of a zone on its present data nodes."""


# --- of a table


class CreateTable(Wish, frozen=True, tag="create_table"):
    """A table in a zone that exists, or in a new zone."""

    table: NamedTable
    partitions: int = 0
    """0: as many as the zone has."""
    count: int = 0
    """How many replicas; 0: as many as the zone has."""
    min_in_sync: int = 0
    """0: a majority of the replicas."""


class DropTable(Wish, frozen=True, tag="drop_table"):
    name: str
    table_id: str
    """The table that the caller saw under this name."""


# --- of nodes


class JoinCluster(Wish, frozen=True, tag="join"):
    node: Node
    cluster: str
    """The name of the cluster that the node means to join."""


class RemoveNode(Wish, frozen=True, tag="remove_node"):
    node: NodeId


class ReplaceNode(Wish, frozen=True, tag="replace_node"):
    """A stopped node's directory is lost: let an empty directory join under its name."""

    node: NodeId


class UndrainNodes(Wish, frozen=True, tag="undrain_nodes"):
    """Let nodes that were drained take replicas again."""

    nodes: tuple[NodeId, ...]


# --- of runs


class StartRun(Wish, frozen=True, tag="start_run"):
    plan: RunPlan | None
    """None once the request is answered: then the run has the plan."""


class DrainNodes(Wish, frozen=True, tag="drain_nodes"):
    """Start a run that empties nodes."""

    plan: RunPlan | None


class RunWish(Wish, frozen=True):
    run: str = ""
    """Its id; empty: the current run."""


class PauseRun(RunWish, frozen=True, tag="pause_run"):
    """Pause the run: it begins no more moves."""


class ResumeRun(RunWish, frozen=True, tag="resume_run"):
    """Continue a paused run."""


class CancelRun(RunWish, frozen=True, tag="cancel_run"):
    """Cancel the run, and revert its moves that have not switched."""


# --- of the cluster


class ControlWish(Wish, frozen=True):
    """A switch of the whole cluster."""


class SetBalancing(ControlWish, frozen=True, tag="set_balancing"):
    """Allow or stop automatic runs."""

    on: bool


class SetPolicy(ControlWish, frozen=True, tag="set_policy"):
    """Set the policy of automatic runs."""

    policy: Policy


class LockCluster(ControlWish, frozen=True, tag="lock"):
    """Let no change of the topology begin."""

    why: str = ""


class UnlockCluster(ControlWish, frozen=True, tag="unlock"):
    """Allow changes of the topology again."""


class WithdrawRequest(Wish, frozen=True, tag="withdraw"):
    """Withdraw a request that is not answered yet."""

    request: str


TransitionWish: TypeAlias = MovePartition | MoveToVolume | RebuildReplicas | RepairPartition
# fmt: off
AnyWish: TypeAlias = (
    TransitionWish | CancelChange | ReverseMove | CompleteMove | SetReplicas | FollowNodes
    | CreateTable | DropTable | JoinCluster | RemoveNode | ReplaceNode
    | UndrainNodes
    | StartRun | DrainNodes | PauseRun | ResumeRun | CancelRun
    | SetBalancing | SetPolicy | LockCluster | UnlockCluster | WithdrawRequest
)
# fmt: on

# --- what a request leads to


class LedToTransition(Struct, frozen=True, tag="transition", forbid_unknown_fields=True):
    """The transition that the request begins, finds under way, or ends."""

    partition: PartitionId
    transition: str


class LedToRun(Struct, frozen=True, tag="run", forbid_unknown_fields=True):
    """The run that the request starts or changes."""

    run: str


class LedToTable(Struct, frozen=True, tag="table", forbid_unknown_fields=True):
    """The table that the request makes or drops."""

    name: str
    id: str


class LedToNodes(Struct, frozen=True, tag="nodes", forbid_unknown_fields=True):
    """The nodes whose state the request changes."""

    nodes: tuple[NodeId, ...]


LedTo: TypeAlias = LedToTransition | LedToRun | LedToTable | LedToNodes


class Request(Record, frozen=True):
    """A wish and its answer; the revision of the row's key is the trigger."""

    id: str
    what: AnyWish
    state: RequestState = "waiting"
    answer: str = ""
    """For people: nothing is decided by it."""
    led_to: LedTo | None = None
    """Of a request that is done: what it changed."""
    fingerprint: str = ""
    """A hash of the caller's wish: the same id with another wish is refused."""
    trigger: Revision = 0
    """Set when the request is answered."""
    asked: float = 0.0
    """By the caller's wall clock, for people; 0: unknown."""
    answered: float = 0.0
    """By the coordinator's wall clock, for people; 0: not yet, or unknown."""
    author: str = ""
    """Who asked, as the node that stored the request authenticated it; empty: Limosa itself, or
    unknown. For people: nothing is decided by it."""

    @property
    def kind(self) -> RequestKind:
        return self.what.kind

    @property
    def about(self) -> str:
        return self.what.about

    @property
    def partition(self) -> PartitionId:
        """Empty: the request is not about one partition."""
        return self.what.partition if isinstance(self.what, PartitionWish) else ""

    @property
    def run(self) -> str:
        """The run that the request led to; empty: none."""
        return self.led_to.run if isinstance(self.led_to, LedToRun) else ""

    @property
    def transition(self) -> str:
        """The transition that the request led to; empty: none."""
        return self.led_to.transition if isinstance(self.led_to, LedToTransition) else ""
