"""Are tokens kept as they should be?"""

import os
import stat
from pathlib import Path

import pytest

from limosa.admin import tokens
from limosa.admin.tokens import AdminIdentity, Tokens
from limosa.errors import BadInput, UnusableFile


def test_a_token_is_told_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / tokens.FILE
    token = tokens.add(path, "ann", "operator")
    assert token.startswith("limosa_")
    assert len(token) >= 40
    assert token.removeprefix("limosa_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Tokens(path).identify(token) == AdminIdentity("ann", "operator")
    assert tokens.add(path, "bob", "viewer") != token


def test_a_token_counts_from_its_making_to_its_removal(tmp_path: Path) -> None:
    path = tmp_path / tokens.FILE
    known = Tokens(path)
    assert known.identify("limosa_x") is None
    token = tokens.add(path, "ann", "admin")
    assert known.identify(token) == AdminIdentity("ann", "admin")
    assert known.identify(token + "x") is None
    assert known.identify("") is None
    assert known.identify("\ud800") is None
    other = tokens.add(path, "bob", "viewer")
    tokens.remove(path, "ann")
    assert known.identify(token) is None
    assert known.identify(other) == AdminIdentity("bob", "viewer")


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "-x", "x" * 65, "a\nb", "ä"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not a valid name"):
        tokens.add(tmp_path / tokens.FILE, name, "viewer")
    assert not (tmp_path / tokens.FILE).exists()


def test_what_can_not_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / tokens.FILE
    with pytest.raises(BadInput, match="no role 'root'"):
        tokens.add(path, "ann", "root")
    tokens.add(path, "ann", "viewer")
    before = path.read_bytes()
    with pytest.raises(BadInput, match="already"):
        tokens.add(path, "ann", "admin")
    with pytest.raises(BadInput, match=r"no token bob \(there are: ann\)"):
        tokens.remove(path, "bob")
    assert path.read_bytes() == before
    with pytest.raises(UnusableFile, match="can't be used"):
        tokens.add(tmp_path / "nowhere" / tokens.FILE, "ann", "viewer")


def test_a_file_that_others_may_change_or_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / tokens.FILE
    token = tokens.add(path, "ann", "viewer")
    known = Tokens(path)
    assert known.identify(token)
    path.chmod(0o620)
    with pytest.raises(UnusableFile, match="other users can access"):
        known.identify(token)
    path.chmod(0o600)
    assert known.identify(token)
    for damage in (b"", b"{}", b'[{"name": "x"}]', b"\xff"):
        path.write_bytes(damage)
        with pytest.raises(UnusableFile, match="damaged"):
            known.identify(token)
    path.unlink()
    assert known.identify(token) is None
    path.mkdir()
    with pytest.raises(UnusableFile, match="can't be read"):
        known.identify(token)


def test_a_file_that_is_read_is_not_read_again_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / tokens.FILE
    token = tokens.add(path, "ann", "viewer")
    known = Tokens(path)
    first = known.entries()
    assert known.entries() is first
    os.utime(path, ns=(1, 1))
    assert known.entries() is not first
    assert known.identify(token)
