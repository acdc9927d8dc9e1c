"""Does a coordinator know of each node what the node last reported, whatever the network does?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import AdvanceWatermark, Effect, Send
from limosa.core.events import (
    AgreedRead,
    DigestTaken,
    Elected,
    LeaseEnded,
    LeaseGranted,
    Received,
    ReplicaDamaged,
    Ticked,
)
from limosa.core.machines.catalogue import ALLOW
from limosa.core.messages import WHOLE_STATUS, Look, Message, ReplicaStatus, Status, Verify
from limosa.core.model.changes import Put, Remove, apply, partition_key
from limosa.core.model.topology import NodeLease, Partition
from limosa.core.participant.marks import Marks
from limosa.core.participant.reporting import TURN_PARTITIONS
from tests.core.samples import LEASES, OFFICE, A, B, C, P, cluster, moving, of, says, stable
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    replicate,
    sent,
    write,
)

NAMES = "qrst"


def reports(effects: list[Effect]) -> list[Status]:
    return sent(effects, Status)


def look(stage: Stage, sender: str = "one", whole: bool = False) -> Status:
    (status,) = reports(stage.say(Look(0, whole=whole), sender))
    return status


def create(stage: Stage, *names: str) -> None:
    stage.agree(*(replace(stable(owner=None, epoch=0), id=name) for name in names))
    stage.store()


def settled(*names: str) -> Stage:
    """A node with replicas of P and of these, all of which a coordinator knows."""
    stage = follower_on_stage()
    create(stage, *names)
    stage.now += 10
    assert look(stage).after == WHOLE_STATUS
    for _ in range(2):
        stage.now += 10
        look(stage)
    stage.now += 0.1
    return stage


# --- what a node reports


def test_a_report_names_what_changed_since_the_report_before() -> None:
    stage = settled("q", "r")
    before = look(stage)
    assert not before.replicas
    stage.now += 0.1
    (status,) = reports(stage.tell(ReplicaDamaged("q", "first", "segment 7")))
    assert (status.after, status.sequence) == (before.sequence, before.sequence + 1)
    assert list(status.replicas) == ["q"]
    stage.now += 0.1
    (gone,) = reports(stage.agree(replace(stable(replicas=(A, C)), id="r")))
    assert (list(gone.replicas), gone.gone, gone.after) == ([], ("r",), status.sequence)
    assert gone.busy == {"r": 0}, "it is being dropped"


def test_the_first_report_to_a_coordinator_and_under_a_lease_is_whole() -> None:
    stage = settled("q")
    assert look(stage).after != WHOLE_STATUS
    assert look(stage, "two").after == WHOLE_STATUS
    assert look(stage, "two").after != WHOLE_STATUS
    assert look(stage, "one").after == WHOLE_STATUS
    stage.tell(LeaseEnded(LEASES["b"]))
    stage.tell(LeaseGranted(99, stage.agreed.revision, stage.now))
    stage.read_topology()
    again = look(stage)
    assert (again.after, again.lease, sorted(again.replicas)) == (WHOLE_STATUS, 99, ["p", "q"])


def test_a_coordinator_that_asks_for_it_gets_a_whole_report() -> None:
    stage = settled("q")
    assert look(stage, whole=True).after == WHOLE_STATUS
    assert stage.say(Look(stage.revision + 9), "one"), "it reads the topology first"
    stage.now += 0.1
    (status,) = reports(stage.agree(stable(in_sync=(A, B))))
    assert (status.after, sorted(status.replicas)) == (WHOLE_STATUS, ["p", "q"])


def test_somebody_else_who_asks_for_a_status_does_not_disturb_the_reports() -> None:
    stage = settled("q")
    before = look(stage)
    assert sorted(stage.status().replicas) == ["p", "q"]
    assert stage.status().after == WHOLE_STATUS
    assert look(stage).after == before.sequence


def test_many_replicas_are_named_in_turns() -> None:
    """Sizes and ends of logs become known although they are no reason for a report."""
    names = [f"x{number}" for number in range(2 * TURN_PARTITIONS)]
    stage = settled(*names)
    named: list[str] = []
    for _ in range(3):
        assert not look(stage).replicas, "not more often than once a second"
        stage.now += 1.0
        turn = list(look(stage).replicas)
        assert len(turn) <= TURN_PARTITIONS
        named += turn
    assert set(named) >= {P, *names}


def test_a_log_that_grows_is_no_reason_for_a_report_but_in_a_transition_it_is() -> None:
    stage = owner_on_stage()
    look(stage)
    stage.now += 0.1
    stage.tell(Ticked())
    for sequence, expected in ((1, []), (2, [P])):
        stage.now += 0.1
        stage.say(write(sequence=sequence), "client")
        named = [name for each in reports(stage.store()) for name in each.replicas]
        assert named == expected
        stage.agree(moving(ALLOW))


def test_a_verification_that_began_is_reported_at_once_so_that_it_is_asked_for_once() -> None:
    stage = owner_on_stage(moving("streaming"))
    look(stage)
    stage.now += 0.1
    effects = stage.say(Verify(P, "t9@3"), "one")
    (status,) = reports(effects)
    assert status.replicas[P][0].checking == stage.owner.held.last
    stage.now += 0.1
    assert reports(stage.say(Verify(P, "t9@3"), "one")) == [], "nothing is new"
    (begun,) = [each for each in done(effects, AdvanceWatermark) if each.digest]
    stage.tell(DigestTaken(P, A.incarnation, begun.to, 7))
    stage.now += 0.1
    again = stage.say(Verify(P, "t9@3"), "one")
    assert done(again, AdvanceWatermark) == [], "the digest is known, but not durable yet"
    (status,) = reports(stage.store())
    assert status.replicas[P][0].digest is not None


def test_a_report_names_the_owned_partitions_in_a_transition_because_pauses_are_planned() -> None:
    """How long commits take changes with time: while a write waits, and afterwards."""
    stage = owner_on_stage(moving(ALLOW))
    create(stage, "q")
    look(stage)
    stage.now += 0.1
    stage.say(write(), "client")
    stage.store()
    seconds: list[float] = []
    for passed in (0.3, 0.3, 0.3):
        stage.now += passed
        seconds.append(look(stage).replicas[P][0].commit_seconds)
    assert seconds == pytest.approx([0.3, 0.6, 0.9])
    stage.acknowledge(B, C)
    for passed in (0.1, 0.5, 3.0):
        stage.now += passed
        seconds.append(look(stage).replicas[P][0].commit_seconds)
    assert 0.9 > seconds[-3] > seconds[-2] > seconds[-1] == 0.0


@pytest.mark.parametrize("after", [stable(), moving(ALLOW, owner=B, epoch=4)])
def test_a_partition_that_is_owned_elsewhere_or_in_no_transition_is_not_always_named(
    after: Partition,
) -> None:
    stage = owner_on_stage(moving(ALLOW))
    assert P in look(stage).replicas
    stage.agree(after)
    stage.store()
    for named in (True, False):
        stage.now += 0.1
        assert (P in look(stage).replicas) is named


def test_work_under_an_older_record_is_reported_until_it_ends() -> None:
    """Also if a message of an owner that has not applied the newer record begins it."""
    stage = follower_on_stage()
    stage.say(replicate(B, how="match", probed=LEASES["b"]), "a")
    stage.agree(stable(in_sync=(A, B)))
    assert stage.status().busy == {}
    stage.say(replicate(B, 0, (entry(1, 0),), revision=50), "a")
    assert stage.status().busy == {P: 50}
    stage.store()
    assert stage.status().busy == {}
    stage.say(replicate(B, 0, (entry(1, 0), entry(2, 1)), revision=51), "a")
    assert stage.status().busy == {}, "no barrier waits for the work of the applied record"


def test_marks_are_taken_once() -> None:
    marks = Marks()
    assert not marks
    marks.mark_node()
    assert marks
    assert marks.take() == {}
    marks.mark("p")
    assert marks
    assert list(marks.take()) == ["p"]
    assert not marks


# --- what a coordinator makes of it


def whole_asked(effects: list[Effect]) -> list[tuple[str, bool]]:
    return [
        (e.to, e.message.whole)
        for e in effects
        if isinstance(e, Send)
        if isinstance(e.message, Look)
    ]


def in_office() -> Coordinator:
    coordinator = Coordinator("one", CoordinatorSettings(look_seconds=1.0, ask_again_seconds=0.4))
    coordinator.handle(100.0, AgreedRead(cluster(stable())))
    coordinator.handle(100.0, Elected(OFFICE))
    return coordinator


def news(sequence: int, after: int, *gone: str, **replicas: ReplicaStatus) -> Status:
    status = says("b", sequence=sequence)
    held = {name: (each,) for name, each in replicas.items()}
    return replace(status, replicas=held, after=after, gone=gone)


def test_reports_are_merged_in_their_order() -> None:
    coordinator = in_office()
    first = news(4, WHOLE_STATUS, p=of(B), q=of(B))
    coordinator.handle(100.0, Received("b", first))
    coordinator.handle(100.0, Received("b", news(5, 4, "q", r=of(B, epoch=7))))
    known = coordinator.statuses["b"]
    assert known == news(5, WHOLE_STATUS, p=of(B), r=of(B, epoch=7))
    assert sorted(first.replicas) == ["p", "q"], "the message itself stays as it was"
    coordinator.handle(100.0, Received("b", news(5, 4, "p")))
    assert coordinator.statuses["b"] is known, "it came twice"


def test_after_a_gap_a_whole_status_is_asked_for_at_once_and_then_now_and_then() -> None:
    coordinator = in_office()
    assert whole_asked(coordinator.handle(101.0, Ticked()))[1] == ("b", True), "nothing is known"
    coordinator.handle(101.0, Received("b", news(4, WHOLE_STATUS, p=of(B))))
    assert whole_asked(coordinator.handle(102.0, Ticked()))[1] == ("b", False)
    missed = news(6, 5, p=of(B, epoch=9))
    assert whole_asked(coordinator.handle(102.1, Received("b", missed))) == [("b", True)]
    assert coordinator.statuses["b"].sequence == 4
    assert whole_asked(coordinator.handle(102.2, Received("b", missed))) == []
    assert whole_asked(coordinator.handle(102.5, Ticked())) == [("b", True)]
    assert whole_asked(coordinator.handle(103.0, Ticked()))[1] == ("b", True)
    coordinator.handle(103.1, Received("b", news(5, 4, p=of(B, epoch=8))))
    assert coordinator.statuses["b"].sequence == 5, "the missed report came late"
    assert whole_asked(coordinator.handle(103.6, Ticked())) == []
    assert whole_asked(coordinator.handle(104.0, Received("b", missed)))[1] == ("b", False)
    assert coordinator.statuses["b"].sequence == 6


def test_a_node_without_a_lease_is_not_asked() -> None:
    coordinator = in_office()
    gone = apply(coordinator.agreed, (Remove("lease/node/b"),), 60)
    coordinator.handle(100.1, AgreedRead(gone))
    assert whole_asked(coordinator.handle(100.2, Received("b", news(6, 5)))) == []


def test_changes_under_another_lease_are_not_merged() -> None:
    coordinator = in_office()
    coordinator.handle(100.0, Received("b", news(4, WHOLE_STATUS, p=of(B))))
    later = replace(news(5, 4, "p"), lease=LEASES["b"] + 1)
    assert whole_asked(coordinator.handle(100.1, Received("b", later))) == [("b", True)]
    assert coordinator.statuses["b"].sequence == 4


# --- both, and a network in between


class Talk:
    """A node, a coordinator, and everything that was said between them and is still on its way."""

    def __init__(self) -> None:
        self.stage = follower_on_stage()
        self.coordinator = Coordinator("one", CoordinatorSettings(look_seconds=0.5))
        self.way: list[tuple[str, Message]] = []
        self.reported: dict[tuple[int, int], Status] = {}
        """What the node knew when it sent each report."""
        self.lease = LEASES["b"]
        self._tell_coordinator(AgreedRead(self.stage.agreed))
        self._tell_coordinator(Elected(OFFICE))

    def _tell_coordinator(self, event: object) -> None:
        effects = self.coordinator.handle(self.stage.now, event)  # type: ignore[arg-type]
        self._send([e for e in effects if isinstance(e, Send) and e.to == "b"])

    def _send(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Status):
                said = effect.message
                self.reported[said.lease, said.sequence] = self.stage.status()
            if isinstance(effect, Send) and effect.to in ("one", "b"):
                self.way.append((effect.to, effect.message))

    def deliver(self, place: int, again: bool) -> None:
        if self.way:
            to, message = self.way[place % len(self.way)]
            if not again:
                del self.way[place % len(self.way)]
            if to == "b":
                self._send(self.stage.say(message, "one"))
            else:
                self._tell_coordinator(Received("b", message))

    def pass_time(self, seconds: float) -> None:
        self.stage.now += seconds
        now = self.stage.now
        self.stage.brain.leasing.renewals.renewed(now, self.lease, now)
        self._send(self.stage.tell(Ticked()))
        self._tell_coordinator(Ticked())

    def agree(self, *changes: Put | Remove) -> None:
        agreed = self.stage.agreed
        self.stage.agreed = apply(agreed, changes, agreed.revision + 1)
        self._send(self.stage.read_topology())
        self._tell_coordinator(AgreedRead(self.stage.agreed))

    def change(self, what: str, name: str) -> None:
        record = self.stage.agreed.topology.partitions.get(name)
        match what:
            case "create" if record is None:
                self.agree(Put(replace(stable(owner=None, epoch=0), id=name)))
            case "drop" if record is not None:
                self.agree(Remove(partition_key(name)))
            case "epoch" if record is not None:
                self.agree(Put(replace(record, epoch=record.epoch + 1, owner=None)))
            case "store":
                self._send(self.stage.store())
            case "damage":
                self._send(self.stage.tell(ReplicaDamaged(name, "first", "segment 7")))
            case "another coordinator":
                self._send(self.stage.say(Look(0, whole=False), "two"))
            case "lease":
                self._send(self.stage.tell(LeaseEnded(self.lease)))
                self.lease += 100
                self.agree(Put(NodeLease("b", self.lease)))
                revision = self.stage.agreed.revision
                self._send(self.stage.tell(LeaseGranted(self.lease, revision, self.stage.now)))
                self._send(self.stage.read_topology())

    def check(self) -> None:
        known = self.coordinator.statuses.get("b")
        if known is not None:
            assert known == self.reported[known.lease, known.sequence]


CHANGES = ["create", "drop", "epoch", "store", "damage", "another coordinator", "lease"]
STEPS = st.one_of(
    st.tuples(st.sampled_from(CHANGES), st.sampled_from(NAMES)),
    st.tuples(st.just("deliver"), st.integers(0, 9)),
    st.tuples(st.just("twice"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("time"), st.sampled_from([0.001, 0.1, 1.0])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_lost_doubled_or_late_the_coordinator_knows_what_the_node_reported(
    steps: list[tuple[str, object]],
) -> None:
    """And once messages arrive again, it knows what the node knows now."""
    talk = Talk()
    for what, detail in steps:
        if what in ("deliver", "twice"):
            talk.deliver(int(str(detail)), what == "twice")
        elif what == "lose" and talk.way:
            del talk.way[int(str(detail)) % len(talk.way)]
        elif what == "time":
            talk.pass_time(float(str(detail)))
        else:
            talk.change(what, str(detail))
        talk.check()
    for _ in range(4):
        talk.pass_time(1.0)
        while talk.way:
            talk.deliver(0, False)
            talk.check()
    known = talk.coordinator.statuses["b"]
    assert known == replace(talk.stage.status(), sequence=known.sequence)
