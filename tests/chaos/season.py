"""Which keys are used between two judgements, and what became of the bulk writer's rows?

The next season has other keys, so that each key's history is short.
"""

import threading

CONTENDED_KEYS = 12


class Season:
    """The keys between two judgements, and what became of the bulk writer's rows."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keys = [f"k{number:04}-{key:02}" for key in range(CONTENDED_KEYS)]
        self.prefix = f"b{number:04}-"
        self.cursor = f"c{number:04}"
        """A key that every batch writes, so that the batches' order shows."""
        self.lock = threading.Lock()
        self.asked = 0
        """Rows have numbers up to this."""
        self.acked: set[int] = set()
        self.deleting: set[int] = set()
        """Somebody has begun to delete them."""
        self.deleted: set[int] = set()
        self.refused: set[int] = set()
        """They were surely not written."""
        self.cursor_last = 0
        self.cursor_unknown = False

    def key_of(self, number: int) -> str:
        return f"{self.prefix}{number:08}"

    def number_of(self, key: str) -> int:
        return int(key.removeprefix(self.prefix))

    def must_be_there(self) -> set[int]:
        with self.lock:
            return self.acked - self.deleting

    def must_be_gone(self) -> set[int]:
        with self.lock:
            return set(self.deleted)
