"""Are tokens made and revoked, and secrets replaced, by commands?"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from limosa.cli.main import main
from limosa.errors import Unauthenticated
from limosa.transport.keys import make_secret, read_keys
from limosa.transport.tokens import Identity, check

Output = pytest.CaptureFixture[str]


class Typing:
    """Somebody who types `limosa token …`, where only a secret is."""

    def __init__(self, secret: Path, output: Output) -> None:
        self.secret = secret
        self._output = output

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._output.readouterr()
        code = main(("token", *words, "--secret", str(self.secret)))
        printed = self._output.readouterr()
        return code, printed.out, printed.err

    def told(self, *words: str) -> Any:
        code, out, error = self(*words, "--json")
        assert code == 0, error
        return json.loads(out)

    def identity(self, token: str) -> Identity:
        return check(read_keys(str(self.secret)), "local", token.strip(), time.time())

    def audit(self) -> list[dict[str, Any]]:
        lines = self.secret.with_name("audit.ndjson").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def typing(no_cluster: None, tmp_path: Path, capsys: Output) -> Typing:
    make_secret(str(tmp_path / "secret"))
    return Typing(tmp_path / "secret", capsys)


def test_a_token_is_made_and_says_its_id(typing: Typing) -> None:
    _, token, _ = typing("make", "--subject", "ada")
    assert typing.identity(token).subject == "ada"
    told = typing.told("make", "--subject", "ada", "--role", "admin", "--days", "1")
    identity = typing.identity(told["token"])
    assert (identity.token_id, identity.role) == (told["id"], "admin")
    assert identity.expires_at == pytest.approx(told["expires_at"], abs=1.0)
    code, _, error = typing("make", "--subject", "ada", "--role", "mover")
    assert code == 2
    assert "leave movers' tokens to the coordinator" in error


def test_tokens_are_revoked_by_subject_by_id_and_by_themselves(typing: Typing) -> None:
    """F197: at once, and no others; the audit log says by whom."""
    made = {name: typing.told("make", "--subject", name) for name in ("ada", "bob", "eve", "dan")}
    told = typing.told("revoke", "--subject", "ada")
    assert told["revoked"]["subject"] == "ada"
    assert typing.told("revoke", "--id", made["bob"]["id"])["revoked"]["id"] == made["bob"]["id"]
    code, out, _ = typing("revoke", "--id", made["eve"]["token"])
    assert (code, out) == (0, f"Revoked the token {made['eve']['id']}.\n")
    for name in ("ada", "bob", "eve"):
        with pytest.raises(Unauthenticated, match="revoked"):
            typing.identity(made[name]["token"])
    assert typing.identity(made["dan"]["token"]).subject == "dan"
    listed = typing.told("list")
    assert len(listed["revoked"]) == 3
    assert made["eve"]["id"] in typing("list")[1]
    assert [each["event"] for each in typing.audit()] == ["asked", "answered"] * 3
    for each in typing.audit():
        assert each["author"].endswith(f"@{os.uname().nodename}")
        assert each["change"] == "revoke tokens"


def test_a_secret_is_replaced_and_the_one_before_stays_valid(typing: Typing) -> None:
    """F197: until the next time."""
    tokens = [typing.told("make", "--subject", "ada")["token"]]
    keys = [""]
    for _ in range(2):
        told = typing.told("rotate")
        assert told["valid"] == [told["key"], keys[-1]]
        keys.append(told["key"])
        tokens.append(typing.told("make", "--subject", "ada")["token"])
        assert [typing.identity(each).key for each in tokens[-2:]] == keys[-2:]
    with pytest.raises(Unauthenticated):
        typing.identity(tokens[0])
    listed = typing.told("list")
    assert [each["id"] for each in listed["keys"]] == [keys[2], keys[1]]
    code, out, _ = typing("list")
    assert code == 0
    assert "signs and verifies" in out
    assert "- " not in out.splitlines()[-1][:2]
    assert f"Tokens signed with {keys[1]} are no longer valid" in typing("rotate")[1]
    secrets = [key.secret.decode() for key in read_keys(str(typing.secret)).keys]
    text = typing.secret.with_name("audit.ndjson").read_text()
    assert all(secret not in text for secret in secrets)
    assert [each["change"] for each in typing.audit()] == ["rotate secret"] * 6
    assert [each["key"] for each in typing.audit()][:2] == [keys[1]] * 2


def test_what_makes_no_sense_is_refused_and_changes_nothing(typing: Typing) -> None:
    before = typing.secret.read_bytes()
    for words, said in (
        (("revoke",), "give either --subject or --id"),
        (("revoke", "--subject", "a", "--id", "b"), "give either --subject or --id"),
        (("revoke", "--id", "not.a.token"), "this is not a token"),
    ):
        code, _, error = typing(*words)
        assert code == 2
        assert said in error
    assert typing.secret.read_bytes() == before
    typing.secret.chmod(0o644)
    code, _, error = typing("rotate")
    assert code == 2
    assert "chmod 600" in error
    assert typing.secret.read_bytes() == before


def test_a_change_that_can_not_be_audited_is_not_made(typing: Typing) -> None:
    before = typing.secret.read_bytes()
    typing.secret.with_name("audit.ndjson").mkdir()
    code, _, error = typing("rotate")
    assert code == 2
    assert "the audit log" in error
    assert typing.secret.read_bytes() == before
