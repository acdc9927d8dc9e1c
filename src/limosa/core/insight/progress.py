"""How far is a run, and what does it wait for? Computed from the agreed state and statuses."""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.run_starts import MovesUnderWay, busy, stopped
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.keys import PartitionId
from limosa.core.model.runs import ATTEMPTS_MAX, IN_FLIGHT, RebalanceState, Run, RunMove
from limosa.errors import IllegalRequest

NO_COORDINATOR = (
    "no coordinator is running, so nothing advances: start one with `limosa serve coordinator`"
)
SENTENCES_MAX = 10


class Progress(Struct, frozen=True):
    """One run, as it is now or was when it ended."""

    run: Run
    state: RebalanceState
    """`idle` once it has ended."""
    total: int
    pending: int
    in_flight: int
    committed: int
    failed: int
    """Including those that will be retried."""
    rows: int
    """Of committed moves, and of the copies in flight so far; `bytes` likewise."""
    bytes: int
    seconds: float
    """Since the run began, until now or until its end."""
    bytes_per_second: float
    seconds_left: float | None
    """An estimate; None: the run has ended or is stopped, or it is too early to tell."""
    pause_seconds: float
    """The longest pause of writes at a hand-over so far."""
    waits: tuple[str, ...]
    """What it waits for, in words."""
    current: tuple[RunMove, ...]
    """Moves in flight, with details."""
    held: tuple[PartitionId, ...] = ()
    """Partitions of moves that are held."""


def progress(view: ClusterView, name: str) -> Progress:
    run = view.agreed.runs.get(name)
    if run is None:
        raise IllegalRequest(f"there is no run {name}", "list the runs")
    moves = view.agreed.moves.get(name, {}).values()
    over = sum(m.state == "COMMITTED" or (m.state == "FAILED" and m.final) for m in moves)
    current = tuple(shown(view, move) for move in moves if move.state in IN_FLIGHT)
    arrived = [copied(view, move) for move in current]
    committed = [move for move in moves if move.state == "COMMITTED"]
    counts = Counter(move.state for move in moves)
    size = sum(m.bytes for m in committed) + sum(size for _, size in arrived)
    seconds = max(0.0, (run.ended or view.wall) - run.started)
    rate = size / seconds if seconds else 0.0
    return Progress(
        run,
        state_of(view, run),
        run.moves,
        counts["PENDING"],
        len(current),
        len(committed),
        counts["FAILED"],
        sum(m.rows for m in committed) + sum(rows for rows, _ in arrived),
        size,
        seconds,
        rate,
        seconds_left(view, run, over, size, seconds),
        max((move.pause_seconds for move in moves), default=0.0),
        waits_of(view, run),
        current,
        tuple(move.partition for move in current if is_held(view, move)),
    )


def state_of(view: ClusterView, run: Run) -> RebalanceState:
    return view.agreed.rebalance.state if view.agreed.rebalance.run == run.id else "idle"


def seconds_left(
    view: ClusterView, run: Run, ended: int, size: int, seconds: float
) -> float | None:
    """By bytes, if the run has an estimate; else by moves."""
    if state_of(view, run) != "running" or not seconds:
        return None
    whole = 0 if run.estimate is None else run.estimate.bytes
    if whole and size:
        return seconds * max(0, whole - size) / size
    return seconds * (run.moves - ended) / ended if ended else None


def shown(view: ClusterView, move: RunMove) -> RunMove:
    """The move with a detail from its partition's transition."""
    change = view.transition_of(move)
    if change is not None and change.given_up_by:
        return replace(move, detail=f"goes back: {change.giving_up}")
    return replace(move, detail="held") if is_held(view, move) else move


def is_held(view: ClusterView, move: RunMove) -> bool:
    change = view.transition_of(move)
    return change is not None and not change.given_up_by and routing.is_held(change)


def copied(view: ClusterView, move: RunMove) -> tuple[int, int]:
    """Rows and bytes that have arrived so far."""
    record = view.agreed.topology.partitions.get(move.partition)
    known = [] if record is None else [view.of(record, r) for r in routing.new_only(record)]
    said = [each for each in known if each is not None]
    return sum(each.rows for each in said), sum(each.bytes for each in said)


# --- what it waits for


def waits_of(view: ClusterView, run: Run) -> tuple[str, ...]:
    if run.outcome:
        return ()
    out = [] if view.agreed.coordinator is not None else [NO_COORDINATOR]
    moves = view.agreed.moves.get(run.id, {}).values()
    out += [retried(move) for move in moves if move.state == "FAILED" and not move.final]
    pending = [move for move in moves if move.state == "PENDING"]
    why = stopped(view, run)
    if why:
        out.append(why)
    elif pending:
        traffic = MovesUnderWay(view, run)
        reasons = [move_waits(view, traffic, move) for move in pending]
        out += [reason for reason in dict.fromkeys(reasons) if reason]
    return tuple(out[:SENTENCES_MAX])


def retried(move: RunMove) -> str:
    return (
        f"the move of {move.partition} failed ({move.detail}) and is tried again: "
        f"{move.attempts} of {ATTEMPTS_MAX} attempts are over"
    )


def move_waits(view: ClusterView, traffic: MovesUnderWay, move: RunMove) -> str:
    return traffic.full(move.source, move.target.node) or busy(view, move)


def waits_in_a_run(view: ClusterView, partition: PartitionId) -> str:
    """Why a partition that the current run will move has not begun to move; empty: not in the
    run."""
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    if run is None:
        return ""
    moves = view.agreed.moves.get(run.id, {}).values()
    mine = [m for m in moves if m.partition == partition and m.state in ("PENDING", "FAILED")]
    if not mine or (mine[0].state == "FAILED" and mine[0].final):
        return ""
    if mine[0].state == "FAILED":
        return retried(mine[0])
    return f"its turn in run {run.id}: {stopped(view, run) or 'it begins when its nodes have room'}"
