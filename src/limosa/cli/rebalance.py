"""How are many partitions moved in one run? `limosa rebalance …`."""

from typing import Annotated

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.plans import Concurrency, RunOptions, facts, move_of, print_plan
from limosa.cli.shared.quantities import lasted, moment, seconds_of
from limosa.cli.shared.run_progress import COLUMNS, lines_of, row_of
from limosa.cli.shared.runs import Wait, begin, followed, is_watched, next_of, tell_end
from limosa.cli.shared.terminal import print_answer, print_json, print_table, size
from limosa.client.cluster_view import look
from limosa.core import routing
from limosa.core.insight.progress import progress
from limosa.core.insight.proposing import planned
from limosa.core.model.requests import (
    CancelRun,
    CompleteMove,
    PauseRun,
    Request,
    ResumeRun,
    ReverseMove,
    SetBalancing,
    SetPolicy,
)
from limosa.core.model.runs import IN_FLIGHT, Policy, Run
from limosa.errors import IllegalRequest

BALANCE, NAMED = "spread the load", "named moves"

rebalance = typer.Typer(help="Plan, start and control runs of many moves.", no_args_is_help=True)

RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="The run, like r123.", show_default="the current run"),
]


@rebalance.command()
@with_groups
def plan(target: ClusterOptions, how: Concurrency) -> None:
    """Show which moves would balance the load, and their cost.

    This changes nothing. Load is stored bytes, rows written and rows read. The plan keeps replicas
    on different racks, balances nodes and volumes, and includes only moves that are worth a copy.

    \b
    Examples:
      limosa rebalance plan
      limosa rebalance plan --json
    """
    with target.operate() as connection:
        found, run = planned(look(connection), how.plan(BALANCE))
    if target.as_json:
        print_json(facts(found, run))
        return
    print_plan(found, run)
    if found.moves:
        typer.echo("Start it: limosa rebalance start")


@rebalance.command()
@with_groups
def start(
    target: ClusterOptions,
    move: Annotated[
        list[str] | None,
        typer.Option(
            "--move",
            metavar="PARTITION:FROM:TO[/VOLUME]",
            help="A move, instead of a balancing plan; repeat the option for several.",
            show_default=False,
        ),
    ] = None,
    *,
    how: RunOptions,
    wait: Wait = None,
) -> None:
    """Start a run that balances the load, or that moves what you name.

    There is one run at a time. It survives a crash of the coordinator, can be paused, resumed and
    cancelled, and attempts each move up to 3 times. With --wait, the exit code is 0 if all moves
    are committed, else 1. Ctrl-C does not stop the run.

    \b
    Examples:
      limosa rebalance start --wait
      limosa rebalance start --moves-in 4 --bandwidth 100MiB --max-pause 50ms
      limosa rebalance start --move items-0003:n1:n4 --move items-0007:n2:n4
    """
    with target.operate() as connection:
        if move:
            run = replace(how.plan(NAMED), moves=tuple(map(move_of, move)))
        else:
            _, run = planned(look(connection), how.plan(BALANCE))
        if not run.moves:
            raise IllegalRequest("there is nothing to move", "see `limosa rebalance plan`")
        begin(target, connection, run, wait)


@rebalance.command()
@with_groups
def status(
    target: ClusterOptions,
    run: RunName = None,
    moves: Annotated[
        bool, typer.Option("--moves", help="List every move, not only those in flight.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run has ended.")] = False,
) -> None:
    """Show the progress of a run, and what it waits for.

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
            answer = {"state": "idle", "run": None}
            print_answer(target.as_json, answer, "There has been no run yet.")
            return
        if name not in view.agreed.moves:
            view = look(connection, name)
        found = progress(view, name)
        if wait and not found.run.outcome:
            tell_end(target, followed(target, connection, name))
    every = sorted(view.agreed.moves.get(name, {}).values(), key=lambda each: each.number)
    if target.as_json:
        print_json({**to_builtins(found), "moves": every})
        return
    typer.echo("\n".join(lines_of(found)))
    shown = every if moves else list(found.current)
    if shown:
        typer.echo("")
        print_table(COLUMNS, [row_of(each) for each in shown])


def last_of(runs: dict[str, Run]) -> str:
    return max(runs.values(), key=lambda each: each.started).id if runs else ""


@rebalance.command()
@with_groups
def pause(target: ClusterOptions, run: RunName = None) -> None:
    """Pause a run: moves in flight finish, no others start.

    \b
    Examples:
      limosa rebalance pause
    """
    _turn(target, PauseRun(run or ""))


@rebalance.command()
@with_groups
def resume(target: ClusterOptions, run: RunName = None) -> None:
    """Resume a paused run.

    \b
    Examples:
      limosa rebalance resume
    """
    _turn(target, ResumeRun(run or ""))


@rebalance.command()
@with_groups
def cancel(target: ClusterOptions, run: RunName = None, wait: Wait = None) -> None:
    """Cancel a run.

    Moves that are committed or whose reads have switched stay; the others are rolled back.

    \b
    Examples:
      limosa rebalance cancel
      limosa rebalance cancel r123 --wait
    """
    with target.operate() as connection:
        request = connection.submit(CancelRun(run or ""))
        if not (is_watched(target) if wait is None else wait):
            _tell(target, request)
            return
        ended = followed(target, connection, request.run)
    print_answer(target.as_json, ended, *lines_of(ended))


def _turn(target: ClusterOptions, wish: PauseRun | ResumeRun) -> None:
    with target.operate() as connection:
        request = connection.submit(wish)
    _tell(target, request)


def _tell(target: ClusterOptions, request: Request) -> None:
    answer = {"run": request.run, "operation": request.id, "answer": request.answer}
    answer |= next_of(request.run)
    told = f"See its progress: {answer['next']}"
    print_answer(target.as_json, answer, f"{request.answer}.", told)


@rebalance.command()
@with_groups
def auto(
    target: ClusterOptions,
    on: Annotated[
        bool | None,
        typer.Option(
            "--on/--off", help="Start runs automatically.", show_default="only show the policy"
        ),
    ] = None,
    halt: Annotated[
        bool | None,
        typer.Option(
            "--halt/--go-on",
            help="Also stop the current automatic run, until --go-on.",
            show_default="unchanged",
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(help="Start if a node has this many times the load of another."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How often to check the load.")
    ] = None,
    cooldown: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Minimum time between two runs.")
    ] = None,
) -> None:
    """Show or change the policy of automatic runs.

    Automatic runs move replicas from the most to the least loaded node, and never empty a node.
    They are off by default. --off stops automatic runs from starting; --halt also stops the current
    automatic run from starting further moves. Runs that you start are not affected.

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
            connection.submit(SetPolicy(changed))
        if halt is not None and halt != halted:
            connection.submit(SetBalancing(not halt))
            halted = halt
    told = ["halted: automatic runs start no moves until --go-on"] if halted else []
    told.append(
        f"{'on' if changed.enabled else 'off'}: checks every {lasted(changed.interval_seconds)}, "
        f"starts a run if a node has more than {changed.ratio:g} times the load of another, "
        f"waits {lasted(changed.cooldown_seconds)} after a run"
    )
    print_answer(target.as_json, {**to_builtins(changed), "halted": halted}, *told)


# --- held moves


@rebalance.command()
@with_groups
def complete(target: ClusterOptions) -> None:
    """End the holds of the run's moves: remove the old replicas.

    \b
    Examples:
      limosa rebalance complete
    """
    _end_holds(target, CompleteMove)


@rebalance.command()
@with_groups
def reverse(target: ClusterOptions) -> None:
    """Reverse the moves of the run that are held.

    Their partitions return to the old replicas, and no data is lost.

    \b
    Examples:
      limosa rebalance reverse
    """
    _end_holds(target, ReverseMove)


def _end_holds(target: ClusterOptions, wish: type[CompleteMove] | type[ReverseMove]) -> None:
    done: dict[str, str] = {}
    with target.operate() as connection:
        agreed = connection.runs()
        run = agreed.rebalance.run
        if not run:
            raise IllegalRequest("no run is under way", "see `limosa rebalance history`")
        for move in agreed.moves.get(run, {}).values():
            record = agreed.topology.partitions.get(move.partition)
            change = None if record is None else record.transition
            if move.state in IN_FLIGHT and change is not None and routing.may_end_hold(change):
                done[move.partition] = connection.submit(wish(move.partition)).answer
    if not done:
        raise IllegalRequest(f"no move of {run} is held", "see `limosa rebalance status`")
    lines = [f"{partition}: {answer}." for partition, answer in done.items()]
    print_answer(target.as_json, {"run": run, "answers": done}, *lines)


# --- earlier runs


@rebalance.command()
@with_groups
def history(target: ClusterOptions) -> None:
    """List all runs, the latest first.

    \b
    Examples:
      limosa rebalance history
      limosa rebalance history --json
    """
    with target.operate() as connection:
        agreed = connection.runs()
    runs = sorted(agreed.runs.values(), key=lambda each: each.started, reverse=True)
    if target.as_json:
        print_json({"runs": runs})
        return
    if not runs:
        typer.echo("There has been no run yet.")
        return
    names = "run started took moves committed failed copied pause outcome action"
    print_table(names.split(), [_row(each, agreed.rebalance.state) for each in runs])


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
