"""Who carries rows to a new replica? A plain loop in the coordinator's process, slice by slice.

Fetch a slice from the owner, pass it on to the target, end it with its count and digest; again, if
it did not land in time. The target admits it under the transition's session only, so a mover that
is late, or there twice, changes nothing.
"""

import secrets
import threading
import time
from collections.abc import Callable

from limosa.core.effects import StartCopy
from limosa.core.messages import Chunk, Denied, End, Fetch, Fetched, Landed, Message
from limosa.core.model.keys import TokenRange
from limosa.core.model.topology import Replica
from limosa.storage.rows import Bundle

SLICES = 64
"""Of a partition's range. A slice is one frame, so this bounds how large a partition may be."""
AT_ONCE = 4
"""Slices that are under way at a time: each is in memory as a whole."""
TRY_AGAIN_SECONDS = 5.0
ATTEMPTS_MAX = 8
FORGOTTEN_SECONDS = 3.0
"""What the coordinator has not asked for again in this time is over."""


def slice_of(held: TokenRange, number: int, count: int) -> TokenRange:
    """One of so many equal parts of a range."""
    span = (held.end - held.start) // count
    start = held.start + number * span
    return TokenRange(start, held.end if number == count - 1 else start + span)


class _Task:
    __slots__ = ("asked_at", "attempts", "job", "sent_at", "slice", "target")

    def __init__(self, job: StartCopy, target: Replica, slice: int) -> None:
        self.job = job
        self.target = target
        self.slice = slice
        self.asked_at = time.monotonic()
        self.sent_at = -1e9
        self.attempts = 0


class PlainMover:
    """Copies of any number of partitions, a few slices at a time."""

    def __init__(self, send: Callable[[str, Message], None], log: Callable[..., None]) -> None:
        self._send = send
        self._log = log
        self._tasks: dict[tuple[str, str, Replica, int], _Task] = {}
        self._lock = threading.Lock()

    def begin(self, job: StartCopy) -> None:
        """Asking for what is under way changes nothing."""
        with self._lock:
            for target in job.targets:
                for number in range(SLICES):
                    key = (job.partition, job.session, target, number)
                    if key not in self._tasks:
                        self._tasks[key] = _Task(job, target, number)
                    self._tasks[key].asked_at = time.monotonic()
            self._go_on()

    def tick(self) -> None:
        with self._lock:
            self._go_on()

    def _go_on(self) -> None:
        now = time.monotonic()
        under_way = 0
        self._tasks = {
            key: task
            for key, task in self._tasks.items()
            if now - task.asked_at < FORGOTTEN_SECONDS
        }
        for key, task in list(self._tasks.items()):
            if under_way >= AT_ONCE:
                return
            if now - task.sent_at > TRY_AGAIN_SECONDS:
                if task.attempts >= ATTEMPTS_MAX:
                    del self._tasks[key]  # asked for again as long as it is wanted
                    continue
                task.sent_at = now
                task.attempts += 1
                self._fetch(task)
            under_way += 1

    def _fetch(self, task: _Task) -> None:
        job = task.job
        fetch = Fetch(
            job.partition, job.source.incarnation, job.session, job.epoch, task.slice, SLICES
        )
        self._send(job.source.node, fetch)

    def received(self, sender: str, message: Fetched | Landed | Denied) -> None:
        with self._lock:
            for key, task in list(self._tasks.items()):
                about = (task.job.partition, task.job.session, task.slice)
                if about != (message.partition, message.session, message.slice):
                    continue
                if isinstance(message, Fetched):
                    self._pass_on(task, message)
                elif isinstance(message, Denied):
                    self._log("a copy was denied", partition=message.partition, why=message.why)
                    del self._tasks[key]
                elif task.target.node == sender:
                    del self._tasks[key]
            self._go_on()

    def _pass_on(self, task: _Task, fetched: Fetched) -> None:
        rows = fetched.rows
        assert isinstance(rows, Bundle)
        job, target = task.job, task.target
        attempt = secrets.token_hex(8)
        head = (job.partition, target.incarnation, job.session, job.epoch, task.slice)
        parts = [Bundle([batch]) for batch in rows.batches] or [Bundle()]
        for number, part in enumerate(parts):
            self._send(target.node, Chunk(*head, attempt, number, part))
        digest = sum(part.digest() for part in parts)
        end = End(*head, SLICES, attempt, len(rows), digest, fetched.through, fetched.producers)
        self._send(target.node, end)
