"""Are tokens of the admin service made by commands, and is the service found and started?"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from limosa.admin import tokens
from limosa.admin.tokens import Tokens
from limosa.cli.main import main
from limosa.cli.shared import admin_service
from limosa.cli.up import command as up_module
from tests.cli.running import COMMAND

Output = pytest.CaptureFixture[str]


def run(output: Output, *arguments: str) -> tuple[int, str, str]:
    output.readouterr()
    code = main(arguments)
    printed = output.readouterr()
    return code, printed.out, printed.err


def test_tokens_are_made_listed_and_taken_back(
    no_cluster: None, tmp_path: Path, capsys: Output
) -> None:
    there = ("--directory", str(tmp_path))
    code, token, _ = run(capsys, "admin-token", "add", "ann", "--role", "operator", *there)
    assert code == 0
    known = Tokens(tmp_path / tokens.FILE)
    identity = known.identify(token.strip())
    assert identity is not None
    assert (identity.subject, identity.role) == ("ann", "operator")
    made = json.loads(
        run(capsys, "admin-token", "add", "b", "--role", "viewer", "--json", *there)[1]
    )
    assert known.identify(made["token"])
    assert (made["name"], made["role"]) == ("b", "viewer")
    _, listed, _ = run(capsys, "admin-token", "list", *there)
    assert "ann" in listed
    assert token.strip() not in listed
    answer = json.loads(run(capsys, "admin-token", "list", "--json", *there)[1])
    assert [(each["name"], each["role"]) for each in answer["tokens"]] == [
        ("ann", "operator"),
        ("b", "viewer"),
    ]
    assert "sha256" not in answer["tokens"][0]
    assert "Revoked the token of ann" in run(capsys, "admin-token", "remove", "ann", *there)[1]
    assert run(capsys, "admin-token", "remove", "b", "--json", *there)[1] == '{"removed":"b"}\n'
    assert known.entries() == []


def test_wrong_words_are_refused(no_cluster: None, tmp_path: Path, capsys: Output) -> None:
    there = ("--directory", str(tmp_path))
    for arguments, sentence in (
        (("add", "ann", "--role", "root", *there), "no role 'root'"),
        (("add", "a b", "--role", "viewer", *there), "not a valid name"),
        (("remove", "ann", *there), "no token ann (there are: none)"),
        (("list", "--directory", str(tmp_path / "no")), "there is no directory"),
    ):
        code, _, error = run(capsys, "admin-token", *arguments)
        assert code == 2
        assert sentence in error
    assert list(tmp_path.glob("*.json")) == []


def test_the_directory_is_found_as_the_cluster_is(
    no_cluster: None, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = run(capsys, "admin-token", "list")
    assert code == 1
    assert "no cluster is running" in error
    (tmp_path / "limosa-data").mkdir()
    assert admin_service.directory_of(None) == "limosa-data"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("LIMOSA_CLUSTER", str(tmp_path / "other"))
    assert admin_service.directory_of(None) == str(tmp_path / "other")
    monkeypatch.setenv("LIMOSA_CLUSTER", "127.0.0.1:4711")
    assert admin_service.directory_of(None) == "limosa-data"


def test_without_the_extra_the_service_is_refused_and_a_cluster_does_without(
    no_cluster: None, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_service, "find_spec", lambda name: None)
    code, _, error = run(capsys, "serve", "admin", "--directory", str(tmp_path))
    assert code == 1
    assert "pip install '.[admin]'" in error
    assert up_module._can_serve_admin() is False
    assert "pip install '.[admin]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--connect", "127.0.0.1:1"), "name it with --directory"),
        (("--bind", "0.0.0.0:0", "--directory", "."), "without TLS"),
        (("--bind", "nowhere", "--directory", "."), "is not an address to listen on"),
        (("--bind", "127.0.0.1:0", "--directory", "missing"), "there is no directory"),
        (("--certificate", "x.pem", "--directory", "."), "belong together"),
    ],
)
def test_a_service_that_can_not_be_is_refused(
    no_cluster: None, capsys: Output, arguments: tuple[str, ...], sentence: str
) -> None:
    code, _, error = run(capsys, "serve", "admin", *arguments)
    assert code == 2
    assert sentence in error


@pytest.mark.processes
def test_a_service_of_its_own_starts_without_a_cluster_and_stops_cleanly(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "admin", "--bind", "127.0.0.1:0", "--directory", str(tmp_path)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), process.stderr and process.stderr.read()
        url = json.loads(line.removeprefix("ready"))["url"]
        assert httpx.get(f"{url}/livez", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 503
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in err
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.processes
def test_the_command_line_needs_no_web_framework() -> None:
    """What most commands share with the service must not load it."""
    code = "import sys, limosa.cli.status, limosa.cli.admin_token, limosa.cli.partition; "
    code += "sys.exit('fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
