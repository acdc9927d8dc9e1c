"""What happens to the demo's cluster while it is used? Acts, one after the other.

Nothing at first, so that there is something to compare with; then a node joins and partitions move
to it on Spark; then the node that owns most is killed with kill -9, and started again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from limosa.admin.looking import look_at
from limosa.cli.following import stage_words
from limosa.client.connection import Connection
from limosa.core.model.intent import Placement
from limosa.core.model.reports import Report
from limosa.errors import LimosaError, Refused
from limosa.runtime.local import LocalCluster

MOVES_SECONDS_MAX = 150.0
DOWN_SHARE, AFTER_SHARE = 0.25, 0.25
LOOK_SECONDS = 0.2
BETWEEN_SECONDS = 1.0

Show = Callable[[str], None]


class Moves(Struct):
    """What became of the moves."""

    count: int = 0
    failed: list[str] = []
    bytes: int = 0
    seconds: float = 0.0
    """From when Spark was ready to the end of the last one."""
    longest_pause_seconds: float = 0.0
    """As the coordinator measured it, of one partition."""


class Acts:
    """The script, on a thread of its own."""

    def __init__(
        self,
        local: LocalCluster,
        connection: Connection,
        seconds: float,
        moves: int,
        show: Show,
    ) -> None:
        self._local = local
        self._connection = connection
        self._seconds = seconds
        self._wanted = moves
        self._show = show
        self.moves = Moves()
        self.joined = self.killed = ""
        self.quiet = (0.0, 0.0)
        """When nothing happened: from, to."""
        self.moving = (0.0, 0.0)
        self.doing = "nothing happens yet"
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def are_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for act in (self._nothing, self._join, self._move, self._kill, self._restart):
                act()
            time.sleep(AFTER_SHARE * self._seconds)
        except Exception as error:
            self.failure = error

    def _nothing(self) -> None:
        start = time.monotonic()
        time.sleep(self._seconds * (1 - DOWN_SHARE - AFTER_SHARE))
        self.quiet = (start, time.monotonic())

    def _join(self) -> None:
        self.doing = "a node joins"
        self.joined = self._local.add_node()
        self._show(f"{self.joined} has joined")

    # --- moves

    def _move(self) -> None:
        ways = list(self._ways())
        start, began = time.monotonic(), time.time()
        for partition, source in ways:
            self._connection.change_partition(
                "move", partition, source=source, target=Placement(self.joined)
            )
        self._show(f"{len(ways)} partitions move from their owners to {self.joined}")
        ready = self._follow([partition for partition, _ in ways], start)
        self.moving = (start, time.monotonic())
        reports = [self._report(partition, began) for partition, _ in ways]
        done = [report for report in reports if report is not None and report.outcome == "done"]
        self.moves.count = len(done)
        self.moves.failed = [
            f"{report.partition} did not move: {report.why}"
            for report in reports
            if report is not None and report.outcome != "done"
        ]
        self.moves.failed += ["a move left no report"] * reports.count(None)
        self.moves.longest_pause_seconds = max((each.pause_seconds for each in done), default=0.0)
        self.moves.seconds = time.time() - max(began, ready)
        self.moves.bytes = self._bytes_at(self.joined)
        self._show(
            f"{len(done)} partitions moved in {self.moves.seconds:.1f} s; the longest hand-over "
            f"took {self.moves.longest_pause_seconds * 1e3:.0f} ms"
        )

    def _ways(self) -> Iterator[tuple[str, str]]:
        """Of the busiest owners some partitions each."""
        owned = {
            record.id: record.owner.replica.node
            for record in self._connection.refresh().partitions.values()
            if record.owner is not None
        }
        left = Counter(owned.values())
        for _ in range(min(self._wanted, len(owned))):
            node = max(sorted(left), key=lambda each: left[each])
            left[node] -= 1
            partition = next(each for each in sorted(owned) if owned[each] == node)
            del owned[partition]
            yield partition, node

    def _follow(self, partitions: Sequence[str], start: float) -> float:
        """Until all have ended; since when Spark was ready, by the wall clock."""
        ready = 0.0
        while True:
            waiting = [name for name in partitions if self._is_moving(name)]
            if not waiting:
                return ready
            if time.monotonic() - start > MOVES_SECONDS_MAX:
                raise Refused(f"{waiting[0]} still moves", f"limosa explain {waiting[0]}")
            try:
                explanation = look_at(self._connection, waiting[0])
                self.doing = f"{waiting[0]}: {stage_words(explanation)}, {explanation.waits_for}"
                state = self._connection.state(waiting[0]).pipeline
                ready = state.since if state is not None and state.state == "ready" else ready
            except LimosaError:
                pass  # it is asked again
            time.sleep(LOOK_SECONDS)

    def _is_moving(self, partition: str) -> bool:
        state = self._connection.state(partition)
        intent = state.intents.get(partition)
        is_wanted = intent is not None and intent.pending is not None
        return is_wanted or state.topology.partitions[partition].transition is not None

    def _report(self, partition: str, since: float) -> Report | None:
        reports = self._connection.state(partition).reports.values()
        recent = [each for each in reports if each.partition == partition and each.ended >= since]
        return max(recent, key=lambda each: each.ended, default=None)

    def _bytes_at(self, node: str) -> int:
        return sum(each["bytes"] for each in self._connection.node_status(node)["replicas"])

    # --- a node dies

    def _kill(self) -> None:
        time.sleep(BETWEEN_SECONDS)  # so that no pause is taken for one of the moves
        owners = [
            record.owner.replica.node
            for record in self._connection.refresh().partitions.values()
            if record.owner is not None
        ]
        self.killed = Counter(sorted(owners)).most_common(1)[0][0]
        self.doing = f"{self.killed} is dead"
        self._local.kill(self.killed)
        self._show(f"kill -9 {self.killed}, the owner of most partitions")
        time.sleep(DOWN_SHARE * self._seconds)

    def _restart(self) -> None:
        self.doing = f"{self.killed} comes back"
        self._local.start_one(self.killed)
        self._show(f"{self.killed} is started again")
