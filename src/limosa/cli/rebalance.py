"""How are many moves driven? `limosa rebalance`: plan, start, watch, pause, resume, cancel."""

from typing import Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from limosa.cli.shared.durations import lasted, moment, seconds_of
from limosa.cli.shared.options import Target, of_cluster
from limosa.cli.shared.plans import (
    Bandwidth,
    Hold,
    How,
    MaxPause,
    MovesIn,
    MovesOut,
    facts,
    move_of,
    print_plan,
)
from limosa.cli.shared.run_progress import COLUMNS, lines_of, row_of
from limosa.cli.shared.run_progress import facts as progress_facts
from limosa.cli.shared.runs import Wait, begin, followed, is_watched, next_of, tell_end
from limosa.cli.shared.terminal import print_json, print_table, size
from limosa.client.cluster_view import look
from limosa.core.coordinator.progress import progress
from limosa.core.coordinator.proposing import planned
from limosa.core.machines.catalogue import READ_NEW
from limosa.core.model.intent import Request, RequestKind
from limosa.core.model.runs import IN_FLIGHT, Policy, Run
from limosa.errors import IllegalRequest

BALANCE, NAMED = "spread the load", "named moves"

rebalance = typer.Typer(help="Plan and drive runs of many moves.", no_args_is_help=True)

RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Its name, like r123.", show_default="the one under way"),
]


@rebalance.command()
@of_cluster
def plan(target: Target, moves_in: MovesIn = 2, moves_out: MovesOut = 2) -> None:
    """Print what would be moved to spread the load, what it would cost, and what can't be moved.

    Nothing is changed. Load is bytes, rows written and rows read; racks, nodes and volumes are
    spread, and only what is worth its copy moves.

    \b
    Examples:
      limosa rebalance plan
      limosa rebalance plan --json
    """
    with target.operate() as connection:
        found, run = planned(look(connection), How(moves_in, moves_out).plan(BALANCE))
    if target.as_json:
        print_json(facts(found, run))
        return
    print_plan(found, run)
    if found.moves:
        typer.echo("Start it: limosa rebalance start")


@rebalance.command()
@of_cluster
def start(
    target: Target,
    move: Annotated[
        list[str] | None,
        typer.Option(
            "--move",
            metavar="PARTITION:FROM:TO[/VOLUME]",
            help="This move, instead of what spreads the load. Can be given again.",
            show_default=False,
        ),
    ] = None,
    moves_in: MovesIn = 2,
    moves_out: MovesOut = 2,
    bandwidth: Bandwidth = "0",
    hold: Hold = "0s",
    max_pause: MaxPause = None,
    wait: Wait = None,
) -> None:
    """Start a run that spreads the load, or of the moves that you name.

    One run at a time. It goes on if the coordinator dies, can be paused, resumed and cancelled, and
    tries each move up to 3 times. With --wait the exit code is 0 if every move is committed, else
    1. Ctrl-C leaves the run going.

    \b
    Examples:
      limosa rebalance start --wait
      limosa rebalance start --moves-in 4 --bandwidth 100MiB --max-pause 50ms
      limosa rebalance start --move items-0003:n1:n4 --move items-0007:n2:n4
    """
    how = How(moves_in, moves_out, bandwidth, hold, max_pause)
    with target.operate() as connection:
        if move:
            run = replace(how.plan(NAMED), moves=tuple(map(move_of, move)))
        else:
            _, run = planned(look(connection), how.plan(BALANCE))
        if not run.moves:
            raise IllegalRequest("nothing is to be moved", "see `limosa rebalance plan`")
        begin(target, connection, run, wait)


@rebalance.command()
@of_cluster
def status(
    target: Target,
    run: RunName = None,
    moves: Annotated[
        bool, typer.Option("--moves", help="List every move, not only those in flight.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show it until it has ended.")] = False,
) -> None:
    """Say how far a run is: rows, bytes, rate, time left, and what it waits for.

    \b
    Examples:
      limosa rebalance status
      limosa rebalance status r123 --moves
      limosa rebalance status --wait
    """
    with target.operate() as connection:
        view = look(connection, run or "")
        name = run or view.agreed.rebalance.run or last_of(view.agreed.runs)
        if not name:
            if target.as_json:
                print_json({"state": "idle", "run": None})
            else:
                typer.echo("No run is under way, and there was none so far.")
            return
        if name not in view.agreed.moves:
            view = look(connection, name)
        found = progress(view, name)
        if wait and not found.run.outcome:
            tell_end(target, followed(target, connection, name))
    every = sorted(view.agreed.moves.get(name, {}).values(), key=lambda each: each.number)
    if target.as_json:
        print_json({**progress_facts(found), "moves": to_builtins(every)})
        return
    for line in lines_of(found):
        typer.echo(line)
    shown = every if moves else list(found.current)
    if shown:
        typer.echo("")
        print_table(COLUMNS, [row_of(each) for each in shown])


def last_of(runs: dict[str, Run]) -> str:
    return max(runs.values(), key=lambda each: each.started).id if runs else ""


@rebalance.command()
@of_cluster
def pause(target: Target, run: RunName = None) -> None:
    """Begin no more moves; those in flight end.

    \b
    Examples:
      limosa rebalance pause
    """
    _turn(target, "pause_run", run)


@rebalance.command()
@of_cluster
def resume(target: Target, run: RunName = None) -> None:
    """Go on with a run that was paused.

    \b
    Examples:
      limosa rebalance resume
    """
    _turn(target, "resume_run", run)


@rebalance.command()
@of_cluster
def cancel(target: Target, run: RunName = None, wait: Wait = None) -> None:
    """Give a run up: what is committed stays, what is in flight goes back unless it has switched.

    \b
    Examples:
      limosa rebalance cancel
      limosa rebalance cancel r123 --wait
    """
    with target.operate() as connection:
        name = run or connection.runs().rebalance.run
        request = connection.change_run("cancel_run", run or "")
        if not (is_watched(target) if wait is None else wait):
            _tell(target, request, name)
            return
        ended = followed(target, connection, name)
    if target.as_json:
        print_json(progress_facts(ended))
        return
    for line in lines_of(ended):
        typer.echo(line)


def _turn(target: Target, kind: RequestKind, run: str | None) -> None:
    with target.operate() as connection:
        request = connection.change_run(kind, run or "")
        name = run or connection.runs().rebalance.run
    _tell(target, request, name)


def _tell(target: Target, request: Request, name: str) -> None:
    answer: dict[str, Any] = {"run": name, "operation": request.id, "answer": request.answer}
    if target.as_json:
        print_json({**answer, **next_of(name)})
        return
    typer.echo(f"{request.answer}.")
    typer.echo(f"How far it is: limosa rebalance status {name}")


@rebalance.command()
@of_cluster
def auto(
    target: Target,
    on: Annotated[
        bool | None,
        typer.Option("--on/--off", help="Whether to.", show_default="only show the policy"),
    ] = None,
    halt: Annotated[
        bool | None,
        typer.Option(
            "--halt/--go-on",
            help="Let a run that the cluster began go no further either, until --go-on.",
            show_default="as it is",
        ),
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="How many times the least loaded node's load is too much.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How often to look.")
    ] = None,
    cooldown: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to rest after a run.")
    ] = None,
) -> None:
    """Let the cluster begin runs by itself, or see when it would.

    It moves from the most loaded node to the least loaded one, and never empties a node. Off unless
    you switch it on. --off lets it begin no other run; --halt also keeps the one under way, if the
    cluster began it, from beginning more moves. Your own runs go on.

    \b
    Examples:
      limosa rebalance auto
      limosa rebalance auto --on
      limosa rebalance auto --on --ratio 1.5 --every 30s --cooldown 10m
      limosa rebalance auto --halt
    """
    with target.operate() as connection:
        controls = connection.runs().controls
        policy, halted = controls.policy, not controls.balancing
        changed = Policy(
            policy.enabled if on is None else on,
            policy.ratio if ratio is None else ratio,
            policy.interval_seconds if every is None else seconds_of(every, "--every"),
            policy.cooldown_seconds if cooldown is None else seconds_of(cooldown, "--cooldown"),
        )
        if changed != policy:
            connection.set_policy(changed)
        if halt is not None and halt != halted:
            connection.switch("set_balancing", on=not halt)
            halted = halt
    if target.as_json:
        print_json({**to_builtins(changed), "halted": halted})
        return
    if halted:
        typer.echo("halted: what the cluster began goes no further, until --go-on")
    typer.echo(
        f"{'on' if changed.enabled else 'off'}: looks every {lasted(changed.interval_seconds)}, "
        f"begins a run if a node has more than {changed.ratio:g} times the load of another, "
        f"rests {lasted(changed.cooldown_seconds)} after a run"
    )


# --- moves that are held


@rebalance.command()
@of_cluster
def complete(target: Target) -> None:
    """End the hold of every move of the run that is held: their old replicas go.

    \b
    Examples:
      limosa rebalance complete
    """
    _end_holds(target, "complete")


@rebalance.command()
@of_cluster
def reverse(target: Target) -> None:
    """Take every move of the run that is held back to its old replicas; nothing is lost.

    \b
    Examples:
      limosa rebalance reverse
    """
    _end_holds(target, "reverse")


def _end_holds(target: Target, kind: RequestKind) -> None:
    done: dict[str, str] = {}
    with target.operate() as connection:
        agreed = connection.runs()
        run = agreed.rebalance.run
        if not run:
            raise IllegalRequest("no run is under way", "see `limosa rebalance history`")
        for move in agreed.moves.get(run, {}).values():
            record = agreed.topology.partitions.get(move.partition)
            change = None if record is None else record.transition
            if move.state in IN_FLIGHT and change is not None and change.stage == READ_NEW:
                done[move.partition] = connection.change_partition(kind, move.partition).answer
    if not done:
        raise IllegalRequest(f"no move of {run} is held", "see `limosa rebalance status`")
    if target.as_json:
        print_json({"run": run, "answers": done})
        return
    for partition, answer in done.items():
        typer.echo(f"{partition}: {answer}.")


# --- what was


@rebalance.command()
@of_cluster
def history(target: Target) -> None:
    """List the runs that there were, the last one first.

    \b
    Examples:
      limosa rebalance history
      limosa rebalance history --json
    """
    with target.operate() as connection:
        agreed = connection.runs()
    runs = sorted(agreed.runs.values(), key=lambda each: each.started, reverse=True)
    if target.as_json:
        print_json({"runs": to_builtins(runs)})
        return
    if not runs:
        typer.echo("There was no run so far.")
        return
    print_table(
        (
            "run",
            "began",
            "took",
            "moves",
            "committed",
            "failed",
            "copied",
            "pause",
            "outcome",
            "what",
        ),
        [_row(each, agreed.rebalance.state) for each in runs],
    )


def _row(run: Run, state: str) -> tuple[object, ...]:
    totals = run.totals
    return (
        run.id,
        moment(run.started),
        lasted(run.ended - run.started) if run.outcome else None,
        run.moves,
        totals.committed if run.outcome else None,
        totals.failed if run.outcome else None,
        size(totals.bytes) if run.outcome else None,
        lasted(totals.pause_seconds) if totals.pause_seconds else None,
        run.outcome or state,
        run.action,
    )
