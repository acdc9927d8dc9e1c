"""How does a replica take over rows from elsewhere? As segments, without the log.

Segments never change, so several replicas may share a file: each replica has its own name for the
file (a hard link) and its own range of tokens that counts. Rows from another node are written to a
new segment.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.errors import BadInput
from limosa.storage import compaction
from limosa.storage.manifest import Manifest
from limosa.storage.replica import StoredReplica, check_copied, describe_table
from limosa.storage.segment import Segment
from limosa.storage.shelf import Shelf, directory
from limosa.storage.view import NEW, SETTLED, Ranged, TableView, overlap
from limosa.tabular.merge import is_sorted, newest
from limosa.tabular.rows import Batch, Bundle, concat
from limosa.tabular.schema import Table, newer


def link(
    source: StoredReplica,
    origin: Shelf,
    target: StoredReplica,
    shelf: Shelf,
    token_range: TokenRange,
) -> bool:
    """Link a range's committed rows. False: the target was emptied since it was flushed."""
    _check_held(origin, source)
    given, collected = source.view.tables, source.view.collected if token_range == WHOLE else 0
    resting = _at_rest(shelf, target)
    if resting is None:
        return False
    tables = resting.tables
    linked: dict[str, list[Ranged]] = {}
    for name, view in given.items():
        if view.table.kind == "stream" and token_range != WHOLE:
            raise BadInput(f"stream {name} can't be sliced", "repartition it instead")
        known = tables[name].segments if name in tables else ()
        # Offsets identify a record even if compaction has put it into another file.
        start = max((each.end for each in known), default=0)
        linked[name] = [
            _link_one(origin.path(source), shelf, target, ranged, both, known)
            for ranged in view.segments
            if (both := overlap(ranged.range, token_range))
            and not _is_known(ranged.file, both, known)
            if view.table.kind == "table" or ranged.end > start
        ]
    # Tombstones that the source has collected count as collected in the target, too.
    return _put(shelf, target, resting, given, linked, collected)


def shelve(
    target: StoredReplica,
    shelf: Shelf,
    rows: Sequence[Bundle],
    token_range: TokenRange,
    digest: int,
    least: int,
) -> Bundle | None:
    """Write copied rows of a range to segments; return those whose segment would be smaller than
    the minimum. None: the target was emptied since it was flushed."""
    resting = _at_rest(shelf, target)
    if resting is None:
        return None
    given: dict[str, TableView] = {}
    batches: dict[str, list[Batch]] = {}
    few: list[Batch] = []
    for bundle in rows:
        check_copied(bundle, target)
        for batch in bundle.batches:
            name = batch.table.id
            known = given.get(name)
            given[name] = TableView(newer(known.table, batch.table) if known else batch.table)
            batches.setdefault(name, []).append(batch)
    written: dict[str, list[Ranged]] = {}
    with shelf.given_up_files(target):
        for name, view in given.items():
            written[name] = []
            for group in _in_token_order(batches[name]):
                if sum(batch.bytes for batch in group) < least:
                    few += group
                    continue
                level = NEW if written[name] else SETTLED
                written[name] += _write_group(target, shelf, view.table, group, token_range, level)
        left = Bundle(few)
        found = sum(
            ranged.digest(given[name].table) for name in written for ranged in written[name]
        )
        if left.digest() + found != digest:
            raise BadInput("the digest of the copied rows is wrong", "copy them again")
        is_put = not any(written.values()) or _put(shelf, target, resting, given, written, 0)
        return left if is_put else None


def _in_token_order(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Groups of neighbouring batches; in each, the tokens of a batch follow those before it."""
    groups: list[list[Batch]] = []
    for batch in batches:
        if not groups or int(groups[-1][-1].tokens[-1]) >= int(batch.tokens[0]):
            groups.append([])
        groups[-1].append(batch)
    return groups


def _write_group(
    target: StoredReplica,
    shelf: Shelf,
    table: Table,
    group: Sequence[Batch],
    token_range: TokenRange,
    level: int,
) -> list[Ranged]:
    """Write one segment, sorted by token. Only one segment of a range can be settled."""
    ordered = group if is_sorted(group) else [newest(concat(table, group))]
    if (
        not token_range.start
        <= int(ordered[0].tokens[0])
        <= int(ordered[-1].tokens[-1])
        < token_range.end
    ):
        raise BadInput(f"copied rows of {table.id} are outside their slice", "send its own rows")
    ranged = shelf.write(target, table, ordered, "copy", level, token_range)
    return [] if ranged is None else [ranged]


class _Resting(NamedTuple):
    """A replica's manifest and segments, and how often the replica had been emptied by then."""

    manifest: Manifest
    tables: Mapping[str, TableView]
    beginnings: int


def _check_held(shelf: Shelf, replica: StoredReplica) -> None:
    if not shelf.volume.holds(replica):
        raise BadInput(f"replica {directory(replica)} is gone", "choose another replica")


def _at_rest(shelf: Shelf, target: StoredReplica) -> _Resting | None:
    """None: the replica must be flushed first."""
    _check_held(shelf, target)
    with shelf.volume.lock:
        if target.manifest is None or target.beginnings != target.beginnings_at_rest:
            return None
        return _Resting(target.manifest, target.view.tables, target.beginnings)


def _put(
    shelf: Shelf,
    target: StoredReplica,
    resting: _Resting,
    given: Mapping[str, TableView],
    segments: Mapping[str, Sequence[Ranged]],
    collected: Position,
) -> bool:
    """Add the new segments to the manifest. False: the replica was emptied meanwhile."""
    shelf.files.sync_directory(shelf.path(target))
    united = _united(resting.tables, given, segments)
    manifest = structs.replace(
        resting.manifest,
        collected=max(resting.manifest.collected, collected),
        tables=tuple(describe_table(view) for _, view in sorted(united.items())),
    )
    shelf.put_manifest(target, manifest)
    with shelf.volume.lock:
        if target.beginnings == resting.beginnings:
            # From the current state: others may have written to the target meanwhile.
            united = _united(target.view.tables, given, segments)
            collected = max(target.view.collected, collected)
            target.view = structs.replace(target.view, collected=collected, tables=united)
        target.rest(manifest)
        shelf.volume.tally.note(target)
        return target.beginnings == resting.beginnings


def _link_one(
    origin: str,
    shelf: Shelf,
    target: StoredReplica,
    ranged: Ranged,
    token_range: TokenRange,
    known: Sequence[Ranged],
) -> Ranged:
    path = f"{shelf.path(target)}/{ranged.file}"
    if all(ranged.file != each.file for each in known):  # else the file is linked already
        shelf.files.link(f"{origin}/{ranged.file}", path)
    return Ranged(ranged.file, ranged.level, token_range, ranged.offset, Segment(shelf.files, path))


def _is_known(file: str, token_range: TokenRange, known: Sequence[Ranged]) -> bool:
    return any(
        file == each.file and overlap(each.range, token_range) == token_range for each in known
    )


def _united(
    tables: Mapping[str, TableView],
    given: Mapping[str, TableView],
    linked: Mapping[str, Sequence[Ranged]],
) -> dict[str, TableView]:
    """A replica's tables together with the adopted segments."""
    united = dict(tables)
    for name, view in given.items():
        mine = united.get(name) or TableView(view.table)
        united[name] = structs.replace(
            mine,
            table=newer(mine.table, view.table),
            segments=(*mine.segments, *compaction.as_neighbours(mine.segments, linked[name])),
            next_offset=max(mine.next_offset, describe_table(view).next_offset),
        )
    return united
