"""How did a transition end? Every transition leaves a report, which is kept for a while."""

from collections import Counter
from typing import Literal

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import COORDINATOR_KEY, Commit, Remove, report_key
from limosa.core.model.reports import Report
from limosa.core.model.topology import Partition, Transition


def report_of(
    view: ClusterView,
    record: Partition,
    change: Transition,
    outcome: Literal["done", "reverted"],
    differences: tuple[str, ...] = (),
    more: int = 0,
) -> Report:
    """Differences that an earlier report of the same transition lists are kept."""
    known = view.agreed.reports.get(report_key(record.id, change.id))
    if known is not None and not differences:
        differences, more = known.differences, known.differences_more
    return Report(
        record.id,
        change.id,
        change.kind,
        outcome,
        change.giving_up,
        record.replicas,
        change.targets,
        change.begun,
        view.wall,
        change.pause_seconds,
        differences,
        more,
        change.given_up_by,
    )


def forget_old(view: ClusterView) -> Commit | None:
    """Delete old reports: a few of each partition are kept, and a number of all."""
    settings = view.settings
    each = Counter(report.partition for report in view.agreed.reports.values())
    if each.total() <= settings.reports_kept and all(
        count <= settings.reports_kept_each for count in each.values()
    ):
        return None
    newest_first = sorted(
        ((view.agreed.revision_of(key), key) for key in view.agreed.reports), reverse=True
    )
    kept: Counter[str] = Counter()
    left = settings.reports_kept
    guards = {}
    for revision, key in newest_first:
        partition = view.agreed.reports[key].partition
        if left and kept[partition] < settings.reports_kept_each:
            kept[partition] += 1
            left -= 1
        else:
            guards[key] = revision
    removed = tuple(Remove(key) for key in guards)
    guards[COORDINATOR_KEY] = view.coordinator
    return Commit(guards, removed, f"{len(removed)} old reports are forgotten")
