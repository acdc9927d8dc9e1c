"""How does one move go? What is wanted of it, how far it is, and how it ended."""

import re
import time
from collections import Counter
from concurrent.futures import Future
from itertools import pairwise
from random import Random
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP_TARGET,
    FALLBACK,
    MOVE,
    READ_NEW,
    STREAMING,
    WRITE_BOTH,
)
from limosa.core.machines.machine import END, REVERT
from limosa.core.model.changes import Agreed, report_key
from limosa.core.model.reports import Report
from limosa.core.model.requests import Request, RequestKind
from limosa.core.model.topology import Partition
from limosa.errors import LimosaError
from tests.chaos import strikes
from tests.chaos.strikes import Cell, Parts, Strike

Way: TypeAlias = Literal["through", "expire", "complete", "reverse", "cancel"]
"""What somebody does to it: nothing; or it is held, and the hold ends so; or it is cancelled."""

# fmt: off
WAYS: dict[Way, tuple[int, tuple[str, ...]]] = {
    # way       share  the stages that it can be struck in; it leads through no others for sure
    "through":  (10,   (ALLOW, WRITE_BOTH, STREAMING, READ_NEW, "use_new", "cleanup")),
    "expire":   (1,    (ALLOW, WRITE_BOTH, STREAMING, READ_NEW, "use_new", "cleanup")),
    "complete": (2,    (ALLOW, WRITE_BOTH, STREAMING, READ_NEW, "use_new", "cleanup")),
    "reverse":  (2,    (ALLOW, WRITE_BOTH, STREAMING, READ_NEW, FALLBACK, CLEANUP_TARGET)),
    "cancel":   (2,    (ALLOW, WRITE_BOTH, STREAMING, CLEANUP_TARGET)),
}
# fmt: on
STRUCK = 0.8
"""How many moves are planned to be struck."""
HELD: tuple[Way, ...] = ("expire", "complete", "reverse")
CANCELLED_IN = (ALLOW, WRITE_BOTH, STREAMING, STREAMING, STREAMING)
HOLD_SECONDS = (0.3, 1.5)
HOLD_SECONDS_MAX = 8.0
"""If nobody ends it, because the request for that was lost."""
UNANSWERED_SECONDS = 5.0
"""How long after an unknown answer a move may still begin, if nobody has to serve its request."""
ASKS_MAX = 3
AGAIN_SECONDS = 0.1
"""Before a strike is tried again whose victim was not there."""


class Plan(Struct, frozen=True):
    """What one move is to be."""

    way: Way = "through"
    deed_in: str = ""
    """Somebody asks for its end in this stage."""
    deed_after_seconds: float = 0.0
    strike: Strike | None = None

    @property
    def hold_seconds(self) -> float:
        if self.way not in HELD:
            return 0.0
        return self.deed_after_seconds if self.way == "expire" else HOLD_SECONDS_MAX

    @property
    def deed(self) -> RequestKind | None:
        if self.way == "complete" or self.way == "reverse" or self.way == "cancel":
            return self.way
        return None


def plan(dice: Random, chosen: Counter[Cell], on_spark: bool) -> Plan:
    strike = strikes.plan(dice, chosen, on_spark) if dice.random() < STRUCK else None
    fit = [
        way for way, (_, stages) in WAYS.items() if strike is None or strike.cell.stage in stages
    ]
    (way,) = dice.choices(fit, [WAYS[each][0] for each in fit])
    low, high = HOLD_SECONDS
    if way in HELD:
        return Plan(way, READ_NEW, low + (high - low) * dice.random(), strike)
    if way == "cancel":
        struck_in = "" if strike is None else strike.cell.stage
        fit_in = (
            CANCELLED_IN[CANCELLED_IN.index(struck_in) :]
            if struck_in in CANCELLED_IN
            else CANCELLED_IN
        )
        return Plan(way, dice.choice(fit_in), dice.random() * 0.5, strike)
    return Plan(way, strike=strike)


class Ended(Struct, frozen=True):
    """How a move ended."""

    outcome: Literal["done", "reverted", "cancelled before it began", "refused", "not begun"]
    why: str = ""
    report: Report | None = None

    @property
    def reason(self) -> str:
        """Without the names and numbers of this one."""
        named = re.sub(r"\bn\d+\b", "a node", re.sub(r"\b\w+-\d{4}\b", "it", self.why))
        return re.sub(r"\b\d[\d,.]*\b", "…", named)


class Move:
    """One that was asked for."""

    def __init__(
        self,
        number: int,
        partition: str,
        parts: Parts,
        plan: Plan,
        agreed: Agreed,
        asked: "Future[Request]",
    ) -> None:
        self.number = number
        self.partition = partition
        self.parts = parts
        self.plan = plan
        self.asked = asked
        self.asked_at = time.monotonic()
        self.stages: list[str] = []
        """Those that it was seen in."""
        self.stage_since = self.asked_at
        self.struck: str = ""
        self.deeds: list[Future[Request]] = []
        self.transition = ""
        self.trigger = 0
        self._known = set(agreed.reports)
        self._answered_at: float | None = None
        self._tried_at = 0.0

    def __str__(self) -> str:
        return f"{self.partition} {self.parts.source}→{self.parts.target}"

    @property
    def stage(self) -> str:
        return self.stages[-1] if self.stages else ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.asked_at

    @property
    def was_reversed(self) -> bool:
        """Somebody asked for it in time, and was told so."""
        answered = [each for each in self.deeds if each.done() and each.exception() is None]
        return self.plan.deed == "reverse" and bool(answered)

    # --- looking

    def look(self, agreed: Agreed) -> Ended | None:
        """None: it goes on."""
        record = agreed.topology.partitions[self.partition]
        if not self.transition:
            self._recognise(agreed)
        if not self.transition:
            return self._unbegun(agreed)
        change = record.transition
        if change is not None and change.id == self.transition:
            if change.stage != self.stage:
                self.stages.append(change.stage)
                self.stage_since = time.monotonic()
            return None
        pending = agreed.intents[self.partition].pending
        if pending is not None and pending.trigger == self.trigger:
            return None
        return self._ending(agreed)

    def _recognise(self, agreed: Agreed) -> None:
        pending = agreed.intents[self.partition].pending
        if pending is not None and pending.kind == "move":
            self.trigger = pending.trigger
            self.transition = f"t{pending.trigger}"
            return
        for key in agreed.reports.keys() - self._known:
            report = agreed.reports[key]
            if report.partition == self.partition and report.kind == "move":
                self.transition = report.transition
                self.trigger = int(report.transition[1:])

    def _unbegun(self, agreed: Agreed) -> Ended | None:
        if not self.asked.done():
            return None
        error = self.asked.exception()
        if isinstance(error, LimosaError) and error.definite:
            return Ended("refused", error.message)
        now = time.monotonic()
        self._answered_at = self._answered_at or now
        waits = any(
            request.partition == self.partition and request.state == "waiting"
            for request in agreed.requests.values()
        )
        if waits or now - self._answered_at < UNANSWERED_SECONDS:
            return None
        return Ended("not begun", str(error))

    def _ending(self, agreed: Agreed) -> Ended:
        report = agreed.reports.get(report_key(self.partition, self.transition))
        if report is not None:
            return Ended(report.outcome, report.why, report)
        if self.deeds and not self.stages:
            return Ended("cancelled before it began")
        return Ended("not begun", "it has ended without a report")

    # --- what is to be done

    def deed_is_due(self) -> bool:
        """Somebody is to end it now; again, if that failed."""
        plan = self.plan
        if plan.deed is None or self.stage != plan.deed_in or len(self.deeds) >= ASKS_MAX:
            return False
        if self.deeds and not (self.deeds[-1].done() and self.deeds[-1].exception() is not None):
            return False
        return time.monotonic() - self.stage_since >= plan.deed_after_seconds

    def strike_is_due(self) -> bool:
        """It is to be tried now."""
        strike = self.plan.strike
        if strike is None or self.struck or self.stage != strike.cell.stage:
            return False
        now = time.monotonic()
        if now < self.stage_since + strike.after_seconds or now < self._tried_at + AGAIN_SECONDS:
            return False
        self._tried_at = now
        return True


# --- was it a legal one?


def illegal_steps(stages: list[str]) -> list[str]:
    """Steps that no way through the table has; some stages may have passed unseen."""
    found = []
    for before, after in pairwise(stages):
        if after not in _reachable(before):
            found.append(f"{before} → {after}")
    return found


def _reachable(stage: str) -> set[str]:
    found: set[str] = set()
    open_ = [stage]
    while open_:
        at = MOVE[open_.pop()]
        for name in (at.next, *at.given_up):
            if name not in (END, REVERT) and name not in found:
                found.add(name)
                open_.append(name)
    return found


def wrong_ends(record: Partition, move: Move, ended: Ended) -> list[str]:
    """Where its replicas must be now; others may have been rebuilt meanwhile."""
    nodes = [replica.node for replica in record.replicas]
    inside, outside = move.parts if ended.outcome != "done" else move.parts[::-1]
    if inside in nodes and outside not in nodes:
        return []
    return [f"{move} is {ended.outcome}, and its replicas are on {', '.join(nodes)}"]
