"""What can an operator type? `limosa`, and one command after it."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from limosa.cli.mutants import mutants
from limosa.cli.simulate import simulate

app = typer.Typer(
    name="limosa",
    help="Tables and streams whose partitions move while they are used.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # An error is one sentence, not a box that wraps it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate)
app.command()(mutants)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"limosa {version('limosa')}")
        raise typer.Exit


@app.callback()
def limosa(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 all is well, 1 something is wrong, 2 bad input, 130 interrupted."""
    try:
        app(arguments, prog_name="limosa")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
