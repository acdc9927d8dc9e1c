"""May a read be answered beside the event loop, by whoever took the value at any moment?"""

import pytest
from msgspec.structs import replace

from limosa.core.effects import ReadTopology
from limosa.core.events import LeaseEnded, LeaseGranted, Ticked
from limosa.core.machines.catalogue import CLEANUP, READ_NEW, STREAMING
from limosa.core.messages import DropReplica, Read, Redirect, Seal, Wait
from limosa.core.model.topology import Grant
from limosa.core.participant.reading import Admitted
from tests.core.samples import LEASES, A, B, C, P, moving, stable
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    stored,
    write,
)

READ = Read("r.1", P, 1, 3, 50, ("k",))
EVENTUAL = replace(READ, eventual=True)


def admitted(stage: Stage, read: Read = READ) -> Admitted:
    admitted = stage.brain.reading.admit(stage.now, read)
    assert isinstance(admitted, Admitted)
    return admitted


def counts(stage: Stage, admitted: Admitted, through: int | None = 0) -> bool:
    refusal = stage.brain.reading.check(stage.now, admitted, through)
    assert refusal is None or refusal.id == admitted.read.id
    return refusal is None


def test_an_open_owner_admits_a_read_and_it_counts_while_it_stays_so() -> None:
    stage = owner_on_stage()
    read = admitted(stage)
    assert read.held is stage.owner.held
    assert read.replica == (P, "first")
    assert counts(stage, read)
    assert not counts(stage, read, through=None), "there is no view"
    assert stage.brain.out == []


def test_a_node_that_stops_admits_nothing_and_answers_nothing() -> None:
    """Its lease is given back before the process ends: the next owner may serve at once."""
    stage = owner_on_stage()
    read = admitted(stage)
    stage.brain.is_over = True
    assert isinstance(stage.brain.reading.admit(stage.now, READ), Wait)
    assert not counts(stage, read)


@pytest.mark.parametrize(
    ("read", "kind", "why"),
    [
        (replace(READ, version=2), Wait, "layout"),
        (replace(READ, revision=51), Wait, "record"),
        (replace(EVENTUAL, revision=51), Wait, "record"),
        (replace(READ, epoch=4), Wait, "not open yet"),
        (replace(READ, version=0), Redirect, ""),
        (replace(READ, partition="q", version=0, revision=0), Redirect, ""),
        (replace(EVENTUAL, partition="q", revision=0), Redirect, ""),
    ],
)
def test_what_is_not_for_this_node_now_is_refused(read: Read, kind: type, why: str) -> None:
    """F4."""
    answer = owner_on_stage().brain.reading.admit(100.0, read)
    assert isinstance(answer, kind)
    assert not isinstance(answer, Wait) or why in answer.why


def test_whoever_knows_more_lets_the_next_tick_look_for_a_newer_topology() -> None:
    stage = owner_on_stage()
    stage.tell(Ticked())
    stage.read_topology()
    assert not done(stage.tell(Ticked()), ReadTopology)
    stage.brain.reading.admit(stage.now, replace(READ, revision=51))
    assert done(stage.tell(Ticked()), ReadTopology)
    assert not done(stage.tell(Ticked()), ReadTopology)


@pytest.mark.parametrize("case", ["lease", "later lease", "seal", "another owner", "no partition"])
def test_a_value_of_a_former_owner_does_not_count(case: str) -> None:
    stage = owner_on_stage(moving(STREAMING))
    held = admitted(stage)
    if case == "lease":
        stage.now += 3.0
    elif case == "later lease":
        stage.tell(LeaseEnded(LEASES["a"]))
        stage.tell(LeaseGranted(99, 60, stage.now))
    elif case == "seal":
        stage.say(Seal(P, stage.revision), "coordinator")
    elif case == "another owner":
        stage.agree(moving(READ_NEW, epoch=4))
    else:
        stage.brain.held.clear()
        stage.brain.owners.clear()
    assert not counts(stage, held)


def test_a_read_that_was_begun_before_the_seal_counts_until_the_seal_is_reported() -> None:
    stage = owner_on_stage(moving(STREAMING))
    held = admitted(stage)
    stage.say(write(), "client")
    stage.say(Seal(P, stage.revision), "coordinator")
    assert stage.owner.seal_report() is None
    assert counts(stage, held)
    assert isinstance(stage.brain.reading.admit(stage.now, READ), Wait)
    stage.store()
    stage.acknowledge(B, C, *stage.owner.peers)
    assert stage.owner.seal_report() is not None
    assert not counts(stage, held)


def test_a_view_from_before_the_owner_opened_does_not_count() -> None:
    """The owner is open a moment before the watermark is moved on the volume: other threads see
    one without the other, and what an earlier owner acknowledged might be missing in the view."""
    stage = Stage("a")
    stage.register(stable(), stored(A, entries=(entry(1, 0), entry(2, 1))))
    stage.owner.held.watermark = 1
    stage.acknowledge(B, C)
    held = admitted(stage)
    assert not counts(stage, held, through=1)
    assert counts(stage, held, through=2)


def test_an_eventual_read_counts_while_its_replica_is_here_and_complete() -> None:
    """F103: not once the replica was dropped, or is only written by nobody any more."""
    stage = follower_on_stage(moving(CLEANUP), B)
    assert counts(stage, admitted(stage, EVENTUAL))
    leaving = follower_on_stage(moving(READ_NEW), A)
    read = admitted(leaving, EVENTUAL)
    assert counts(leaving, read)
    leaving.agree(moving(CLEANUP, epoch=4))
    assert not counts(leaving, read)
    leaving.say(DropReplica(P, "first", leaving.revision), "coordinator")
    assert not counts(leaving, read)


def test_an_eventual_read_from_before_the_fence_does_not_count_after_it() -> None:
    """F103."""
    stage = follower_on_stage()
    read = admitted(stage, EVENTUAL)
    stage.agree(stable(fence=51))
    assert not counts(stage, read)


def about_to_open() -> tuple[Stage, Admitted]:
    """An earlier owner acknowledged entry 2; the volume's watermark is still 1. A read is admitted
    when the owner is open, and takes its view before the volume hears of that."""
    stage = Stage("a")
    stage.register(stable(), stored(A, entries=(entry(1, 0), entry(2, 1))))
    stage.owner.held.watermark = 1
    stage.acknowledge(B, C)
    assert stage.owner.opened == 2
    read = admitted(stage)
    assert not counts(stage, read, through=1)
    return stage, read


@pytest.mark.parametrize("lost", ["ownership", "lease"])
def test_a_view_from_before_the_opening_does_not_count_under_the_next_owner_either(
    lost: str,
) -> None:
    """The same replica owns again, in another epoch, and is not open yet: it can't tell what an
    earlier owner acknowledged."""
    stage, read = about_to_open()
    if lost == "ownership":
        stage.agree(stable(owner=B, epoch=4))
        stage.agree(stable(owner=A, epoch=5))
    else:
        stage.tell(LeaseEnded(LEASES["a"]))
        stage.tell(LeaseGranted(99, 60, stage.now))
        stage.agree(replace(stable(epoch=5), owner=Grant(A, 99)), revision=70)
    assert not stage.owner.open
    assert not counts(stage, read, through=1)
