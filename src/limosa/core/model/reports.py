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
    """Why it was given up, in words."""
    sources: tuple[Replica, ...] = ()
    """The replicas before the transition."""
    targets: tuple[Replica, ...] = ()
    began: float = 0.0
    """Wall-clock seconds, as `ended`."""
    ended: float = 0.0
    pause_seconds: float = 0.0
    """How long the hand-over paused requests; 0: no hand-over, or unknown."""
    differences: tuple[str, ...] = ()
    """Rows that a verification found to differ, in words."""
    differences_more: int = 0
    """How many more there are."""
    given_up_by: GivenUpBy = ""


class Pipeline(Record, frozen=True):
    """The pipeline that copies rows in bulk: who runs it, and its state."""

    holder: str
    state: Literal["off", "starting", "ready", "failed"]
    detail: str = ""
    since: float = 0.0
    """Wall-clock seconds."""

    @property
    def words(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else self.state
