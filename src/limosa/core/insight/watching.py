"""How far is each move of a run that is in flight? Its stage, its copy, and what it waits for."""

from msgspec import Struct

from limosa.core import routing
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight.explaining import copies, copying, waits_for
from limosa.core.insight.progress import Progress, progress
from limosa.core.machines.machine import Side
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed
from limosa.core.model.keys import NodeId, transition_id
from limosa.core.model.runs import RunMove


class Moving(Struct, frozen=True):
    """One move in flight."""

    move: RunMove
    kind: str = ""
    """Of its partition's transition, as `stage`; empty: it has not begun, or has just ended."""
    stage: str = ""
    landed: int = 0
    """Slices that were copied, of `slices`."""
    slices: int = 0
    """0: nothing is being copied."""
    share: float = 0.0
    """Share of the copy that is done, from 0 to 1."""
    waits_for: str = ""


class WatchedRun(Struct, frozen=True):
    """A run, and its moves in flight."""

    progress: Progress
    moving: tuple[Moving, ...] = ()


def seen_from_outside(agreed: Agreed, statuses: dict[NodeId, Status], wall: float) -> ClusterView:
    """What a process that is no coordinator knows: it reads, and commits nothing."""
    return ClusterView(agreed, statuses, agreed.revision_of(COORDINATOR_KEY), wall, wall)


def watched(view: ClusterView, run: str) -> WatchedRun:
    found = progress(view, run)
    return WatchedRun(found, tuple(moving(view, each) for each in found.current))


def moving(view: ClusterView, move: RunMove) -> Moving:
    record = view.agreed.topology.partitions.get(move.partition)
    if record is None:
        return Moving(move)
    change, stage = record.transition, routing.stage_of(record)
    why = waits_for(view, record, view.now if change is None else change.since)
    if change is None or stage is None or change.id != transition_id(move.trigger):
        return Moving(move, waits_for=why)
    if not copies(stage):
        share = 1.0 if stage.reads is Side.NEW else 0.0
        return Moving(move, change.kind, stage.name, share=share, waits_for=why)
    copy = copying(view, record)
    share = copy.landed / max(1, copy.slices)
    return Moving(move, change.kind, stage.name, copy.landed, copy.slices, share, why)
