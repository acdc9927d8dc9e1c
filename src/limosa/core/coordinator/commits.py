"""How are commits made? Those that do not contradict each other as one, in their order.

If one guard of such a commit is stale, nothing of it happens, and each part is tried for itself.
"""

from collections import deque

from limosa.core.model.changes import Commit, merged


class CommitQueue:
    """What a coordinator wants committed, and has not been told the outcome of."""

    def __init__(self) -> None:
        self._asked: list[Commit] = []
        self._alone: deque[Commit] = deque()

    def __bool__(self) -> bool:
        return bool(self._asked or self._alone)

    def put(self, commit: Commit) -> None:
        self._asked.append(commit)

    def take(self) -> list[Commit]:
        """What is made as one commit next; nothing: there is nothing to do."""
        if self._alone:
            return [self._alone.popleft()]
        together, self._asked = merged(self._asked)
        return together

    def stale(self, together: list[Commit]) -> None:
        if len(together) > 1:
            self._alone.extend(together)
