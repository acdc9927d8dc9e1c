"""What can an application ask of a client, and what is it told?"""

from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core.effects import Effect
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
from limosa.core.model.keys import Position, ZoneId
from limosa.core.model.rows import Rows

OperationOutcome: TypeAlias = Literal["done", "mismatch", "failed", "unknown"]


class ClientSettings(Struct, frozen=True):
    attempt_seconds: float = 1.0
    """How long the first attempt may take; the time doubles with each further attempt."""
    again_seconds_min: float = 0.005
    """The pause before the first retry; it doubles with each further retry."""
    again_seconds: float = 0.1
    """The longest pause before a retry."""
    operation_seconds: float = 6.0
    """How long a node may take. Time in the client's own queue does not count while the node that
    the operation waits for accepts other writes."""
    patience_seconds: float = 0.0
    """How long a write waits for replicas that are missing, before it fails."""
    gather_seconds: float = 0.01
    """How long a small write waits for others, to be sent together; longer while parts wait for
    their nodes anyway."""
    gather_parts: int = 16
    """While so many parts of a zone are under way, small writes wait for others."""
    window_bytes: int = 1 << 20
    """How much is under way to a node at first; then the node's latency decides."""


class Asked(Struct, frozen=True, gc=False):
    """The application asks to write rows (each with its token), or to read keys of one token."""

    id: str
    zone: ZoneId
    rows: Rows | None = None
    expected: Position | None = None
    keys: object = ()
    table: str = ""
    token: int = 0
    eventual: bool = False
    choice: int = 0
    """Selects the replica that an eventual read asks."""


class Finished(Effect, frozen=True, gc=False):
    """The application's answer."""

    id: str
    outcome: OperationOutcome
    """`failed`: the write did not happen. `unknown`: it may have happened, or may happen yet."""
    value: object = None


ClientEvent: TypeAlias = Asked | Received | TopologyRead | Disconnected | Ticked
