"""How is a bug planted? By replacing small functions of the core for the duration of a run.

The core itself has no switches for it. Each mutant is listed with the seed that finds it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec import Struct

Plant = Callable[[Callable[[Any, str, Any], None]], None]


class Mutant(Struct, frozen=True):
    """One planted bug."""

    name: str
    breaks: str
    plant: Plant
    seed: int = -1
    argument: str = ""
    """Why no seed can find it, if other rules make its rule redundant."""


# The seed that finds each mutant, as printed by `limosa mutants --search`.
SEEDS: dict[str, int] = {
    "ack_without_a_silent_replica": 18,
    "ack_without_the_new_side": 29,
    "acked_before_it_is_durable": 1,
    "balancing_never_off": 1606,
    "begins_by_an_older_state": 2443,
    "begins_while_cancelling": 10,
    "cancelled_at_once": 19,
    "cancelled_drain_keeps_its_nodes": 10,
    "cancelled_move_tried_again": 46,
    "checkpoint_of_one_move": 10,
    "chunk_without_its_end": 62,
    "client_without_back_off": 338,
    "commit_without_revisions": 253,
    "committed_before_the_switch": 10,
    "committed_while_others_are_eligible": 1944,
    "copy_ahead_of_the_replica": 239,
    "copy_kept_over_failover": 47,
    "copy_older_than_the_log": 914,
    "copy_without_versions": 71,
    "count_never_asked_again": 100,
    "damage_ignored": 204,
    "digest_not_compared": 947,
    "dropped_replica_still_read": 1948,
    "duplicate_applied_twice": 0,
    "eligible_forgotten": 988,
    "eligible_though_it_left_before": 3,
    "epoch_not_compared": 119,
    "failed_move_called_committed": 19,
    "failover_to_the_unread_side": 402,
    "failover_without_lease_end": 19,
    "fallback_to_one_that_was_taken_out": 2310,
    "fence_raised_after_the_drain": 301,
    "floor_forgotten": 5,
    "follower_commits_by_itself": 20,
    "hand_over_without_seal": 74,
    "hung_disk_keeps_its_office": 336,
    "lease_before_the_topology": 8,
    "lease_counted_from_the_answer": 119,
    "left_with_a_replica": 82,
    "leftover_reused": 1949,
    "limits_ignored": 10,
    "lock_ignored": 238,
    "log_not_cut": 918,
    "lost_replica_made_anew": 2219,
    "min_in_sync_ignored": 6,
    "mismatch_answered_at_once": 5,
    "new_side_taken_out_and_put_back": 1331,
    "no_barrier_before_cleanup": 1505,
    "no_barrier_before_cleanup_target": 1518,
    "no_barrier_before_streaming": 2358,
    "no_barrier_before_use_new": 1720,
    "opens_without_equalising": 421,
    "pause_forgotten_by_a_successor": 1435,
    "permit_not_checked": 425,
    "producers_not_moved": 1,
    "promised_before_it_is_durable": 150,
    "proposal_withdrawn_by_time": 158,
    "proposed_only_when_idle": 719,
    "put_back_at_an_old_revision": 2219,
    "put_back_before_it_has_caught_up": 460,
    "reads_above_the_watermark": 287,
    "reads_admitted_anywhere": 8,
    "reads_after_the_lease": 119,
    "reads_not_checked_again": 200,
    "redirect_retried_on_the_same_partition": 6,
    "repaired_as_if_it_were_filled": 1439,
    "restart_keeps_its_epoch": 5,
    "retries_applied_again": 1,
    "retry_acked_at_once": 5,
    "seal_lifted_by_time": 134,
    "seal_never_lifted": 470,
    "sealed_without_a_taker": 784,
    "second_start_overwrites": 19,
    "serves_after_its_lease": 204,
    "shelved_over_newer_rows": 131,
    "silence_ignores_own_lag": 1058,
    "slices_of_any_number": 1043,
    "stale_side_still_read": 1076,
    "stale_union_exploded": 2078,
    "stale_watch_trusted": 1202,
    "switch_despite_a_mismatch": 29,
    "taken_out_without_a_report": 1499,
    "tombstone_collected_early": 168,
    "tried_without_end": 319,
    "unknown_called_failed": 10,
    "view_from_before_the_opening": 246,
}

MUTANTS: dict[str, Mutant] = {}
REDUNDANT: dict[str, Mutant] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    mutant = MUTANTS.get(name) or REDUNDANT[name]
    with ExitStack() as stack:

        def change(where: Any, what: str, by: Any) -> None:
            stack.enter_context(patch.object(where, what, by))

        mutant.plant(change)
        yield


def mutant(breaks: str, argument: str = "") -> Callable[[Plant], Plant]:
    """A mutant that makes several changes, each by a call of `change`."""

    def register(plant: Plant) -> Plant:
        enlist(plant.__name__, breaks, plant, argument)
        return plant

    return register


def wrapping(
    where: Any, what: str, breaks: str, argument: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A mutant that replaces `where.what`, and gets the original function as its first argument."""

    def register(by: Callable[..., Any]) -> Callable[..., Any]:
        def plant(change: Any) -> None:
            original = getattr(where, what)
            change(where, what, lambda *those, **named: by(original, *those, **named))

        enlist(by.__name__, breaks, plant, argument)
        return by

    return register


def replacing(table: dict[str, tuple[str, Any, str, Any]]) -> None:
    """Mutants that replace one function: the rule that they break, where, what, and by what."""
    for name, (breaks, where, what, by) in table.items():
        enlist(name, breaks, _changing(where, what, by))


def _changing(where: Any, what: str, by: Any) -> Plant:
    return lambda change: change(where, what, by)


def always(answer: object) -> Callable[..., Any]:
    return lambda *those, **named: answer


def enlist(name: str, breaks: str, plant: Plant, argument: str = "") -> None:
    listed = REDUNDANT if argument else MUTANTS
    listed[name] = Mutant(name, breaks, plant, SEEDS.get(name, -1), argument)
