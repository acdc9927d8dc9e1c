"""Which segments should be merged, and which rows can be dropped?

Segments of a table are *new* (made by a flush or a copy; they may overlap), *settled* (they do not
overlap), or *going* (on their way from new to settled). A sweep merges new segments into settled
ones, from left to right through the token space, one piece at a time. Each piece is replaced
atomically, so a sweep needs memory and disk space for one piece, can stop anywhere, and resumes
from the manifest alone.

This module is pure: a view in, a job out. Compaction and writes never wait for each other.
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
"""A larger set of segments is swept piece by piece, not merged in one step."""
WAITING_DEPTH_MAX = 16
"""With this many overlapping unsettled segments, merging can't be postponed any more."""


class Job(Struct, frozen=True):
    """Replace the inputs' rows of a range by segments of this level."""

    inputs: tuple[Ranged, ...]
    range: TokenRange
    level: int
    is_sweep: bool = False


def plan(view: TableView, collected: Position, piece_bytes: int, full: bool = False) -> Job | None:
    """The most useful job, or None if none is worth its cost. `full` plans every possible merge."""
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
    """Can merging be postponed without slowing reads down much?"""
    unsettled = [ranged.range for ranged in view.segments if ranged.level != SETTLED]
    covered = sum(each.end - each.start for each in unsettled)
    return covered < WAITING_DEPTH_MAX * (WHOLE.end - WHOLE.start)


def _is_worth_a_sweep(new: Sequence[Ranged], settled: Sequence[Ranged]) -> bool:
    """Rewriting settled segments pays off if the new segments are not much smaller."""
    return len(new) >= 2 and 2 * _bytes(new) >= _bytes(settled)


def _bytes(segments: Iterable[Ranged]) -> int:
    return sum(ranged.bytes for ranged in segments)


def _next_piece(going: Sequence[Ranged], settled: Sequence[Ranged], piece_bytes: int) -> Job:
    start = min(ranged.range.start for ranged in going)
    whole = TokenRange(start, max(ranged.range.end for ranged in going))
    sources: list[MergeSource] = [*going, *settled]
    end = cut(sources, whole, piece_bytes)[0].end
    for ranged in settled:
        # A settled segment is replaced as a whole, so that no segment is left in pieces.
        if overlap(ranged.range, TokenRange(start, end)) is not None:
            start, end = min(start, ranged.range.start), max(end, ranged.range.end)
    token_range = TokenRange(start, end)
    inside = [ranged for ranged in settled if overlap(ranged.range, token_range) is not None]
    return Job((*going, *inside), token_range, SETTLED, is_sweep=True)


def _alike(new: Sequence[Ranged]) -> tuple[Ranged, ...]:
    """New segments of similar size that should be merged, because too many slow reads down."""
    alike: dict[int, list[Ranged]] = {}
    for ranged in new:
        alike.setdefault(ranged.bytes.bit_length() // 2, []).append(ranged)
    for _, some in sorted(alike.items()):
        if len(some) >= NEW_OF_A_SIZE:
            return tuple(some)
    return ()


def _shed(view: TableView, collected: Position) -> Job | None:
    """Rewrite a segment if much of its file does not count in this replica."""
    for ranged in view.segments:
        sliced = 4 * ranged.rows < 3 * len(ranged.segment)
        if sliced or _is_dead(view, ranged, collected):
            return Job((ranged,), ranged.range, ranged.level)
    return None


def _is_dead(view: TableView, ranged: Ranged, collected: Position) -> bool:
    """Many of its rows are tombstones that can be dropped."""
    tombstones = ranged.segment.index.tombstones
    if not tombstones or 4 * tombstones < ranged.rows or ranged.max_version > collected:
        return False
    return ranged.max_version < oldest_beside(view, (ranged,), ranged.range)


def _join_records(view: TableView, piece_bytes: int) -> Job | None:
    """Join small neighbouring segments of a stream.

    Not if one of them is more than half of the result: so each rewrite of a record at least doubles
    the size of its file.
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
    """The lowest version in a range among all sources except the inputs."""
    beside = [source for source in view.sources if not any(source is given for given in inputs)]
    return min(
        (source.min_version for source in beside if source.spans(token_range)), default=2**62
    )


def without_collected(batch: Batch, collected: Position, oldest: Position) -> Batch:
    """Drop tombstones that were collected and that hide no older row."""
    if batch.deleted is None:
        return batch
    assert batch.versions is not None
    gone = batch.deleted & (batch.versions <= collected) & (batch.versions < oldest)
    return batch.where(~gone) if gone.any() else batch


def replaced(view: TableView, job: Job, made: Sequence[Ranged]) -> tuple[Ranged, ...]:
    """The table's segments after the job; segments that were added meanwhile stay."""
    kept: list[Ranged] = []
    placed = False
    for ranged in view.segments:
        if not any(ranged is given for given in job.inputs):
            kept.append(ranged)
            continue
        if not placed:
            kept += made  # at the place of the inputs: a stream's segments stay in order
            placed = True
        if job.is_sweep and ranged.level != SETTLED and ranged.range.end > job.range.end:
            rest = TokenRange(max(ranged.range.start, job.range.end), ranged.range.end)
            kept.append(Ranged(ranged.file, GOING, rest, ranged.offset, ranged.segment))
    return tuple(kept)


def as_neighbours(present: Sequence[Ranged], linked: Sequence[Ranged]) -> list[Ranged]:
    """Linked segments of another replica; they stay settled unless they overlap present ones."""
    settled = [ranged.range for ranged in present if ranged.level == SETTLED]
    return [
        ranged
        if ranged.level == SETTLED and not any(overlap(ranged.range, each) for each in settled)
        else Ranged(ranged.file, NEW, ranged.range, ranged.offset, ranged.segment)
        for ranged in linked
    ]
