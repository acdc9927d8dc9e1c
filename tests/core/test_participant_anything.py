"""Does a node survive whatever a network brings, at whatever moment?"""

from collections.abc import Callable
from typing import get_args

import pytest

from limosa.core import messages
from limosa.core.effects import Send, VolumeEffect
from limosa.core.events import (
    DigestTaken,
    LeaseEnded,
    LeaseGranted,
    NodeEvent,
    RowsLinked,
    SliceRead,
    Started,
    Stored,
    TailRead,
)
from limosa.core.machines.catalogue import CLEANUP, READ_NEW, STREAMING
from limosa.core.messages import (
    Acked,
    Appending,
    Chunk,
    Denied,
    DropReplica,
    End,
    Fetch,
    Fetched,
    Found,
    Landed,
    Link,
    Look,
    Message,
    Mismatched,
    Objection,
    Probe,
    Probed,
    Read,
    Redirect,
    Refuse,
    Replicate,
    Seal,
    Status,
    Unheld,
    Verify,
    Wait,
    Write,
    Written,
)
from limosa.core.model.changes import Remove, apply, partition_key
from limosa.core.model.keys import WHOLE
from tests.core.samples import LEASES, A, B, D, P, moving, stable
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    replicate,
    rows,
    sent,
    stored,
    write,
)

ROWS = rows("k", version=5)


def about(partition: str, to: str, epoch: int, revision: int) -> list[Message]:
    """One of each kind."""
    log = (entry(8, 7), entry(9, 8))
    session = f"t9@{epoch}"
    return [
        Write("w.1", partition, 1, epoch, "x", 1, 0, 0, WHOLE, ROWS),
        Write("w.1", partition, revision, epoch, "x", 9, 8, 7, WHOLE, ROWS, 3),
        Read("r.1", partition, 1, epoch, revision, ("k",)),
        Read("r.1", partition, 1, epoch, revision, ("k",), eventual=True),
        Probe(partition, to, epoch, revision),
        *(
            Replicate(partition, to, epoch, revision, previous, entries, 99, how, None, probed)
            for previous in (0, 7)
            for entries in ((), log, log[::-1])
            for how in get_args(Appending)
            for probed in (0, LEASES["b"])
        ),
        *(Probed(partition, at, epoch, last, 0, 12) for at in (A, B, D) for last in (-1, 0, 99)),
        *(Acked(partition, at, epoch, last, 99) for at in (A, B, D) for last in (-1, 0, 99)),
        *(Unheld(partition, B, epoch, revision, why) for why in get_args(Objection)),
        Fetch(partition, to, session, epoch, 0, 0),
        Fetch(partition, to, session, epoch, 0, 2),
        Fetched(partition, session, 0, ROWS, 9, (), 0),
        Chunk(partition, to, session, epoch, 0, "one", 0, ROWS),
        End(partition, to, session, epoch, 0, 2, "one", 1, ROWS.digest(), 9, ()),
        End(partition, to, session, epoch, 0, 2, "two", 1, ROWS.digest(), 9, ()),
        Landed(partition, session, 0),
        Link(partition, to, session, epoch, "first"),
        Denied(partition, session, 0, "no"),
        Look(revision),
        Seal(partition, revision),
        Verify(partition, session),
        DropReplica(partition, to, revision),
        Status("b", 1, 1, 1, {}, {}),
        Written("w.1", 1),
        Mismatched("w.1", 1),
        Found("r.1", ()),
        Redirect("w.1", None, 1, 1),
        Wait("w.1", "later"),
        Refuse("w.1", "no"),
        Message(),
    ]


def without_partition() -> Stage:
    """Its partition was dropped."""
    stage = owner_on_stage()
    stage.agreed = apply(stage.agreed, (Remove(partition_key(P)),), 70)
    stage.read_topology()
    return stage


def with_lease_only() -> Stage:
    stage = Stage("b")
    stage.tell(stored(B, entries=(entry(1, 0),)))
    stage.tell(LeaseGranted(12, 60, stage.now))
    return stage


def after_lease() -> Stage:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.tell(LeaseEnded(LEASES["a"]))
    return stage


def sealed() -> Stage:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(Seal(P, stage.revision), "coordinator")
    return stage


def filled() -> Stage:
    stage = follower_on_stage(moving(STREAMING), D)
    stage.say(replicate(D, 0, how="begin"), "a")
    return stage


MOMENTS: dict[str, Callable[[], Stage]] = {
    "not started": lambda: Stage("b"),
    "without a lease": with_lease_only,
    "follower": follower_on_stage,
    "owner": owner_on_stage,
    "owner in a move": lambda: owner_on_stage(moving(STREAMING)),
    "sealed owner": sealed,
    "after the lease": after_lease,
    "being filled": filled,
    "leaving": lambda: follower_on_stage(moving(CLEANUP), A),
    "new side": lambda: follower_on_stage(moving(READ_NEW), D),
    "dropped": without_partition,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("partition", "to", "epoch", "revision"),
    [
        (P, "first", 3, 50),
        (P, "t9", 3, 50),
        (P, "first", 4, 0),
        (P, "t9", 2, 10**6),
        ("nowhere", "first", 3, 0),
        ("nowhere", "first", 3, 50),
    ],
)
def test_no_message_at_any_moment_breaks_a_promise_of_a_node(
    moment: str, partition: str, to: str, epoch: int, revision: int
) -> None:
    for message in about(partition, to, epoch, revision):
        stage = MOMENTS[moment]()
        said_by(stage, message)
        stage.now += 10.0
        stage.tell(LeaseGranted(99, 2 * 10**6, stage.now))
        assert stage.status().lease == 99, "it still registers"


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_message_after_another_breaks_no_promise_of_a_node(moment: str) -> None:
    stage = MOMENTS[moment]()
    for to in ("first", "t9"):
        for message in (*about(P, to, 3, 50), *about(P, to, 4, 51)):
            said_by(stage, message)


def said_by(stage: Stage, message: Message) -> None:
    """A stranger says it. The node keeps what it holds, the epochs that it promised and what it
    knows as committed; it confirms nothing without a lease; and a message about something that is
    not here changes nothing."""
    before, lease = promised(stage), stage.brain.lease
    effects = stage.say(message, "stranger") + stage.store()
    after = promised(stage)
    if (getattr(message, "partition", P), getattr(message, "to", "first")) not in before:
        assert not done(effects, VolumeEffect)
        assert after == before
    for key, (epoch, watermark) in before.items():
        if key not in after:
            assert message == DropReplica(*key, stage.revision)
            continue
        assert after[key][0] >= epoch
        assert after[key][1] >= watermark
    if lease is None:
        for kind in (Acked, Found, Written, Fetched, Landed):
            assert sent(effects, kind) == []


def promised(stage: Stage) -> dict[tuple[str, str], tuple[int, int]]:
    """The epoch and the watermark of each replica."""
    return {key: (held.epoch, held.watermark) for key, held in stage.brain.held.items()}


@pytest.mark.parametrize("moment", MOMENTS)
def test_answers_of_a_volume_to_an_earlier_question_do_not_break_a_node(moment: str) -> None:
    stage = MOMENTS[moment]()
    late: list[NodeEvent] = [
        Stored(99),
        TailRead(99, (entry(8, 7),)),
        SliceRead(99, ROWS, 9),
        RowsLinked(99, 9),
        DigestTaken(P, "first", 0, 5),
        DigestTaken("nowhere", "first", 0, 5),
        Started(),
    ]
    for event in late:
        assert not [e for e in stage.tell(event) if isinstance(e, Send)]


def test_every_message_is_tried() -> None:
    kinds = {type(message) for message in about(P, "first", 3, 50)}
    said = {
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, Message)
    }
    shared = {messages.ReplicaMessage, messages.ReplicaReply, messages.SessionMessage}
    assert said - kinds <= {messages.Answer, *shared}


def test_entries_of_which_one_is_missing_are_not_taken() -> None:
    stage = follower_on_stage()
    stage.say(replicate(B, 0, how="match", probed=LEASES["b"]), "a")
    stage.say(replicate(B, 0, (entry(1, 0), entry(3, 2))), "a")
    assert stage.brain.held[P, "first"].last == 0
    assert sent(stage.say(replicate(B, 0, (entry(1, 0),)), "a"), Acked) == []
    assert stage.brain.held[P, "first"].last == 1


def test_a_message_for_a_replica_whose_partition_is_unknown_is_refused() -> None:
    stage = follower_on_stage()
    stage.agreed = apply(stage.agreed, (Remove(partition_key(P)),), 70)
    held = dict(stage.brain.held)
    stage.read_topology()
    stage.brain.held.update(held)
    (answer,) = sent(stage.say(Probe(P, "first", 3, 0), "a"), Unheld)
    assert answer.why == "fenced"
    stage.say(DropReplica(P, "first", 0), "coordinator")
    assert stage.brain.held == held
    assert stable().id == P
