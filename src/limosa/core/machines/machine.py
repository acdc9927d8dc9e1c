"""What is a machine? A table with a line per stage, checked when it is built.

A transition's table says for every stage which side is read, which is written, who owns, what must
be done to leave it, where it goes then, and where it goes when it is given up. No code compares the
names of stages: routing, the coordinator, nodes and runs read the columns, and the diagrams in the
docs are printed from the same table. Where what is read or written changes, every node must have
followed (a barrier), so no two processes are more than one such step apart, and checking
neighbouring stages is enough (`rules`).

A life (`Life`) is the simpler kind: states and the named events that lead from one to the next.
"""

from enum import Enum

from msgspec import Struct

from limosa.core.model.runs import MoveState
from limosa.errors import IllegalTransition, UnknownStage


class Side(Enum):
    """A set of replicas: those before the transition, those after it, or all of them."""

    OLD = "old"
    NEW = "new"
    BOTH = "both"

    def within(self, other: "Side") -> bool:
        return other is Side.BOTH or self is other

    @property
    def other(self) -> "Side":
        """The opposite of `OLD` or `NEW`."""
        return Side.NEW if self is Side.OLD else Side.OLD


class Work(Enum):
    """What must be done before a stage can be left, in the order of the stage's list."""

    PREPARE = "new replicas prepared"
    BARRIER = "barrier"
    COPY = "copy done and verified"
    REPAIR = "old replicas compared and mended"
    SEAL = "owner sealed, if it changes"
    OPEN = "owner open"
    HOLD = "hold over"
    DROP_OLD = "old replicas dropped"
    DROP_NEW = "new replicas dropped"


class Stage(Struct, frozen=True):
    """One line of a transition's table."""

    name: str
    reads: Side
    writes: Side
    owner: Side
    session: bool
    run_move: MoveState
    """How far a move of a run is while its transition goes forward through this stage."""
    work: tuple[Work, ...]
    next: str
    given_up: tuple[str, ...]
    """Where the transition goes when it is given up; empty: it only goes forward. While the new
    side is read there are two ways: back, or forward if no old replica can serve any more."""
    holds: str
    """What is true once this stage is committed, in words."""

    @property
    def switched(self) -> bool:
        """Is the new side read? Then giving up needs another hand-over."""
        return self.reads is Side.NEW


class Machine(Struct, frozen=True):
    """A transition's stages; it ends in `END` or `REVERT`."""

    name: str
    stages: tuple[Stage, ...]

    def __getitem__(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UnknownStage(
            f"{name} is not a stage of {self.name}",
            "it has " + ", ".join(stage.name for stage in self.stages),
        )

    @property
    def first(self) -> Stage:
        return self.stages[0]


END = "end"
REVERT = "revert"


class Life(Struct, frozen=True):
    """States, and for each state the events that may happen in it and where they lead."""

    name: str
    edges: dict[str, dict[str, str]]

    def after(self, state: str, event: str) -> str:
        if state not in self.edges:
            raise UnknownStage(
                f"{state} is not a state of a {self.name}", "it has " + ", ".join(self.edges)
            )
        if event not in self.edges[state]:
            can = ", ".join(self.edges[state]) or "nothing more"
            raise IllegalTransition(
                f"a {self.name} that is {state} can't {event}", f"it can: {can}"
            )
        return self.edges[state][event]
