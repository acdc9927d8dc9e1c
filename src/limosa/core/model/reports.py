"""How did a transition end, and which pipeline copies rows? Records for people, not topology."""

from typing import Literal

from limosa.core.model.keys import PartitionId
from limosa.core.model.topology import GivenUpBy, Record, Replica, TransitionKind


class Report(Record, frozen=True):
    """How one transition of one partition ended."""

    partition: PartitionId
    transition: str
    kind: TransitionKind
    outcome: Literal["done", "reverted"]
    why: str = ""
    """Of one that was given up, in words."""
    sources: tuple[Replica, ...] = ()
    """Its replicas before."""
    targets: tuple[Replica, ...] = ()
    began: float = 0.0
    """In seconds of the wall clock, as `ended`."""
    ended: float = 0.0
    pause_seconds: float = 0.0
    """For how long nothing was served at its hand-over; 0: there was none, or nobody knows."""
    differences: tuple[str, ...] = ()
    """Rows that a verification found to differ, in words."""
    differences_more: int = 0
    """How many there are besides."""
    given_up_by: GivenUpBy = ""


class Pipeline(Record, frozen=True):
    """What copies rows in bulk: who runs it, and can it?"""

    holder: str
    state: Literal["off", "starting", "ready", "failed"]
    detail: str = ""
    since: float = 0.0
    """In seconds of the wall clock."""
