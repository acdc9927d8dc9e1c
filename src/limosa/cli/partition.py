"""How is a replica of a partition moved to another node? `limosa partition …`."""

from typing import Annotated, Any

import typer

from limosa.admin.moves import EndedChange, Wanted, leaving_replica, record_of, volume_on
from limosa.cli.shared.move_progress import ProgressDisplay, follow, on_errors, took_words
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.plans import MaxPause, pause_of
from limosa.cli.shared.quantities import seconds_of
from limosa.cli.shared.runs import is_watched
from limosa.cli.shared.terminal import print_answer, print_json, tell
from limosa.core.model.intent import Placement
from limosa.core.model.keys import transition_id
from limosa.core.model.requests import (
    CancelChange,
    CompleteMove,
    MovePartition,
    MoveToVolume,
    Request,
    ReverseMove,
)
from limosa.errors import IllegalRequest

partition = typer.Typer(help="Move a partition, or end a move.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="PARTITION", help="The partition, as `limosa partitions` lists it."),
]


@partition.command()
@with_groups
def move(
    target: ClusterOptions,
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="NODE", help="The node that gets the replica.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NODE", help="The node that loses it.", show_default="the owner"
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(
            help="The volume on that node.", show_default="the one with the fewest replicas"
        ),
    ] = None,
    hold: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long to keep the old replica after the switch."),
    ] = "0s",
    max_pause: MaxPause = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait", help="Wait until the move has ended.", show_default="on a terminal"
        ),
    ] = None,
) -> None:
    """Move one replica of a partition to another node.

    The partition is read and written meanwhile. With --wait, the exit code is 0 if the move is
    done, and 1 if it was rolled back. Ctrl-C does not stop the move.

    \b
    Examples:
      limosa partition move items-0003 --to n4
      limosa partition move items-0003 --from n2 --to n4 --max-pause 50ms --no-wait
      limosa partition move items-0003 --to n4 --hold 10m
      limosa partition move items-0003 --from n2 --to n2 --volume ssd2
    """
    hold_seconds = seconds_of(hold, "--hold")
    pause_seconds = pause_of(max_pause)
    with target.operate() as connection:
        agreed = connection.state(name)
        record = record_of(agreed, name)
        leaving, reason = leaving_replica(record, source)
        place = Placement(to, volume_on(connection.refresh(), to, volume))
        if place == Placement(leaving.node, leaving.volume):
            raise IllegalRequest(
                f"{to} holds a replica of {name} already", "choose another node or --volume"
            )
        wish = (MoveToVolume if to == leaving.node else MovePartition)(
            name,
            source=leaving.node,
            target=place,
            hold_seconds=hold_seconds,
            max_pause_seconds=pause_seconds,
        )
        request = connection.submit(wish)
        wanted = Wanted(request.transition, leaving.node, to)
        answer = {
            **described(request),
            "from": leaving.node,
            "chosen": reason,
            "to": to,
            "transition": wanted.transition,
        }
        what = f"{name} moves from {leaving.node} ({reason}) to {to}"
        if not (is_watched(target) if wait is None else wait):
            _tell_answer(target, answer, _answered(what, request))
            return
        progress = ProgressDisplay(what, target.as_json, on_errors())
        ended = progress.until_ended(
            lambda: follow(connection, name, wanted, progress.show),
            f"The move continues. See its progress: `limosa explain {name}`; "
            f"cancel it: `limosa partition cancel {name}`",
            {**answer, "state": "running"},
        )
    _tell_end(target, answer, ended, what)
    raise typer.Exit(0 if ended.state == "done" else 1)


@partition.command()
@with_groups
def cancel(target: ClusterOptions, name: Name) -> None:
    """Cancel a move before reads have switched.

    The move is rolled back, and no data is lost.

    \b
    Examples:
      limosa partition cancel items-0003
    """
    with target.operate() as connection:
        agreed = connection.state(name)
        record_of(agreed, name)
        intent = agreed.intents.get(name)
        if intent is None or intent.pending is None:
            raise IllegalRequest(
                f"{name} has no move that can be cancelled", f"see `limosa explain {name}`"
            )
        request = connection.submit(CancelChange(name, intent.pending.trigger))
    _tell_answer(target, described(request), f"{name}: {request.answer}.")


@partition.command()
@with_groups
def complete(target: ClusterOptions, name: Name) -> None:
    """End the hold of a move: remove its old replica.

    \b
    Examples:
      limosa partition complete items-0003
    """
    _end_hold(target, CompleteMove(name))


@partition.command()
@with_groups
def reverse(target: ClusterOptions, name: Name) -> None:
    """Reverse a move during its hold.

    The partition returns to its old replicas, and no data is lost.

    \b
    Examples:
      limosa partition reverse items-0003
    """
    _end_hold(target, ReverseMove(name))


def _end_hold(target: ClusterOptions, wish: CompleteMove | ReverseMove) -> None:
    with target.operate() as connection:
        request = connection.submit(wish)
    _tell_answer(target, described(request), f"{wish.partition}: {request.answer}.")


# --- output


def described(request: Request) -> dict[str, Any]:
    return {
        "partition": request.partition,
        "request": request.id,
        "kind": request.kind,
        "state": "accepted",
        "answer": request.answer,
        "next": f"limosa explain {request.partition}",
    }


def _answered(what: str, request: Request) -> str:
    begins = request.transition == transition_id(request.trigger)
    return f"{what}." if begins else f"{what}: {request.answer}."


def _tell_answer(target: ClusterOptions, answer: dict[str, Any], words: str) -> None:
    print_answer(target.as_json, answer, words, f"See its progress: {answer['next']}")


def _tell_end(
    target: ClusterOptions, answer: dict[str, Any], ended: EndedChange, what: str
) -> None:
    report = ended.report
    if target.as_json:
        print_json({**answer, "state": ended.state, "why": ended.why, "report": report})
    if ended.state != "done":
        differing = () if report is None else report.differences
        more = f"; {'; '.join(differing)}" if differing else ""
        tell(f"Error: {what}: {ended.state}: {ended.why}{more} (see `{answer['next']}`)")
    elif not target.as_json:
        typer.echo(f"{what}: done{'' if report is None else took_words(report)}.")
