"""Who may use the admin service over HTTP? `limosa admin-token …`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from limosa.admin import tokens
from limosa.cli.shared.admin_service import directory_of
from limosa.cli.shared.options import AsJson
from limosa.cli.shared.terminal import print_answer, print_json, print_table
from limosa.runtime.audit import noted

admin_token = typer.Typer(help="Manage the tokens of the admin service.", no_args_is_help=True)

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory",
        help="The directory of the cluster or the admin service.",
        show_default="./limosa-data, or the last local cluster's",
    ),
]
Name = Annotated[str, typer.Argument(help="The user or program that has the token.")]


@admin_token.command()
def add(
    name: Name,
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")],
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it.

    The token is printed only once, and valid at once. The role viewer can only read; operator can
    also move partitions and create tables; admin can do everything.

    \b
    Examples:
      limosa admin-token add ann --role operator
      limosa admin-token add pager --role viewer --directory /srv/limosa
    """
    path = file_in(directory)
    with noted(path, "add admin token", name=name, role=role):
        token = tokens.add(path, name, role)
    print_answer(as_json, {"token": token, "name": name, "role": role}, token)


@admin_token.command("list")
def list_tokens(directory: Directory = None, as_json: AsJson = False) -> None:
    """List the tokens' names and roles.

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
        ("name", "role", "created"),
        [(each.name, each.role, _day(each.created)) for each in entries],
    )


@admin_token.command()
def remove(name: Name, directory: Directory = None, as_json: AsJson = False) -> None:
    """Revoke a token at once.

    \b
    Examples:
      limosa admin-token remove ann
    """
    path = file_in(directory)
    with noted(path, "remove admin token", name=name):
        tokens.remove(path, name)
    print_answer(as_json, {"removed": name}, f"Revoked the token of {name}.")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def file_in(directory: str | None) -> Path:
    return Path(directory_of(directory)) / tokens.FILE
