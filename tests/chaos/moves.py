"""How does a run of moves go? Several at once, all the time, and most of them are struck.

One loop looks at the agreed state every few milliseconds: it asks for moves, sees which stage each
is in, strikes and undoes, and counts how they end. Now and then it lets all of them end, and judges
everything. Nothing but requests is done on other threads.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

from msgspec import Struct, field

from limosa.client import Operator, TableHandle
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CompleteMove,
    MovePartition,
    Request,
    ReverseMove,
)
from limosa.core.model.topology import Partition
from limosa.errors import MetastoreUnavailable
from tests.chaos import leftovers, strikes, torment
from tests.chaos.ballast import Ballast
from tests.chaos.cluster import Cluster
from tests.chaos.load import Load
from tests.chaos.moving import Ended, Move, Plan, illegal_steps, plan, wrong_ends
from tests.chaos.strikes import Cell, Parts, Struck
from tests.chaos.torment import Torment

POLL_SECONDS = 0.005
MOVE_SECONDS_MAX = 240.0
"""Less than a coordinator waits for a copy of which it hears nothing."""
STRUCK_AT_ONCE = 2
TOGETHER = 2
"""So many moves at least are asked for at once, if there is room: they share a job."""
OF_AN_OWNER = 0.6
"""How many moves take the owner's replica."""
PROGRESS_MOVES = 10
ASKING_THREADS = 8


class Options(Struct, frozen=True):
    moves: int = 500
    seed: int = 0
    nodes: int = 4
    partitions: int = 8
    lease_seconds: float = 1.0
    contenders: int = 3
    pipeline: Literal["spark", "threads"] = "spark"
    rows: int = 100_000
    """Of the ballast, in all partitions together, of 1 kB each."""
    bandwidth: str = "16MiB"
    """Of all copies together, so that they take a while."""
    at_once: int = 6
    season_moves: int = 50
    """After so many everything is judged, and other keys are used."""


class Report(torment.Report):
    moves: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of those that did not end as was asked for."""
    cells: Counter[Cell] = field(default_factory=Counter)
    missed: int = 0
    """Strikes for which a move never was in the stage, or nobody was there to be struck."""
    pause_seconds_max: float = 0.0
    seconds_max: float = 0.0
    """Of one move."""
    spark_starts: int = 0

    def as_json(self) -> dict[str, Any]:
        cells: dict[str, dict[str, int]] = {}
        for (stage, kind), count in sorted(self.cells.items()):
            cells.setdefault(stage, {})[kind] = count
        return {
            "moves": self.moves,
            "ended": dict(sorted(self.ended.items())),
            "reasons": dict(self.reasons.most_common()),
            "cells": cells,
            "missed": self.missed,
            "longest_hand_over_seconds": round(self.pause_seconds_max, 3),
            "longest_move_seconds": round(self.seconds_max, 1),
            "spark_starts": self.spark_starts,
            **super().as_json(),
        }


class Moves(Torment[Report]):
    """Real moves of real partitions, tormented."""

    def __init__(
        self,
        directory: Path,
        options: Options,
        say: Callable[[str], None] = lambda line: None,
        tell: Callable[[str], None] = lambda line: None,
        plans: Iterable[Plan] = (),
    ) -> None:
        """`say` hears of the progress, `tell` of every move; the first moves have these plans."""
        super().__init__(
            directory, Report(), options.seed, options.partitions, options.contenders, say
        )
        self.options = options
        self._on_spark = options.pipeline == "spark"
        self._dice = Random(f"{options.seed} moves")
        self._asking = ThreadPoolExecutor(ASKING_THREADS, thread_name_prefix="chaos-ask")
        self._under_way: list[Move] = []
        self._struck: list[Struck] = []
        self._chosen: Counter[Cell] = Counter()
        self._number = 0
        self._agreed = Agreed()
        self._final: Agreed | None = None
        self._ballast: Ballast | None = None
        self._tell = tell
        self._plans = iter(plans)

    def make_cluster(self) -> Cluster:
        options = self.options
        carrying = ["--pipeline", options.pipeline, "--bandwidth", options.bandwidth]
        return Cluster(
            self.directory,
            options.nodes,
            lease_seconds=options.lease_seconds,
            of_coordinators=carrying,
        )

    def prepare(self, cluster: Cluster, connection: Operator) -> None:
        self._ballast = Ballast(connection, self.options.rows)

    # --- the loop

    def play(self, cluster: Cluster, connection: Operator, table: TableHandle, load: Load) -> None:
        try:
            while self.report.moves < self.options.moves and self.report.ok:
                self._play_season(cluster, connection, load)
                self._settle(cluster)
                if self.report.ok:
                    self.judge(cluster, connection, table, load)
                    load.begin_season()
        finally:
            self._settle(cluster)
            self._asking.shutdown(cancel_futures=True)
        self._final = cluster.agreed()

    def _play_season(self, cluster: Cluster, connection: Operator, load: Load) -> None:
        """Until so many moves have ended, and none is under way."""
        until = min(self.report.moves + self.options.season_moves, self.options.moves)
        while self.report.ok:
            agreed = self._look(cluster)
            enough = self.report.moves + len(self._under_way) >= until
            if not self._under_way and self.report.moves >= until:
                return
            if not enough and len(self._under_way) <= self.options.at_once - TOGETHER:
                self._begin_some(agreed, connection, until)
            for move in list(self._under_way):
                self._follow(cluster, connection, load, agreed, move)
            self._undo_what_is_due(cluster, load)
            cluster.hear_of_starts()
            time.sleep(POLL_SECONDS)

    def _look(self, cluster: Cluster) -> Agreed:
        """What is agreed. Whoever is paused while it writes there holds up all who read it, us as
        well; it goes on only if we do."""
        with suppress(MetastoreUnavailable):
            self._agreed = cluster.agreed()
        return self._agreed

    def _settle(self, cluster: Cluster) -> None:
        """Undo everything, and wait for those who start."""
        for struck in self._struck:
            struck.undo()
        self._struck = []
        cluster.wait_until_ready(list(cluster.starting))
        for name in cluster.everybody:
            if not cluster.is_running(name):
                self.find("ill", f"{name} ended by itself: {cluster.last_words(name)}")

    # --- asking

    def _begin_some(self, agreed: Agreed, connection: Operator, until: int) -> None:
        busy = {move.partition for move in self._under_way}
        free = [
            record
            for name, record in agreed.topology.partitions.items()
            if name not in busy and record.transition is None and record.owner is not None
            if agreed.intents[name].pending is None
        ]
        self._dice.shuffle(free)
        room = min(self.options.at_once, until - self.report.moves) - len(self._under_way)
        for record in free[: max(0, room)]:
            self._ask(agreed, connection, record)

    def _ask(self, agreed: Agreed, connection: Operator, record: Partition) -> None:
        holders = [replica.node for replica in record.replicas]
        others = [node for node in sorted(agreed.topology.nodes) if node not in holders]
        well = set(agreed.leases) - {each.victim for each in self._struck}
        if not well.issuperset([*holders, *others]):
            return
        assert record.owner is not None
        owner = record.owner.replica.node
        source = owner if self._dice.random() < OF_AN_OWNER else self._dice.choice(holders)
        parts = Parts(source, self._dice.choice(others))
        planned = next(self._plans, None) or plan(self._dice, self._chosen, self._on_spark)
        if planned.strike is not None:
            self._chosen[planned.strike.cell] += 1
        self._number += 1
        wish = MovePartition(
            record.id,
            source=parts.source,
            target=Placement(parts.target),
            hold_seconds=planned.hold_seconds,
        )
        asked = self._asking.submit(connection.submit, wish)
        self._under_way.append(Move(self._number, record.id, parts, planned, agreed, asked))

    # --- following

    def _follow(
        self, cluster: Cluster, connection: Operator, load: Load, agreed: Agreed, move: Move
    ) -> None:
        ended = move.look(agreed)
        if ended is not None:
            self._under_way.remove(move)
            self._end(agreed, move, ended)
            return
        if move.deed_is_due():
            move.deeds.append(self._do(connection, move))
        if len(self._struck) < STRUCK_AT_ONCE and move.strike_is_due():
            self._strike(cluster, load, move)
        if move.seconds > MOVE_SECONDS_MAX:
            why = cluster.last_wait(move.partition)
            self.find("hang", f"{move} goes on for {move.seconds:.0f}s in {move.stage}: {why}")

    def _do(self, connection: Operator, move: Move) -> "Future[Request]":
        assert move.plan.deed is not None
        wishes: dict[str, AnyWish] = {
            "cancel": CancelChange(move.partition, move.trigger),
            "reverse": ReverseMove(move.partition),
            "complete": CompleteMove(move.partition),
        }
        return self._asking.submit(connection.submit, wishes[move.plan.deed])

    def _strike(self, cluster: Cluster, load: Load, move: Move) -> None:
        assert move.plan.strike is not None
        load.poke()
        busy = [each.victim for each in self._struck]
        struck = None
        with suppress(MetastoreUnavailable):
            struck = strikes.begin(cluster, move.plan.strike, move.parts, busy)
        if struck is None:
            return
        self._struck.append(struck)
        self.report.faults[struck.kind] += 1
        move.struck = f"{struck.kind} ({struck.victim}) {move.plan.strike.seconds:.1f}s"
        for each in self._under_way:
            kind = (
                struck.kind
                if each is move
                else strikes.same_for(struck.kind, struck.victim, each.parts)
            )
            if each.stage and kind is not None:
                self.report.cells[Cell(each.stage, kind)] += 1
                self._chosen[Cell(each.stage, kind)] += each is not move

    def _undo_what_is_due(self, cluster: Cluster, load: Load) -> None:
        now = time.monotonic()
        for struck in [each for each in self._struck if each.until <= now]:
            load.poke()
            struck.undo()
            self._struck.remove(struck)

    def _end(self, agreed: Agreed, move: Move, ended: Ended) -> None:
        report = self.report
        report.ended[ended.outcome] += 1
        self._tell(_told(move, ended))
        if ended.outcome != "done":
            report.reasons[f"{ended.outcome}: {ended.reason}" if ended.why else ended.outcome] += 1
        elif move.was_reversed:
            report.reasons["done, although it was to be reversed"] += 1
        strike = move.plan.strike
        if strike is not None and not move.struck:
            report.missed += 1
            self._chosen[strike.cell] -= 1
        for step in illegal_steps(move.stages):
            self.find("violation", f"{move} went {step}")
        if ended.report is not None:
            report.moves += 1
            report.pause_seconds_max = max(report.pause_seconds_max, ended.report.pause_seconds)
            report.seconds_max = max(report.seconds_max, move.seconds)
            if "verification" in ended.why or ended.report.differences:
                self.find("violation", f"{move}: {ended.why}: {ended.report.differences}")
            for problem in wrong_ends(agreed.topology.partitions[move.partition], move, ended):
                self.find("violation", problem)
            if report.moves % PROGRESS_MOVES == 0:
                self.say(self._progress())
        elif ended.outcome == "not begun" and move.stages:
            self.find("violation", f"{move}, last in {move.stage}: {ended.why}")

    def _progress(self) -> str:
        report = self.report
        what = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.ended.items()))
        hit, all_ = len(report.cells), len(strikes.STAGES) * len(strikes.kinds(self._on_spark))
        return f"{report.moves:4}  {what}; {report.faults.total()} faults, {hit} of {all_} cells"

    # --- judgement

    def judge_more(self, cluster: Cluster, connection: Operator) -> None:
        for problem in leftovers.in_the_cluster(cluster, connection):
            self.find("stray", problem)
        assert self._ballast is not None
        for problem in self._ballast.problems():
            self.find("lost", problem)

    def judge_the_end(self) -> None:
        self.report.spark_starts = sum(
            log.read_text(errors="replace").count(" Spark starts ")
            for log in (self.directory / "logs").glob("coordinator*.log")
        )
        if self._final is not None:
            for problem in leftovers.on_disk(self.directory, self._final):
                self.find("stray", problem)


def _told(move: Move, ended: Ended) -> str:
    strike = move.plan.strike
    struck = f"; {move.struck} in {strike.cell.stage}" if strike is not None and move.struck else ""
    why = f" ({ended.why})" if ended.why else ""
    what = f"{move.number:4}  {move}, {move.plan.way}: {ended.outcome}{why}"
    return f"{what} after {move.seconds:.1f}s{struck}"
