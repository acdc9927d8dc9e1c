"""Does `limosa` say what it is, and what can be typed?"""

from importlib.metadata import version

import pytest

from limosa.cli.main import COMMANDS, main


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"limosa {version('limosa')}\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in printed


GROUPS = ("token", "table", "partition", "node", "rebalance", "operations", "admin-token", "serve")


@pytest.mark.parametrize(
    "command",
    [
        *(name for name in COMMANDS if name not in GROUPS),
        *("table create", "table describe", "table drop"),
        *(f"node {what}" for what in ("remove", "add", "drain", "decommission", "undrain")),
        *(f"rebalance {what}" for what in ("plan", "start", "status", "pause", "resume")),
        *(f"rebalance {what}" for what in ("cancel", "complete", "reverse", "auto", "history")),
        *(f"operations {what}" for what in ("list", "show", "wait", "abort", "lock", "unlock")),
        *(f"partition {what}" for what in ("move", "cancel", "complete", "reverse")),
        *("serve node", "serve coordinator", "serve admin"),
        *(f"token {what}" for what in ("make", "list", "revoke", "rotate")),
        *(f"admin-token {what}" for what in ("add", "list", "remove")),
    ],
)
def test_the_help_of_a_command_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Examples:\n    limosa {command}" in capsys.readouterr().out


def test_an_unknown_command_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulat"]) == 2
    assert "No such command 'simulat'" in capsys.readouterr().err
