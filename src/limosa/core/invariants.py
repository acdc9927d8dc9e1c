"""What is always true? One named function for each invariant of the agreed state.

Each function compares the states before and after one commit, and yields violations in words. The
simulator checks all invariants after every commit, and so do tests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.machines.catalogue import NODE, REBALANCE, RUN_MOVE
from limosa.core.machines.machine import END, REVERT, Side
from limosa.core.model.changes import Agreed, report_key
from limosa.core.model.intent import Assignment
from limosa.core.model.keys import PartitionId, transition_id
from limosa.core.model.runs import ATTEMPTS_MAX, IN_FLIGHT, RunMove, Totals
from limosa.core.model.topology import Partition, Transition


def _changed(before: Agreed, after: Agreed) -> Iterator[tuple[Partition | None, Partition]]:
    old = before.topology.partitions
    for name, record in after.topology.partitions.items():
        if old.get(name) is not record:
            yield old.get(name), record


def layouts_name_existing_partitions(before: Agreed, after: Agreed) -> Iterator[str]:
    """Every layout tiles the token space (or it can't be built) with partitions that exist."""
    for layout in after.topology.layouts.values():
        for index, name in enumerate(layout.partitions):
            record = after.topology.partitions.get(name)
            if record is None or record.range != layout.range_of(index):
                yield f"the layout of {layout.zone} names {name}, which does not hold that range"


def counters_never_go_back(before: Agreed, after: Agreed) -> Iterator[str]:
    if after.topology.generation < before.topology.generation:
        yield "the generation went back"
    for zone, layout in before.topology.layouts.items():
        now = after.topology.layouts.get(zone)
        if now is not None and now.version < layout.version:
            yield f"the version of {zone} went back"
    for old, new in _changed(before, after):
        if old is not None and (new.epoch < old.epoch or new.fence < old.fence):
            yield f"epoch or fence of {new.id} went back"


def one_owner_per_epoch(before: Agreed, after: Agreed) -> Iterator[str]:
    for old, new in _changed(before, after):
        if old is None or old.owner is None or new.epoch != old.epoch:
            continue
        if new.owner != old.owner:
            yield f"{new.id} has two owners in epoch {new.epoch}"


def the_owner_can_own(before: Agreed, after: Agreed) -> Iterator[str]:
    """The owner is in sync, and on the side that is read."""
    for _, new in _changed(before, after):
        if new.owner is not None and new.owner.replica not in routing.electable(new):
            yield f"{new.id} is owned by {new.owner.replica.node}, which is not in sync or not read"


def a_new_epoch_needs_a_seal_or_the_end_of_the_lease(
    before: Agreed, after: Agreed
) -> Iterator[str]:
    """While the owner's lease lives, a new epoch is a hand-over, which names the next owner."""
    for old, new in _changed(before, after):
        if old is None or old.owner is None or new.epoch == old.epoch:
            continue
        lease = before.leases.get(old.owner.replica.node)
        lives = lease is not None and lease.lease == old.owner.lease
        if lives and new.owner is None:
            yield f"{new.id} took the epoch from an owner whose lease lives"


def in_sync_replicas_are_written(before: Agreed, after: Agreed) -> Iterator[str]:
    for _, new in _changed(before, after):
        if any(replica not in routing.everywhere(new) for replica in new.in_sync):
            yield f"{new.id} has an in-sync replica that the record does not name"


def some_replica_is_in_sync(before: Agreed, after: Agreed) -> Iterator[str]:
    for _, new in _changed(before, after):
        if not new.in_sync:
            yield f"{new.id} has no in-sync replica"


def only_replicas_with_every_row_are_elected(before: Agreed, after: Agreed) -> Iterator[str]:
    """An owner was in sync or eligible before, and whoever is eligible was, too; a replica that is
    eligible can return to the in-sync set, and is not in it."""
    for old, new in _changed(before, after):
        had = () if old is None else (*old.in_sync, *old.eligible)
        if any(replica not in had for replica in new.eligible):
            yield f"{new.id} has an eligible replica that may lack rows"
        if any(replica not in routing.may_return(new) for replica in new.eligible):
            yield f"{new.id} has an eligible replica that can't return"
        elected = new.owner is not None and old is not None and new.owner != old.owner
        if elected and new.owner is not None and new.owner.replica not in had:
            yield f"{new.id} is owned by {new.owner.replica.node}, which may lack rows"


def replicas_are_on_distinct_nodes(before: Agreed, after: Agreed) -> Iterator[str]:
    for _, new in _changed(before, after):
        for side in (new.replicas, () if new.transition is None else new.transition.targets):
            if len({replica.node for replica in side}) != len(side):
                yield f"{new.id} has two replicas on one node"


def stages_follow_the_table(before: Agreed, after: Agreed) -> Iterator[str]:
    """At most one transition; it starts at its first stage, and follows the edges of its table."""
    for old, new in _changed(before, after):
        was = None if old is None else old.transition
        now = new.transition
        if was is None:
            if now is not None and now.stage != routing.machine_of(now).first.name:
                yield f"{new.id} started in {now.stage}"
            continue
        stage = routing.machine_of(was)[was.stage]
        edges = {stage.next, *stage.given_up}
        if now is None:
            if not edges & {END, REVERT}:
                yield f"{new.id} ended its transition in {was.stage}"
        elif now.id != was.id:
            yield f"{new.id} has a second transition"
        elif now.stage != was.stage and now.stage not in edges:
            yield f"{new.id} went from {was.stage} to {now.stage}"


def sessions_are_open_where_the_table_says(before: Agreed, after: Agreed) -> Iterator[str]:
    for _, new in _changed(before, after):
        stage = routing.stage_of(new)
        if new.transition is None or stage is None:
            continue
        if (new.transition.session is not None) != stage.session:
            yield f"{new.id}: the session is wrong for {stage.name}"


def transitions_come_from_intent(before: Agreed, after: Agreed) -> Iterator[str]:
    for old, new in _changed(before, after):
        if new.transition is not None and (old is None or old.transition is None):
            pending = _pending(before, new.id)
            if pending is None or transition_id(pending.trigger) != new.transition.id:
                yield f"{new.id} started a transition without an intent"


def _pending(agreed: Agreed, partition: PartitionId) -> Assignment | None:
    intent = agreed.intents.get(partition)
    return None if intent is None else intent.pending


def _switched_to_new(before: Agreed, after: Agreed) -> Iterator[tuple[Partition, Transition]]:
    """Partitions that this commit lets read the new side, and the transition before it."""
    for old, new in _changed(before, after):
        was = None if old is None else routing.stage_of(old)
        now = routing.stage_of(new)
        if was is not None and now is not None and now.switched and not was.switched:
            assert old is not None and old.transition is not None
            yield new, old.transition


def a_cancelled_change_does_not_switch(before: Agreed, after: Agreed) -> Iterator[str]:
    """Once an operator was told that a change will be cancelled, it does not switch any more."""
    for new, _ in _switched_to_new(before, after):
        if new.id in before.intents and before.intents[new.id].cancel is not None:
            yield f"{new.id} switched although it was cancelled"


def a_change_that_was_given_up_does_not_switch(before: Agreed, after: Agreed) -> Iterator[str]:
    """A copy that once differed from its source is never read, whatever later checks find."""
    for new, was in _switched_to_new(before, after):
        if was.given_up_by:
            yield f"{new.id} switched although it was given up: {was.giving_up}"


def intent_matches_the_replicas(before: Agreed, after: Agreed) -> Iterator[str]:
    """Outside a transition the replicas are at the places that `stable` names."""
    for name, intent in after.intents.items():
        record = after.topology.partitions.get(name)
        if record is None or record.transition is not None:
            continue
        here = sorted((replica.node, replica.volume) for replica in record.replicas)
        if here != sorted((place.node, place.volume) for place in intent.stable):
            yield f"{name} is not where its intent says"


def tables_and_partitions_have_a_zone(before: Agreed, after: Agreed) -> Iterator[str]:
    zones = after.topology.zones
    for table in after.topology.tables.values():
        if table.zone not in zones or table.zone not in after.topology.layouts:
            yield f"the table {table.name} is in the zone {table.zone}, which does not exist"
    for _, new in _changed(before, after):
        if new.zone not in zones:
            yield f"{new.id} is in the zone {new.zone}, which does not exist"


def nodes_follow_their_life(before: Agreed, after: Agreed) -> Iterator[str]:
    """A node's record is never deleted; its machine allows each new state, in one or more steps."""
    for name, old in before.topology.nodes.items():
        new = after.topology.nodes.get(name)
        if new is None:
            yield f"the record of {name} was deleted"
        elif new.state != old.state and new.state not in _reachable(old.state):
            yield f"{name} went from {old.state} to {new.state}"


def _reachable(state: str) -> set[str]:
    """Every state that a node can reach from this one."""
    found: set[str] = set()
    ahead = [state]
    while ahead:
        for after in NODE.edges[ahead.pop()].values():
            if after not in found:
                found.add(after)
                ahead.append(after)
    return found


def features_stay_enabled(before: Agreed, after: Agreed) -> Iterator[str]:
    for name in before.topology.features.enabled:
        if name not in after.topology.features.enabled:
            yield f"the feature {name} is not enabled any more"


def nodes_that_left_hold_nothing(before: Agreed, after: Agreed) -> Iterator[str]:
    """No replica is on a node that leaves, and none is placed on a node that has left."""
    left = {name for name, node in after.topology.nodes.items() if node.state == "left"}
    went = {name for name in left if _state_of(before, name) not in ("left", "")}
    records = (
        after.topology.partitions.values() if went else (new for _, new in _changed(before, after))
    )
    for record in records:
        for replica in routing.everywhere(record):
            if replica.node in left:
                yield f"{replica.node} has left, and holds a replica of {record.id}"


def _state_of(agreed: Agreed, node: str) -> str:
    return agreed.topology.nodes[node].state if node in agreed.topology.nodes else ""


# --- runs


def _changed_moves(before: Agreed, after: Agreed) -> Iterator[tuple[RunMove | None, RunMove]]:
    for run, moves in after.moves.items():
        old = before.moves.get(run, {})
        if old is not moves:
            for number, move in moves.items():
                if old.get(number) is not move:
                    yield old.get(number), move


def one_run_at_a_time(before: Agreed, after: Agreed) -> Iterator[str]:
    now = after.rebalance
    named = [] if now.state == "idle" else [now.run]
    active = [run.id for run in after.runs.values() if not run.outcome]
    if active != named:
        yield f"{active} have not ended, but the rebalance is {now.state} {named}"


def the_checkpoint_holds_all_moves(before: Agreed, after: Agreed) -> Iterator[str]:
    """The commit that starts a run stores all of its moves."""
    run = after.runs.get(after.rebalance.run)
    if run is not None and len(after.moves.get(run.id, {})) != run.moves:
        yield f"{run.id} has {run.moves} moves, and not all of them are stored"


def a_rebalance_follows_its_life(before: Agreed, after: Agreed) -> Iterator[str]:
    was, now = before.rebalance, after.rebalance
    if now.state != was.state and now.state not in REBALANCE.edges[was.state].values():
        yield f"the rebalance went from {was.state} to {now.state}"
    if was.run and now.run and now.run != was.run:
        yield f"{now.run} began before {was.run} had ended"


def a_run_stays_what_it_was(before: Agreed, after: Agreed) -> Iterator[str]:
    """The plan of a run never changes; after its end, nothing of the run changes."""
    for name, run in after.runs.items():
        old = before.runs.get(name)
        if old is None or old is run:
            continue
        blank = {"ended": 0.0, "outcome": "", "words": "", "totals": Totals(), "starts": 0}
        if old.outcome or replace(old, **blank) != replace(run, **blank):
            yield f"{name} was changed"


def moves_follow_their_life(before: Agreed, after: Agreed) -> Iterator[str]:
    for old, new in _changed_moves(before, after):
        name = f"{new.partition} in {new.run}"
        if old is None:
            if new.state != "PENDING":
                yield f"{name} began as {new.state}"
            continue
        if (old.partition, old.source, old.target) != (new.partition, new.source, new.target):
            yield f"{name} is another move"
        if new.state != old.state and new.state not in RUN_MOVE.edges[old.state].values():
            yield f"{name} went from {old.state} to {new.state}"
        if new.attempts > ATTEMPTS_MAX:
            yield f"{name} was tried {new.attempts} times"


def moves_begin_only_when_they_may(before: Agreed, after: Agreed) -> Iterator[str]:
    for old, new in _changed_moves(before, after):
        if old is None or old.state != "PENDING" or new.state not in IN_FLIGHT:
            continue
        run = before.runs[new.run]
        if before.rebalance.state != "running" or before.rebalance.run != new.run:
            yield f"{new.partition} began, but {new.run} is not running"
        if before.controls.locked:
            yield f"{new.partition} began, though the cluster is locked"
        if run.by == "balancer" and not before.controls.balancing:
            yield f"{new.partition} began, though balancing is off"


def runs_keep_their_limits(before: Agreed, after: Agreed) -> Iterator[str]:
    if not after.rebalance.run or after.moves is before.moves:
        return
    limits = after.runs[after.rebalance.run].limits
    flying = [m for m in after.moves.get(after.rebalance.run, {}).values() if m.state in IN_FLIGHT]
    for way, limit, nodes in (
        ("to", limits.moves_in, [move.target.node for move in flying]),
        ("away from", limits.moves_out, [move.source for move in flying]),
    ):
        for node, count in Counter(nodes).items():
            if count > limit:
                yield f"{count} moves {way} {node} at once, and {limit} are allowed"


def committed_means_switched(before: Agreed, after: Agreed) -> Iterator[str]:
    """A committed move has switched for good: its old replica is not read any more."""
    for old, new in _changed_moves(before, after):
        if new.state == "COMMITTED" and old is not None and old.state != new.state:
            report = after.reports.get(report_key(new.partition, transition_id(new.trigger)))
            done = report is not None and report.outcome == "done"
            if not done and not _switched(after, new):
                yield f"{new.partition} in {new.run} is committed, and did not switch"


def _switched(agreed: Agreed, move: RunMove) -> bool:
    record = agreed.topology.partitions[move.partition]
    stage, change = routing.stage_of(record), record.transition
    if change is not None and stage is not None and change.id == transition_id(move.trigger):
        return stage.writes is Side.NEW
    return move.target in agreed.intents[move.partition].stable


def failed_means_ended(before: Agreed, after: Agreed) -> Iterator[str]:
    """The attempt has ended completely before its move is failed."""
    for _, new in _changed_moves(before, after):
        if new.state == "FAILED" and _is_under_way(after, new):
            yield f"{new.partition} in {new.run} failed, and is still under way"


def moves_that_an_operator_stopped_are_not_retried(before: Agreed, after: Agreed) -> Iterator[str]:
    for old, new in _changed_moves(before, after):
        report = after.reports.get(report_key(new.partition, transition_id(new.trigger)))
        stopped = report is not None and report.given_up_by == "operator"
        if stopped and new.state == "PENDING" and old is not None and old.state == "FAILED":
            yield f"{new.partition} in {new.run} was stopped by an operator, and is retried"


def _is_under_way(agreed: Agreed, move: RunMove) -> bool:
    pending = _pending(agreed, move.partition)
    return move.trigger > 0 and pending is not None and pending.trigger == move.trigger


def an_ended_run_leaves_no_work(before: Agreed, after: Agreed) -> Iterator[str]:
    """No transition, and so no session; and no move that would never be continued."""
    for name, run in after.runs.items():
        if not run.outcome or name not in before.runs or before.runs[name].outcome:
            continue
        for move in after.moves.get(name, {}).values():
            if move.state in IN_FLIGHT or _is_under_way(after, move):
                yield f"{name} has ended, and its move of {move.partition} has not"
            left = move.state == "PENDING" or (move.state == "FAILED" and not move.final)
            if left and run.outcome != "cancelled":
                yield f"{name} is {run.outcome}, and its move of {move.partition} was not made"
            if run.outcome == "done" and move.state != "COMMITTED":
                yield f"{name} is done, and its move of {move.partition} is {move.state}"
        for node in run.drains:
            if run.outcome == "cancelled" and _state_of(after, node) == "decommissioning":
                yield f"{name} was cancelled, and {node} is still being emptied"


INVARIANTS: tuple[Callable[[Agreed, Agreed], Iterable[str]], ...] = (
    layouts_name_existing_partitions,
    counters_never_go_back,
    one_owner_per_epoch,
    the_owner_can_own,
    a_new_epoch_needs_a_seal_or_the_end_of_the_lease,
    in_sync_replicas_are_written,
    some_replica_is_in_sync,
    only_replicas_with_every_row_are_elected,
    replicas_are_on_distinct_nodes,
    stages_follow_the_table,
    sessions_are_open_where_the_table_says,
    transitions_come_from_intent,
    a_cancelled_change_does_not_switch,
    a_change_that_was_given_up_does_not_switch,
    intent_matches_the_replicas,
    tables_and_partitions_have_a_zone,
    nodes_follow_their_life,
    features_stay_enabled,
    nodes_that_left_hold_nothing,
    one_run_at_a_time,
    the_checkpoint_holds_all_moves,
    a_rebalance_follows_its_life,
    a_run_stays_what_it_was,
    moves_follow_their_life,
    moves_begin_only_when_they_may,
    runs_keep_their_limits,
    committed_means_switched,
    failed_means_ended,
    moves_that_an_operator_stopped_are_not_retried,
    an_ended_run_leaves_no_work,
)


def broken(before: Agreed, after: Agreed) -> list[str]:
    return [problem for invariant in INVARIANTS for problem in invariant(before, after)]
