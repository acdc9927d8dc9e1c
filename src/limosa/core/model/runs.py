"""What is a rebalance run? Many moves with one plan, their progress, and the run's totals.

All of it is agreed: every move of a run has a record of its own, so that whoever coordinates next
goes on from there, and a change of one move writes no other. Ended runs are kept for a while.
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
"""How far a move is that goes forward."""
ATTEMPTS_MAX = 3
"""How often a move is tried."""


class PlannedMove(Struct, frozen=True):
    """One replica goes from a node to a place; on the same node: to another volume of it."""

    partition: PartitionId
    source: NodeId
    target: Placement


class Limits(Struct, frozen=True):
    """How much may happen at once."""

    moves_in: int = 2
    """To one node."""
    moves_out: int = 2
    """Away from one node."""
    bytes_per_second: int = 0
    """Of all copies together; 0: there is no limit."""


class Estimate(Struct, frozen=True):
    """What a run was thought to cost before it began."""

    bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    """What it takes on disks besides, when it takes most."""
    pause_seconds: float = 0.0
    """For how long a hand-over pauses writes."""


class RunPlan(Struct, frozen=True):
    """What somebody wants to be moved, and how."""

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
    """Nodes that are to be empty when all is moved."""
    decommission: bool = False
    """When they are, they leave for good."""


class Rebalance(Record, frozen=True):
    """What is under way, if anything is; there is one record of this kind."""

    state: RebalanceState = "idle"
    run: str = ""
    """Which one; empty: none."""


class Totals(Struct, frozen=True):
    """What a run came to."""

    committed: int = 0
    failed: int = 0
    never_started: int = 0
    rows: int = 0
    bytes: int = 0
    pause_seconds: float = 0.0
    """The longest of all hand-overs."""


class Run(Record, frozen=True):
    """One run: what it is for, and, once it has ended, how."""

    id: str
    action: str
    moves: int
    """How many there are."""
    by: Literal["operator", "balancer"] = "operator"
    why: str = ""
    limits: Limits = Limits()
    hold_seconds: float = 0.0
    max_pause_seconds: float = 0.0
    estimate: Estimate | None = None
    drains: tuple[NodeId, ...] = ()
    decommission: bool = False
    started: float = 0.0
    """In seconds of the wall clock, as `ended`; nothing is decided by them."""
    ended: float = 0.0
    outcome: Outcome = ""
    """Empty: it has not ended."""
    words: str = ""
    """How it ended, for people."""
    totals: Totals = Totals()
    starts: int = 0
    """How often a move was begun. Whoever begins one counts here, so that of two who count the
    moves in flight at the same time only one begins another."""


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
    """Of the assignment that the last attempt wrote: it names the attempt."""
    final: bool = False
    """Of one that failed: it is not tried again."""
    rows: int = 0
    bytes: int = 0
    began: float = 0.0
    """In seconds of the wall clock, as `ended`."""
    ended: float = 0.0
    pause_seconds: float = 0.0
    detail: str = ""
    """What there is to say about it, in words."""


def run_name(asked: Revision) -> str:
    """Of the run that the request of this revision asked for: no other is ever named so."""
    return f"r{asked}"


def asked_at(run: str) -> Revision:
    """The revision of the request that asked for the run of this name."""
    return int(run.removeprefix("r"))


class Policy(Struct, frozen=True):
    """When the cluster begins runs by itself."""

    enabled: bool = False
    ratio: float = 2.0
    """How many times the least loaded node's load the most loaded one must have."""
    interval_seconds: float = 60.0
    """How often to look."""
    cooldown_seconds: float = 300.0
    """How long to leave things alone after a run."""


class Controls(Record, frozen=True):
    """What an operator has switched, for the whole cluster."""

    locked: str = ""
    """Why no request that changes the topology is served and no move begins; empty: they are."""
    balancing: bool = True
    """May the balancer's runs go on?"""
    policy: Policy = Policy()
    """When does the balancer begin one?"""
