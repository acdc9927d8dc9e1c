"""Who belongs to the cluster, and who may enter? `limosa node remove`, `limosa token`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from limosa.cli.connecting import Target, of_cluster
from limosa.cli.showing import print_json
from limosa.client.discovery import LOCAL, find_local
from limosa.errors import BadInput, Refused
from limosa.transport.tokens import issue, read_secret

DAY_SECONDS = 86_400.0

node = typer.Typer(help="Change who belongs to the cluster.", no_args_is_help=True)


@node.command()
@of_cluster
def remove(target: Target, name: Annotated[str, typer.Argument(help="The node's name.")]) -> None:
    """Take out a node that is gone for good; it must be stopped, and hold no replicas.

    \b
    Examples:
      limosa node remove n4
    """
    with target.connect() as connection:
        connection.remove_node(name)
    if target.as_json:
        print_json({"removed": name})
    else:
        typer.echo(f"{name} has left the cluster. Its name is not given again.")


@node.callback()
def _node() -> None:
    """Typer would call a group of one command by the group's name."""


@of_cluster
def token(
    target: Target,
    subject: Annotated[str, typer.Option(help="Whom the token is for.")],
    role: Annotated[str, typer.Option(help="client, admin, node or coordinator.")] = "client",
    days: Annotated[float, typer.Option(help="How long it is good for.")] = 30.0,
) -> None:
    """Print a token, made from the cluster's secret.

    A client reads and writes rows; an admin also makes and drops tables. The cluster need not
    run: its secret is enough.

    \b
    Examples:
      limosa token --subject reports --role client --days 90
      limosa token --subject ann --role admin --secret /srv/limosa/secret --cluster-name shop
    """
    cluster, path = _secret(target)
    expires_at = time.time() + days * DAY_SECONDS
    made = issue(read_secret(path), cluster, subject, role, days * DAY_SECONDS, time.time())
    if target.as_json:
        print_json(
            {"token": made, "subject": subject, "role": role, "expires_at": round(expires_at)}
        )
    else:
        typer.echo(made)


def _secret(target: Target) -> tuple[str, str]:
    """The cluster's name, and where its secret is."""
    if target.secret is not None:
        return target.cluster_name or LOCAL, target.secret
    if target.cluster is not None and not os.path.isdir(target.cluster):
        raise BadInput("a token is made from the cluster's secret", "name its file with --secret")
    local = find_local(target.cluster)
    if local.secret is None or not Path(local.secret).exists():
        raise Refused("this cluster has no secret", "name its file with --secret")
    return local.cluster, local.secret
