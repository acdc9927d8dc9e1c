"""Is a cluster that was found, and not named, only trusted if it is the user's own?"""

import os
from pathlib import Path

import pytest

import limosa
from limosa.cli.main import main
from limosa.client.discovery import Local, find_local, write_local
from limosa.errors import BadInput, Refused
from limosa.transport.keys import make_secret
from tests.transport.certificates import Authority

TRAP = Local("local", {"n1": "grpc://127.0.0.1:9"}, pid=os.getpid())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that somebody works in, with a cluster's directory in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LIMOSA_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "limosa-data"
    data.mkdir()
    write_local(data, TRAP)
    return data


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whom nothing here belongs."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_the_users_own_cluster_is_found(place: Path) -> None:
    assert find_local() == TRAP


@pytest.mark.usefixtures("another_user")
def test_another_users_cluster_is_not_trusted_unless_it_is_named(place: Path) -> None:
    """It would be sent tokens that are signed with a secret of its choice."""
    with pytest.raises(Refused, match="belongs to another user") as refused:
        find_local()
    assert f"--cluster {place}" in refused.value.advice
    with pytest.raises(Refused, match="belongs to another user"):
        limosa.connect()
    assert find_local(str(place)) == TRAP


@pytest.mark.usefixtures("another_user")
def test_nor_is_the_one_that_was_started_last(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may have been replaced since."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="belongs to another user"):
        find_local()


def test_a_file_of_another_user_in_ones_own_directory_is_not_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to the directory can put a file there."""
    seen = os.fstat

    def fstat(file: int) -> os.stat_result:
        known = list(seen(file))
        known[4] += 1
        return os.stat_result(known)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(Refused, match=r"cluster\.json belongs to another user"):
        find_local()


@pytest.mark.usefixtures("another_user")
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("up",), "--data"),
        (("admin-token", "list"), "--directory"),
        (("status",), "--cluster"),
        (("token", "list"), "--cluster"),
    ],
)
def test_commands_say_how_to_name_it(
    place: Path, words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.iterdir())
    assert main(words) == 1
    assert f"name it: {option} {place}" in capsys.readouterr().err
    assert sorted(place.iterdir()) == before


# --- encryption


def test_an_authority_with_an_address_without_tls_is_refused(place: Path, tmp_path: Path) -> None:
    """Rows and tokens would be sent in the clear, although the user asked for encryption."""
    authority = Authority(tmp_path).security("me").authority
    make_secret(str(tmp_path / "secret"))
    for address in ("grpc://127.0.0.1:9", "grpc+tcp://127.0.0.1:9", str(place)):
        with pytest.raises(BadInput, match="without TLS, but an authority was given") as refused:
            limosa.connect(address, authority=authority, secret=str(tmp_path / "secret"))
        assert "grpc+tls://127.0.0.1:9" in refused.value.advice


def test_nor_is_a_node_called_that_the_topology_names_without_tls(tmp_path: Path) -> None:
    from limosa.protocol.peers import Dialer

    security = Authority(tmp_path).security("me")
    dialer = Dialer("c", "client", "me", security, lambda: "token")
    with pytest.raises(BadInput, match="without TLS"):
        dialer.client("n1", "grpc://127.0.0.1:9")
