"""How do nodes get their share of the data, and how do they leave? `limosa node …`."""

import sys
from typing import Annotated

import typer

from limosa.cli.shared.options import ClusterOptions, Yes, with_groups
from limosa.cli.shared.plans import RunOptions, facts, print_plan
from limosa.cli.shared.runs import Wait, begin
from limosa.cli.shared.terminal import print_answer, print_json, tell
from limosa.client.cluster_view import look
from limosa.client.operator import Operator
from limosa.core.insight.proposing import filling, planned
from limosa.core.model.requests import RemoveNode, ReplaceNode, UndrainNodes
from limosa.core.model.runs import RunPlan
from limosa.core.planning.plan import Plan
from limosa.errors import IllegalRequest, Refused

node = typer.Typer(help="Fill, empty, replace or remove nodes.", no_args_is_help=True)


@node.command()
@with_groups
def remove(
    target: ClusterOptions, name: Annotated[str, typer.Argument(help="The node's name.")]
) -> None:
    """Remove a stopped node that holds no replicas.

    The name of a removed node can't be used again.

    \b
    Examples:
      limosa node remove n4
    """
    with target.operate() as connection:
        connection.submit(RemoveNode(name))
    told = f"Removed {name} from the cluster. Its name can't be used again."
    print_answer(target.as_json, {"removed": name}, told)


@node.command()
@with_groups
def replace(
    target: ClusterOptions, name: Annotated[str, typer.Argument(help="The node's name.")]
) -> None:
    """Let an empty directory take the place of a stopped node's directory that is lost or damaged.

    Start the node afterwards, from an empty directory: it joins under its old name, and its
    replicas are rebuilt from others. The former directory can't be used again.

    \b
    Examples:
      limosa node replace n2
    """
    with target.operate() as connection:
        connection.submit(ReplaceNode(name))
    told = f"Start {name} from an empty directory: it joins, and its replicas are rebuilt."
    print_answer(target.as_json, {"replaced": name}, told)


Names = Annotated[list[str], typer.Argument(metavar="NODE…", help="The nodes' names.")]


class ConfirmedRun(RunOptions, frozen=True, kw_only=True):
    """The options of a run that is started only when somebody has confirmed its plan."""

    yes: Yes = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan.")] = False
    wait: Wait = None


@node.command()
@with_groups
def add(target: ClusterOptions, names: Names, how: ConfirmedRun) -> None:
    """Move a share of the load to new nodes.

    A node joins the cluster when it is started (`limosa serve node`), and holds nothing at first.
    This command prints which replicas would move to it, asks for confirmation, and starts the run.

    \b
    Examples:
      limosa node add n4
      limosa node add n4 n5 --dry-run
      limosa node add n4 --yes --wait --max-pause 50ms
    """
    with target.operate() as connection:
        like = how.plan(f"fill {', '.join(names)}")
        found, run = filling(look(connection), names, like)
        if not found.moves:
            raise IllegalRequest(
                f"there is nothing to move to {', '.join(names)}", "see `limosa rebalance plan`"
            )
        _ask_and_begin(target, connection, found, run, how)


@node.command()
@with_groups
def drain(target: ClusterOptions, names: Names, how: ConfirmedRun) -> None:
    """Move all replicas away from nodes.

    The nodes stay members of the cluster, but get no new replicas until `limosa node undrain`.
    Cancelling the run also undrains them.

    \b
    Examples:
      limosa node drain n2
      limosa node drain n2 n3 --yes --wait
    """
    like = how.plan(f"drain {', '.join(names)}", drains=tuple(names))
    _drain(target, like, how)


@node.command()
@with_groups
def decommission(target: ClusterOptions, names: Names, how: ConfirmedRun) -> None:
    """Move all replicas away from nodes, then remove the nodes.

    A removed node can be stopped; its name can't be used again.

    \b
    Examples:
      limosa node decommission n2 --dry-run
      limosa node decommission n2 --yes --wait
    """
    action = f"decommission {', '.join(names)}"
    like = how.plan(action, drains=tuple(names), decommission=True)
    _drain(target, like, how)


@node.command()
@with_groups
def undrain(target: ClusterOptions, names: Names) -> None:
    """Let drained nodes hold replicas again.

    \b
    Examples:
      limosa node undrain n2
    """
    with target.operate() as connection:
        request = connection.submit(UndrainNodes(tuple(names)))
    told = f"{request.answer}. To fill them again: limosa node add {' '.join(names)}"
    print_answer(target.as_json, {"operation": request.id, "answer": request.answer}, told)


def _drain(target: ClusterOptions, like: RunPlan, how: ConfirmedRun) -> None:
    with target.operate() as connection:
        found, run = planned(look(connection), like)
        _ask_and_begin(target, connection, found, run, how)


def _ask_and_begin(
    target: ClusterOptions, connection: Operator, found: Plan, run: RunPlan, how: ConfirmedRun
) -> None:
    """Print the plan, and ask for confirmation before anything changes."""
    if how.dry_run and target.as_json:
        print_json(facts(found, run))
        return
    if not target.as_json:
        print_plan(found, run)
    if how.dry_run:
        return
    if not how.yes:
        if target.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Refused(
                f"{run.action} needs confirmation", "see the plan with --dry-run, then add --yes"
            )
        if not typer.confirm(f"{run.action.capitalize()}?"):
            tell("Nothing was changed.")
            raise typer.Exit(1)
    begin(target, connection, run, how.wait)
