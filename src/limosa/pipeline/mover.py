"""Which copies run now? Those the coordinator asks for, gathered into waves; a wave is one job.

The coordinator repeats its request for a copy until the targets report that all of it has landed.
So the mover keeps nothing that a successor needs: a copy that failed is retried at the next
request, and a copy that is no longer requested is cancelled.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.effects import Compare, StartCopy
from limosa.core.model.keys import NodeId, PartitionId, SessionId
from limosa.pipeline.budget import Budget
from limosa.pipeline.carriers import Carrier
from limosa.pipeline.loads import CopyTarget, LoadResult, Permit, load_of, share_out, target_of
from limosa.pipeline.pipe import Access
from limosa.pipeline.portions import EXAMINE, Examination, Portion, PortionResult
from limosa.transport.tokens import COMPARISON, Sessions

GATHER_SECONDS = 0.04
"""Wait this long, so that copies that are requested together become one job."""
FORGOTTEN_SECONDS = 3.0
AGAIN_SECONDS = 1.0
PIPE = "limosa.pipeline.pipe:run"


class _Copy(Struct, eq=False):
    """A copy that the coordinator wants."""

    job: StartCopy
    size: int = 0
    slices: int = 0
    """The number of slices of the first attempt: another number would discard what landed."""
    asked_at: float = 0.0
    wave: str | None = None
    not_before: float = 0.0
    again: bool = False


class PipelineMover:
    """Copies of any number of partitions."""

    def __init__(
        self,
        carrier: Carrier,
        access: Access,
        permit: Callable[[Sessions], Permit],
        bytes_per_second: float,
        log: Callable[..., None],
    ) -> None:
        self._carrier = carrier
        self._access = msgspec.msgpack.encode(access)
        self._permit = permit
        self._budget = Budget(bytes_per_second)
        self._log = log
        self._lock = threading.Lock()
        self._copies: dict[tuple[PartitionId, SessionId], _Copy] = {}
        self._addresses: Mapping[NodeId, str] = {}
        self._comparing: set[tuple[PartitionId, SessionId]] = set()
        self._first_at = 0.0
        self._numbers = itertools.count(1)

    def follow(self, addresses: Mapping[NodeId, str]) -> None:
        self._addresses = addresses

    def limit(self, bytes_per_second: float) -> None:
        """Set a run's limit, if it is lower than the coordinator's; 0: the coordinator's."""
        with self._lock:
            self._budget.limit(time.monotonic(), bytes_per_second)

    def start(self) -> None:
        """Get ready: copies will be requested soon."""
        self._carrier.start()

    def begin(self, job: StartCopy, size: int) -> None:
        """Request a copy; a repeated request changes nothing."""
        now = time.monotonic()
        with self._lock:
            copy = self._copies.setdefault((job.partition, job.session), _Copy(job))
            copy.job, copy.size, copy.asked_at = job, size, now

    def compare(self, job: Compare, then: Callable[[tuple[str, ...], int], None]) -> None:
        """Report which rows differ, in words, and how many more there are.

        A repeated request changes nothing. Another thread calls `then`, because the caller may
        hold a lock that `then` needs.
        """
        key = (job.partition, job.session)
        with self._lock:
            if key in self._comparing:
                return
            self._comparing.add(key)
            name = f"compare-{next(self._numbers)}"
        targets = tuple(map(target_of, job.targets))
        portion = Portion(
            job.partition,
            target_of(job.source),
            targets,
            permit=self._permit(((job.partition, COMPARISON),)),
        )
        addresses = self._addresses_of(portion.lead, *targets)
        # Strict, like the digests that differed.
        task = Examination((portion,), addresses, strict=True)

        def tell(results: Sequence[bytes], why: str) -> None:
            try:
                differences, more = _told(results, why)
                self._log("rows compared", partition=job.partition, differ=differences, more=more)
                then(differences, more)
            finally:
                with self._lock:
                    self._comparing.discard(key)

        self._carrier.run(
            name,
            EXAMINE,
            self._access,
            [msgspec.msgpack.encode(task)],
            lambda results, why: threading.Thread(
                target=tell, args=(results, why), name=name, daemon=True
            ).start(),
        )

    def tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            cancelled = self._forget(now)
            ready = [
                copy
                for copy in self._copies.values()
                if copy.wave is None and copy.asked_at >= copy.not_before
            ]
            if not ready:
                self._first_at = now
            may_begin = now - self._first_at >= GATHER_SECONDS and self._budget.is_free(now)
            wave = ready if may_begin else []
            name = f"wave-{next(self._numbers)}" if wave else ""
            for copy in wave:
                copy.wave = name
        for each in cancelled:
            self._carrier.cancel(each)
        if wave:
            self._send(name, wave)

    def _forget(self, now: float) -> list[str]:
        """Remove copies that are no longer requested; returns waves to be cancelled."""
        wanted: set[str] = set()
        unwanted: set[str] = set()
        for key, copy in list(self._copies.items()):
            is_wanted = now - copy.asked_at < FORGOTTEN_SECONDS
            if copy.wave is not None:
                (wanted if is_wanted else unwanted).add(copy.wave)
            if not is_wanted:
                del self._copies[key]
        return sorted(unwanted - wanted)

    def _send(self, name: str, wave: Sequence[_Copy]) -> None:
        loads = [load_of(copy.job, copy.size, copy.again, copy.slices) for copy in wave]
        for copy, load in zip(wave, loads, strict=True):
            copy.slices = load.slices
        known = self._addresses_of(
            *(each for load in loads for each in (load.source, *load.targets))
        )
        tasks = share_out(loads, known, self._carrier.workers, self._rate_for(name))
        self._log("copies begin", wave=name, partitions=len(loads), tasks=len(tasks))
        self._carrier.run(
            name,
            PIPE,
            self._access,
            [
                msgspec.msgpack.encode(replace(task, permit=self._permit(task.sessions)))
                for task in tasks
            ],
            lambda results, why: self._done(name, results, why),
        )

    def _addresses_of(self, *replicas: CopyTarget) -> dict[NodeId, str]:
        return {each.node: self._addresses.get(each.node, "") for each in replicas}

    def _rate_for(self, name: str) -> float:
        with self._lock:
            return self._budget.begin(time.monotonic(), name)

    def _done(self, name: str, results: Sequence[bytes], why: str) -> None:
        carried = [
            each
            for result in results
            for each in msgspec.msgpack.decode(result, type=list[LoadResult])
        ]
        failed = {(each.partition, each.session): each.failure for each in carried if each.failure}
        size = sum(each.bytes for each in carried)
        with self._lock:
            self._budget.end(name, size)
            for copy in self._copies.values():
                if copy.wave == name:
                    copy.wave = None
                    copy.again = True
                    copy.not_before = time.monotonic() + AGAIN_SECONDS
        self._log(
            "copies ended",
            wave=name,
            rows=sum(each.rows for each in carried),
            bytes=size,
            seconds=round(max((each.seconds for each in carried), default=0.0), 3),
            slowed=round(max((each.slowed_seconds for each in carried), default=0.0), 3),
            failed=[f"{partition}: {reason}" for (partition, _), reason in failed.items()][:10],
            why=why,
        )

    def close(self) -> None:
        self._carrier.close()


def _told(results: Sequence[bytes], why: str) -> tuple[tuple[str, ...], int]:
    """Differences in words, or why nothing was compared."""
    if why:
        return (f"the rows were not compared: {why}",), 0
    (finding,) = msgspec.msgpack.decode(results[0], type=list[PortionResult])
    failures = tuple(f"the rows were not compared: {each}" for each in finding.errors)
    return (*finding.differences, *failures, *finding.lags), finding.more
