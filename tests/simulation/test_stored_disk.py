"""Does the real storage keep what it is given, below the real protocol, whatever happens to it?"""

import threading
from collections.abc import Callable
from itertools import filterfalse, pairwise
from random import Random
from typing import Any

import pytest

from limosa.core.effects import AdvanceWatermark, AppendEntries, CreateReplica
from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.simulation.files import MemoryFiles
from limosa.simulation.fragile_files import Errand, FragileFile, FragileFiles
from limosa.simulation.rows import SimulatedRow, SimulatedRows, token_of
from limosa.simulation.run import is_overload, run_seed
from limosa.simulation.stored_disk import TABLE, to_change
from limosa.simulation.story import story_of, told
from limosa.simulation.swarm import run_guarded
from limosa.simulation.themes import THEMES
from limosa.storage import compaction, recovery
from limosa.storage.log import Frame, read_frames
from limosa.storage.maintenance import Maintenance
from limosa.storage.volume import StorageSettings, Volume
from limosa.tabular.merge import Span, cut
from limosa.tabular.rows import Batch

SEEDS = 40
CHUNK = 5

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_are_clean_on_real_storage(first: int) -> None:
    """Without overloads: they are about queues, and take long with real files."""
    for seed in filterfalse(is_overload, range(first, first + CHUNK)):
        if run_guarded(seed, real_storage=True).violations:
            pytest.fail(told(story_of(seed, real_storage=True)))


def test_the_seeds_have_every_theme() -> None:
    drawn = [Random(f"shape {seed}").choice(THEMES) for seed in range(SEEDS)]
    assert [theme for theme in THEMES if theme not in drawn] == []


def test_a_seed_does_the_same_again_on_real_storage() -> None:
    once, again = (run_seed(3, telling=True, real_storage=True) for _ in range(2))
    assert once == again
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith(Errand.__name__)], "none is left"


# --- what it finds


def a_sync_that_does_nothing(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(FragileFile, "sync", lambda file: None)


def a_directory_that_is_not_synced(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(FragileFiles, "sync_directory", lambda files, path: None)


def a_log_read_without_its_last_frame(plant: pytest.MonkeyPatch) -> None:
    def all_but_the_last(*arguments: Any) -> list[Frame]:
        return list(read_frames(*arguments))[:-1]

    plant.setattr(recovery, "read_frames", all_but_the_last)


def watermarks_that_are_not_logged(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Volume, "_log_watermark", lambda volume, key: volume._advanced.pop(key, None))


def entries_that_are_not_carried(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Volume, "carry", lambda volume, replica, file: True)


def tombstones_that_go_too_early(plant: pytest.MonkeyPatch) -> None:
    def without_any(batch: Batch, collected: Position, oldest: Position) -> Batch:
        return batch if batch.deleted is None else batch.where(~batch.deleted)

    plant.setattr(compaction, "without_collected", without_any)


@pytest.mark.parametrize(
    "plant",
    [
        a_sync_that_does_nothing,
        a_directory_that_is_not_synced,
        a_log_read_without_its_last_frame,
        watermarks_that_are_not_logged,
        entries_that_are_not_carried,
        tombstones_that_go_too_early,
    ],
)
def test_a_planted_bug_of_the_storage_is_found(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = filterfalse(is_overload, range(SEEDS))
    assert any(run_guarded(seed, real_storage=True).violations for seed in seeds)


# --- what it has found


class Rows:
    """Each of them apart from the others."""

    min_version = max_version = 1

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def find(self, token: int) -> list[tuple[Batch, int]]:
        return []

    def spans(self, token_range: TokenRange) -> list[Span]:
        return [Span(token, token, 100) for token in self._tokens]

    def within(self, token_range: TokenRange) -> list[Batch]:
        return []


def test_a_range_with_rows_of_one_token_only_is_cut() -> None:
    """Tokens are far larger than what a float holds exactly."""
    for tokens in ([2**62], [2**62] * 3, [2**62, 5, -(2**62)], [WHOLE.start, WHOLE.end - 1]):
        parts = cut([Rows(tokens)], WHOLE, 10)
        assert (parts[0].start, parts[-1].end) == (WHOLE.start, WHOLE.end)
        assert all(one.end == other.start for one, other in pairwise(parts))


def test_a_volume_that_was_just_made_survives_a_power_loss() -> None:
    """Its own name, too, and those of the directories that it was made in."""
    for seed in range(20):
        files = MemoryFiles(["/there"])
        Volume(files, "/there/data/volume")
        files.crash(Random(seed))
        assert "VOLUME" in files.names("/there/data/volume")


def test_an_entry_that_is_committed_before_it_is_carried_keeps_its_rows() -> None:
    """Its frame is then behind the one of the watermark, and nothing before that one is left."""
    files, settings = (
        MemoryFiles(),
        StorageSettings(log_file_bytes=1, log_bytes_max=1, log_useful_max=1.0),
    )
    volume = Volume(files, "/volume", settings=settings)
    maintenance = Maintenance(volume)
    row = SimulatedRow("key", token_of("key"), "there")
    change = AppendEntries("p", "made", 2, (Entry(1, 0, SimulatedRows((row,))),))
    volume.write(CreateReplica("p", "made", 1, ""))
    volume.write(to_change(change))
    volume.sync()
    maintenance.flush(volume.replicas["p", "made"])
    volume.write(AdvanceWatermark("p", "made", 0, 1))
    volume.sync()
    assert maintenance.step(), "the log is too long"
    files.crash(Random(0), process_only=True)
    view = Volume(files, "/volume", settings=settings).replicas["p", "made"].view
    assert view.watermark == 1
    assert view.get(TABLE, ("key",)) == {"key": "key", "value": "'there'"}
