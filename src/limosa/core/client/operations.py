"""What is an operation made of? Of parts, one for each partition that its rows go to.

Small writes are sent together: they form a group, whose parts have rows of several operations. Any
other operation is a group by itself. A group of writes has one sequence, and ends when all of its
operations have ended. Each operation ends on its own, when the parts with its rows are done.
"""

from math import inf

from msgspec import Struct

from limosa.core.client.asked import Asked
from limosa.core.client.windows import Window
from limosa.core.model.keys import WHOLE, NodeId, PartitionId, TokenRange
from limosa.core.model.rows import Rows


class ClientOperation(Struct, eq=False):
    """A read or write that the application waits for."""

    asked: Asked
    left: int = 0
    """How many parts with its rows are not done."""
    value: object = None
    ended: bool = False


class Part(Struct, eq=False):
    """The rows of one group that go to one partition."""

    rows: Rows | None
    waiters: list[ClientOperation]
    """The operations that have rows in this part, or may have."""
    range: TokenRange = WHOLE
    partition: PartitionId | None = None
    version: int = 0
    """The version of the layout by which the rows were split; 0: no layout was known yet."""
    size: int = 0
    """What the part takes of a window."""
    id: str = ""
    """The id of the newest attempt, while it is not answered; empty: none is under way."""
    node: NodeId = ""
    """The node that the last attempt was sent to."""
    open: int = 0
    """How many attempts are not answered: the newest and earlier ones."""
    maybe: bool = False
    """An attempt may take effect without an answer: its link broke, a former owner has it in its
    log, or it was an attempt of the larger part that this one is a piece of."""
    written: bool = False
    done: bool = False
    """Nothing is left to do: the part is acknowledged, refused, given up, or was split again."""
    pieces: "list[Part]" = []
    """The parts that took its place when it was split again."""
    after: int = 0
    """The sequence that must be written first."""
    entry: int = 0
    """The number of the last entry in the heap for this part; earlier entries do not count."""
    tries: int = 0
    """How often a node asked for a retry."""
    timeouts: int = 0
    """How many attempts were not answered in time."""
    attempts: int = 0
    released_at: float = -inf
    """When it was first sent, if it had waited for room."""
    impatient_at: float | None = None
    """After a temporary refusal: the time from which such a refusal ends its operations."""
    window: Window | None = None
    """The window that the newest attempt takes room of."""
    queue: Window | None = None
    """The window that the part waits for."""

    @property
    def moved_at(self) -> float:
        """When the part last came closer to its first attempt, if it had to wait for room."""
        if self.queue is not None and not self.attempts:
            return self.queue.progress_at
        return self.released_at

    def take_over(self, whole: "Part") -> None:
        """This part is a piece of one that was sent before."""
        self.tries, self.timeouts, self.attempts = whole.tries, whole.timeouts, whole.attempts
        self.impatient_at, self.released_at = whole.impatient_at, whole.released_at
        self.maybe = whole.may_take_effect

    @property
    def may_take_effect(self) -> bool:
        return bool(self.written or self.open or self.maybe)

    def leaves(self) -> "list[Part]":
        """The part itself, or the parts that took its place."""
        if not self.pieces:
            return [self]
        return [leaf for piece in self.pieces for leaf in piece.leaves()]


class SentAttempt(Struct, eq=False):
    """A message without an answer yet."""

    part: Part
    node: NodeId
    at: float
    """When it was sent."""


class OperationGroup(Struct, eq=False):
    """Operations that are sent together; usually one."""

    operations: list[ClientOperation]
    number: int
    waiting: int
    """How many of the operations have not ended."""
    sequence: int = 0
    """0: a read."""
    parts: list[Part] = []
    version: int = 0
    """The version of the layout by which all parts were split; 0: there is no such version."""
    routed: dict[PartitionId, Part] = {}
    """The parts, by partition."""
    under_way: dict[str, SentAttempt] = {}
    attempts: int = 0
    earlier: "OperationGroup | None" = None
    later: "OperationGroup | None" = None
    """The unfinished writes before and after this one."""
    blocked: "dict[PartitionId | None, list[tuple[OperationGroup, Part]]]" = {}
    """Parts of other groups that wait for this one, by their partition."""

    @property
    def asked(self) -> Asked:
        """The first operation, which stands for all."""
        return self.operations[0].asked

    @property
    def largest(self) -> int:
        """The size of its largest part."""
        return max((part.size for part in self.parts), default=0)

    def take(self, parts: list[Part]) -> None:
        """Replace the parts."""
        self.parts = parts
        versions = {part.version for part in parts}
        self.version = versions.pop() if len(versions) == 1 else 0
        self.routed = {part.partition: part for part in parts if part.partition is not None}

    def wait_for_parts(self) -> None:
        for part in self.parts:
            for operation in part.waiters:
                operation.left += 1

    def touches(self, part: Part) -> bool:
        """Can unacknowledged rows of this group lie in the range of that part?"""
        if self.version and self.version == part.version and part.partition is not None:
            mine = self.routed.get(part.partition)
            return mine is not None and not mine.done
        return any(not mine.done and _has_rows_in(mine, part.range) for mine in self.parts)

    def parts_of(self, operation: ClientOperation) -> list[Part]:
        if len(self.operations) == 1:
            return self.parts
        return [part for part in self.parts if operation in part.waiters]


def _has_rows_in(part: Part, token_range: TokenRange) -> bool:
    """A part is never empty, so a part that lies within the range has rows there."""
    start, end = token_range.start, token_range.end
    if start <= part.range.start and part.range.end <= end:
        return True
    apart = end <= part.range.start or part.range.end <= start
    return not apart and part.rows is not None and bool(len(part.rows.within(token_range)))
