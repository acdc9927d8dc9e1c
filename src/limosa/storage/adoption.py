"""How does a replica get another one's rows without copying them?

Segments never change, so the same file may serve several replicas: by another name in each
directory, and by the range of tokens that counts there.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from limosa.core.model.keys import WHOLE, TokenRange
from limosa.errors import BadInput
from limosa.storage import compaction
from limosa.storage.replica import StoredReplica, describe_table
from limosa.storage.segment import Segment
from limosa.storage.shelf import Shelf, directory
from limosa.storage.view import Ranged, TableView, newer, overlap


def link(
    source: StoredReplica, origin: Shelf, target: StoredReplica, shelf: Shelf, held: TokenRange
) -> bool:
    """Give it a range's committed rows. False: the target has begun anew since it was flushed."""
    for place, replica in ((origin, source), (shelf, target)):
        if not place.volume.holds(replica):
            raise BadInput(f"replica {directory(replica)} is gone", "choose another one")
    given, collected = source.view.tables, source.view.collected if held == WHOLE else 0
    with shelf.volume.lock:
        manifest, tables = target.manifest, target.view.tables
        beginnings = target.beginnings
        if manifest is None or beginnings != target.beginnings_at_rest:
            return False
    linked: dict[str, list[Ranged]] = {}
    for name, view in given.items():
        if view.table.kind == "stream" and held != WHOLE:
            raise BadInput(f"stream {name} can't be sliced", "repartition it instead")
        known = tables[name].segments if name in tables else ()
        # By offsets, a record is known even if it was put into another file since then.
        start = max((each.end for each in known), default=0)
        linked[name] = [
            _link_one(origin.path(source), shelf, target, ranged, both, known)
            for ranged in view.segments
            if (both := overlap(ranged.held, held)) and not _is_known(ranged.file, both, known)
            if view.table.kind == "table" or ranged.end > start
        ]
    shelf.files.sync_directory(shelf.path(target))
    united = _united(tables, given, linked)
    # What the source no longer counts, the target must not count either.
    target_manifest = structs.replace(
        manifest,
        collected=max(manifest.collected, collected),
        tables=tuple(describe_table(view) for _, view in sorted(united.items())),
    )
    shelf.put_manifest(target, target_manifest)
    with shelf.volume.lock:
        if target.beginnings == beginnings:
            # Of what is there now: others may have written to the target meanwhile.
            united = _united(target.view.tables, given, linked)
            collected = max(target.view.collected, collected)
            target.view = structs.replace(target.view, collected=collected, tables=united)
        target.rest(target_manifest)
        return target.beginnings == beginnings


def _link_one(
    origin: str,
    shelf: Shelf,
    target: StoredReplica,
    ranged: Ranged,
    held: TokenRange,
    known: Sequence[Ranged],
) -> Ranged:
    path = f"{shelf.path(target)}/{ranged.file}"
    if all(ranged.file != each.file for each in known):  # else another part of it is here
        shelf.files.link(f"{origin}/{ranged.file}", path)
    return Ranged(ranged.file, ranged.level, held, ranged.offset, Segment(shelf.files, path))


def _is_known(file: str, held: TokenRange, known: Sequence[Ranged]) -> bool:
    return any(file == each.file and overlap(each.held, held) == held for each in known)


def _united(
    tables: Mapping[str, TableView],
    given: Mapping[str, TableView],
    linked: Mapping[str, Sequence[Ranged]],
) -> dict[str, TableView]:
    """A replica's tables, and what it was given of another one's."""
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
