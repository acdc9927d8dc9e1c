"""What is a rebalance run? Many moves with one plan, their progress, and the run's totals.

Runs are part of the agreed state, so that a new coordinator continues them. Every move has a record
of its own, so a change of one move rewrites no other. Ended runs are kept for a while.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core.model.keys import NodeId, PartitionId, Revision
from limosa.core.model.topology import Placement, Record

RebalanceState: TypeAlias = Literal["idle", "running", "paused", "cancelling"]
MoveState: TypeAlias = Literal["PENDING", "DUAL_WRITE", "COPYING", "COMMITTED", "FAILED"]
Outcome: TypeAlias = Literal["", "done", "cancelled", "failed-in-part"]

IN_FLIGHT: tuple[MoveState, ...] = ("DUAL_WRITE", "COPYING")
FAR: dict[MoveState, int] = {"DUAL_WRITE": 0, "COPYING": 1, "COMMITTED": 2}
"""The states of a move that goes forward, in their order."""
ATTEMPTS_MAX = 3
"""Number of attempts of a move."""


class PlannedMove(Struct, frozen=True):
    """Move one replica from a node to another place, or to another volume of the same node."""

    partition: PartitionId
    source: NodeId
    target: Placement


class Limits(Struct, frozen=True):
    """How much a run may do at once."""

    moves_in: int = 2
    """Moves to one node."""
    moves_out: int = 2
    """Moves away from one node."""
    bytes_per_second: int = 0
    """Of all copies together; 0: no limit."""


class Estimate(Struct, frozen=True):
    """The estimated cost of a run."""

    bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    """The most additional disk space that the run needs at one time."""
    pause_seconds: float = 0.0
    """How long a hand-over pauses writes."""


class RunPlan(Struct, frozen=True):
    """The moves of a run, and their limits."""

    action: str
    """In words, for people."""
    moves: tuple[PlannedMove, ...] = ()
    limits: Limits = Limits()
    hold_seconds: float = 0.0
    max_pause_seconds: float = 0.0
    estimate: Estimate | None = None
    by: Literal["operator", "balancer"] = "operator"
    why: str = ""
    drains: tuple[NodeId, ...] = ()
    """Nodes that are empty once all moves are done."""
    decommission: bool = False
    """The drained nodes leave the cluster once they are empty."""


class Rebalance(Record, frozen=True):
    """The current run; there is one record of this kind."""

    state: RebalanceState = "idle"
    run: str = ""
    """The id of the current run; empty: none."""


class Totals(Struct, frozen=True):
    """The totals of a run."""

    committed: int = 0
    failed: int = 0
    never_started: int = 0
    rows: int = 0
    bytes: int = 0
    pause_seconds: float = 0.0
    """The longest pause of all hand-overs."""


class Run(Record, frozen=True):
    """One run: its purpose, and how it ended."""

    id: str
    action: str
    moves: int
    """The number of moves."""
    by: Literal["operator", "balancer"] = "operator"
    why: str = ""
    limits: Limits = Limits()
    hold_seconds: float = 0.0
    max_pause_seconds: float = 0.0
    estimate: Estimate | None = None
    drains: tuple[NodeId, ...] = ()
    decommission: bool = False
    started: float = 0.0
    """Wall-clock seconds, as `ended`; nothing is decided by them."""
    ended: float = 0.0
    outcome: Outcome = ""
    """Empty: the run has not ended."""
    words: str = ""
    """How it ended, for people."""
    totals: Totals = Totals()
    starts: int = 0
    """Number of moves begun. Each commit that begins moves increments it, so that of two
    coordinators that count the moves in flight at the same time only one begins another."""


class RunMove(Record, frozen=True):
    """One move of a run, and how far it is."""

    run: str
    number: int
    partition: PartitionId
    source: NodeId
    target: Placement
    state: MoveState = "PENDING"
    attempts: int = 0
    trigger: Revision = 0
    """Of the assignment of the last attempt: it identifies the attempt."""
    final: bool = False
    """A failed move is not retried."""
    rows: int = 0
    bytes: int = 0
    began: float = 0.0
    """Wall-clock seconds, as `ended`."""
    ended: float = 0.0
    pause_seconds: float = 0.0
    detail: str = ""
    """Details for people."""


def run_name(asked: Revision) -> str:
    """The unique name of the run that the request of this revision starts."""
    return f"r{asked}"


def asked_at(run: str) -> Revision:
    """The revision of the request that started the run."""
    return int(run.removeprefix("r"))


class Policy(Struct, frozen=True):
    """When the cluster starts runs by itself."""

    enabled: bool = False
    ratio: float = 2.0
    """A run starts if the most loaded node has more than `ratio` times the least load."""
    interval_seconds: float = 60.0
    """How often loads are compared."""
    cooldown_seconds: float = 300.0
    """How long to wait after a run."""


class Controls(Record, frozen=True):
    """The operators' switches for the whole cluster."""

    locked: str = ""
    """Why the cluster is locked; empty: it is not locked."""
    balancing: bool = True
    """May automatic runs continue?"""
    policy: Policy = Policy()
    """When do automatic runs start?"""
