"""How does a client authenticate? With a token, which `limosa token` makes."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import print_answer
from limosa.client.discovery import LOCAL, find_local
from limosa.errors import BadInput, Refused
from limosa.transport.keys import read_secret
from limosa.transport.tokens import issue

DAY_SECONDS = 86_400.0


@with_groups
def token(
    target: ClusterOptions,
    subject: Annotated[str, typer.Option(help="The user or program that will use the token.")],
    role: Annotated[str, typer.Option(help="client, admin, node or coordinator.")] = "client",
    days: Annotated[float, typer.Option(help="Days until the token expires.")] = 30.0,
) -> None:
    """Make a token from the cluster's secret, and print it.

    The role client can read and write rows; admin can also create and drop tables, and manage the
    cluster. The cluster need not be running: its secret is enough.

    \b
    Examples:
      limosa token --subject reports --role client --days 90
      limosa token --subject ann --role admin --secret /srv/limosa/secret --cluster-name shop
    """
    cluster, path = _secret(target)
    expires_at = time.time() + days * DAY_SECONDS
    made = issue(read_secret(path), cluster, subject, role, days * DAY_SECONDS, time.time())
    answer = {"token": made, "subject": subject, "role": role, "expires_at": round(expires_at)}
    print_answer(target.as_json, answer, made)


def _secret(target: ClusterOptions) -> tuple[str, str]:
    """The cluster's name, and the path of its secret."""
    if target.secret is not None:
        return target.cluster_name or LOCAL, target.secret
    if target.cluster is not None and not os.path.isdir(target.cluster):
        raise BadInput("a token needs the cluster's secret", "name its file with --secret")
    local = find_local(target.cluster)
    if local.secret is None or not Path(local.secret).exists():
        raise Refused("this cluster has no secret", "name its file with --secret")
    return local.cluster, local.secret
