"""Which changes were requested, and what is their state? `limosa operations …`."""

import time
from typing import Annotated, Any

import typer

from limosa.cli.shared.move_progress import LOOK_SECONDS
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.quantities import lasted, moment
from limosa.cli.shared.terminal import NOTHING, print_answer, print_json, print_table
from limosa.client.requests import request_id
from limosa.core.coordinator.aborting import aborting
from limosa.core.model.changes import Agreed
from limosa.core.model.requests import LockCluster, Request, UnlockCluster
from limosa.errors import IllegalRequest

SHOWN = 50
operations = typer.Typer(
    help="List, await or abort requested changes; lock the cluster.", no_args_is_help=True
)

Id = Annotated[
    str, typer.Argument(metavar="ID", help="The id, as `limosa operations list` shows it.")
]


@operations.command("list")
@with_groups
def list_(
    target: ClusterOptions,
    every: Annotated[
        bool, typer.Option("--all", help=f"List all that are kept, not only {SHOWN}.")
    ] = False,
) -> None:
    """List requested changes, waiting ones first, then the latest.

    \b
    Examples:
      limosa operations list
      limosa operations list --all --json
    """
    with target.operate() as connection:
        agreed = connection.runs()
    newest = reversed(agreed.requests.values())
    found = sorted(newest, key=lambda each: each.state != "waiting")
    shown = found if every else found[:SHOWN]
    if target.as_json:
        print_json({"operations": [facts(each) for each in shown]})
        return
    if not shown:
        typer.echo("There are no operations.")
        return
    print_table(
        ("id", "kind", "about", "state", "requested", "answered", "answer"),
        [row_of(each) for each in shown],
    )


@operations.command()
@with_groups
def show(target: ClusterOptions, id: Id) -> None:
    """Show one operation: its request, its answer, and what to do next.

    \b
    Examples:
      limosa operations show run-0123456789abcdef
    """
    with target.operate() as connection:
        request = find(connection.runs(), id)
    if target.as_json:
        print_json({**facts(request), "next": next_of(request)})
        return
    told = {**facts(request), "asked": asked_words(request), "answered": moment(request.answered)}
    for name, value in told.items():
        typer.echo(f"{name:<10} {value or NOTHING}")
    typer.echo(f"{'next':<10} {next_of(request)}")


@operations.command()
@with_groups
def wait(target: ClusterOptions, id: Id) -> None:
    """Wait until an operation is answered.

    The exit code is 0 if it was accepted, and 1 if it was refused. A move or a run continues after
    the answer: see `limosa rebalance status --wait`.

    \b
    Examples:
      limosa operations wait run-0123456789abcdef
    """
    with target.operate() as connection:
        while (request := find(connection.runs(), id)).state == "waiting":
            time.sleep(LOOK_SECONDS)
    told = f"{request.id}: {request.state}: {request.answer}"
    print_answer(target.as_json, facts(request), told)
    raise typer.Exit(0 if request.state == "done" else 1)


@operations.command()
@with_groups
def abort(target: ClusterOptions, id: Id) -> None:
    """Withdraw a waiting operation, or cancel its move or run.

    Moves that are committed or whose reads have switched stay.

    \b
    Examples:
      limosa operations abort run-0123456789abcdef
    """
    with target.operate() as connection:
        agreed = connection.runs()
        request = connection.request(aborting(agreed, find(agreed, id), request_id("abort")))
    _told(target, request, aborts=id)


@operations.command()
@with_groups
def lock(
    target: ClusterOptions,
    why: Annotated[str, typer.Argument(help="The reason, for other operators.")],
) -> None:
    """Let no change of the topology start, until `unlock`.

    Changes that have started continue.

    \b
    Examples:
      limosa operations lock "backup until noon"
    """
    with target.operate() as connection:
        _told(target, connection.submit(LockCluster(why)))


@operations.command()
@with_groups
def unlock(target: ClusterOptions) -> None:
    """Let changes of the topology start again.

    \b
    Examples:
      limosa operations unlock
    """
    with target.operate() as connection:
        _told(target, connection.submit(UnlockCluster()))


def _told(target: ClusterOptions, request: Request, **more: str) -> None:
    answer = {"operation": request.id, **more, "answer": request.answer}
    print_answer(target.as_json, answer, f"{request.answer}.")


def facts(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "kind": request.kind,
        "about": request.about,
        "state": request.state,
        "answer": request.answer,
        "author": request.author or None,
        "asked": request.asked or None,
        "answered": request.answered or None,
    }


def row_of(request: Request) -> tuple[object, ...]:
    times = (moment(request.asked), moment(request.answered))
    return (request.id, request.kind, request.about, request.state, *times, request.answer)


def asked_words(request: Request) -> str:
    """When it was requested, and how long ago if it still waits."""
    when = moment(request.asked)
    if request.state != "waiting" or not when:
        return when
    return f"{when} ({lasted(max(0.0, time.time() - request.asked))} ago)"


def find(agreed: Agreed, id: str) -> Request:
    request = agreed.requests.get(id)
    if request is None:
        raise IllegalRequest(
            f"there is no operation {id}",
            "see `limosa operations list`; old operations are deleted after a while",
        )
    return request


def next_of(request: Request) -> str:
    if request.state == "waiting":
        return f"limosa operations wait {request.id}"
    if request.run:
        return f"limosa rebalance status {request.run}"
    if request.state == "done" and request.partition:
        return f"limosa explain {request.partition}"
    return "nothing: the operation has ended"
