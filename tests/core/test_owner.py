"""When is a write committed, and when may an owner open, seal, take back or give up waiting?"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil

import pytest
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.effects import (
    AppendEntries,
    Effect,
    MakeCommit,
    ReadTail,
    Send,
    StoreEpoch,
    Surprise,
)
from limosa.core.events import (
    CollectionDue,
    DigestTaken,
    Started,
    TailRead,
    Ticked,
)
from limosa.core.machines.catalogue import ALLOW, STREAMING
from limosa.core.messages import (
    Mismatched,
    Objection,
    Probe,
    Probed,
    Redirect,
    Refuse,
    Replicate,
    Seal,
    Unheld,
    Verify,
    Wait,
    Written,
)
from limosa.core.model.changes import Commit, Put, lease_key, partition_key
from limosa.core.model.keys import position
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.owner import Owner
from limosa.core.participant.pairs import Pairs
from limosa.core.participant.replication import Peer
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets
from limosa.simulation.rows import SimulatedRow, SimulatedRows
from tests.core.samples import LEASES, A, B, C, D, P, moving, stable
from tests.core.stage import (
    ORDINARY,
    Stage,
    done,
    entry,
    owner_on_stage,
    owners_on_stage,
    rows,
    sent,
    stored,
    write,
)


def probed(replica: Replica, last: int = 0, epoch: int = 3, begun: int = 0) -> Probed:
    return Probed(P, replica, epoch, last, begun, LEASES[replica.node])


def peer(stage: Stage, replica: Replica) -> Peer:
    return stage.owner.peers[replica]


# --- opening


def test_an_owner_opens_when_every_in_sync_replica_is_equal_to_it() -> None:
    stage = Stage("a")
    effects = stage.register(stable(), stored(A))
    asked = [e for e in effects if isinstance(e, Send)]
    assert {e.to for e in asked} == {"b", "c"}
    assert all(isinstance(e.message, Probe) for e in asked)
    assert not stage.is_open()
    stage.acknowledge(B)
    assert not stage.is_open()
    assert stage.status().replicas[P][0].open_epoch == 0
    stage.acknowledge(C)
    assert stage.is_open()
    assert stage.status().replicas[P][0].open_epoch == 3


def test_an_owner_that_opened_in_this_epoch_says_so_while_its_lease_has_lapsed() -> None:
    """Otherwise the coordinator would take it for an owner that can't open."""
    stage = owner_on_stage()
    stage.now += 1_000.0
    assert not stage.owner.holds(stage.now)
    assert stage.status().replicas[P][0].open_epoch == 3


def test_an_owner_that_is_alone_in_sync_opens_at_once() -> None:
    stage = Stage("a")
    stage.register(stable(in_sync=(A,)), stored(A))
    assert stage.owner.open


def test_rows_of_an_earlier_epoch_are_committed_before_the_owner_opens() -> None:
    stage = Stage("a")
    stage.register(stable(), stored(A, entries=(entry(1, 0), entry(2, 1))))
    stage.owner.held.watermark = 0
    stage.acknowledge(B, C, upto=1)
    assert not stage.owner.open
    stage.acknowledge(B, C, upto=2)
    assert (stage.owner.open, stage.owner.held.watermark, stage.owner.opened) == (True, 2, 2)


def test_a_peer_is_matched_where_both_logs_agree() -> None:
    stage = Stage("a")
    stage.register(stable(), stored(A, entries=(entry(1, 0), entry(4, 1))))
    (reading,) = done(stage.say(probed(B, 3), "b"), ReadTail)
    assert (reading.after, reading.bytes_max) == (1, ParticipantSettings().replicate_bytes)
    (message,) = sent(stage.tell(TailRead(reading.ticket, (entry(4, 1),))), Replicate)
    assert (message.how, message.previous, message.probed) == ("match", 1, LEASES["b"])
    assert [e.at for e in message.entries] == [4]


def test_a_matched_peer_that_is_behind_is_sent_the_rest() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    (message,) = sent(stage.say(probed(B, 0), "b"), Replicate)
    assert (message.how, message.previous) == ("append", 0)


def test_a_matched_peer_that_lost_what_it_acknowledged_is_matched_anew() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.acknowledge(B)
    (message,) = sent(stage.say(probed(B, 0), "b"), Replicate)
    assert message.how == "match"
    assert not peer(stage, B).matched


def test_a_replica_that_is_being_filled_begins_from_nothing_in_every_epoch() -> None:
    stage = Stage("a")
    stage.register(moving(STREAMING), stored(A, entries=(entry(1, 0),)))
    (message,) = sent(stage.say(probed(D, 0), "d"), Replicate)
    assert (message.how, message.previous) == ("begin", 1)
    (message,) = sent(stage.say(probed(D, 1, begun=3), "d"), Replicate)
    assert message.how == "match"


def test_a_new_replica_begins_where_everything_is_committed_and_gets_the_rest_from_the_disk() -> (
    None
):
    stage = Stage("a")
    log = (entry(1, 0), entry(2, 1))
    stage.register(moving(STREAMING), stored(A, entries=log))
    stage.owner.held.watermark = 1
    (reading,) = done(stage.say(probed(D, 0), "d"), ReadTail)
    peer(stage, D).matched = True  # by a late word of before
    (message,) = sent(stage.tell(TailRead(reading.ticket, log[1:])), Replicate)
    assert (message.how, message.previous, message.entries) == ("begin", 1, log[1:])


# --- the part of the log that is on the disk only


def behind(settings: ParticipantSettings = ORDINARY) -> tuple[Stage, tuple[Entry, ...]]:
    """An owner whose log is on the disk, alone in sync: both peers are to catch up."""
    stage = Stage("a", settings)
    log = (entry(1, 0), entry(2, 1), entry(3, 2))
    stage.register(stable(in_sync=(A,)), stored(A, entries=log))
    for replica in (B, C):
        peer(stage, replica).matched = True
        peer(stage, replica).sent = 3
    return stage, log


def test_what_is_not_in_memory_is_read_once_at_a_time_for_each_peer() -> None:
    stage, log = behind()
    (reading,) = done(stage.say(probed(B, 1), "b"), ReadTail)
    assert (reading.partition, reading.incarnation, reading.after) == (P, "first", 1)
    assert not done(stage.say(probed(B, 1), "b"), ReadTail)
    stage.now += ORDINARY.resend_seconds
    assert not done(stage.say(probed(B, 1), "b"), ReadTail), "the first read is still under way"
    assert done(stage.say(probed(C, 1), "c"), ReadTail)
    (message,) = sent(stage.tell(TailRead(reading.ticket, log[1:])), Replicate)
    assert (message.previous, message.entries, message.how) == (1, log[1:], "append")
    assert stage.tell(TailRead(reading.ticket, log[1:])) == []
    assert not done(stage.say(probed(B, 1), "b"), ReadTail)
    stage.now += 2 * ORDINARY.resend_seconds
    assert done(stage.say(probed(B, 1), "b"), ReadTail)


def test_a_long_log_goes_in_pieces_each_when_the_one_before_is_acknowledged() -> None:
    stage, log = behind(ParticipantSettings(replicate_bytes=1))
    stage.owner.needed = 1
    stage.say(write(sequence=9), "client")
    (reading,) = done(stage.say(probed(B, 2), "b"), ReadTail)
    assert reading.bytes_max == 1
    assert sent(stage.tell(TailRead(reading.ticket, log[2:])), Replicate)
    assert peer(stage, B).sent == 3
    (message,) = sent(stage.acknowledge(B, upto=3), Replicate)
    assert [each.at for each in message.entries] == [position(3, 1)]
    assert sent(stage.acknowledge(B), Replicate) == []


@pytest.mark.parametrize(
    "case", ["nothing", "another part", "no peer", "unmatched", "a new record", "no owner", "epoch"]
)
def test_what_was_read_for_a_peer_that_needs_it_no_more_is_not_sent(case: str) -> None:
    stage, log = behind()
    (reading,) = done(stage.say(probed(B, 1), "b"), ReadTail)
    entries = log[1:]
    if case == "nothing":
        entries = ()
    elif case == "another part":
        entries = log[2:]
    elif case == "no peer":
        stage.agree(stable((A, C), in_sync=(A,)))
    elif case == "unmatched":
        stage.say(Unheld(P, B, 3, 50, "unmatched"), "b")
    elif case == "a new record":
        stage.agree(stable(in_sync=(A, B)))
    elif case == "no owner":
        stage.agree(stable(owner=B, epoch=4))
    else:
        stage.agree(stable(in_sync=(A,), epoch=4))
    assert sent(stage.tell(TailRead(reading.ticket, entries)), Replicate) == []


def test_a_peer_that_the_log_does_not_reach_back_to_is_reported() -> None:
    stage = Stage("a", ParticipantSettings(entries_kept=1))
    log = (entry(1, 0), entry(2, 1), entry(3, 2))
    stage.register(stable(in_sync=(A,)), stored(A, entries=log))
    held = stage.owner.held
    assert held.first == 2
    stage.say(probed(B, 1), "b")
    assert not peer(stage, B).reachable
    stage.say(probed(C, 5), "c")
    peer(stage, C).matched = True
    stage.owner.replicate(peer(stage, C), 1)
    assert not peer(stage, C).reachable
    assert stage.status().replicas[P][0].unreachable == (B, C)
    stage.acknowledge(C)
    assert stage.status().replicas[P][0].unreachable == (B,), "it has the end of the log by now"


def refusing(stage: Stage, answer: Callable[[], list[Effect]], seconds: float) -> list[float]:
    """When entries are sent to a replica that answers, and never takes any."""
    began, times = stage.now, []
    while stage.now < began + seconds:
        stage.now += 0.02
        stage.renew(stage.now)
        effects = [*stage.tell(Ticked()), *answer()]
        to_b = [effect for effect in effects if isinstance(effect, Send) and effect.to == "b"]
        if sent([*to_b], Probe):
            to_b += done(stage.say(probed(B, peer(stage, B).acked), "b"), Send)
        times += [stage.now - began for each in sent([*to_b], Replicate) if each.entries]
    return times


@pytest.mark.parametrize("matched", [True, False])
def test_entries_that_a_replica_does_not_take_are_sent_less_and_less_often(matched: bool) -> None:
    """S124: whatever the reason, for instance a frame that it refuses."""
    stage = owner_on_stage()
    stage.say(probed(B), "b")
    stage.say(write(), "client")
    if not matched:
        stage.say(Unheld(P, B, 3, 50, "unmatched"), "b")
    times = refusing(stage, lambda: [] if matched else stage.say(probed(B, 0), "b"), 20.0)
    assert 8 <= len(times) <= 13, times
    pauses = [later - earlier for earlier, later in pairwise(times)]
    wanted = [0.3, 0.6, 1.2, *[2.0] * (len(pauses) - 3)]
    assert pauses == pytest.approx(wanted, abs=0.33)
    assert not sent(stage.acknowledge(B, upto=0), Replicate), "an ack of nothing is no progress"


def test_a_replica_that_makes_progress_or_starts_again_gets_what_it_lacks_at_once() -> None:
    stage = owner_on_stage()
    for sequence in (1, 2):
        stage.say(write(f"w.{sequence}", sequence, sequence - 1), "client")
    refusing(stage, list, 5.0)
    assert peer(stage, B).pause == ORDINARY.resend_seconds_max
    stage.acknowledge(B, upto=position(3, 1))
    assert peer(stage, B).pause == 0.0
    refusing(stage, list, 5.0)
    again = replace(probed(B, 0), run=4711)
    (message,) = sent(stage.say(again, "b"), Replicate)
    assert (message.how, message.probed, len(message.entries)) == ("match", 4711, 2)
    (message,) = sent(stage.say(again, "b"), Replicate)
    assert (message.how, message.entries) == ("match", ())
    assert peer(stage, B).sent == position(3, 2), "what is under way is not sent twice"


@pytest.mark.parametrize("epoch", [2, 4])
def test_words_of_another_epoch_or_of_a_stranger_are_ignored(epoch: int) -> None:
    stage = owner_on_stage()
    before = peer(stage, B).acked
    messages = [
        probed(B, 9, epoch),
        Unheld(P, B, epoch, 50, "unmatched"),
        probed(D, 9),
        Unheld(P, D, 3, 50, "unmatched"),
    ]
    for message in messages:
        assert stage.say(message, "b") == []
    assert stage.acknowledge(D) == []
    assert peer(stage, B).acked == before


# --- writing


def test_a_write_is_acknowledged_when_today_s_write_set_has_it_durably() -> None:
    stage = owner_on_stage()
    effects = stage.say(write(), "client")
    (appended,) = done(effects, AppendEntries)
    assert appended.entries[0].at == position(3, 1)
    assert len(sent(effects, Replicate)) == 2
    assert sent(stage.acknowledge(B, C), Written) == []
    assert sent(stage.store(), Written) == [Written("w.1", position(3, 1))]


def test_a_write_is_not_acknowledged_while_one_in_sync_replica_lacks_it() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    assert sent(stage.acknowledge(B), Written) == []
    assert sent(stage.agree(stable(in_sync=(A, B))), Written) == [Written("w.1", position(3, 1))]


ALONE = replace(stable(in_sync=(A,)), eligible=(B, C))
"""Too few replicas are in sync, and the others may be elected."""


def test_while_others_are_eligible_nothing_is_committed_promised_or_refused() -> None:
    """S114: a replica that may be elected could lack it."""
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    effects = stage.agree(ALONE)
    assert stage.owner.held.watermark == 0
    assert sent(effects, Written) == []
    assert [(e.id, e.definite) for e in sent(effects, Redirect)] == [("w.1", False)]
    (refused,) = sent(stage.say(write("w.2", 2), "client"), Refuse)
    assert refused.why == "1 replicas in sync, 2 needed"
    stage.owner.needed = 1
    assert sent(stage.say(write("w.3", 2), "client"), Refuse)  # the record alone decides
    assert stage.owner.open
    assert not stage.tell(CollectionDue(P))
    stage.agree(stable(in_sync=(A, B)))
    assert stage.owner.held.watermark == 0
    stage.acknowledge(B)
    assert stage.owner.held.watermark == position(3, 1)
    (again,) = sent(stage.say(write("w.4"), "client"), Written)
    assert again == Written("w.4", position(3, 1))


def test_an_owner_that_knows_all_of_its_log_committed_opens_while_others_are_eligible() -> None:
    stage = Stage("a")
    stage.register(ALONE, stored(A))
    assert stage.is_open()


def test_an_owner_that_may_not_commit_opens_once_enough_have_all_of_its_log() -> None:
    """S114: the owner of before is gone, and what it acknowledged is in this log, who knows how
    far. A replica is put back only with all of it; then the owner commits and opens."""
    stage = Stage("a", SETTINGS)
    (here,) = stored(A, entries=(entry(1, 0), entry(2, 1))).held
    stage.register(ALONE, Started((replace(here, watermark=0),)))
    stage.acknowledge(B, upto=1)
    later(stage, 0.11)
    assert not stage.is_open()
    assert not stage.owner.proposed
    stage.acknowledge(B, upto=2)
    later(stage, 0.11)
    assert stage.status().replicas[P][0].caught_up == ((B, 50),)
    assert not stage.is_open()
    stage.agree(stable(in_sync=(A, B)))
    stage.acknowledge(B, upto=2)
    assert (stage.is_open(), stage.owner.opened) == (True, 2)


def test_a_seal_and_a_digest_do_not_wait_for_what_can_not_be_committed() -> None:
    """A move may be what brings enough replicas in sync again."""
    stage = owner_on_stage(moving(STREAMING, targets=(B, C, D)))
    stage.say(write(), "client")
    stage.store()
    stage.agree(replace(moving(STREAMING, in_sync=(A, D)), eligible=(B, C)))
    stage.say(Verify(P, "t9@3"), "coordinator")
    assert stage.owner.held.check == ("t9@3", 0)
    stage.say(Seal(P, 51), "coordinator")
    assert stage.owner.seal_report() == (51, position(3, 1))


def test_what_is_committed_with_too_few_replicas_in_sync_is_no_promise_and_no_refusal() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    effects = stage.agree(stable(in_sync=(A,)))
    assert stage.owner.held.watermark == position(3, 1)
    assert sent(effects, Written) == []
    assert [(e.id, e.definite) for e in sent(effects, Redirect)] == [("w.1", False)]


def test_a_write_in_flight_when_the_write_set_grows_waits_for_the_new_side_too() -> None:
    """The watermark is what *today's* write set holds."""
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.agree(moving(STREAMING))
    assert sent(stage.acknowledge(B, C), Written) == []
    assert sent(stage.acknowledge(D), Written) == [Written("w.1", position(3, 1))]


def test_a_repeated_write_is_answered_and_not_written_again() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C)
    effects = stage.say(write("w.2"), "client")
    assert not done(effects, AppendEntries)
    assert sent(effects, Written) == [Written("w.2", position(3, 1))]


def test_only_the_rows_that_are_missing_of_a_repeated_batch_are_written() -> None:
    stage = owner_on_stage()
    both = SimulatedRows((SimulatedRow("l", -5, 1), SimulatedRow("r", 5, 2)))
    first = replace(write(batch=rows("l", token=-5)), range=replace(write().range, end=0))
    stage.say(first, "client")
    (appended,) = done(stage.say(write("w.2", batch=both), "client"), AppendEntries)
    written = appended.entries[0].rows
    assert isinstance(written, SimulatedRows)
    assert [row.key for row in written.rows] == ["r"]


def test_a_sequence_below_the_floor_is_refused() -> None:
    stage = owner_on_stage()
    stage.say(write(sequence=5, floor=5), "client")
    (refusal,) = sent(stage.say(write("w.2", sequence=4), "client"), Refuse)
    assert "sequence 4 is past" in refusal.why


@pytest.mark.parametrize("known", ["applied", "past", "below the floor", "unknown"])
def test_a_write_waits_for_the_one_before_it(known: str) -> None:
    stage = owner_on_stage()
    if known == "applied":
        stage.say(write(sequence=1), "client")
    elif known == "past":
        stage.say(write(sequence=2, floor=2), "client")
    floor = 2 if known == "below the floor" else 0
    effects = stage.say(write("w.2", sequence=3, after=1, floor=floor), "client")
    assert bool(sent(effects, Wait)) == (known == "unknown")
    assert bool(done(effects, AppendEntries)) != (known == "unknown")


def test_a_comparison_that_fails_is_logged_without_rows_and_repeated_as_it_was() -> None:
    stage = owner_on_stage()
    message = write(expected=7)
    (appended,) = done(stage.say(message, "client", found=9), AppendEntries)
    assert (appended.entries[0].rows, appended.entries[0].found) == (None, 9)
    stage.store()
    assert sent(stage.acknowledge(B, C), Mismatched) == [Mismatched("w.1", 9)]
    again = stage.say(replace(message, id="w.2"), "client", found=7)
    assert sent(again, Mismatched) == [Mismatched("w.2", 9)]


def test_a_comparison_that_holds_is_written() -> None:
    stage = owner_on_stage()
    (appended,) = done(stage.say(write(expected=7), "client", found=7), AppendEntries)
    assert appended.entries[0].rows is not None


def test_a_peer_that_still_waits_for_earlier_entries_is_not_sent_later_ones() -> None:
    stage = owner_on_stage()
    stage.say(Unheld(P, B, 3, 50, "unmatched"), "b")
    effects = stage.say(write(), "client")
    assert [e.to for e in effects if isinstance(e, Send)] == ["c"]


# --- who does not answer, and who comes back


SETTINGS = ParticipantSettings(
    resend_seconds=0.1,
    silence_seconds_max=1.0,
    idle_seconds_max=0.5,
    seal_seconds_max=1.0,
    lease_seconds=1000.0,
)


def later(stage: Stage, seconds: float) -> list[Effect]:
    """Time passes, in which the node is not behind with its work: it ticks often enough."""
    ticks = ceil(seconds / SETTINGS.tick_seconds_max)
    effects: list[Effect] = []
    for _ in range(ticks):
        stage.now += seconds / ticks
        effects += stage.tell(Ticked())
    return effects


def test_whoever_owes_an_answer_for_too_long_is_reported_as_silent() -> None:
    stage = owner_on_stage(settings=SETTINGS)
    stage.tell(Ticked())
    stage.say(write(), "client")
    later(stage, 1.0)
    assert stage.status().replicas[P][0].silent == ()
    stage.acknowledge(B)
    later(stage, 0.1)
    assert stage.status().replicas[P][0].silent == (C,)


def test_a_replica_that_is_not_heard_is_silent_although_it_owes_nothing() -> None:
    """S114: only the owner's word takes a replica out, so it asks idle replicas, too."""
    stage = owner_on_stage(settings=SETTINGS)
    for _ in range(16):
        later(stage, 0.11)
        stage.acknowledge(B)
    assert stage.status().replicas[P][0].silent == (C,)
    stage.say(probed(C), "c")
    assert stage.status().replicas[P][0].silent == ()


def test_a_replica_that_was_asked_only_now_is_not_silent() -> None:
    stage = owner_on_stage(settings=SETTINGS)
    later(stage, 1.9)
    assert stage.status().replicas[P][0].silent == ()
    later(stage, 1.1)
    assert stage.status().replicas[P][0].silent == (B, C)


def test_an_owner_without_a_lease_calls_nobody_silent() -> None:
    """It may have been paused itself."""
    stage = owner_on_stage(settings=SETTINGS)
    stage.now += 5000.0
    assert stage.status().replicas[P][0].silent == ()


def test_what_was_not_acknowledged_is_sent_again() -> None:
    stage = owner_on_stage(settings=SETTINGS)
    stage.say(write(), "client")
    stage.acknowledge(B)
    assert sent(stage.tell(Ticked()), Replicate) == []  # it is on its way
    stage.now += 2 * SETTINGS.resend_seconds
    effects = stage.tell(Ticked())
    again = [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Replicate)]
    assert again == ["c"]


def test_a_peer_that_knows_an_older_watermark_is_told() -> None:
    stage = owner_on_stage(settings=SETTINGS)
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C)
    (to_b, to_c) = sent(later(stage, 0.11), Replicate)
    assert (to_b.entries, to_b.watermark) == ((), position(3, 1))
    stage.acknowledge(B)
    assert sent(later(stage, 0.11), Replicate) == [to_c]
    stage.acknowledge(C)
    assert later(stage, 0.11) == []


def test_a_peer_that_is_not_matched_is_probed_again() -> None:
    stage = owner_on_stage(settings=SETTINGS)
    assert len(sent(stage.say(Unheld(P, B, 3, 50, "unmatched"), "b"), Probe)) == 1
    assert not peer(stage, B).matched
    assert len(sent(stage.tell(Ticked()), Probe)) == 1


def test_a_replica_that_has_everything_is_proposed_and_waited_for_from_then_on() -> None:
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    later(stage, 0.1)
    assert stage.status().replicas[P][0].caught_up == ((C, 50),)
    stage.say(write(), "client")
    stage.store()
    assert sent(stage.acknowledge(B), Written) == []
    assert len(sent(stage.acknowledge(C), Written)) == 1


def test_a_replica_returns_although_writes_never_stop() -> None:
    """S115: it is proposed once it has what was committed a moment ago, and from then on the
    watermark waits for it."""
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    stage.say(Unheld(P, C, 3, 50, "unmatched"), "c")
    for number in range(1, 5):
        stage.say(write(f"w.{number}", number), "client")
        stage.store()
        stage.acknowledge(B)
        stage.acknowledge(C, upto=position(3, number - 1) if number > 1 else 0)
        later(stage, 0.11)
    assert list(stage.owner.proposed) == [C]
    assert stage.owner.held.watermark == position(3, 3)
    assert stage.status().replicas[P][0].caught_up == ((C, 50),)
    stage.say(Unheld(P, C, 3, 50, "unmatched"), "c")
    assert stage.status().replicas[P][0].caught_up == ()


def test_a_replica_that_is_proposed_is_reported_only_once_it_has_all_that_is_committed() -> None:
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    stage.say(Unheld(P, C, 3, 50, "unmatched"), "c")
    later(stage, 0.11)
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B)
    stage.acknowledge(C, upto=0)
    later(stage, 0.11)
    assert list(stage.owner.proposed) == [C]
    assert stage.status().replicas[P][0].caught_up == ()
    stage.say(write("w.2", 2), "client")
    stage.store()
    assert sent(stage.acknowledge(B), Written) == []
    effects = stage.acknowledge(C)
    assert len(sent(effects, Written)) == 1
    assert stage.status().replicas[P][0].caught_up == ((C, 50),)


def test_a_replica_that_is_far_behind_is_not_proposed() -> None:
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    stage.say(Unheld(P, C, 3, 50, "unmatched"), "c")
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B)
    stage.acknowledge(C, upto=0)
    for _ in range(9):
        later(stage, 0.1)
        assert not stage.owner.proposed


def test_a_replica_that_may_return_answers_anew_before_it_is_proposed_again() -> None:
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    later(stage, 0.1)
    assert list(stage.owner.proposed) == [C]
    effects = stage.agree(stable(in_sync=(A, B)))
    assert [e.to for e in effects if isinstance(e, Send)] == ["c"]
    later(stage, 0.1)
    assert not stage.owner.proposed
    stage.acknowledge(C)
    later(stage, 0.1)
    assert list(stage.owner.proposed) == [C]


def test_a_replica_that_is_lost_has_nothing_any_more() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.acknowledge(B)
    assert stage.say(Unheld(P, B, 3, 50, "lost"), "b") == []
    assert (peer(stage, B).matched, peer(stage, B).acked) == (False, 0)


def touches(effects: Sequence[object]) -> list[Commit]:
    return [effect.commit for effect in effects if isinstance(effect, MakeCommit)]


def test_a_proposal_stands_however_long_its_commit_takes() -> None:
    """S126: nothing waits for the replica, so nothing voids the proposal, and the put-back is
    current whenever it comes. A replica that makes progress does not lose it either, even if writes
    wait for the replica all the time."""
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    later(stage, 0.1)
    for _ in range(100):
        assert touches(later(stage, 0.5)) == []
        stage.acknowledge(B, C)
        assert stage.status().replicas[P][0].caught_up == ((C, 50),)
    for number in range(1, 20):
        stage.say(write(f"w.{number}", number), "client")
        stage.store()
        stage.acknowledge(B)
        assert touches(later(stage, 0.9)) == []
        assert len(sent(stage.acknowledge(C), Written)) == 1
    assert stage.status().replicas[P][0].caught_up == ((C, 50),)
    assert stage.revision == 50
    stage.agree(stable())
    assert routing.writers(stage.owner.record) == (A, B, C)


def test_a_proposal_stands_although_the_replica_died_as_long_as_no_write_waits_for_it() -> None:
    """S126: the coordinator hears that the replica is silent, and does not put it back."""
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    for _ in range(50):
        assert touches(later(stage, 0.1)) == []
        stage.acknowledge(B)
    status = stage.status().replicas[P][0]
    assert (status.silent, status.caught_up) == ((C,), ((C, 50),))


def test_a_proposal_is_voided_by_a_commit_once_a_write_waits_too_long_for_the_replica() -> None:
    """S126: time alone voids nothing: acks wait for the replica until the commit is made."""
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    later(stage, 0.1)
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B)
    assert touches(later(stage, 0.9)) == []
    (commit,) = touches(later(stage, 0.2))
    assert commit.changes == (Put(stable(in_sync=(A, B))),)
    assert commit.guards == {partition_key(P): 50, lease_key("a"): LEASES["a"]}
    assert commit.why == "a proposed replica does not answer"
    assert touches(later(stage, 0.9)) == []
    assert len(touches(later(stage, 0.2))) == 1
    assert stage.owner.proposed
    assert sent(stage.agree(stable(in_sync=(A, B))), Written) == [Written("w.1", position(3, 1))]
    assert not stage.owner.proposed


def test_an_opening_that_waits_for_a_proposed_replica_voids_the_proposal() -> None:
    """The owner may commit nothing before another replica is in sync; the one that it proposed
    has died since."""
    stage = Stage("a", SETTINGS)
    (held,) = stored(A, entries=(entry(1, 0),)).held
    record = replace(stable(in_sync=(A,)), eligible=(B, C))
    stage.register(record, Started((replace(held, watermark=0),)))
    stage.acknowledge(B)
    later(stage, 0.1)
    assert list(stage.owner.proposed) == [B]
    stage.say(Unheld(P, B, 3, 50, "unmatched"), "b")
    assert not stage.is_open()
    later(stage, 0.9)
    assert len(touches(later(stage, 0.3))) == 1


def test_many_proposals_are_voided_by_few_commits_and_by_smaller_ones_if_that_fails() -> None:
    """One of the records may have changed meanwhile, and then nothing of its commit happens."""
    stage = owners_on_stage(300, stable(in_sync=(A, B)), SETTINGS)
    put = [Put(record) for record in stage.agreed.topology.partitions.values()]
    later(stage, 0.1)
    for name in stage.brain.owners:
        stage.say(replace(write(), partition=name), "x")
    sizes = []
    for _ in range(3):
        commits = touches(later(stage, 1.2))
        assert all(len(c.guards) == len(c.changes) + 1 for c in commits)
        assert [change for commit in commits for change in commit.changes] == put
        sizes.append([len(commit.changes) for commit in commits])
    assert sizes == [[100] * 3, [50] * 6, [25] * 12]
    for name in list(stage.brain.owners)[:5]:
        stage.brain.owners[name].touched = 7
    first, *others = touches(later(stage, 1.2))
    assert len(first.changes) == 1, "those that failed often are no part of large commits"
    assert [len(commit.changes) for commit in others] == [1] * 4 + [12] * 24 + [7]


def test_a_commit_that_voids_proposals_gives_no_replica_more_time() -> None:
    """Otherwise a replica in sync that does not answer would never be reported as long as another
    one is proposed again and again."""
    stage = owner_on_stage(stable(in_sync=(A, B)), settings=SETTINGS)
    later(stage, 0.1)
    stage.say(write(), "client")
    stage.store()
    for _ in range(11):
        later(stage, 0.1)
    assert stage.status().replicas[P][0].silent == (B, C)
    stage.agree(stable(in_sync=(A, B)))
    assert stage.status().replicas[P][0].silent == (B,)


def test_a_seal_that_nothing_comes_of_is_lifted_by_a_commit_and_not_by_time() -> None:
    stage = owner_on_stage(moving(STREAMING), settings=SETTINGS)
    stage.say(Seal(P, 50), "coordinator")
    effects = later(stage, 1.1)
    (commit,) = [e.commit for e in effects if isinstance(e, MakeCommit)]
    assert commit.why == "nothing came of a seal"
    later(stage, 5.0)
    assert stage.owner.sealed == 50
    stage.agree(moving(STREAMING))
    assert stage.owner.sealed is None


def test_a_seal_is_reported_when_everything_that_was_begun_has_ended() -> None:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(write(), "client")
    stage.say(Seal(P, 50), "coordinator")
    assert stage.owner.seal_report() is None
    stage.store()
    stage.acknowledge(B, C)
    assert stage.owner.seal_report() is None
    stage.acknowledge(D)
    assert stage.status().replicas[P][0].sealed == (50, position(3, 1))


@pytest.mark.parametrize("why", ["fenced", "dropped"])
def test_a_refusal_of_what_is_sent_under_today_s_record_is_a_surprise(why: Objection) -> None:
    stage = owner_on_stage()
    (surprise,) = done(stage.say(Unheld(P, B, 3, 50, why), "b"), Surprise)
    assert surprise.what == f"b refused its owner: {why}"
    for harmless in (Unheld(P, B, 3, 49, why), Unheld(P, B, 3, 50, "lost")):
        assert stage.say(harmless, "b") == []
    stage.now += 3.0
    assert stage.say(Unheld(P, B, 3, 50, why), "b") == []


# --- an owner that is not open


def closed() -> Owner:
    lease = Lease(LEASES["a"], 11)
    return Owner(Held(P, A), stable(), lease, Tickets(), Pairs(ORDINARY), ORDINARY)


def test_an_owner_that_is_not_open_does_not_seal() -> None:
    owner = closed()
    owner.adopt(100.0, stable(), 50, 2)
    owner.out.clear()
    owner.seal(100.0, 50)
    assert (owner.sealed, owner.out) == (None, [])


# --- verification and tombstones


def test_digests_are_taken_where_the_log_ends() -> None:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C, D)
    peer(stage, B).matched = False
    effects = stage.say(Verify(P, "t9@3"), "coordinator")
    checks = {message.check for message in sent(effects, Replicate)}
    assert checks == {("t9@3", position(3, 1))}
    assert len(sent(effects, Replicate)) == 2
    (stores,) = done(stage.tell(DigestTaken(P, "first", position(3, 1), 42)), StoreEpoch)
    assert stage.status().replicas[P][0].digest is None
    stage.store(stores.ticket)
    producers = stage.owner.held.producers.digest(position(3, 1))
    digest = ("t9@3", position(3, 1), 42 << 64 | producers)
    assert stage.status().replicas[P][0].digest == digest


def test_each_time_digests_are_given_twice_as_long() -> None:
    """F102: all rows are read for one; to ask again before that would begin it again for ever."""
    stage = owner_on_stage(moving(STREAMING))
    stage.say(Verify(P, "t9@3"), "coordinator")
    begun = [stage.now]
    for _ in range(150):
        stage.now += 0.1
        stage.owner.lease.extend(stage.now, stage.owner.settings)
        if sent(stage.say(Verify(P, "t9@3"), "coordinator"), Replicate):
            begun.append(stage.now)
    apart = [round(later - earlier, 1) for earlier, later in pairwise(begun)]
    assert apart == [4.1, 8.1]


def test_the_coordinator_hears_how_long_writes_take_to_be_committed() -> None:
    """Lately, or for how long the oldest has waited; a slow one is forgotten by and by."""
    stage = owner_on_stage()

    def commit_seconds() -> float:
        return round(stage.status().replicas[P][0].commit_seconds, 3)

    assert commit_seconds() == 0.0
    stage.say(write(), "client")
    stage.now += 0.2
    assert commit_seconds() == 0.2
    stage.store()
    stage.acknowledge(B, C)
    assert commit_seconds() == 0.2
    stage.now += 1.0
    stage.say(write("w.2", 2), "client")
    stage.now += 0.05
    stage.store()
    stage.acknowledge(B, C)
    assert commit_seconds() == 0.095
    stage.now += 2.0
    assert commit_seconds() == 0.0


def test_tombstones_are_collected_up_to_what_every_replica_has() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C)
    (appended,) = done(stage.tell(CollectionDue(P)), AppendEntries)
    assert appended.entries[0].collects == position(3, 1)


def test_one_collection_at_a_time_and_barriers_wait_for_it() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C)
    assert done(stage.tell(CollectionDue(P)), AppendEntries)
    stage.store()
    assert not done(stage.tell(CollectionDue(P)), AppendEntries)
    stage.agree(moving(ALLOW))
    assert stage.status().busy == {P: 50}
    stage.acknowledge(B, C)
    assert stage.status().busy == {}
    stage.agree(stable())
    assert done(stage.tell(CollectionDue(P)), AppendEntries)


def test_tombstones_stay_while_a_replica_lacks_them_or_a_transition_runs() -> None:
    stage = owner_on_stage(stable(in_sync=(A, B)))
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B)
    assert stage.tell(CollectionDue(P)) == []
    moved = owner_on_stage(moving(STREAMING))
    moved.say(write(), "client")
    moved.store()
    moved.acknowledge(B, C, D)
    assert moved.tell(CollectionDue(P)) == []
    assert owner_on_stage().tell(CollectionDue("q")) == []
    peer(stage, C).matched = False
    assert stage.tell(CollectionDue(P)) == []
