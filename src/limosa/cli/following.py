"""How far is a change of a partition? One look at it, or look after look until it has ended."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limosa.cli.durations import lasted
from limosa.cli.overview import NODES_AT_ONCE
from limosa.cli.showing import count, size, tell
from limosa.client.connection import Connection
from limosa.core.coordinator.explaining import Copying, Explanation, explain
from limosa.core.coordinator.view import View
from limosa.core.machines.catalogue import MACHINES
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, report_key
from limosa.core.model.reports import Report
from limosa.core.model.topology import Partition
from limosa.errors import IllegalRequest, LimosaError, OutcomeUnknown, Refused

LOOK_SECONDS = 0.25
LOOKS_MAX = 3
PATIENCE_SECONDS = 60.0
"""How long a cluster that does not answer is asked again."""
RATE_SECONDS = 10.0
BAR_WIDTH = 30


# --- one look


def look_at(connection: Connection, partition: str) -> Explanation:
    view = gather(connection, partition)
    record = record_of(view.agreed, partition)
    change = record.transition
    return explain(view, record, view.now if change is None else change.since)


def record_of(agreed: Agreed, partition: str) -> Partition:
    record = agreed.topology.partitions.get(partition)
    if record is None:
        raise IllegalRequest(
            f"there is no partition {partition}", "list them with `limosa partitions`"
        )
    return record


def gather(connection: Connection, partition: str) -> View:
    """What is agreed, and what every live node says; again, if the record changed meanwhile."""
    agreed = connection.state(partition)
    statuses: dict[str, Status] = {}
    for _ in range(LOOKS_MAX):
        statuses = ask_all(connection, sorted(agreed.leases), partition)
        before, agreed = agreed, connection.state(partition)
        if agreed.topology.revision_of(partition) == before.topology.revision_of(partition):
            break
    now = time.time()
    return View(agreed, statuses, agreed.revision_of(COORDINATOR_KEY), now, now)


def ask_all(connection: Connection, nodes: list[str], partition: str) -> dict[str, Status]:
    """Who is not in the answer did not answer."""
    statuses: dict[str, Status] = {}
    if any(node not in connection.topology.nodes for node in nodes):
        connection.refresh()
    known = [node for node in nodes if node in connection.topology.nodes]

    def ask(node: str) -> None:
        try:
            status = connection.node_facts(node, partition)
        except LimosaError:
            return
        if status is not None:
            statuses[node] = status

    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        list(pool.map(ask, known))
    return statuses


# --- until it has ended


class Wanted(Struct, frozen=True):
    """The move that is followed."""

    trigger: int
    source: str
    to: str

    @property
    def transition(self) -> str:
        return f"t{self.trigger}"

    def is_goal(self, nodes: Iterable[str]) -> bool:
        held = set(nodes)
        return self.to in held and self.source not in held


class Ended(Struct, frozen=True):
    """How a change ended."""

    state: str
    """`done`, `reverted`, or `replaced`: by a later request, before it began."""
    why: str = ""
    report: Report | None = None


def ending(agreed: Agreed, record: Partition, wanted: Wanted) -> Ended | None:
    """None: it goes on, or has not begun."""
    if record.transition is not None and record.transition.id == wanted.transition:
        return None
    intent = agreed.intents.get(record.id)
    for each in () if intent is None else (intent.pending, intent.planned):
        if each is not None and each.trigger == wanted.trigger:
            return None
    report = agreed.reports.get(report_key(record.id, wanted.transition))
    if report is not None:
        return Ended(report.outcome, report.why, report)
    if wanted.is_goal(each.node for each in record.replicas):
        return Ended("done")
    return Ended("replaced", "another request took its place, or cancelled it, before it began")


def follow(
    connection: Connection,
    partition: str,
    wanted: Wanted,
    show: Callable[[Explanation], None],
) -> Ended:
    """Until the change has ended; a cluster that does not answer for a while is asked again."""
    heard_at = time.monotonic()
    while True:
        try:
            agreed = connection.state(partition)
            ended = ending(agreed, record_of(agreed, partition), wanted)
            if ended is not None:
                return ended
            show(look_at(connection, partition))
            heard_at = time.monotonic()
        except (OutcomeUnknown, Refused):
            if time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
        time.sleep(LOOK_SECONDS)


# --- how it looks


class Rate:
    """How fast bytes land, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, now: float, done: float) -> None:
        if not done or (self._seen and done < self._seen[-1][1]):
            self._seen.clear()  # it has not begun, or begins anew in another session
        self._seen.append((now, done))
        while now - self._seen[0][0] > RATE_SECONDS and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        if not self._seen:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if now > began else 0.0


def landed_bytes(copy: Copying) -> float:
    """Slices are about equal, so they say how much of the whole is there."""
    return copy.bytes_all * copy.landed / copy.slices if copy.slices else 0.0


def copy_words(copy: Copying, bytes_per_second: float = 0.0) -> str:
    """`12 of 64 slices, about 1,200 of 6,400 rows, 12.0 MB/s, 3.1 s left`."""
    if not copy.slices:
        return "nothing has landed yet"
    words = [f"{copy.landed:,} of {count(copy.slices, 'slice')}"]
    if copy.rows_all:
        rows = copy.rows_all * copy.landed // copy.slices
        words.append(f"about {rows:,} of {count(copy.rows_all, 'row')}")
    if bytes_per_second > 0:
        left = copy.bytes_all - landed_bytes(copy)
        words.append(f"{size(bytes_per_second)}/s")
        words += [f"{lasted(left / bytes_per_second)} left"] if left > 0 else []
    return ", ".join(words)


def stage_words(explanation: Explanation) -> str:
    """`streaming (3 of 6)`; on the way back it is not said how many there are."""
    if not explanation.kind:
        return explanation.stage
    forward = []
    machine, name = MACHINES[explanation.kind], MACHINES[explanation.kind].first.name
    names = [stage.name for stage in machine.stages]
    while name in names:
        forward.append(name)
        name = machine[name].next
    if explanation.stage not in forward:
        return f"{explanation.stage} (on the way back)"
    return f"{explanation.stage} ({forward.index(explanation.stage) + 1} of {len(forward)})"


def on_errors() -> Console:
    """Beside the answer, which may be piped elsewhere."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


class Progress:
    """What a person who waits sees: on a terminal a few lines that change, else a line a change."""

    def __init__(self, what: str, quiet: bool, console: Console) -> None:
        self._what = what
        self._quiet = quiet
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._rate = Rate()
        self._began = time.monotonic()
        self._said = ""

    def open(self) -> AbstractContextManager[object]:
        return self._live if self._is_live else nullcontext()

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def show(self, explanation: Explanation) -> None:
        if explanation.copy is not None:
            self._rate.note(time.monotonic(), landed_bytes(explanation.copy))
        if self._is_live:
            self._live.update(self.drawn(explanation), refresh=True)
        elif not self._quiet:
            self._say(f"{stage_words(explanation)}: {explanation.waits_for}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            tell(line)

    def drawn(self, explanation: Explanation) -> Group:
        passed = lasted(time.monotonic() - self._began)
        lines: list[Text | Table] = [
            Text(f"{self._what}  {stage_words(explanation)}  {passed}", style="bold")
        ]
        copy = explanation.copy
        if copy is not None:
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(max(copy.slices, 1), copy.landed, width=BAR_WIDTH)
            grid.add_row(bar, copy_words(copy, self._rate.per_second))
            lines.append(grid)
        lines.append(Text(f"waits for: {explanation.waits_for}"))
        return Group(*lines)
