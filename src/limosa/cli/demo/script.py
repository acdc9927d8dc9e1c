"""What happens to the demo's cluster while it is used? Acts, one after the other.

Nothing at first, so that there is something to compare with; then a node joins and is given its
share on Spark, and another one is drained; then the node that owns most is killed with kill -9, and
started again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from limosa.cli.shared.run_progress import copied_words, moves_words
from limosa.client.cluster_view import look, watch
from limosa.client.operator import Operator
from limosa.core.coordinator.progress import Progress
from limosa.core.coordinator.proposing import filling, planned
from limosa.core.coordinator.watching import Watched
from limosa.core.model.runs import Limits, RunPlan
from limosa.errors import LimosaError, Refused
from limosa.runtime.local import LocalCluster

RUN_SECONDS_MAX = 150.0
DOWN_SHARE, AFTER_SHARE = 0.25, 0.25
LOOK_SECONDS = 0.3
BETWEEN_SECONDS = 1.0
LIMITS = Limits(moves_in=4, moves_out=4)

Show = Callable[[str], None]


class Moves(Struct):
    """What became of the moves."""

    count: int = 0
    failed: list[str] = []
    bytes: int = 0
    seconds: float = 0.0
    """Of the runs, but for the time in which Spark started."""
    longest_pause_seconds: float = 0.0
    """As the coordinator measured it, of one partition."""


class Acts:
    """The script, on a thread of its own."""

    def __init__(
        self, local: LocalCluster, connection: Operator, seconds: float, show: Show
    ) -> None:
        self._local = local
        self._connection = connection
        self._seconds = seconds
        self._show = show
        self.moves = Moves()
        self.joined = self.drained = self.killed = ""
        self.quiet = (0.0, 0.0)
        """When nothing happened: from, to."""
        self.moving = (0.0, 0.0)
        self.doing = "nothing happens yet"
        self.run: Watched | None = None
        """What is under way, as it was seen last."""
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def are_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        acts = (self._nothing, self._join, self._fill, self._drain, self._kill, self._restart)
        try:
            for act in acts:
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

    # --- runs

    def _fill(self) -> None:
        self.moving = (time.monotonic(), time.monotonic())
        like = RunPlan(f"fill {self.joined}", limits=LIMITS)
        _, run = filling(look(self._connection), [self.joined], like)
        self._carry_out(run)

    def _drain(self) -> None:
        """The first of those that were there; nothing stays on it."""
        self.drained = min(self._local.nodes)
        like = RunPlan(f"drain {self.drained}", limits=LIMITS, drains=(self.drained,))
        _, run = planned(look(self._connection), like)
        self._carry_out(run)
        left = self._connection.node_status(self.drained)["replicas"]
        if left:
            self.moves.failed.append(f"{len(left)} replicas are left on {self.drained}")

    def _carry_out(self, plan: RunPlan) -> None:
        began = time.time()
        name = self._connection.start_run(plan).answer.rsplit(" ", 1)[-1]
        self._show(f"{plan.action}: {len(plan.moves)} moves begin as run {name}")
        ended = self._follow(name)
        run, ready = ended.run, self._spark_since()
        self.moving = (self.moving[0], time.monotonic())
        self.moves.count += run.totals.committed
        self.moves.bytes += run.totals.bytes
        self.moves.seconds += run.ended - max(began, min(ready, run.ended))
        pause = max(self.moves.longest_pause_seconds, run.totals.pause_seconds)
        self.moves.longest_pause_seconds = pause
        if run.outcome != "done":
            self.moves.failed.append(f"{run.action}: {run.outcome}: {run.words}")
        self._show(
            f"{run.action}: {run.outcome}, {run.totals.committed} moves in "
            f"{run.ended - run.started:.1f} s; the longest hand-over took "
            f"{run.totals.pause_seconds * 1e3:.0f} ms"
        )

    def _follow(self, run: str) -> Progress:
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                seen = watch(self._connection, run)
                found = seen.progress
                if found.run.outcome:
                    self.run = None
                    return found
                self.run = seen
                self.doing = f"{found.run.action}: {moves_words(found)}; {copied_words(found)}"
            except LimosaError:
                pass  # it is asked again
            time.sleep(LOOK_SECONDS)
        raise Refused(f"run {run} has not ended", f"limosa explain {run}")

    def _spark_since(self) -> float:
        """Since when it could be used, by the wall clock; 0: there is none."""
        state = self._connection.runs().pipeline
        return 0.0 if state is None or state.state != "ready" else state.since

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
