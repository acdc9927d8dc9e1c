"""Who may use the admin service, and how does it find its cluster? `limosa admin-token …`."""

import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from limosa.admin import tokens
from limosa.cli.connecting import AsJson
from limosa.cli.showing import print_json, print_table
from limosa.client.connection import Connection, connect
from limosa.client.discovery import DEFAULT_DIRECTORY, VARIABLE, find_local
from limosa.errors import BadInput, Refused

INSTALL_ADMIN = "pip install '.[admin]'"

admin_token = typer.Typer(help="Say who may use the admin service over HTTP.", no_args_is_help=True)

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory",
        help="Of the cluster, or of the admin service.",
        show_default="./limosa-data, or the last local cluster's",
    ),
]
Name = Annotated[str, typer.Argument(help="Whom the token is for.")]


@admin_token.command()
def add(
    name: Name,
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it; it is told once, and good from now on.

    A viewer looks; an operator also moves partitions and makes tables; an admin may do everything.

    \b
    Examples:
      limosa admin-token add ann --role operator
      limosa admin-token add pager --role viewer --directory /srv/limosa
    """
    token = tokens.add(file_in(directory), name, role)
    if as_json:
        print_json({"token": token, "name": name, "role": role})
    else:
        typer.echo(token)


@admin_token.command("list")
def list_tokens(directory: Directory = None, as_json: AsJson = False) -> None:
    """List who has a token, and of which role.

    \b
    Examples:
      limosa admin-token list
    """
    entries = sorted(tokens.read_entries(file_in(directory)), key=lambda each: each.name)
    if as_json:
        known = [{"name": e.name, "role": e.role, "created": e.created} for e in entries]
        print_json({"tokens": known})
        return
    print_table(
        ("name", "role", "made"),
        [(each.name, each.role, _day(each.created)) for each in entries],
    )


@admin_token.command()
def remove(name: Name, directory: Directory = None, as_json: AsJson = False) -> None:
    """Take a token back, from now on.

    \b
    Examples:
      limosa admin-token remove ann
    """
    tokens.remove(file_in(directory), name)
    if as_json:
        print_json({"removed": name})
    else:
        typer.echo(f"The token of {name} is good for nothing any more.")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


# --- where it is


def file_in(directory: str | None) -> Path:
    return Path(directory_of(directory)) / tokens.FILE


def directory_of(given: str | None) -> str:
    """The one that is named; that of the environment's cluster, of ./limosa-data, or the last."""
    if given is not None:
        if not Path(given).is_dir():
            raise BadInput(f"there is no directory {given}", "name one with --directory")
        return given
    for place in (os.environ.get(VARIABLE, ""), DEFAULT_DIRECTORY):
        if place and Path(place).is_dir():
            return place
    return find_local().directory


# --- what it needs


def is_admin_installed() -> bool:
    return find_spec("fastapi") is not None and find_spec("uvicorn") is not None


def check_admin_installed() -> None:
    if not is_admin_installed():
        raise Refused(
            "the admin service needs FastAPI and uvicorn", f"install them: {INSTALL_ADMIN}"
        )


def connector(
    addresses: Sequence[str],
    directory: str,
    cluster: str,
    token: str | None,
    secret: str | None,
    authority: str | None,
    certificate: str | None,
    key: str | None,
) -> Callable[[], Connection]:
    """How the service reaches the cluster; our certificate is shown to nodes that use TLS."""
    calls_tls = authority is not None

    def reach() -> Connection:
        return connect(
            list(addresses) or directory,
            cluster_name=cluster,
            token=token,
            secret=secret,
            authority=authority,
            certificate=certificate if calls_tls else None,
            key=key if calls_tls else None,
            name="limosa-admin",
        )

    return reach
