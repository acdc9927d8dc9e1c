"""How does a command start a run and follow it? For `limosa rebalance` and `limosa node`."""

from typing import Annotated

import typer

from limosa.cli.shared.move_progress import on_errors
from limosa.cli.shared.options import ClusterOptions
from limosa.cli.shared.run_display import Watching
from limosa.cli.shared.run_progress import follow, lines_of
from limosa.cli.shared.terminal import count, print_answer
from limosa.client.operator import Operator
from limosa.core.insight.progress import Progress
from limosa.core.model.requests import DrainNodes, StartRun
from limosa.core.model.runs import RunPlan

Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait", help="Wait until the run has ended.", show_default="on a terminal"
    ),
]


def begin(target: ClusterOptions, connection: Operator, plan: RunPlan, wait: bool | None) -> None:
    """Start a run, print its name, and wait for its end if asked to."""
    request = connection.submit(DrainNodes(plan) if plan.drains else StartRun(plan))
    name = request.run
    answer = {"run": name, "operation": request.id, "moves": len(plan.moves), **next_of(name)}
    if not (is_watched(target) if wait is None else wait):
        told = f"{name}: {plan.action}, {count(len(plan.moves), 'move')}."
        follow_up = f"See its progress: {answer['next']}"
        print_answer(target.as_json, {**answer, "state": "running"}, told, follow_up)
        return
    tell_end(target, followed(target, connection, name))


def next_of(run: str) -> dict[str, str]:
    return {"next": f"limosa rebalance status {run}"}


def is_watched(target: ClusterOptions) -> bool:
    return not target.as_json and on_errors().is_terminal


def followed(target: ClusterOptions, connection: Operator, run: str) -> Progress:
    watching = Watching(target.as_json, on_errors())
    return watching.until_ended(
        lambda: follow(connection, run, watching.show),
        f"The run continues. See its progress: `limosa rebalance status`; "
        f"cancel it: `limosa rebalance cancel {run}`",
        {"run": run, "state": "running", **next_of(run)},
    )


def tell_end(target: ClusterOptions, ended: Progress) -> None:
    print_answer(target.as_json, ended, *lines_of(ended))
    raise typer.Exit(0 if ended.run.outcome == "done" else 1)
