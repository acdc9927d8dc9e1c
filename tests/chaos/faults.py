"""What goes wrong, whom does it hit, and how does it end?

A fault has a kind (a line of the table below), a victim that is chosen by its role when the fault
begins, and a time after which it is undone: who was killed is started again, who was paused goes
on, what was cut is healed.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TypeAlias

from msgspec import Struct

from limosa.errors import LimosaError
from tests.chaos.cluster import CLIENTS, Cluster
from tests.chaos.hanging_node import HANGS
from tests.chaos.proxy import Pair
from tests.chaos.rot import damage, segments_of
from tests.chaos.small_node import FULL, QUOTA
from tests.chaos.strangers import Strangers
from tests.waiting import left_after

Undo: TypeAlias = Callable[[], None]
Check: TypeAlias = Callable[[], list[str]]

ENDED_SECONDS = 10.0
"""So long a node whose disk hangs may go on, at most."""
SERVED_SECONDS = 15.0
"""So long after a node is gone for good, the others serve everything."""

UNHEARD_SECONDS = 0.8
"""How long an owner speaks to nobody before it is killed: less than until somebody notices."""


class Fault(Struct, frozen=True):
    """What is to happen."""

    kind: str
    seconds: float
    late: bool
    """What a cut held back goes on afterwards, late; else its lines are reset, and it is lost."""

    def __str__(self) -> str:
        held = ("; late" if self.late else "; lost") if "cut" in self.kind else ""
        return f"{self.kind} {self.seconds:.1f}s{held}"


class Happening(Struct, frozen=True):
    """A fault that has begun."""

    fault: Fault
    victim: str
    undo: Undo
    check: Check = list
    """What is wrong, though it should be well before the fault is undone."""


# --- whom it hits


def most_owning(cluster: Cluster, dice: Random, free: list[str]) -> str | None:
    owned = cluster.owners()
    return max(_nodes(cluster, free), key=lambda node: owned[node], default=None)


def least_owning(cluster: Cluster, dice: Random, free: list[str]) -> str | None:
    owned = cluster.owners()
    return min(_nodes(cluster, free), key=lambda node: owned[node], default=None)


def any_node(cluster: Cluster, dice: Random, free: list[str]) -> str | None:
    nodes = _nodes(cluster, free)
    return dice.choice(nodes) if nodes else None


def in_office(cluster: Cluster, dice: Random, free: list[str]) -> str | None:
    """Or one who stands by, if nobody is."""
    standing = [name for name in cluster.coordinators if name in free]
    holder = cluster.in_office()
    return holder if holder in standing else next(iter(standing), None)


def _nodes(cluster: Cluster, free: list[str]) -> list[str]:
    return [node for node in cluster.nodes if node in free]


# --- what happens


def kill(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    cluster.kill(victim)
    return lambda: cluster.start_one(victim, wait=False)


def restart(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    cluster.terminate(victim)
    return lambda: cluster.start_one(victim, wait=False)


def pause(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    cluster.pause(victim)
    return lambda: cluster.resume(victim)


def cut_into(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """Nobody reaches it; it reaches everybody, and keeps its lease."""
    return _cut(cluster, fault, cluster.network.cut([*cluster.everybody, CLIENTS], [victim]))


def cut_out_of(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """It takes clients' writes and keeps its lease, and reaches no other replica."""
    return _cut(cluster, fault, cluster.network.cut([victim], cluster.nodes))


def cut_off(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """Both."""
    pairs = cluster.network.cut([*cluster.everybody, CLIENTS], [victim])
    return _cut(cluster, fault, pairs | cluster.network.cut([victim], cluster.nodes))


def cut_one(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """It does not reach one of the others, nor that one it."""
    other = next(node for node in cluster.nodes[::-1] if node != victim)
    pairs = cluster.network.cut([victim], [other]) | cluster.network.cut([other], [victim])
    return _cut(cluster, fault, pairs)


def cut_clients(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """The nodes are well, and clients do not reach this one."""
    return _cut(cluster, fault, cluster.network.cut([CLIENTS], [victim]))


def _cut(cluster: Cluster, fault: Fault, pairs: set[Pair]) -> Undo:
    def undo() -> None:
        if not fault.late:
            cluster.network.reset(pairs)
        cluster.network.heal(pairs)

    return undo


def cut_then_kill(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """What it takes from clients meanwhile is nowhere else, and must not have been acknowledged."""
    heal = cut_out_of(cluster, victim, fault)
    time.sleep(UNHEARD_SECONDS)
    start = kill(cluster, victim, fault)

    def undo() -> None:
        heal()
        start()

    return undo


def cut_then_pause(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """The same; but it wakes up again, and believes to be the owner."""
    heal = cut_out_of(cluster, victim, fault)
    time.sleep(UNHEARD_SECONDS)
    resume = pause(cluster, victim, fault)

    def undo() -> None:
        resume()
        heal()

    return undo


def fail_power(cluster: Cluster, victim: str, fault: Fault) -> tuple[Undo, Check]:
    """All nodes are killed at once, and one of them stays away: the others serve without it."""
    for node in cluster.nodes:
        cluster.kill(node)
    others = [node for node in cluster.nodes if node != victim]
    for node in others:
        cluster.start_one(node, wait=False)

    def check() -> list[str]:
        cluster.wait_until_ready(others)
        return left_after(lambda: cluster.unserved_by(others), SERVED_SECONDS, 0.1)

    return lambda: cluster.start_one(victim, wait=False), check


def rot(cluster: Cluster, victim: str, fault: Fault) -> tuple[Undo, Check]:
    """A bit of a live segment flips: the replica is taken out and rebuilt by itself."""
    dice = Random(f"{fault} {victim}")
    held = [
        (record.id, replica, path)
        for record in cluster.agreed().topology.partitions.values()
        for replica in record.replicas
        if replica.node == victim and replica in record.in_sync and len(record.in_sync) > 1
        for path in segments_of(cluster, record.id, replica)
    ]
    if not held:
        return lambda: None, list
    partition, replica, path = dice.choice(held)
    with suppress(OSError, LimosaError):  # a merge may have replaced the segment
        damage(path, dice)

    def check() -> list[str]:
        def rotten() -> list[str]:
            record = cluster.agreed().topology.partitions[partition]
            here = replica in record.replicas and path.exists()
            return [f"{replica.node} still has the damaged {path.name}"] if here else []

        return left_after(rotten, SERVED_SECONDS, 0.1)

    return lambda: None, check


def fill_disk(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """Nothing can be stored there; now and then the disk says that it has plenty of space."""
    mark = cluster.directory / victim / (QUOTA if fault.late else FULL)
    mark.touch()
    return lambda: mark.unlink()


def hang_disk(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """No sync ends: the node ends soon, and can't start before its disk answers again."""
    mark = cluster.directory / victim / "volume" / HANGS
    mark.touch()

    def undo() -> None:
        left_after(lambda: cluster.is_running(victim), ENDED_SECONDS, 0.05)
        mark.unlink()
        if not cluster.is_running(victim):
            cluster.start_one(victim, wait=False)

    return undo


def harass(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """Strangers call it with garbage, beside the load."""
    return Strangers(cluster.addresses[victim], f"{fault} {victim}").stop


def slow(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """Everything to and from it takes its time."""
    pairs = cluster.network.delay([*cluster.everybody, CLIENTS], [victim], 0.15)
    pairs |= cluster.network.delay([victim], cluster.nodes, 0.15)
    return lambda: cluster.network.heal(pairs)


def reset(cluster: Cluster, victim: str, fault: Fault) -> Undo:
    """All its lines break at once, and for a while nobody listens."""
    cluster.network.refuse(victim, True)
    callers = [*cluster.everybody, CLIENTS]
    pairs = {(caller, victim) for caller in callers}
    cluster.network.reset(pairs | {(victim, node) for node in cluster.nodes})
    return lambda: cluster.network.refuse(victim, False)


# fmt: off
Chosen: TypeAlias = Callable[[Cluster, Random, list[str]], str | None]
Begun: TypeAlias = Callable[[Cluster, str, Fault], Undo | tuple[Undo, Check]]
KINDS: dict[str, tuple[Chosen, Begun, tuple[float, float], int]] = {
    # kind                  whom          what            seconds      how often
    "kill owner":          (most_owning,  kill,           (0.0, 2.5),  4),
    "kill follower":       (least_owning, kill,           (0.0, 2.5),  2),
    "kill coordinator":    (in_office,    kill,           (0.0, 4.0),  2),
    "pause owner":         (most_owning,  pause,          (0.5, 6.0),  4),
    "pause follower":      (least_owning, pause,          (0.5, 6.0),  2),
    "pause coordinator":   (in_office,    pause,          (0.5, 6.0),  2),
    "cut into a node":     (any_node,     cut_into,       (0.5, 6.0),  2),
    "cut out of an owner": (most_owning,  cut_out_of,     (0.5, 6.0),  4),
    "cut off a node":      (any_node,     cut_off,        (0.5, 6.0),  2),
    "cut two nodes":       (any_node,     cut_one,        (0.5, 6.0),  2),
    "cut clients":         (any_node,     cut_clients,    (0.5, 4.0),  2),
    "kill a cut owner":    (most_owning,  cut_then_kill,  (0.0, 2.5),  3),
    "pause a cut owner":   (most_owning,  cut_then_pause, (1.5, 5.0),  3),
    "slow node":           (any_node,     slow,           (0.5, 4.0),  1),
    "reset":               (any_node,     reset,          (0.0, 1.5),  3),
    "restart node":        (any_node,     restart,        (0.0, 1.0),  2),
    "restart coordinator": (in_office,    restart,        (0.0, 1.0),  1),
    "power failure":       (most_owning,  fail_power,     (0.0, 2.0),  3),
    "rot":                 (any_node,     rot,            (0.0, 0.5),  3),
    "strangers":           (most_owning,  harass,         (1.0, 4.0),  3),
    "full disk":           (any_node,     fill_disk,      (0.5, 4.0),  3),
    "hung disk":           (most_owning,  hang_disk,      (1.0, 4.0),  3),
}
# fmt: on
TWO_AT_ONCE = 0.2
ALONE = ("power failure",)
"""Faults that hit all nodes, and so happen without another one."""


class Round(Struct, frozen=True):
    """What one round brings."""

    faults: tuple[Fault, ...]


def plan(seed: int, rounds: int) -> list[Round]:
    """The same seed gives the same rounds; short faults are more frequent than long ones."""
    dice = Random(f"{seed} rounds")
    names, shares = list(KINDS), [line[3] for line in KINDS.values()]
    planned = []
    for _ in range(rounds):
        kinds = dice.choices(names, shares, k=2 if dice.random() < TWO_AT_ONCE else 1)
        alone = [kind for kind in kinds if kind in ALONE]
        faults = tuple(_fault(kind, dice) for kind in alone[:1] or kinds)
        planned.append(Round(faults))
    return planned


def _fault(kind: str, dice: Random) -> Fault:
    low, high = KINDS[kind][2]
    seconds = round(low + (high - low) * dice.random() ** 2, 2)
    return Fault(kind, seconds, dice.random() < 0.5)


def begin(cluster: Cluster, fault: Fault, dice: Random, free: list[str]) -> Happening | None:
    """Let it happen to somebody who is free; None: nobody is."""
    choose_victim, happen, _, _ = KINDS[fault.kind]
    victim = choose_victim(cluster, dice, free)
    if victim is None:
        return None
    begun = happen(cluster, victim, fault)
    return Happening(fault, victim, *(begun if isinstance(begun, tuple) else (begun,)))
