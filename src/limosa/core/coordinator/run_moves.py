"""How far is a move of a run? The move's record follows its partition's transition.

Each state of a move is recorded, even if the coordinator sees a later stage first. A move that was
reverted is retried after a while, unless an operator cancelled it.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import RUN_MOVE
from limosa.core.machines.machine import Stage
from limosa.core.model.changes import (
    REBALANCE_KEY,
    Change,
    Commit,
    Put,
    intent_key,
    layout_key,
    partition_key,
    report_key,
    run_move_key,
)
from limosa.core.model.keys import transition_id
from limosa.core.model.reports import Report
from limosa.core.model.runs import ATTEMPTS_MAX, FAR, MoveState, RunMove, asked_at
from limosa.core.model.topology import GivenUpBy, Partition

FORWARD = ("copy", "commit")
"""The events of a move that goes forward."""
BY_HAND: tuple[GivenUpBy, ...] = ("operator",)
GONE = "the partition is gone"
ANOTHER = "the partition was dropped and created again"
WITH_ITS_RUN = "its run was cancelled"


def written(
    view: ClusterView, keys: Iterable[str], changes: tuple[Change, ...], why: str
) -> Commit:
    """A commit for the current run, guarded by everything it was computed from."""
    return Commit(view.guarded((REBALANCE_KEY, *keys)), changes, why)


def follow(view: ClusterView, flights: Flights, move: RunMove) -> Commit | None:
    """Record the move's progress, one state at a time."""
    now = followed(view, move)
    if now is move:
        if not view.is_under_way(move) and move.state == "COMMITTED":
            flights.close(move)
        return None
    keys = [
        run_move_key(move.run, move.number),
        partition_key(move.partition),
        intent_key(move.partition),
        report_key(move.partition, transition_id(move.trigger)),
        *layout_reads(view, move),
    ]
    return written(view, keys, (Put(now),), f"{move.partition}: {move.run}: {now.state}")


def followed(view: ClusterView, move: RunMove) -> RunMove:
    """The move with its next state; the same object if nothing changed."""
    record = view.agreed.topology.partitions.get(move.partition)
    if move.state == "COMMITTED":
        return move
    lost = missing(view, move)
    if record is None or lost:
        return failed(view, move, lost, final=True)
    report = view.agreed.reports.get(report_key(move.partition, transition_id(move.trigger)))
    if view.is_under_way(move):
        stage = routing.stage_of(record)
        far = 0 if stage is None else FAR[state_in(stage)]
    elif has_landed(view, move, report):
        far = FAR["COMMITTED"]
    else:
        return given_up(view, move, report)
    if far <= FAR[move.state]:
        return move
    return forward(view, record, move, report)


def state_in(stage: Stage) -> MoveState:
    """How far the move is in a stage of its transition."""
    return stage.run_move


def missing(view: ClusterView, move: RunMove) -> str:
    """Why the partition to be moved does not exist any more, in words. Names can be reused, but the
    first version of a zone's layout is the revision of the request that created the zone."""
    record = view.agreed.topology.partitions.get(move.partition)
    if record is None:
        return GONE
    layout = view.agreed.topology.layouts[record.zone]
    return ANOTHER if layout.version > asked_at(move.run) else ""


def layout_reads(view: ClusterView, move: RunMove) -> list[str]:
    record = view.agreed.topology.partitions.get(move.partition)
    return [] if record is None else [layout_key(record.zone)]


def has_landed(view: ClusterView, move: RunMove, report: Report | None) -> bool:
    """Did the attempt succeed? Its report tells; without one, the placement of the replicas
    does."""
    if report is not None:
        return report.outcome == "done"
    stable = view.agreed.intents[move.partition].stable
    left = all(place.node != move.source or place == move.target for place in stable)
    return move.target in stable and left


def forward(view: ClusterView, record: Partition, move: RunMove, report: Report | None) -> RunMove:
    state = RUN_MOVE.after(move.state, FORWARD[FAR[move.state]])
    if state != "COMMITTED":
        return replace(move, state=state)
    # A replica that has just come has not been measured yet.
    known = [view.of(record, replica) for replica in routing.everywhere(record)]
    said = [each for each in known if each is not None]
    change = record.transition
    paused = 0.0 if change is None else change.pause_seconds
    return replace(
        move,
        state=state,
        rows=max((each.rows for each in said), default=0),
        bytes=max((each.bytes for each in said), default=0) or move.bytes,
        ended=view.wall,
        pause_seconds=paused if report is None else report.pause_seconds,
    )


def given_up(view: ClusterView, move: RunMove, report: Report | None) -> RunMove:
    """The move is retried, unless an operator cancelled it."""
    if view.agreed.rebalance.state == "cancelling":
        return failed(view, move, WITH_ITS_RUN, final=True)
    if report is None:
        return failed(view, move, "the transition was given up", final=False)
    return failed(view, move, report.why, final=report.given_up_by in BY_HAND)


def failed(view: ClusterView, move: RunMove, why: str, final: bool) -> RunMove:
    event = "be refused" if move.state == "PENDING" else "fail"
    return replace(
        move,
        state=RUN_MOVE.after(move.state, event),
        final=final or move.attempts >= ATTEMPTS_MAX,
        ended=view.wall,
        detail=why,
    )


def try_again(view: ClusterView, flights: Flights, move: RunMove) -> Commit | None:
    """Retry after a while: the obstacle may be gone."""
    since = flights.failed_since(move, view.now)
    if view.now - since < view.settings.retry_seconds:
        return None
    state = RUN_MOVE.after(move.state, "try again")
    key = run_move_key(move.run, move.number)
    why = f"{move.partition}: {move.run}: to be tried again"
    return written(view, [key], (Put(replace(move, state=state, ended=0.0)),), why)
