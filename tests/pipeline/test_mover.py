"""Does a mover run what is asked for, once, and nothing that nobody asks for any more?"""

from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest

from limosa.core.effects import StartCopy
from limosa.pipeline import mover as module
from limosa.pipeline.carriers import Done
from limosa.pipeline.loads import TASK_BYTES_MIN, CopyLoad, LoadResult, Permit, Task
from limosa.pipeline.mover import AGAIN_SECONDS, FORGOTTEN_SECONDS, PIPE, PipelineMover
from limosa.pipeline.pipe import Access
from tests.pipeline.samples import copy

TICK_SECONDS = 0.05
ADDRESSES = {"n1": "grpc://h1:1", "n2": "grpc://h2:2", "n3": "grpc://h3:3"}


class Job:
    """What the carrier was given."""

    def __init__(self, work: str, access: bytes, tasks: Sequence[bytes], done: Done) -> None:
        self.work = work
        self.access = msgspec.msgpack.decode(access, type=Access)
        self.tasks = [msgspec.msgpack.decode(task, type=Task) for task in tasks]
        self.done = done

    @property
    def loads(self) -> list[CopyLoad]:
        return [load for task in self.tasks for load in task.loads]

    @property
    def partitions(self) -> list[str]:
        return sorted({load.partition for load in self.loads})

    def land(self, **failures: str) -> None:
        """All of it; or not, by partition."""
        self.done(
            [
                msgspec.msgpack.encode(
                    [
                        LoadResult(load.partition, load.session, 1, 10, 100, 0.5, why)
                        for load in task.loads
                        for why in [failures.get(load.partition, "")]
                    ]
                )
                for task in self.tasks
            ],
            "",
        )


class FakeCarrier:
    workers = 4

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.cancelled: list[str] = []
        self.closed = False
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def run(self, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done) -> None:
        assert job not in self.jobs
        self.jobs[job] = Job(work, access, tasks, done)

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def close(self) -> None:
        self.closed = True


class Scene:
    """A mover, its carrier, and a clock that the test moves as a coordinator ticks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bytes_per_second: float = 0.0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.carrier = FakeCarrier()
        self.said: list[tuple[str, dict[str, object]]] = []
        self.mover = PipelineMover(
            self.carrier,
            Access("birds"),
            lambda sessions: Permit(f"a token for {sessions}", 900.0),
            bytes_per_second,
            lambda what, **details: self.said.append((what, details)),
        )
        self.mover.follow(ADDRESSES)

    def pass_time(self, seconds: float, *asked: StartCopy, size: int = 1000) -> None:
        """These are asked for again and again meanwhile, as a coordinator does."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_SECONDS
            for job in asked:
                self.mover.begin(job, size)
            self.mover.tick()

    @property
    def jobs(self) -> list[Job]:
        return list(self.carrier.jobs.values())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


P, Q = copy("p", "n1", "n2"), copy("q", "n2", "n3")


def test_copies_that_begin_together_become_one_job(scene: Scene) -> None:
    copies = [copy(f"p{number}") for number in range(50)]
    for each in copies:
        scene.mover.begin(each, 1000)
    scene.pass_time(0.5, *copies)
    (job,) = scene.jobs
    assert job.work == PIPE
    assert job.partitions == sorted(each.partition for each in copies)
    assert len(job.tasks) == 1, "they are small"
    assert job.access == Access("birds")


def test_a_task_has_a_permit_for_its_own_sessions_and_no_others(scene: Scene) -> None:
    """What a task is given could be read where the task runs."""
    scene.carrier.workers = 2
    large = TASK_BYTES_MIN
    scene.pass_time(0.5, P, Q, size=large)
    (job,) = scene.jobs
    assert len(job.tasks) == 2
    for task in job.tasks:
        expected = tuple(sorted({(load.partition, load.session) for load in task.loads}))
        assert task.permit == Permit(f"a token for {expected}", 900.0)


def test_a_job_knows_where_its_nodes_are_and_no_others(scene: Scene) -> None:
    scene.pass_time(0.5, P)
    (job,) = scene.jobs
    (task,) = job.tasks
    assert task.addresses == {"n1": "grpc://h1:1", "n2": "grpc://h2:2"}
    (load,) = task.loads
    assert (load.source.node, load.source.incarnation) == ("n1", "n1-i")
    assert [(target.node, target.incarnation) for target in load.targets] == [("n2", "n2-i")]
    assert (load.session, load.epoch, load.again) == (P.session, 1, False)


def test_a_node_without_an_address_ends_no_coordinator(scene: Scene) -> None:
    scene.mover.follow({})
    scene.pass_time(0.5, P)
    assert scene.jobs[0].tasks[0].addresses == {"n1": "", "n2": ""}


def test_what_is_large_is_shared_out_and_so_is_the_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, bytes_per_second=1e6)
    scene.pass_time(0.5, P, size=8 * TASK_BYTES_MIN)
    (job,) = scene.jobs
    assert len(job.tasks) == FakeCarrier.workers
    assert sum(task.bytes_per_second for task in job.tasks) == 1e6


@pytest.mark.parametrize(
    ("always", "of_the_run", "both"), [(1e6, 4e5, 4e5), (1e6, 4e6, 1e6), (0, 4e5, 4e5), (0, 0, 0)]
)
def test_a_run_may_allow_less_bandwidth(
    always: float, of_the_run: float, both: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(monkeypatch, bytes_per_second=always)
    scene.mover.limit(of_the_run)
    scene.pass_time(0.5, P)
    assert sum(task.bytes_per_second for task in scene.jobs[0].tasks) == both


def test_what_is_under_way_is_not_run_twice(scene: Scene) -> None:
    """The coordinator asks again and again for as long as the copy takes."""
    scene.pass_time(10 * FORGOTTEN_SECONDS, P)
    assert len(scene.jobs) == 1
    assert scene.carrier.cancelled == []


def test_what_begins_later_does_not_wait_for_what_is_under_way(scene: Scene) -> None:
    """F93."""
    scene.pass_time(0.5, P)
    scene.pass_time(0.5, P, Q)
    assert [job.partitions for job in scene.jobs] == [["p"], ["q"]]


def test_a_wave_that_nobody_asks_for_any_more_is_cancelled_once(scene: Scene) -> None:
    """S25: its move was given up, or another coordinator is in office."""
    scene.pass_time(0.5, P)
    scene.pass_time(FORGOTTEN_SECONDS - 0.5)
    assert scene.carrier.cancelled == []
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    assert scene.carrier.cancelled == list(scene.carrier.jobs)
    assert len(scene.jobs) == 1


def test_a_wave_of_which_one_copy_is_wanted_goes_on(scene: Scene) -> None:
    scene.pass_time(0.5, P, Q)
    scene.pass_time(2 * FORGOTTEN_SECONDS, Q)
    assert scene.carrier.cancelled == []
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    assert scene.carrier.cancelled == list(scene.carrier.jobs)


def test_what_is_forgotten_and_asked_for_again_begins_anew(scene: Scene) -> None:
    scene.pass_time(0.5, P)
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    scene.pass_time(0.5, P)
    assert [job.partitions for job in scene.jobs] == [["p"], ["p"]]


def test_another_session_is_another_copy(scene: Scene) -> None:
    """F116: the first one's session is closed; what it still carries is denied."""
    scene.pass_time(0.5, P)
    later = msgspec.structs.replace(P, session="s-p@2")
    scene.pass_time(0.5, later)
    assert [job.loads[0].session for job in scene.jobs] == ["s-p@1", "s-p@2"]


def test_what_failed_runs_again_only_if_it_is_asked_for_again(scene: Scene) -> None:
    """F117: under the same session, and what has landed is not carried again."""
    scene.pass_time(0.5, P, Q)
    scene.jobs[0].land(p="no open session")
    scene.pass_time(2 * AGAIN_SECONDS, P)
    assert [job.partitions for job in scene.jobs] == [["p", "q"], ["p"]]
    (load,) = scene.jobs[1].loads
    assert (load.session, load.again) == (P.session, True)
    scene.jobs[1].land()
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    assert len(scene.jobs) == 2


def test_what_failed_is_not_tried_again_at_once(scene: Scene) -> None:
    scene.pass_time(0.5, P)
    scene.jobs[0].land(p="no open session")
    scene.pass_time(AGAIN_SECONDS - 2 * TICK_SECONDS, P)
    assert len(scene.jobs) == 1


def test_a_job_that_was_lost_as_a_whole_runs_again(scene: Scene) -> None:
    """Spark died, and the coordinator still wants the copy."""
    scene.pass_time(0.5, P)
    scene.jobs[0].done((), "Spark ended: it died")
    scene.pass_time(2 * AGAIN_SECONDS, P)
    assert len(scene.jobs) == 2
    assert scene.jobs[1].loads[0].again
    assert [details["why"] for what, details in scene.said if what == "copies ended"] == [
        "Spark ended: it died"
    ]


def test_what_is_done_and_not_asked_for_again_is_forgotten(scene: Scene) -> None:
    """Nothing is kept that a coordinator of many moves would be full of."""
    scene.pass_time(0.5, P, Q)
    scene.jobs[0].land()
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    assert len(scene.jobs) == 1
    assert scene.carrier.cancelled == []
    assert scene.mover._copies == {}


def test_a_wave_that_ends_after_it_was_forgotten_changes_nothing(scene: Scene) -> None:
    scene.pass_time(0.5, P)
    scene.pass_time(2 * FORGOTTEN_SECONDS)
    scene.pass_time(0.5, P)
    scene.jobs[0].land()
    scene.pass_time(2 * AGAIN_SECONDS, P)
    assert len(scene.jobs) == 2, "the second is under way"


def test_how_a_wave_ended_is_told(scene: Scene) -> None:
    scene.pass_time(0.5, P, Q)
    scene.jobs[0].land(p="no open session")
    ((_, told),) = [each for each in scene.said if each[0] == "copies ended"]
    assert (told["rows"], told["bytes"], told["seconds"]) == (20, 200, 0.5)
    assert told["failed"] == ["p: no open session"]


def test_a_mover_that_closes_closes_its_carrier(scene: Scene) -> None:
    scene.mover.close()
    assert scene.carrier.closed


def test_small_partitions_keep_to_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each in a job of its own that sends all it has at once."""
    scene = Scene(monkeypatch)
    scene.mover.limit(50.0)
    began = scene.now
    for number in range(5):
        asked = copy(f"p{number}")
        while len(scene.jobs) <= number:
            scene.pass_time(TICK_SECONDS, asked)
        scene.jobs[number].land()  # 100 bytes
        scene.pass_time(FORGOTTEN_SECONDS / 30)
    assert scene.now - began == pytest.approx(4 * 100 / 50, abs=1.5)
    scene.mover.limit(0.0)
    began = scene.now
    scene.pass_time(2.5, Q)
    assert len(scene.jobs) == 6, "what was owed was owed to the old limit"
