"""Which segments should be merged, and which rows can be dropped?

Segments of a table are *new* (what a flush or a copy left: they overlap), *settled* (they do not),
or *going*: on their way from new to settled. A sweep takes new segments through the token space
from left to right, one piece at a time. Each piece is merged with the settled segments there and
replaced at once, so a sweep needs the memory and the disk of a piece, can stop anywhere, and is
resumed from the manifest alone.

Pure: a view in, a job out. Writes are never waited for, nor do they wait.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.storage.view import GOING, NEW, SETTLED, Ranged, TableView, overlap
from limosa.tabular.merge import MergeSource, cut
from limosa.tabular.rows import Batch

NEW_OF_A_SIZE = 4
STREAM_SEGMENTS = 8
UNITED_PIECES_MAX = 8
"""What is larger is not united in one step, but swept."""
WAITING_DEPTH_MAX = 16
"""So many unsettled segments over each other are too many, whatever merging would disturb."""


class Job(Struct, frozen=True):
    """Replace what the inputs have in a range by segments of this level."""

    inputs: tuple[Ranged, ...]
    range: TokenRange
    level: int
    is_sweep: bool = False


def plan(view: TableView, collected: Position, piece_bytes: int, full: bool = False) -> Job | None:
    """The most useful job, if any is worth it; with `full`, until nothing is left to merge."""
    if view.table.kind == "stream":
        return _join_records(view, piece_bytes)
    new = [ranged for ranged in view.segments if ranged.level == NEW]
    going = [ranged for ranged in view.segments if ranged.level == GOING]
    settled = [ranged for ranged in view.segments if ranged.level == SETTLED]
    if not going and (new if full else _is_worth_a_sweep(new, settled)):
        going = new
    if going:
        return _next_piece(going, settled, piece_bytes)
    alike = _alike(new)
    if _bytes(alike) > UNITED_PIECES_MAX * piece_bytes:
        return _next_piece(new, settled, piece_bytes)
    return Job(alike, WHOLE, NEW) if alike else _shed(view, collected)


def can_wait(view: TableView) -> bool:
    """Reads would not suffer much yet if nothing were merged for a while."""
    unsettled = [ranged.range for ranged in view.segments if ranged.level != SETTLED]
    covered = sum(each.end - each.start for each in unsettled)
    return covered < WAITING_DEPTH_MAX * (WHOLE.end - WHOLE.start)


def _is_worth_a_sweep(new: Sequence[Ranged], settled: Sequence[Ranged]) -> bool:
    """Rewriting the settled ones pays off when the new ones are not much smaller."""
    return len(new) >= 2 and 2 * _bytes(new) >= _bytes(settled)


def _bytes(segments: Iterable[Ranged]) -> int:
    return sum(ranged.bytes for ranged in segments)


def _next_piece(going: Sequence[Ranged], settled: Sequence[Ranged], piece_bytes: int) -> Job:
    start = min(ranged.range.start for ranged in going)
    whole = TokenRange(start, max(ranged.range.end for ranged in going))
    sources: list[MergeSource] = [*going, *settled]
    end = cut(sources, whole, piece_bytes)[0].end
    for ranged in settled:
        # A settled segment is replaced as a whole, so that none is ever left in pieces.
        if overlap(ranged.range, TokenRange(start, end)) is not None:
            start, end = min(start, ranged.range.start), max(end, ranged.range.end)
    token_range = TokenRange(start, end)
    inside = [ranged for ranged in settled if overlap(ranged.range, token_range) is not None]
    return Job((*going, *inside), token_range, SETTLED, is_sweep=True)


def _alike(new: Sequence[Ranged]) -> tuple[Ranged, ...]:
    """Too many new ones of about one size slow reads down: they should be one."""
    alike: dict[int, list[Ranged]] = {}
    for ranged in new:
        alike.setdefault(ranged.bytes.bit_length() // 2, []).append(ranged)
    for _, some in sorted(alike.items()):
        if len(some) >= NEW_OF_A_SIZE:
            return tuple(some)
    return ()


def _shed(view: TableView, collected: Position) -> Job | None:
    """Write a segment anew if much of its file is of no use here."""
    for ranged in view.segments:
        sliced = 4 * ranged.rows < 3 * len(ranged.segment)
        if sliced or _is_dead(view, ranged, collected):
            return Job((ranged,), ranged.range, ranged.level)
    return None


def _is_dead(view: TableView, ranged: Ranged, collected: Position) -> bool:
    """Many of its rows are tombstones, and nobody needs any of them."""
    tombstones = ranged.segment.index.tombstones
    if not tombstones or 4 * tombstones < ranged.rows or ranged.max_version > collected:
        return False
    return ranged.max_version < oldest_beside(view, (ranged,), ranged.range)


def _join_records(view: TableView, piece_bytes: int) -> Job | None:
    """A stream's segments follow each other; many small neighbours become one.

    Not if one of them is most of it: rewritten, a record ends in a file of twice the size at least.
    """
    for first in range(len(view.segments) - STREAM_SEGMENTS + 1):
        some = view.segments[first : first + STREAM_SEGMENTS]
        total, largest = _bytes(some), max(ranged.bytes for ranged in some)
        if 2 * largest <= total <= piece_bytes:
            return Job(some, WHOLE, NEW)
    return None


def oldest_beside(
    view: TableView, inputs: Sequence[MergeSource], token_range: TokenRange
) -> Position:
    """The lowest version of a range outside of some sources: older rows may hide from them."""
    beside = [source for source in view.sources if not any(source is given for given in inputs)]
    return min(
        (source.min_version for source in beside if source.spans(token_range)), default=2**62
    )


def without_collected(batch: Batch, collected: Position, oldest: Position) -> Batch:
    """A tombstone may go once it was collected and nothing older is left for it to hide."""
    if batch.deleted is None:
        return batch
    assert batch.versions is not None
    gone = batch.deleted & (batch.versions <= collected) & (batch.versions < oldest)
    return batch.where(~gone) if gone.any() else batch


def replaced(view: TableView, job: Job, made: Sequence[Ranged]) -> tuple[Ranged, ...]:
    """The table's segments once the job is done; others may have come meanwhile."""
    kept: list[Ranged] = []
    placed = False
    for ranged in view.segments:
        if not any(ranged is given for given in job.inputs):
            kept.append(ranged)
            continue
        if not placed:
            kept += made  # where the inputs were: a stream's segments stay in order
            placed = True
        if job.is_sweep and ranged.level != SETTLED and ranged.range.end > job.range.end:
            rest = TokenRange(max(ranged.range.start, job.range.end), ranged.range.end)
            kept.append(Ranged(ranged.file, GOING, rest, ranged.offset, ranged.segment))
    return tuple(kept)


def as_neighbours(present: Sequence[Ranged], linked: Sequence[Ranged]) -> list[Ranged]:
    """Segments of another replica: they stay settled where none is in their way."""
    settled = [ranged.range for ranged in present if ranged.level == SETTLED]
    return [
        ranged
        if ranged.level == SETTLED and not any(overlap(ranged.range, each) for each in settled)
        else Ranged(ranged.file, NEW, ranged.range, ranged.offset, ranged.segment)
        for ranged in linked
    ]
