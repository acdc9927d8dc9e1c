"""How are rebalance runs planned, started and controlled? What the routes about runs need.

`start`, `pause`, `resume` and `cancel` build a request of that id, or refuse with `IllegalRequest`;
it is put, written down and followed as every other change.
"""

from typing import Protocol

from msgspec import Struct

from limosa.core.model.requests import Request


class MoveWanted(Struct, frozen=True):
    """One replica goes from one node to another."""

    partition: str
    source: str
    target: str


class RunWanted(Struct, frozen=True):
    """What a run is for: exactly one of these."""

    add_node: str = ""
    """Give it its share."""
    remove_node: str = ""
    """Take everything off it, then let it leave."""
    moves: tuple[MoveWanted, ...] = ()


class MoveFacts(Struct, frozen=True):
    """One move of a run."""

    partition: str
    source: str
    target: str
    state: str
    """PENDING, DUAL_WRITE, COPYING, COMMITTED or FAILED."""
    attempts: int = 0
    detail: str = ""


class RunPreview(Struct, frozen=True):
    """What a run would do."""

    moves: tuple[MoveFacts, ...]
    bytes: int = 0
    """About, of all moves together."""


class RunFacts(Struct, frozen=True):
    """One run, of now or of the past."""

    id: str
    state: str
    """RUNNING, PAUSED, CANCELLING, DONE, FAILED or CANCELLED."""
    total: int
    completed: int
    failed: int
    current: tuple[str, ...] = ()
    """Partitions that move now."""
    started: float = 0.0
    """In seconds of the wall clock; 0: nobody knows, or not yet."""
    ended: float = 0.0
    moves: tuple[MoveFacts, ...] = ()


class RunStatus(Struct, frozen=True):
    """What the rebalance is doing."""

    state: str
    """IDLE, RUNNING, PAUSED or CANCELLING."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    current: tuple[str, ...] = ()
    run: RunFacts | None = None


class Runs(Protocol):
    """The rebalance of a cluster; several threads may use it at once."""

    def plan(self, wanted: RunWanted) -> RunPreview: ...

    def start(self, id: str, wanted: RunWanted) -> Request: ...

    def pause(self, id: str) -> Request: ...

    def resume(self, id: str) -> Request: ...

    def cancel(self, id: str) -> Request: ...

    def status(self) -> RunStatus: ...

    def history(self) -> list[RunFacts]: ...
