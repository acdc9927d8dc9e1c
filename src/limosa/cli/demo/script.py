"""What happens to the demo's cluster under load? A script of steps, one after the other.

At first nothing, as a baseline; then a node joins and is filled on Spark, and another node is
drained; then the node that owns most partitions is killed with kill -9, and restarted.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from limosa.cli.shared.run_progress import copied_words, moves_words
from limosa.client.cluster_view import look, watch
from limosa.client.operator import Operator
from limosa.core.insight.progress import Progress
from limosa.core.insight.proposing import filling, planned
from limosa.core.insight.watching import WatchedRun
from limosa.core.model.requests import DrainNodes, StartRun
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
    """The totals of all moves."""

    count: int = 0
    failed: list[str] = []
    bytes: int = 0
    seconds: float = 0.0
    """Duration of the runs, without the time that Spark took to start."""
    longest_pause_seconds: float = 0.0
    """Of one partition, as the coordinator measured it."""


class Script:
    """The steps, which run on a thread of their own."""

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
        """Start and end of the baseline."""
        self.moving = (0.0, 0.0)
        self.doing = "baseline"
        self.run: WatchedRun | None = None
        """The current run, as last seen."""
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        steps = (self._nothing, self._join, self._fill, self._drain, self._kill, self._restart)
        try:
            for step in steps:
                step()
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
        """The first of the initial nodes; no replica may stay on it."""
        self.drained = min(self._local.nodes)
        like = RunPlan(f"drain {self.drained}", limits=LIMITS, drains=(self.drained,))
        _, run = planned(look(self._connection), like)
        self._carry_out(run)
        left = self._connection.node_status(self.drained)["replicas"]
        if left:
            self.moves.failed.append(f"{len(left)} replicas are left on {self.drained}")

    def _carry_out(self, plan: RunPlan) -> None:
        began = time.time()
        wish = DrainNodes(plan) if plan.drains else StartRun(plan)
        name = self._connection.submit(wish).run
        self._show(f"{plan.action}: {len(plan.moves)} moves start as run {name}")
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
                pass  # retried
            time.sleep(LOOK_SECONDS)
        raise Refused(f"run {run} has not ended", f"limosa explain {run}")

    def _spark_since(self) -> float:
        """Since when Spark is ready, in wall-clock time; 0: it is not."""
        state = self._connection.runs().pipeline
        return 0.0 if state is None or state.state != "ready" else state.since

    # --- a node dies

    def _kill(self) -> None:
        time.sleep(BETWEEN_SECONDS)  # so that its pause does not count as one of the moves
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
        self.doing = f"{self.killed} restarts"
        self._local.start_one(self.killed)
        self._show(f"{self.killed} has restarted")
