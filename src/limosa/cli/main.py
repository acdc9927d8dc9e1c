"""Which commands are there? Each has a module or a package of its name."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from limosa.cli.shared.terminal import print_error, tell_error
from limosa.errors import BadInput, LimosaError, OutcomeUnknown

TRACEBACK = "LIMOSA_TRACEBACK"
ADVICE = f"set {TRACEBACK}=1 to see the traceback, and report it"
SEE_MESSAGE = "see the message on standard error, or add --help"

# fmt: off
COMMANDS = {
    "up":          "limosa.cli.up.command:up",
    "demo":        "limosa.cli.demo.command:demo",
    "status":      "limosa.cli.status:status",
    "nodes":       "limosa.cli.nodes:nodes",
    "partitions":  "limosa.cli.partitions:partitions",
    "explain":     "limosa.cli.explain:explain",
    "doctor":      "limosa.cli.doctor.command:doctor",
    "verify":      "limosa.cli.verify:verify",
    "tables":      "limosa.cli.tables:tables",
    "write":       "limosa.cli.write.command:write",
    "read":        "limosa.cli.read.command:read",
    "generate":    "limosa.cli.generate:generate",
    "token":       "limosa.cli.token:token",
    "simulate":    "limosa.cli.simulate:simulate",
    "mutants":     "limosa.cli.mutants:mutants",
    "table":       "limosa.cli.table:table",
    "partition":   "limosa.cli.partition:partition",
    "node":        "limosa.cli.node:node",
    "rebalance":   "limosa.cli.rebalance:rebalance",
    "operations":  "limosa.cli.operations:operations",
    "admin-token": "limosa.cli.admin_token:admin_token",
    "serve":       "limosa.cli.serve:serve",
}
# fmt: on


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 success, 1 failure, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        app_for(words)(words, prog_name="limosa")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == 2 and as_json:
            print_error(BadInput("the command line is not valid", SEE_MESSAGE))
        return code
    except KeyboardInterrupt:
        return 130  # while a command was being loaded
    except LimosaError as error:
        return tell_error(error, as_json)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return tell_error(OutcomeUnknown(f"a bug in Limosa: {what}", ADVICE), as_json)
    return 0


def app_for(words: Sequence[str]) -> typer.Typer:
    """Load only the command that was typed: loading all takes longer than most commands run."""
    app = typer.Typer(
        name="limosa",
        help="Tables whose partitions move to other nodes while they are read and written.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # An error is printed as one sentence, not in a box.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(limosa)
    wanted = [words[0]] if words and words[0] in COMMANDS else list(COMMANDS)
    for name in wanted:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"limosa {version('limosa')}")
        raise typer.Exit


def limosa(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
