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
    "balancing_never_off": 142,
    "begins_by_an_older_state": 610,
    "begins_while_cancelling": 10,
    "cancelled_at_once": 55,
    "cancelled_drain_keeps_its_nodes": 10,
    "cancelled_move_tried_again": 46,
    "checkpoint_of_one_move": 10,
    "chunk_without_its_end": 2,
    "commit_without_revisions": 0,
    "committed_before_the_switch": 10,
    "copy_ahead_of_the_replica": 915,
    "copy_kept_over_failover": 20,
    "copy_older_than_the_log": 9,
    "copy_without_versions": 1,
    "digest_not_compared": 407,
    "dropped_replica_still_read": 151,
    "duplicate_applied_twice": 0,
    "epoch_not_compared": 458,
    "failed_move_called_committed": 19,
    "failover_to_the_unread_side": 47,
    "failover_without_lease_end": 9,
    "fallback_to_one_that_was_taken_out": 217,
    "fence_raised_after_the_drain": 8,
    "floor_forgotten": 1,
    "follower_commits_by_itself": 20,
    "hand_over_without_seal": 37,
    "lease_before_the_topology": 8,
    "lease_counted_from_the_answer": 7048,
    "left_with_a_replica": 82,
    "leftover_reused": 56,
    "limits_ignored": 10,
    "lock_ignored": 199,
    "log_not_cut": 18,
    "lost_replica_made_anew": 851,
    "mismatch_answered_at_once": 1,
    "new_side_taken_out_and_put_back": 32,
    "no_barrier_before_cleanup": 37,
    "no_barrier_before_cleanup_target": 1,
    "no_barrier_before_streaming": 18,
    "no_barrier_before_use_new": 64,
    "opens_without_equalising": 181,
    "pause_forgotten_by_a_successor": 715,
    "permit_not_checked": 16,
    "producers_not_moved": 1,
    "reads_above_the_watermark": 20,
    "reads_admitted_anywhere": 1,
    "reads_after_the_lease": 139,
    "reads_not_checked_again": 0,
    "redirect_retried_on_the_same_partition": 20,
    "repaired_as_if_it_were_filled": 2055,
    "restart_keeps_its_epoch": 5,
    "retries_applied_again": 1,
    "retry_acked_at_once": 4,
    "seal_lifted_by_time": 134,
    "seal_never_lifted": 1,
    "second_start_overwrites": 19,
    "serves_after_its_lease": 16,
    "shelved_over_newer_rows": 9,
    "slices_of_any_number": 737,
    "stale_side_still_read": 250,
    "stale_watch_trusted": 2,
    "switch_despite_a_mismatch": 27,
    "tombstone_collected_early": 5195,
    "tried_without_end": 415,
    "unknown_called_failed": 10,
    "view_from_before_the_opening": 39,
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
