"""Does a replica take what follows its log, and refuse what is late, doubled or of a stranger?"""

import pytest
from msgspec.structs import replace

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    Effect,
    StoreEpoch,
    Surprise,
    TrimLog,
    TruncateLog,
)
from limosa.core.events import DigestTaken, LeaseGranted, Started, TopologyRead
from limosa.core.machines.catalogue import ALLOW, READ_NEW, STREAMING, WRITE_BOTH
from limosa.core.messages import Acked, Probed, Redirect, Unheld
from limosa.core.model.changes import Remove, apply, partition_key
from limosa.core.model.topology import Node, Replica
from limosa.core.participant.settings import ParticipantSettings
from tests.core.samples import LEASES, A, B, C, D, P, moving, stable
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    probe,
    replicate,
    sent,
    stored,
    write,
)

RUN = LEASES["b"]
LOG = (entry(1, 0), entry(2, 1), entry(3, 2))


def matched(*entries: int) -> Stage:
    """A replica with some log, known to be a prefix of its owner's."""
    stage = follower_on_stage(entries=tuple(e for e in LOG if e.at in entries))
    last = max(entries, default=0)
    assert sent(stage.say(replicate(B, last, how="match", probed=RUN), "a"), Acked)
    return stage


def test_a_probe_is_answered_with_the_end_of_the_log_and_the_run() -> None:
    stage = follower_on_stage(entries=LOG)
    assert sent(stage.say(probe(B), "a"), Probed) == [Probed(P, B, 3, 3, 0, RUN)]


def test_entries_are_taken_once_and_acknowledged_when_they_are_durable() -> None:
    stage = matched()
    effects = stage.say(replicate(B, 0, LOG[:2]), "a")
    assert [e.entries for e in done(effects, AppendEntries)] == [LOG[:2]]
    assert sent(effects, Acked) == []
    assert [acked.position for acked in sent(stage.store(), Acked)] == [2]
    again = stage.say(replicate(B, 0, LOG[:2]), "a")
    assert not done(again, AppendEntries)
    assert [acked.position for acked in sent(again, Acked)] == [2]
    more = stage.say(replicate(B, 1, LOG[1:], watermark=2), "a")
    assert [e.entries for e in done(more, AppendEntries)] == [LOG[2:]]
    assert [e.to for e in done(more, AdvanceWatermark)] == [2]


def test_the_watermark_never_passes_the_end_of_the_log_nor_goes_back() -> None:
    stage = matched()
    stage.say(replicate(B, 0, LOG[:2], watermark=99), "a")
    held = stage.brain.held[P, "first"]
    assert held.watermark == 2
    stage.say(replicate(B, 2, (), watermark=1), "a")
    assert held.watermark == 2


def test_entries_beyond_the_end_of_the_log_are_answered_with_where_it_ends() -> None:
    stage = matched(1)
    (answer,) = sent(stage.say(replicate(B, 2, LOG[2:]), "a"), Probed)
    assert answer.last == 1
    assert stage.brain.held[P, "first"].last == 1


def test_entries_that_do_not_follow_the_log_are_a_surprise_and_not_taken() -> None:
    stage = matched(1)
    effects = stage.say(replicate(B, 1, (entry(3, 2),)), "a")
    assert [e.what for e in done(effects, Surprise)] == ["entries that do not follow this log"]
    assert not done(effects, AppendEntries)


def test_a_log_that_was_not_matched_in_this_epoch_takes_nothing() -> None:
    stage = follower_on_stage(entries=LOG[:1])
    (answer,) = sent(stage.say(replicate(B, 1, LOG[1:2]), "a"), Unheld)
    assert answer.why == "unmatched"


def test_a_match_cuts_what_the_owner_does_not_have() -> None:
    stage = follower_on_stage(stable(in_sync=(A, B)), entries=LOG)
    held = stage.brain.held[P, "first"]
    held.watermark = 1
    effects = stage.say(replicate(B, 2, how="match", probed=RUN), "a")
    assert [e.to for e in done(effects, TruncateLog)] == [2]
    assert not done(effects, Surprise)
    assert (held.last, held.matched) == (2, 3)


def test_a_match_at_the_end_of_the_log_cuts_nothing() -> None:
    stage = follower_on_stage(entries=LOG)
    effects = stage.say(replicate(B, 3, how="match", probed=RUN), "a")
    assert not done(effects, TruncateLog)


def test_an_owner_that_lacks_committed_rows_is_a_surprise() -> None:
    stage = follower_on_stage(entries=LOG)
    effects = stage.say(replicate(B, 2, how="match", probed=RUN), "a")
    assert [e.what for e in done(effects, Surprise)] == ["an owner without committed rows"]


@pytest.mark.parametrize(("asked", "last"), [(5, 3), (2, 2)])
def test_a_match_at_a_position_that_is_not_here_is_answered_with_the_nearest(
    asked: int, last: int
) -> None:
    stage = follower_on_stage(entries=LOG)
    effects = stage.say(replicate(B, asked, how="match", probed=RUN), "a")
    if asked == last:
        assert sent(effects, Acked)
    else:
        assert sent(effects, Probed) == [Probed(P, B, 3, last, 0, RUN)]
        assert not done(effects, TruncateLog)


def test_a_match_from_before_the_log_begins_is_answered_with_nothing() -> None:
    stage = follower_on_stage(entries=LOG)
    held = stage.brain.held[P, "first"]
    held.first = 1
    del held.sizes[0], held.positions[0]
    (answer,) = sent(stage.say(replicate(B, 0, how="match", probed=RUN), "a"), Probed)
    assert answer.last == -1


def test_a_late_match_of_an_earlier_run_is_refused() -> None:
    """It was computed from a log that this run may have lengthened since."""
    stage = follower_on_stage(entries=LOG)
    effects = stage.say(replicate(B, 1, how="match", probed=RUN - 1), "a")
    assert [answer.why for answer in sent(effects, Unheld)] == ["unmatched"]
    assert stage.brain.held[P, "first"].last == 3


def test_a_doubled_match_does_not_cut_what_came_after_it() -> None:
    stage = matched(1)
    stage.say(replicate(B, 1, LOG[1:]), "a")
    effects = stage.say(replicate(B, 1, how="match", probed=RUN), "a")
    assert not done(effects, TruncateLog)
    assert stage.brain.held[P, "first"].last == 3


def test_a_begin_forgets_all_and_a_doubled_one_nothing_more() -> None:
    stage = follower_on_stage(entries=LOG)
    effects = stage.say(replicate(B, 2, how="begin"), "a")
    assert [(e.base, e.epoch) for e in done(effects, BeginLog)] == [(2, 3)]
    held = stage.brain.held[P, "first"]
    assert (held.first, held.last, held.begun, held.matched) == (2, 2, 3, 3)
    stage.say(replicate(B, 2, LOG[2:]), "a")
    assert not done(stage.say(replicate(B, 2, how="begin"), "a"), BeginLog)
    assert held.last == 3


def test_an_append_that_becomes_durable_after_a_newer_epoch_is_not_acknowledged() -> None:
    stage = matched()
    stage.say(replicate(B, 0, LOG[:1]), "a")
    stage.say(replicate(B, 0, how="begin", epoch=4), "c")
    assert [acked.epoch for acked in sent(stage.store(), Acked)] == []


def test_a_long_log_is_trimmed_behind_the_watermark() -> None:
    stage = Stage("b", ParticipantSettings(entries_kept=1))
    stage.register(stable(), stored(B))
    stage.say(replicate(B, how="match", probed=RUN), "a")
    stage.say(replicate(B, 0, LOG), "a")
    stage.store()
    effects = stage.say(replicate(B, 3, (), watermark=3), "a")
    assert [e.to for e in done(effects, TrimLog)] == [2]


# --- epochs


def test_a_newer_epoch_is_promised_and_told_of_once_it_is_durable() -> None:
    stage = follower_on_stage()
    effects = stage.agree(stable(owner=None, epoch=4))
    assert [e.epoch for e in done(effects, StoreEpoch)] == [4]
    assert stage.status().replicas[P][0].epoch == 3
    stage.store()
    assert stage.status().replicas[P][0].epoch == 4


def test_what_an_older_owner_says_after_the_promise_is_refused() -> None:
    stage = matched(1)
    stage.agree(stable(owner=None, epoch=4))
    (answer,) = sent(stage.say(replicate(B, 1, LOG[1:2]), "a"), Unheld)
    assert answer.why == "stale epoch"


# --- digests


def test_a_digest_is_taken_for_a_session_whose_copy_is_here() -> None:
    stage = follower_on_stage(moving(STREAMING), D)
    held = stage.brain.held[P, "t9"]
    held.copied = "t9@3"
    stage.say(replicate(D, 0, how="begin"), "a")
    held.copied = "t9@3"
    effects = stage.say(replicate(D, 0, LOG[:1], watermark=1, check=("t9@3", 1)), "a")
    assert [e.digest for e in done(effects, AdvanceWatermark)] == [True]
    for wrong in (DigestTaken(P, "t9", 7, 5), DigestTaken(P, "none", 1, 5)):
        stage.tell(wrong)
        assert held.digest is None
    (stores,) = done(stage.tell(DigestTaken(P, "t9", 1, 5)), StoreEpoch)
    assert stage.brain.held[P, "t9"].digest is None
    stage.store(stores.ticket)
    both = 5 << 64 | held.producers.digest(1)
    assert held.digest == ("t9@3", 1, both)
    stage.tell(DigestTaken(P, "t9", 1, 6))
    assert held.digest == ("t9@3", 1, both)


def test_a_digest_that_comes_late_is_not_taken_for_another_one() -> None:
    """F102: rows and producers are those of one and the same position."""
    stage = follower_on_stage(moving(STREAMING), D)
    held = stage.brain.held[P, "t9"]
    stage.say(replicate(D, 0, how="begin"), "a")
    held.copied = "t9@3"
    stage.say(replicate(D, 0, LOG[:2], watermark=1, check=("t9@3", 1)), "a")
    stage.say(replicate(D, 2, watermark=2, check=("t9@3", 2)), "a")
    held.check = ("t9@3", 1)  # a doubled message of before
    assert not done(stage.tell(DigestTaken(P, "t9", 1, 5)), StoreEpoch)


def test_a_digest_that_is_stored_after_its_session_was_closed_does_not_count() -> None:
    stage = follower_on_stage(moving(STREAMING), D)
    held = stage.brain.held[P, "t9"]
    held.check = ("t9@3", 0)
    stage.tell(DigestTaken(P, "t9", 0, 5))
    stage.agree(moving(READ_NEW, epoch=4))
    stage.store()
    assert held.digest is None


def test_a_digest_of_a_session_that_was_not_copied_here_is_not_taken() -> None:
    stage = matched()
    stage.say(replicate(B, 0, LOG[:1], watermark=1, check=("t9@3", 1)), "a")
    assert stage.brain.held[P, "first"].check is None


# --- making and dropping


def created(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects if hasattr(effect, "incarnation")]


def test_a_target_is_prepared_empty_in_the_first_stage_only() -> None:
    stage = Stage("d")
    assert "CreateReplica" in created(stage.register(moving(ALLOW)))
    late = Stage("d")
    assert created(late.register(moving(WRITE_BOTH))) == []


@pytest.mark.parametrize("survived", [0, 1, 2, 3])
def test_a_node_that_crashed_while_it_applied_a_topology_applies_all_of_it_later(
    survived: int,
) -> None:
    """S98: a leftover is dropped, a replica is made, its epoch is promised; any prefix survives."""
    before = Stage("d")
    leftover, made = Replica("d", "t1"), Replica("d", "t9")
    effects = before.register(moving(ALLOW), stored(leftover))
    assert created(effects) == ["DiscardReplica", "CreateReplica", "StoreEpoch"]
    on_disk = [stored(leftover), Started(), stored(made, epoch=0), stored(made, epoch=3)]
    after = Stage("d")
    after.register(moving(ALLOW), on_disk[survived])
    after.store()
    assert set(after.brain.held) == {(P, "t9")}
    assert [known.epoch for known in after.status().replicas[P]] == [3]
    assert after.status().busy == {}


def test_what_a_node_has_under_another_incarnation_is_dropped_before_it_makes_one() -> None:
    """A leftover is never taken for the new replica."""
    stage = Stage("d")
    leftover = Replica("d", "t1")
    effects = stage.register(moving(ALLOW), stored(leftover))
    assert created(effects)[:2] == ["DiscardReplica", "CreateReplica"]
    assert set(stage.brain.held) == {(P, "t9")}


def test_a_replica_that_is_renewed_while_it_is_not_in_sync_is_dropped_first() -> None:
    stage = Stage("c")
    lost = Replica("c", "first")
    targets = (A, B, Replica("c", "t9"))
    record = moving(ALLOW, kind="rebuild", targets=targets, in_sync=(A, B))
    effects = stage.register(record, stored(lost))
    assert [e.incarnation for e in done(effects, DiscardReplica)] == ["first"]
    assert set(stage.brain.held) == {(P, "t9")}


def test_a_replica_on_another_volume_is_made_beside_the_one_that_is_used() -> None:
    stage = Stage("a")
    targets = (Replica("a", "t9", "v2"), B, C)
    effects = stage.register(moving(ALLOW, kind="volume_move", targets=targets), stored(A))
    assert [e.volume for e in done(effects, CreateReplica)] == ["v2"]
    assert not done(effects, DiscardReplica)
    stage.store()
    assert [known.replica for known in stage.status().replicas[P]] == [A, targets[0]]


def test_a_partition_that_is_no_more_takes_its_replicas_along() -> None:
    stage = follower_on_stage()
    stage.tell(LeaseGranted(12, 60, stage.now))
    empty = type(stage.topology)(generation=61)
    effects = stage.tell(TopologyRead(empty, 61))
    assert done(effects, DiscardReplica)
    assert stage.brain.held == {}


def test_a_partition_that_is_no_more_takes_its_replicas_along_while_the_node_runs() -> None:
    """Also what was asked for of it is answered, and the other partitions stay."""
    stage = owner_on_stage()
    stage.agree(replace(stable(), id="q"))
    stage.say(write(), "client")
    assert {key for key, _ in stage.brain.held} == {P}
    stage.agreed = apply(stage.agreed, (Remove(partition_key(P)),), 70)
    effects = stage.read_topology()
    assert [(e.partition, e.incarnation) for e in done(effects, DiscardReplica)] == [(P, "first")]
    assert [(e.id, e.definite) for e in sent(effects, Redirect)] == [("w.1", False)]
    assert (stage.brain.held, stage.brain.owners) == ({}, {})
    assert stage.status().busy == {P: 0}
    stage.store()
    assert stage.status().busy == {}
    assert stage.read_topology() == []


def test_only_what_changed_is_applied_again() -> None:
    stage = follower_on_stage()
    held = stage.brain.held[P, "first"]
    held.revision = 7
    stage.agree(Node("e"))
    assert held.revision == 7
    stage.agree(stable())
    assert held.revision == stage.revision


def test_a_peer_message_for_what_is_not_owned_here_is_ignored() -> None:
    stage = follower_on_stage()
    for message in (Acked(P, A, 3, 1, 1), Probed(P, A, 3, 1, 0, 11), Unheld(P, A, 3, 50, "lost")):
        assert stage.say(message, "a") == []


def test_a_replica_that_was_made_counts_while_more_is_on_its_way_to_the_volume() -> None:
    """Or its move would be given up as if the replica were lost: rows may come before its promise
    is durable."""
    stage, made = Stage("d"), Replica("d", "t9")
    (create,) = done(stage.register(moving(ALLOW)), CreateReplica)
    assert stage.status().replicas == {}
    stage.store(create.ticket)
    assert [known.replica for known in stage.status().replicas[P]] == [made]
    stage.say(replicate(made, 0, how="begin"), "a")
    stage.say(replicate(made, 0, (entry(1, 0),)), "a")
    held = stage.brain.held[P, made.incarnation]
    assert held.appending
    assert not held.epoch_durable
    assert [known.replica for known in stage.status().replicas[P]] == [made]
