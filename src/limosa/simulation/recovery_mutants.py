"""Which bugs keep a cluster from recovering, or make it recover by losing rows? See `mutants`."""

from typing import Any
from unittest.mock import patch

from limosa.core import routing
from limosa.core.coordinator import ownership, resizing, transitions
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.machine import Work
from limosa.core.messages import Acked
from limosa.core.participant.following import Following
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.overdue import SyncWatch
from limosa.core.participant.owner import Owner
from limosa.simulation.planting import always, mutant, replacing, wrapping

# fmt: off
replacing({
    "put_back_at_an_old_revision": (
        "a replica returns only by a commit for the revision at which its owner waits for it",
        ownership, "is_current", always(True)),
    "put_back_before_it_has_caught_up": (
        "a replica returns only when it has everything that is committed",
        Owner, "caught_up",
        lambda self: tuple((replica, self.revision) for replica in self.proposed)),
    "eligible_forgotten": (
        "a replica that leaves too few in sync stays eligible",
        ClusterView, "eligible", always(())),
    "eligible_though_it_left_before": (
        "a replica that left while enough stayed in sync is not eligible",
        ClusterView, "eligible",
        lambda self, before, after: () if routing.takes_writes(after, 2)
        else routing.may_return(after)),
    "committed_while_others_are_eligible": (
        "nothing is committed that an eligible replica may lack",
        Owner, "must_stop", always(False)),
    "min_in_sync_ignored": (
        "a write is acknowledged only if enough replicas are in sync",
        routing, "takes_writes", always(True)),
    "hung_disk_keeps_its_office": (
        "a node whose disk hangs is not in office",
        SyncWatch, "tick", always([])),
    "damage_ignored": (
        "a replica whose rows can't be read is not in office, and is rebuilt",
        ClusterView, "is_damaged", always(False)),
    "count_never_asked_again": (
        "a replica count that a partition gave up is tried again",
        resizing, "ask_again", always(None)),
})
# fmt: on


@mutant(
    "an election goes on without a live candidate that does not promise in time",
    argument="A node whose disk hangs ends its run after a while, and its lease with it: the rule "
    "only makes elections faster.",
)
def election_waits_for_every_promise(change: Any) -> None:
    change(ownership, "is_overdue", always(False))


@wrapping(ownership, "silent_replicas", "a replica is taken out only on a report of its live owner")
def taken_out_without_a_report(silent: Any, view: ClusterView, record: Any) -> tuple[Any, ...]:
    dead = [r for r in record.in_sync if not view.is_live(r.node) and r != record.owner.replica]
    return (*silent(view, record), *(r for r in dead if r not in silent(view, record)))


@mutant("a follower acknowledges only what is durable")
def acked_before_it_is_durable(change: Any) -> None:
    take = Following._take

    def ack(self: Following, held: Held, sender: str, epoch: int) -> None:
        acked = Acked(held.partition, held.replica, epoch, held.last, held.watermark)
        self._node.send(sender, acked)

    def at_once(self: Following, sender: str, held: Held, message: Any) -> None:
        take(self, sender, held, message)
        ack(self, held, sender, message.epoch)

    change(Following, "_ack", ack)
    change(Following, "_take", at_once)


@wrapping(Hosting, "_promise", "a replica promises an epoch only when the promise is durable")
def promised_before_it_is_durable(promise: Any, self: Hosting, held: Held, epoch: int) -> None:
    promise(self, held, epoch)
    held.epoch_durable = max(held.epoch_durable, epoch)


@wrapping(Owner, "propose", "a replica returns though its owner is never idle: acks wait for it")
def proposed_only_when_idle(propose: Any, self: Owner, now: float, peer: Any) -> None:
    if peer.acked == self.held.last:
        propose(self, now, peer)


@mutant("an owner seals only when a replica can take over")
def sealed_without_a_taker(change: Any) -> None:
    def seal(*those: Any) -> Any:
        with patch.object(transitions, "takers", always([True])):
            return transitions.seal(*those)

    change(transitions, "DO", {**transitions.DO, Work.SEAL: seal})
