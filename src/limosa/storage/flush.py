"""How do committed rows get from memory to segments? Replicas are flushed together.

A flush syncs a segment, its directory, a manifest, and the directory again, one after the other. A
node with thousands of small replicas would wait for little else. So replicas that are flushed
together share each of these waits: file systems unite syncs that arrive at the same time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from msgspec import Struct, structs

from limosa.core.model.keys import WHOLE
from limosa.storage.files import OpenFile
from limosa.storage.manifest import Manifest
from limosa.storage.replica import StoredReplica, describe_table
from limosa.storage.shelf import Shelf
from limosa.storage.view import NEW, Ranged, TableView
from limosa.tabular.merge import newest_rows, sweep
from limosa.tabular.rows import Batch, concat

PIECE_BYTES = 16 << 20
AT_ONCE_BYTES_MAX = 256 << 20
TOGETHER_MAX = 32
TOGETHER_BYTES_MAX = 16 << 20
"""So many replicas, with so many bytes of rows, are flushed together; or a single larger one."""


class _Flushing(Struct, eq=False):
    """A replica whose committed rows are set aside for new segments."""

    replica: StoredReplica
    beginnings: int
    manifest: Manifest
    tables: Mapping[str, TableView]
    made: dict[str, list[Ranged]] = {}


def few_enough(replicas: Iterable[StoredReplica]) -> list[StoredReplica]:
    """The first replicas that may be flushed together; at least one, if there is one."""
    chosen: list[StoredReplica] = []
    size = 0
    for replica in replicas:
        size += replica.memory_bytes
        if chosen and (size > TOGETHER_BYTES_MAX or len(chosen) == TOGETHER_MAX):
            break
        chosen.append(replica)
    return chosen


def flush(shelf: Shelf, replicas: Sequence[StoredReplica]) -> None:
    """Write all rows of these replicas that are committed now to segments."""
    volume = shelf.volume
    if volume.dropped:
        shelf.drop_directories()  # an earlier replica may have had the same ids
    flushed = [each for replica in replicas if (each := _freeze(shelf, replica)) is not None]
    if not flushed:
        return
    _write_segments(shelf, flushed)
    # A manifest must not be ahead of the log: the log must hold all entries it relies on.
    if volume.durable_sequence < max(each.manifest.sequence for each in flushed):
        volume.sync()
    for each in flushed:
        thawed = ((view, each.made[name]) for name, view in sorted(each.tables.items()))
        tables = tuple(describe_table(_thawed(*both)) for both in thawed)
        each.manifest = structs.replace(each.manifest, tables=tables)
    shelf.put_manifests([(each.replica, each.manifest) for each in flushed])
    with volume.lock:
        for each in flushed:
            if each.replica.beginnings == each.beginnings:
                each.replica.thaw(each.manifest, each.made)
            else:
                each.replica.rest(each.manifest)
            volume.tally.note(each.replica)
        volume.measure()
    for each in flushed:
        shelf.remove_unnamed(each.replica)


def _freeze(shelf: Shelf, replica: StoredReplica) -> _Flushing | None:
    volume = shelf.volume
    with volume.lock:
        if not replica.is_dirty or not volume.holds(replica):
            return None
        manifest = replica.freeze(volume.log.sequence)
        return _Flushing(replica, replica.beginnings, manifest, replica.view.tables)


def _write_segments(shelf: Shelf, flushed: Sequence[_Flushing]) -> None:
    files = shelf.files
    directories = [shelf.path(each.replica) for each in flushed]
    for directory in directories:
        files.make_directory(directory)
    files.sync_directory(f"{shelf.volume.directory}/replicas")
    with ExitStack() as if_it_fails:
        unsynced: list[OpenFile] = []
        for each in flushed:
            if_it_fails.enter_context(shelf.given_up_files(each.replica))
        try:
            for each in flushed:
                each.made = {
                    name: _write_frozen(shelf, each.replica, view, unsynced)
                    for name, view in each.tables.items()
                }
            files.sync_together([file.sync for file in unsynced])
        finally:
            for file in unsynced:
                file.close()
        files.sync_directories(directories)


def _write_frozen(
    shelf: Shelf, replica: StoredReplica, view: TableView, unsynced: list[OpenFile]
) -> list[Ranged]:
    if not view.frozen:
        return []
    batches: Iterable[Batch]
    if view.table.kind == "stream":
        batches = (batch for each in view.frozen for batch in each.batches)
    else:
        batches = _sorted_out(view)
    in_memory = sum(len(each) for each in (*view.frozen, *view.memtables))
    offset = max(0, view.next_offset - in_memory)
    ranged = shelf.write(replica, view.table, batches, "flush", NEW, WHOLE, offset, unsynced)
    return [] if ranged is None else [ranged]


def _thawed(view: TableView, made: Sequence[Ranged]) -> TableView:
    return structs.replace(view, frozen=(), segments=(*view.segments, *made))


def _sorted_out(view: TableView) -> Iterator[Batch]:
    """The newest frozen row of each key of a table, sorted by token.

    All at once if that needs little memory: sorting piece by piece reads each row several times.
    """
    if sum(each.bytes for each in view.frozen) > AT_ONCE_BYTES_MAX:
        for piece in sweep(view.table, view.frozen, WHOLE, PIECE_BYTES):
            yield from piece
        return
    every = concat(view.table, [batch for each in view.frozen for batch in each.parts])
    order = newest_rows(every)
    step = max(1, len(every) * PIECE_BYTES // max(1, every.bytes))
    for start in range(0, len(order), step):
        yield every.take(order[start : start + step])
