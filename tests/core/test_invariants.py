"""Is each invariant tripped by the commit that breaks it, and by that one only?"""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from limosa.core import invariants
from limosa.core.invariants import INVARIANTS, broken
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.model.changes import (
    Agreed,
    Change,
    Put,
    Remove,
    apply,
    layout_key,
    node_key,
    partition_key,
)
from limosa.core.model.intent import Intent
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.topology import Features, Layout, NamedTable, Node, Partition, Replica
from tests.core.samples import (
    NODES,
    OLD,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    placed,
    stable,
)
from tests.core.test_run_invariants import TRIPPED

Invariant = Callable[[Agreed, Agreed], Iterable[str]]


def in_transition(stage: str, **more: object) -> Partition:
    record = moving(stage)
    assert record.transition is not None
    return replace(record, transition=replace(record.transition, **more))


HERE = Intent(P, placed(*OLD))
TWICE = (A, B, Replica("b", "t9"))

# fmt: off
CASES: list[tuple[Invariant, Partition, Intent, tuple[Change, ...], str]] = [
    # the invariant, the record and intent before, the bad commit, and what is said
    (invariants.layouts_name_existing_partitions, stable(), HERE, (Remove(partition_key(P)),),
     "the layout of z names p, which does not hold that range"),
    (invariants.layouts_name_existing_partitions, stable(), HERE,
     (Put(replace(stable(), range=TokenRange(0, TOKEN_END))),), "does not hold that range"),
    (invariants.counters_never_go_back, stable(), HERE,
     (Put(Layout("z", 0, (TOKEN_MIN,), (P,))),), "the version of z went back"),
    (invariants.counters_never_go_back, stable(), HERE, (Put(stable(epoch=2)),),
     "epoch or fence of p went back"),
    (invariants.counters_never_go_back, stable(fence=7), HERE, (Put(stable(fence=6)),),
     "epoch or fence of p went back"),
    (invariants.one_owner_per_epoch, stable(), HERE, (Put(stable(owner=B)),),
     "p has two owners in epoch 3"),
    (invariants.the_owner_can_own, stable(), HERE, (Put(stable(in_sync=(B, C))),),
     "p is owned by a, which is not in sync or not read"),
    (invariants.the_owner_can_own, moving(READ_NEW), intends(),
     (Put(moving(READ_NEW, owner=A, epoch=4)),), "p is owned by a"),
    (invariants.a_new_epoch_needs_a_seal_or_the_end_of_the_lease, stable(), HERE,
     (Put(stable(owner=None, epoch=4)),), "p took the epoch from an owner whose lease lives"),
    (invariants.in_sync_replicas_are_written, stable(), HERE, (Put(stable(in_sync=(A, B, D))),),
     "p has an in-sync replica that the record does not name"),
    (invariants.some_replica_is_in_sync, stable(owner=None), HERE,
     (Put(stable(owner=None, in_sync=())),), "p has no in-sync replica"),
    (invariants.only_replicas_with_every_row_are_elected, stable(in_sync=(A, B)), HERE,
     (Put(replace(stable(in_sync=(A,)), eligible=(B, C))),), "an eligible replica that may lack"),
    (invariants.only_replicas_with_every_row_are_elected, stable(), HERE,
     (Put(replace(stable(in_sync=(A, B)), eligible=(B,))),), "an eligible replica that can't"),
    (invariants.only_replicas_with_every_row_are_elected,
     stable(in_sync=(A,), owner=None, epoch=4), HERE,
     (Put(stable(in_sync=(A, B), owner=B, epoch=4)),), "p is owned by b, which may lack rows"),
    (invariants.replicas_are_on_distinct_nodes, stable(), HERE,
     (Put(stable(TWICE)), Put(Intent(P, placed(*TWICE)))), "p has two replicas on one node"),
    (invariants.replicas_are_on_distinct_nodes, stable(), intends(targets=TWICE),
     (Put(moving(ALLOW, targets=TWICE)),), "p has two replicas on one node"),
    (invariants.stages_follow_the_table, stable(), intends(), (Put(moving(WRITE_BOTH)),),
     "p started in write_both_read_old"),
    (invariants.stages_follow_the_table, moving(ALLOW), intends(), (Put(moving(STREAMING)),),
     "p went from allow_write_both_read_old to streaming"),
    (invariants.stages_follow_the_table, moving(READ_NEW), intends(),
     (Put(moving(CLEANUP_TARGET, epoch=4)),), "p went from write_both_read_new to cleanup_target"),
    (invariants.stages_follow_the_table, moving(STREAMING), intends(), (Put(stable()),),
     "p ended its transition in streaming"),
    (invariants.stages_follow_the_table, moving(ALLOW), intends(),
     (Put(in_transition(ALLOW, id="t10")),), "p has a second transition"),
    (invariants.sessions_are_open_where_the_table_says, moving(ALLOW), intends(),
     (Put(in_transition(WRITE_BOTH, session=None)),),
     "p: the session is wrong for write_both_read_old"),
    (invariants.sessions_are_open_where_the_table_says, moving(USE_NEW), intends(),
     (Put(in_transition(CLEANUP, session="t9@3")),), "p: the session is wrong for cleanup"),
    (invariants.transitions_come_from_intent, stable(), HERE, (Put(moving(ALLOW)),),
     "p started a transition without an intent"),
    (invariants.transitions_come_from_intent, stable(), intends(),
     (Put(in_transition(ALLOW, id="t8")),), "p started a transition without an intent"),
    (invariants.a_cancelled_change_does_not_switch, moving(STREAMING), intends(cancel=9),
     (Put(moving(READ_NEW, epoch=4)),), "p switched although it was cancelled"),
    (invariants.intent_matches_the_replicas, stable(), HERE, (Put(Intent(P, placed(B, C, D))),),
     "p is not where its intent says"),
    (invariants.tables_and_partitions_have_a_zone, stable(), HERE,
     (Put(NamedTable("orders", "y", "i1", b"")),),
     "the table orders is in the zone y, which does not exist"),
    (invariants.tables_and_partitions_have_a_zone, stable(), HERE,
     (Put(replace(stable(), zone="y")),), "p is in the zone y, which does not exist"),
    (invariants.nodes_follow_their_life, stable(), HERE, (Remove(node_key("d")),),
     "the record of d was deleted"),
    (invariants.nodes_follow_their_life, stable(), HERE, (Put(Node("d", state="bootstrapping")),),
     "d went from normal to bootstrapping"),
]
# fmt: on


@pytest.mark.parametrize(
    ("invariant", "record", "intent", "changes", "words"),
    CASES,
    ids=[f"{case[0].__name__}-{n}" for n, case in enumerate(CASES)],
)
def test_a_bad_commit_trips_its_invariant_and_no_other(
    invariant: Invariant,
    record: Partition,
    intent: Intent,
    changes: tuple[Change, ...],
    words: str,
) -> None:
    before = cluster(record, intent)
    after = apply(before, changes, 70)
    said = list(invariant(before, after))
    assert len(said) == 1
    assert words in said[0]
    assert broken(before, after) == said


def test_a_generation_that_goes_back_is_noticed() -> None:
    before = cluster(stable())
    after = replace(before, topology=replace(before.topology, generation=3))
    assert broken(before, after) == ["the generation went back"]


def test_a_feature_that_is_not_enabled_any_more_is_noticed() -> None:
    """F144."""
    before = cluster(stable(), more=(Features(("streams", "tables")),))
    after = apply(before, (Put(Features(("tables",))),), 70)
    assert broken(before, after) == ["the feature streams is not enabled any more"]


def test_a_node_that_has_left_does_not_come_back() -> None:
    """S19: but a node that lives may come to leave, in one commit or in several."""
    before = cluster(stable())
    after = apply(before, (Put(Node("d", state="left")),), 70)
    assert broken(before, after) == []
    assert broken(after, before) == ["the generation went back", "d went from left to normal"]


def test_every_invariant_has_a_commit_that_trips_it() -> None:
    tripped = (
        TRIPPED
        | {case[0] for case in CASES}
        | {
            invariants.features_stay_enabled,
            invariants.a_change_that_was_given_up_does_not_switch,
        }
    )
    assert tripped == set(INVARIANTS)


def test_a_copy_that_differed_is_not_read() -> None:
    """F102: the commit that goes on all the same is refused."""
    before = cluster(moving(STREAMING, giving_up="it differs"), intends())
    after = apply(before, (Put(moving(READ_NEW, epoch=4)),), 70)
    assert broken(before, after) == ["p switched although it was given up: it differs"]


GOOD: list[tuple[Partition, Intent, tuple[Change, ...], tuple[str, ...]]] = [
    (stable(), HERE, (), NODES),
    (stable(), HERE, (Put(stable(in_sync=(A, B))),), NODES),
    (stable(), HERE, (Put(stable(owner=None, epoch=4)),), ("b", "c")),
    (stable(owner=None), HERE, (Put(stable(owner=B)),), NODES),
    (stable(), intends(), (Put(moving(ALLOW)),), NODES),
    (moving(STREAMING), intends(), (Put(moving(READ_NEW, epoch=4)),), NODES),
    (moving(STREAMING), intends(cancel=9), (Put(moving(CLEANUP_TARGET)),), NODES),
    (moving(READ_NEW), intends(cancel=9), (Put(moving(USE_NEW)),), NODES),
    (stable(), HERE, (Remove(partition_key(P)), Remove(layout_key("z"))), NODES),
]


@pytest.mark.parametrize(("record", "intent", "changes", "live"), GOOD)
def test_a_sound_commit_trips_none(
    record: Partition, intent: Intent, changes: tuple[Change, ...], live: tuple[str, ...]
) -> None:
    before = cluster(record, intent, live)
    assert broken(before, apply(before, changes, 70)) == []


def test_an_epoch_of_an_earlier_run_may_be_taken_over() -> None:
    before = cluster(stable())
    another_run = replace(
        before, leases={**before.leases, "a": replace(before.leases["a"], lease=99)}
    )
    assert broken(another_run, apply(another_run, (Put(stable(owner=None, epoch=4)),), 70)) == []


def test_a_partition_that_was_not_there_before_breaks_nothing() -> None:
    after = cluster(stable(owner=None, epoch=0))
    assert broken(Agreed(), after) == []
