"""How is a plan of moves requested and printed? What moves where, why, and what it costs."""

from typing import Annotated, Any

import typer
from msgspec import to_builtins

from limosa.cli.shared.options import OptionGroup
from limosa.cli.shared.quantities import bytes_of, lasted, seconds_of
from limosa.cli.shared.terminal import count, print_table, size
from limosa.core.model.intent import Placement
from limosa.core.model.runs import Estimate, Limits, PlannedMove, RunPlan
from limosa.core.planning.plan import Balance, Move, Plan
from limosa.errors import BadInput

SHOWN = 20

MaxPause = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Hand over only when the expected pause of writes is at most this long.",
        show_default="no limit",
    ),
]


def pause_of(max_pause: str | None) -> float:
    """In seconds; 0: there is no limit."""
    seconds = 0.0 if max_pause is None else seconds_of(max_pause, "--max-pause")
    if max_pause is not None and not seconds:
        raise BadInput(
            "--max-pause must be more than 0", "every hand-over takes some time; try 50ms"
        )
    return seconds


class Concurrency(OptionGroup, frozen=True, kw_only=True):
    """How many moves of a run are in flight."""

    moves_in: Annotated[int, typer.Option(min=1, help="Concurrent moves to one node.")] = 2
    moves_out: Annotated[int, typer.Option(min=1, help="Concurrent moves away from one node.")] = 2

    def plan(self, action: str) -> RunPlan:
        return RunPlan(action, limits=Limits(self.moves_in, self.moves_out))


class RunOptions(Concurrency, frozen=True, kw_only=True):
    """The options of a run, besides its moves."""

    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="BYTES", help="Limit for all copies of the run, in bytes a second; 0: no limit."
        ),
    ] = "0"
    hold: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long a move keeps its old replica after the switch."
        ),
    ] = "0s"
    max_pause: MaxPause = None

    def plan(self, action: str, **more: Any) -> RunPlan:
        return RunPlan(
            action,
            limits=Limits(self.moves_in, self.moves_out, int(bytes_of(self.bandwidth))),
            hold_seconds=seconds_of(self.hold, "--hold"),
            max_pause_seconds=pause_of(self.max_pause),
            **more,
        )


def move_of(text: str) -> PlannedMove:
    """`items-0003:n1:n4`, or `items-0003:n1:n4/ssd2` with a volume."""
    parts = text.split(":")
    if len(parts) != 3 or not all(parts):
        raise BadInput(
            f"--move {text!r} is not a move", "write PARTITION:FROM:TO, or PARTITION:FROM:TO/VOLUME"
        )
    node, _, volume = parts[2].partition("/")
    return PlannedMove(parts[0], parts[1], Placement(node, volume))


def facts(plan: Plan, run: RunPlan) -> dict[str, Any]:
    described: dict[str, Any] = to_builtins(plan)
    return {
        "action": run.action,
        **described,
        "bytes": plan.bytes,
        "estimate": None if run.estimate is None else to_builtins(run.estimate),
        "limits": to_builtins(run.limits),
    }


def print_plan(plan: Plan, run: RunPlan) -> None:
    if not plan.moves:
        typer.echo("There is nothing to move.")
    else:
        print_table(
            ("partition", "from", "to", "size", "why"),
            [row_of(move) for move in plan.moves[:SHOWN]],
        )
        if len(plan.moves) > SHOWN:
            typer.echo(f"… and {count(len(plan.moves) - SHOWN, 'more move')}")
        typer.echo("")
        typer.echo(cost_words(len(plan.moves), run.estimate))
    typer.echo(balance_words(plan.before, plan.after))
    for large in plan.too_large[:SHOWN]:
        typer.echo(
            f"{large.partition} alone has {large.amount:,.0f} {large.dimension}, more than a "
            f"node's fair share of {large.fair_share:,.0f}: no move can spread its load."
        )
    for left in plan.skipped[:SHOWN]:
        typer.echo(f"{left.partition} does not move: {left.why}.")
    if len(plan.skipped) > SHOWN:
        typer.echo(f"… and {count(len(plan.skipped) - SHOWN, 'more partition')} that do not move.")


def row_of(move: Move) -> tuple[object, ...]:
    return (move.partition, move.source, words(move.target), size(move.bytes), move.why)


def words(place: Placement) -> str:
    return f"{place.node}/{place.volume}" if place.volume else place.node


def cost_words(moves: int, estimate: Estimate | None) -> str:
    known = estimate or Estimate()
    return (
        f"{count(moves, 'move')}, {size(known.bytes)}, about {lasted(known.seconds)}; "
        f"needs up to {size(known.peak_bytes)} of additional disk space; "
        f"writes pause for about {lasted(known.pause_seconds)} at each hand-over."
    )


def balance_words(before: Balance, after: Balance) -> str:
    """`Most loaded node: 1.83 times the mean now, 1.02 afterwards.`"""
    if not before.load:
        return "There is no load to balance."
    return (
        f"Most loaded node: {before.load:.2f} times the mean now, {after.load:.2f} afterwards "
        f"(bytes {before.bytes:.2f} → {after.bytes:.2f}, writes {before.writes:.2f} → "
        f"{after.writes:.2f}, reads {before.reads:.2f} → {after.reads:.2f})."
    )
