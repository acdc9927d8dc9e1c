"""What strikes a move, whom, and in which stage? Faults with a victim that has a part in the move.

A cell is a stage and a kind of fault. Each move is planned to be struck in one of them, and those
that were not hit yet are preferred.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple, TypeAlias, cast

from msgspec import Struct

from limosa.core.machines.catalogue import MOVE, STREAMING
from tests.chaos.cluster import CLIENTS, EXECUTORS, Cluster
from tests.chaos.faults import Undo
from tests.chaos.proxy import Pair
from tests.chaos.surroundings import Process, Role, send

STAGES = tuple(stage.name for stage in MOVE.stages)
UNHIT = 10.0
"""So much likelier is a cell that was not hit yet."""
LATE_SECONDS_MAX = 0.8
"""How long after the beginning of a copy it is struck, at the latest."""


class Cell(NamedTuple):
    stage: str
    kind: str


class Parts(NamedTuple):
    """Who has which part in a move."""

    source: str
    target: str


class Strike(Struct, frozen=True):
    """What is to happen to a move, once it is in a stage."""

    cell: Cell
    after_seconds: float
    seconds: float
    late: bool
    """What a cut held back goes on afterwards, late; else its lines are reset, and it is lost."""


class Struck(Struct, frozen=True):
    """A strike that has begun."""

    kind: str
    victim: str
    until: float
    undo: Undo


# --- what happens


def kill(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    cluster.kill(victim)
    return lambda: cluster.start_one(victim, wait=False)


def pause(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    cluster.pause(victim)
    return lambda: cluster.resume(victim)


def cut_off(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    """It reaches nobody, and nobody reaches it; but it keeps its lease."""
    others = [*cluster.everybody, CLIENTS, EXECUTORS]
    pairs = cluster.network.cut(others, [victim]) | cluster.network.cut([victim], cluster.nodes)
    return _healing(cluster, pairs, strike)


def cut_coordinator(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    """It is in office, and hears of no node."""
    return _healing(cluster, cluster.network.cut([victim], cluster.nodes), strike)


def cut_executors(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    """All is well but the copy."""
    return _healing(cluster, cluster.network.cut([EXECUTORS], parts), strike)


def cut_from_each_other(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    """Source and target; others reach both."""
    pairs = cluster.network.cut([parts.source], [parts.target])
    return _healing(cluster, pairs | cluster.network.cut([parts.target], [parts.source]), strike)


def _healing(cluster: Cluster, pairs: set[Pair], strike: Strike) -> Undo:
    def undo() -> None:
        if not strike.late:
            cluster.network.reset(pairs)
        cluster.network.heal(pairs)

    return undo


def kill_on_spark(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    for process in _on_spark(cluster, victim):
        send(process, signal.SIGKILL)
    return lambda: None


def pause_on_spark(cluster: Cluster, victim: str, parts: Parts, strike: Strike) -> Undo:
    struck = _on_spark(cluster, victim)
    for process in struck:
        send(process, signal.SIGSTOP)

    def undo() -> None:
        for process in struck:
            send(process, signal.SIGCONT)

    return undo


# --- whom it strikes


def _on_spark(cluster: Cluster, victim: str) -> list[Process]:
    role, _, coordinator = victim.partition(" of ")
    return cluster.spark(cast(Role, role), coordinator)


def source(cluster: Cluster, parts: Parts) -> str | None:
    return parts.source


def target(cluster: Cluster, parts: Parts) -> str | None:
    return parts.target


def coordinator(cluster: Cluster, parts: Parts) -> str | None:
    holder = cluster.in_office()
    return holder if holder in cluster.coordinators else None


def executors(cluster: Cluster, parts: Parts) -> str | None:
    return _spark("executor", cluster)


def application(cluster: Cluster, parts: Parts) -> str | None:
    return _spark("application", cluster)


def java(cluster: Cluster, parts: Parts) -> str | None:
    return _spark("java", cluster)


def _spark(role: Role, cluster: Cluster) -> str | None:
    """Of whoever is in office; nobody, if it does not run Spark now."""
    holder = cluster.in_office()
    if holder is None or not cluster.is_running(holder) or not cluster.spark(role, holder):
        return None
    return f"{role} of {holder}"


# fmt: off
Chosen: TypeAlias = Callable[[Cluster, Parts], str | None]
Begun: TypeAlias = Callable[[Cluster, str, Parts, Strike], Undo]
KINDS: dict[str, tuple[Chosen, Begun, tuple[float, float], float]] = {
    # kind                         whom         what                 seconds      share
    "kill source":                (source,      kill,                (0.0, 2.0),  4),
    "kill target":                (target,      kill,                (0.0, 2.0),  4),
    "kill coordinator":           (coordinator, kill,                (0.0, 2.0),  1.5),
    "kill executors":             (executors,   kill_on_spark,       (0.0, 0.0),  3),
    "kill application":           (application, kill_on_spark,       (0.0, 0.0),  1),
    "kill java":                  (java,        kill_on_spark,       (0.0, 0.0),  1),
    "pause source":               (source,      pause,               (0.3, 3.0),  3),
    "pause target":               (target,      pause,               (0.3, 3.0),  3),
    "pause coordinator":          (coordinator, pause,               (0.5, 5.0),  1.5),
    "pause executors":            (executors,   pause_on_spark,      (0.3, 6.0),  2),
    "pause application":          (application, pause_on_spark,      (0.3, 3.0),  1),
    "pause java":                 (java,        pause_on_spark,      (0.3, 3.0),  1),
    "cut off source":             (source,      cut_off,             (0.3, 3.0),  3),
    "cut off target":             (target,      cut_off,             (0.3, 3.0),  3),
    "cut coordinator":            (coordinator, cut_coordinator,     (0.3, 3.0),  2),
    "cut executors":              (executors,   cut_executors,       (0.3, 3.0),  2),
    "cut source and target":      (source,      cut_from_each_other, (0.3, 3.0),  2),
}
# fmt: on
ON_SPARK = tuple(kind for kind, line in KINDS.items() if line[0] in (executors, application, java))


def kinds(on_spark: bool) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if on_spark or kind not in ON_SPARK)


def plan(dice: Random, chosen: Counter[Cell], on_spark: bool) -> Strike:
    """A strike in a cell that was seldom chosen so far, by the kinds' shares."""
    cells = [Cell(stage, kind) for stage in STAGES for kind in kinds(on_spark)]
    weights = [
        KINDS[cell.kind][3] * (1.0 / (1 + chosen[cell]) if chosen[cell] else UNHIT)
        for cell in cells
    ]
    (cell,) = dice.choices(cells, weights)
    low, high = KINDS[cell.kind][2]
    after = dice.random() * LATE_SECONDS_MAX if cell.stage == STREAMING else 0.0
    seconds = low + (high - low) * dice.random() ** 2
    return Strike(cell, round(after, 2), round(seconds, 2), dice.random() < 0.5)


def begin(cluster: Cluster, strike: Strike, parts: Parts, busy: Iterable[str]) -> Struck | None:
    """None: its victim is not there, or is struck already."""
    choose_victim, happen, _, _ = KINDS[strike.cell.kind]
    victim = choose_victim(cluster, parts)
    if victim is None or victim in busy or _is_held_by(victim, busy):
        return None
    if victim in cluster.everybody and (
        victim in cluster.starting or not cluster.is_running(victim)
    ):
        return None
    undo = happen(cluster, victim, parts, strike)
    return Struck(strike.cell.kind, victim, time.monotonic() + strike.seconds, undo)


def _is_held_by(victim: str, busy: Iterable[str]) -> bool:
    """What runs for a coordinator, while that one or another part of it is struck."""
    family = victim.rpartition(" of ")[2]
    return any(each.rpartition(" of ")[2] == family for each in busy)


def same_for(kind: str, victim: str, parts: Parts) -> str | None:
    """By which name it strikes another move; None: not at all."""
    if KINDS[kind][0] not in (source, target):
        return kind
    if KINDS[kind][1] is cut_from_each_other or victim not in parts:
        return None
    part = "source" if victim == parts.source else "target"
    return " ".join([*kind.split(" ")[:-1], part])
