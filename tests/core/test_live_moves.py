"""Does a move tell how it goes, wait for a good moment, and end when it can't go on?"""

from msgspec.structs import replace

from limosa.core.coordinator import transitions
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.reports import forget_old
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import Waiting
from limosa.core.effects import Compare, Effect, MakeCommit, Send, StartCopy
from limosa.core.events import AgreedRead, Compared, Elected, Received
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    REBUILD_REPAIR,
    REPAIR,
    STREAMING,
    USE_NEW,
)
from limosa.core.messages import Seal, Status
from limosa.core.model.changes import COORDINATOR_KEY, Commit, Put, Remove, apply
from limosa.core.model.intent import Assignment, Intent
from limosa.core.model.reports import Report
from limosa.core.model.requests import Request
from limosa.core.model.topology import Partition, Record, Replica
from tests.core.samples import (
    NEW,
    OFFICE,
    OLD,
    RECORD_REVISION,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    of,
    placed,
    put,
    says,
    seen,
    stable,
)

SESSION = "t9@3"
WHY = "verification: d differs from the owner"
SETTINGS = CoordinatorSettings(copy_silence_seconds=10.0, compare_seconds=5.0)


def told(
    owner: Replica = A,
    epoch: int = 3,
    sealed: bool = False,
    copied: bool = True,
    copying: tuple[int, int] | None = None,
    commit_seconds: float = 0.0,
    is_open: bool = True,
    digests: tuple[int, int] = (1, 1),
    revision: int = RECORD_REVISION,
) -> list[Status]:
    """What four nodes say: the owner's digest and the others'."""
    statuses = []
    for replica in (A, B, C, D):
        owns = replica == owner
        status = of(
            replica,
            epoch,
            open_epoch=epoch if owns and is_open else 0,
            sealed=(revision, 7) if owns and sealed else None,
            copied=SESSION if copied else None,
            digest=(SESSION, 7, digests[replica == D]),
            copying=copying,
            commit_seconds=commit_seconds if owns else 0.0,
        )
        statuses.append(says(replica.node, status, generation=revision))
    return statuses


class Office:
    """A coordinator that remembers, and a record that changes by its commits."""

    def __init__(self, record: Partition, *more: Record, intent: Intent | None = None) -> None:
        self.agreed = cluster(record, intends() if intent is None else intent, more=more)
        self.memory = Memory(SETTINGS)
        self.now = 100.0
        self.wall = 1e9

    @property
    def record(self) -> Partition:
        return self.agreed.topology.partitions[P]

    @property
    def stage(self) -> tuple[str, str]:
        change = self.record.transition
        assert change is not None
        return change.stage, change.giving_up

    @property
    def pause(self) -> float:
        assert self.record.transition is not None
        return round(self.record.transition.pause_seconds, 6)

    def advance(self, *statuses: Status) -> Commit | Waiting:
        view = seen(
            self.agreed,
            *statuses,
            now=self.now,
            settings=SETTINGS,
            memory=self.memory,
            wall=self.wall,
        )
        return transitions.advance(view, self.record, self.now)

    def waits(self, *statuses: Status) -> Waiting:
        outcome = self.advance(*statuses)
        assert isinstance(outcome, Waiting)
        return outcome

    def commits(self, *statuses: Status) -> Commit:
        """Make the commit; its record keeps its revision, so that statuses still fit."""
        outcome = self.advance(*statuses)
        assert isinstance(outcome, Commit)
        after = apply(self.agreed, outcome.changes, self.agreed.topology.revision_of(P))
        assert broken(self.agreed, after) == []
        self.agreed = after
        return outcome


# --- when


def test_people_see_since_when_a_transition_and_its_stage_are() -> None:
    """Stamped where it is committed; another commit in the same stage changes neither."""
    office = Office(stable())
    intent = office.agreed.intents[P]
    view = seen(office.agreed, now=100.0, wall=1e9)
    begun = transitions.start(view, stable(), intent)
    assert isinstance(begun, Commit)
    (record,) = put(begun.changes, Partition)
    assert isinstance(record, Partition)
    assert record.transition is not None
    assert (record.transition.begun, record.transition.since) == (1e9, 1e9)
    office = Office(record)
    office.wall += 60
    office.commits(*told())
    assert office.record.transition is not None
    assert (office.record.transition.begun, office.record.transition.since) == (1e9, 1e9 + 60)
    touched = seen(office.agreed, wall=2e9).stamped(office.record, office.record)
    assert touched == office.record


def test_a_limit_of_the_pause_goes_from_the_request_into_the_transition() -> None:
    pending = Assignment("move", placed(*NEW), hold_seconds=3, trigger=9, max_pause_seconds=0.05)
    intent = Intent(P, placed(*OLD), pending, change=9)
    begun = transitions.start(seen(cluster(stable(), intent)), stable(), intent)
    assert isinstance(begun, Commit)
    (record,) = put(begun.changes, Partition)
    assert record == moving(ALLOW, hold_seconds=3, max_pause_seconds=0.05)


# --- reports


def test_a_transition_that_ends_leaves_a_report_in_the_same_commit() -> None:
    """It is no topology: it moves no generation."""
    record = moving(CLEANUP)
    assert record.transition is not None
    change = replace(record.transition, begun=1e9 - 60, pause_seconds=0.03)
    office = Office(replace(record, transition=change))
    commit = office.commits(*[status for status in told(owner=D) if status.node != "a"], says("a"))
    report = Report(P, "t9", "move", "done", "", OLD, NEW, 1e9 - 60, 1e9, 0.03)
    assert put(commit.changes, Report) == [report]
    assert office.agreed.reports == {"report/p/t9": report}


def test_a_transition_that_went_back_says_why() -> None:
    office = Office(moving(CLEANUP_TARGET, giving_up="cancelled"))
    commit = office.commits(*told()[:3], says("d"))
    (report,) = put(commit.changes, Report)
    assert isinstance(report, Report)
    assert (report.outcome, report.why) == ("reverted", "cancelled")


def test_a_repair_that_is_given_up_says_why() -> None:
    record = moving(REPAIR, kind="repair", targets=OLD)
    office = Office(record, intent=intends("repair", targets=(), cancel=9))
    commit = office.commits(*told())
    (report,) = put(commit.changes, Report)
    assert isinstance(report, Report)
    assert (report.outcome, report.why) == ("reverted", "cancelled")
    assert commit.why == "p: reverted: cancelled"


def test_a_plan_that_became_impossible_leaves_a_report_too() -> None:
    """It was accepted, and waited; whoever asked for it must find out."""
    agreed = cluster(stable(), intends(), live=("a", "b", "c"))
    commit = transitions.start(seen(agreed, wall=1e9), stable(), agreed.intents[P])
    assert isinstance(commit, Commit)
    (report,) = put(commit.changes, Report)
    assert isinstance(report, Report)
    assert (report.transition, report.outcome) == ("t9", "reverted")
    assert report.why == "the target d is down"
    assert (report.began, report.ended) == (1e9, 1e9)


def test_the_last_reports_of_each_partition_are_kept_and_so_many_of_all() -> None:
    reports = [Report("q", f"t{n}", "move", "done") for n in range(4)]
    others = [Report(P, f"t{n}", "move", "done") for n in range(2)]
    agreed = cluster(stable(), more=(*reports, *others))
    few = CoordinatorSettings(reports_kept=3, reports_kept_each=2)
    commit = forget_old(seen(agreed, settings=few))
    assert commit is not None
    gone = ["report/q/t2", "report/q/t1", "report/q/t0"]
    assert [change.key for change in commit.changes if isinstance(change, Remove)] == gone
    guards = {"report/q/t2": 53, "report/q/t1": 52, "report/q/t0": 51, COORDINATOR_KEY: OFFICE}
    assert commit.guards == guards
    assert forget_old(seen(agreed)) is None
    coordinator = Coordinator("one", few)
    coordinator.handle(100.0, AgreedRead(agreed))
    assert MakeCommit(commit) in coordinator.handle(100.0, Elected(OFFICE))


# --- a copy that differs


def test_before_a_copy_that_differs_is_dropped_its_rows_are_compared() -> None:
    """F102: once; what is found goes into the report, also of a coordinator that comes later."""
    office = Office(moving(STREAMING))
    office.commits(*told(digests=(1, 2)))
    waiting = office.waits(*told())
    assert waiting.why == f"{WHY}; their rows are compared"
    assert waiting.effects == (Compare(P, SESSION, A, (D,)),)
    office.memory.compared(P, "t9@2", ("k1 of another session",), 0)
    assert office.waits(*told()) == waiting
    office.memory.compared(P, SESSION, ("k1 is missing",), 3)
    office.commits(*told())
    assert office.stage == (CLEANUP_TARGET, WHY)
    office.memory = Memory(SETTINGS)
    office.commits(*told()[:3], says("d"))
    (report,) = office.agreed.reports.values()
    assert (report.why, report.differences, report.differences_more) == (
        WHY,
        ("k1 is missing",),
        3,
    )


def test_what_differed_once_is_given_up_though_digests_agree_later() -> None:
    """F102: by this coordinator or by the next, and also if a cancel comes in between."""
    office = Office(moving(STREAMING, giving_up=WHY), intent=intends(cancel=9))
    waiting = office.waits(*told(sealed=True))
    assert waiting.effects == (Compare(P, SESSION, A, (D,)),)
    office.now += SETTINGS.compare_seconds
    office.commits(*told(sealed=True))
    assert office.stage == (CLEANUP_TARGET, WHY)


def test_rows_are_not_compared_when_the_copy_is_gone() -> None:
    """A failover began it anew: it has nothing, and that says nothing of what differed."""
    office = Office(moving(STREAMING, giving_up=WHY))
    office.commits(*told(copied=False))
    assert office.stage == (CLEANUP_TARGET, WHY)


def test_a_comparison_that_finds_nothing_changes_nothing() -> None:
    office = Office(moving(STREAMING, giving_up=WHY))
    office.memory.compared(P, SESSION, (), 0)
    office.waits(*told())
    office.memory.compared(P, SESSION, (), 0)
    office.commits(*told())
    assert office.stage == (CLEANUP_TARGET, WHY)
    assert office.agreed.reports == {}


def test_the_coordinator_hears_what_was_compared() -> None:
    coordinator = Coordinator("one", SETTINGS)
    coordinator.handle(100.0, AgreedRead(cluster(moving(STREAMING, giving_up=WHY), intends())))
    effects = coordinator.handle(100.0, Elected(OFFICE))
    for status in told():
        effects += coordinator.handle(100.0, Received(status.node, status))
    assert Compare(P, SESSION, A, (D,)) in effects
    effects = coordinator.handle(100.1, Compared(P, SESSION, ("k1 is missing",), 0), 1e9)
    (commit,) = [effect.commit for effect in effects if isinstance(effect, MakeCommit)]
    (report,) = put(commit.changes, Report)
    assert isinstance(report, Report)
    assert (report.differences, report.ended) == (("k1 is missing",), 1e9)


# --- a copy of which nothing comes


def test_a_copy_of_which_nothing_arrives_is_given_up() -> None:
    """S25: whoever copies may be dead, and can't say so."""
    office = Office(moving(STREAMING))
    for copying in (None, (1, 4), (2, 4)):
        office.now += SETTINGS.copy_silence_seconds - 1
        waiting = office.waits(*told(copied=False, copying=copying))
        assert isinstance(waiting.effects[0], StartCopy)
    office.now += SETTINGS.copy_silence_seconds
    office.commits(*told(copied=False, copying=(2, 4)))
    assert office.stage == (CLEANUP_TARGET, "nothing was copied for 10 s")


def test_the_silence_is_counted_anew_after_a_while_without_an_open_owner() -> None:
    office = Office(moving(STREAMING))
    office.waits(*told(copied=False))
    office.now += 100
    office.waits(*told(copied=False, is_open=False))
    office.now += 100
    office.waits(*told(copied=False))
    office.waits(*told(copied=False)[:3])


def test_a_rebuild_and_a_repair_of_which_nothing_arrives_are_given_up_too() -> None:
    """S25: a rebuild is asked for again, as a new request, but not more often than that."""
    office = Office(moving(REBUILD_REPAIR, kind="rebuild"), intent=intends("rebuild"))
    office.waits(*told(copied=False))
    office.now += SETTINGS.copy_silence_seconds
    office.commits(*told(copied=False))
    assert office.stage == (CLEANUP_TARGET, "nothing was copied for 10 s")
    repair = moving(REPAIR, kind="repair", targets=OLD)
    office = Office(repair, intent=intends("repair", targets=()))
    office.waits(*told(copied=False))
    office.now += SETTINGS.copy_silence_seconds
    office.commits(*told(copied=False))
    (report,) = office.agreed.reports.values()
    assert (report.outcome, report.why) == ("reverted", "nothing was copied for 10 s")


def test_a_rebuild_waits_for_room_before_it_is_asked_for() -> None:
    """A request that was refused would not be made again."""
    record = stable(in_sync=(A, B))
    agreed = cluster(record)
    owner = says("a", of(A, open_epoch=3, bytes=1 << 30))
    statuses = {"a": owner, "b": says("b", of(B)), "c": says("c", free_bytes={"": 1 << 20})}
    coordinator = Coordinator("one", CoordinatorSettings())
    coordinator.handle(100.0, AgreedRead(agreed))
    coordinator.handle(100.0, Elected(OFFICE))
    for node, status in statuses.items():
        coordinator.handle(100.0, Received(node, status))
    assert coordinator.waits[P].startswith("c is not rebuilt: c has 1 MiB free, and p needs")
    roomy = says("c", free_bytes={"": 1 << 40}, sequence=2)
    effects = coordinator.handle(101.0, Received("c", roomy))
    (commit,) = [effect.commit for effect in effects if isinstance(effect, MakeCommit)]
    assert len(put(commit.changes, Request)) == 1


# --- the pause of a hand-over


def test_a_hand_over_waits_while_it_would_pause_writes_for_too_long() -> None:
    """What is in flight, and what a hand-over lately cost besides; a cancel still works."""
    office = Office(moving(STREAMING, max_pause_seconds=0.05))
    waiting = office.waits(*told(commit_seconds=0.063))
    assert waiting.why == (
        "hand-over: it would pause writes for about 83 ms, and at most 50 ms are allowed"
    )
    assert waiting.effects == ()
    asked = office.waits(*told(commit_seconds=0.03))
    assert asked.effects == (Send("a", Seal(P, RECORD_REVISION)),)
    assert office.waits(*told(commit_seconds=0.5)) == asked, "what was begun is finished"
    cancelled = Office(moving(STREAMING, max_pause_seconds=0.05), intent=intends(cancel=9))
    cancelled.commits(*told(commit_seconds=1.0))
    assert cancelled.stage == (CLEANUP_TARGET, "cancelled")


def test_the_pause_is_measured_from_the_first_seal_to_the_open_owner() -> None:
    """And told in the record, and later in the report."""
    office = Office(moving(STREAMING))
    office.waits(*told(commit_seconds=0.01))
    office.now += 0.03
    office.waits(*told())
    office.now += 0.01
    office.commits(*told(sealed=True))
    assert office.stage[0] == READ_NEW
    office.now += 0.02
    office.waits(*told(owner=D, epoch=4, is_open=False))
    office.now += 0.04
    office.commits(*told(owner=D, epoch=4))
    assert office.stage[0] == USE_NEW
    assert office.pause == 0.1
    # 20 ms were thought, 90 ms it was without what was in flight: three tenths of the way there.
    assert round(office.memory.hand_over_seconds(office.now), 4) == 0.041
    assert round(office.memory.hand_over_seconds(office.now + 60), 4) == 0.0305


def test_a_pause_that_a_successor_did_not_see_begin_is_not_known() -> None:
    office = Office(moving(STREAMING))
    office.waits(*told())
    office.memory = Memory(SETTINGS)
    office.commits(*told(sealed=True))
    office.now += 0.1
    office.commits(*told(owner=D, epoch=4))
    assert (office.stage[0], office.pause) == (USE_NEW, 0.0)


def test_going_back_is_not_held_up_and_the_longer_pause_counts() -> None:
    """F104: of the hand-over there and of the one back."""
    office = Office(moving(STREAMING, max_pause_seconds=0.05))
    office.waits(*told())
    office.commits(*told(sealed=True))
    office.now += 0.04
    change = office.record.transition
    assert change is not None
    reversing = replace(change, giving_up="reversed by request", given_up_by="operator")
    reversed_ = replace(office.record, transition=reversing)
    office.agreed = apply(office.agreed, (Put(reversed_),), 60)
    back = told(owner=D, epoch=4, commit_seconds=3.0)
    assert office.waits(*back).effects == (Send("d", Seal(P, 60)),)
    office.commits(*told(owner=D, epoch=4, sealed=True, revision=60))
    assert (office.stage[0], office.pause) == (FALLBACK, 0.04)
    office.now += 0.5
    office.commits(*told(epoch=5, revision=60))
    assert (office.stage[0], office.pause) == (CLEANUP_TARGET, 0.5)


def test_a_seal_for_another_revision_is_asked_for_at_once() -> None:
    """It would be the same sentence, but another question."""
    coordinator = Coordinator("one", SETTINGS)
    agreed = cluster(moving(STREAMING), intends())
    coordinator.handle(100.0, AgreedRead(agreed))
    coordinator.handle(100.0, Elected(OFFICE))
    effects: list[Effect] = []
    for status in told():
        effects += coordinator.handle(100.0, Received(status.node, status))
    assert Send("a", Seal(P, RECORD_REVISION)) in effects
    touched = apply(agreed, (Put(moving(STREAMING)),), 99)
    assert Send("a", Seal(P, 99)) in coordinator.handle(100.01, AgreedRead(touched))


# --- what is forgotten


def test_nothing_is_remembered_of_a_partition_that_was_dropped() -> None:
    memory = Memory(SETTINGS)
    memory.held_since(P, "t9", 100.0)
    memory.comparing(P, SESSION, 100.0)
    memory.silent_since(P, 1, 100.0)
    memory.forget(P)
    assert memory.held_since(P, "t9", 105.0) == 105.0
    assert memory.comparing(P, SESSION, 105.0).since == 105.0
    assert memory.silent_since(P, 1, 105.0) == 105.0
    memory.compared("q", SESSION, (), 0)
    memory.opened("q", 4, 105.0)
    assert memory.pause_seconds("q", 4) == 0.0
