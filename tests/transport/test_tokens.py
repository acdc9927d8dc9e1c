"""Tokens and the cluster's secret."""

import base64
import hashlib
import hmac
import json
import os
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.errors import BadInput, Forbidden, Unauthenticated, UnusableFile
from limosa.transport.keys import make_secret, read_secret
from limosa.transport.tokens import (
    CLOCK_SKEW_SECONDS_MAX,
    ROLES,
    Identity,
    check,
    issue,
    scope_of,
)

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER_SECRET = SECRET[::-1]
CLUSTER = "blue"
NOW = 1_000_000.0


def encoded(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(header: Any, claims: Any, secret: bytes = SECRET) -> str:
    """A token made by hand: whatever header and claims, rightly signed."""
    text = encoded(header) + b"." + encoded(claims)
    return (text + b"." + encoded(hmac.digest(secret, text, hashlib.sha256))).decode()


HEADER = {"alg": "HS256", "typ": "JWT"}
CLAIMS = {
    "sub": "ada",
    "role": "client",
    "aud": CLUSTER,
    "iat": NOW,
    "exp": NOW + 60,
    "jti": "1",
}


def refusal(token: str, now: float = NOW) -> str:
    with pytest.raises(Unauthenticated) as caught:
        check(SECRET, CLUSTER, token, now)
    error = caught.value
    assert error.advice
    assert error.definite
    assert error.__cause__ is None
    assert len(token) < 3 or token not in str(error)
    assert SECRET.decode() not in str(error)
    return error.message


@pytest.mark.parametrize("role", ROLES)
def test_a_token_says_who_as_what_and_until_when(role: str) -> None:
    sessions = (("p1", "t@1"),) if role == "mover" else ()
    token = issue(SECRET, CLUSTER, "ada", role, 60, NOW, sessions)
    identity = check(SECRET, CLUSTER, token, NOW + 59.9)
    assert (identity.subject, identity.role, identity.expires_at) == ("ada", role, NOW + 60)
    assert (identity.issued_at, identity.proof) == (NOW, "token")
    assert len(identity.token_id) == 32


def test_only_a_movers_token_is_for_sessions() -> None:
    """And without them it would be for all."""
    with pytest.raises(BadInput, match="is for sessions"):
        issue(SECRET, CLUSTER, "ada", "mover", 60, NOW)
    with pytest.raises(BadInput, match="is for sessions"):
        issue(SECRET, CLUSTER, "ada", "client", 60, NOW, (("p1", "t@1"),))
    unscoped = check(SECRET, CLUSTER, signed(HEADER, {**CLAIMS, "role": "mover"}), NOW)
    for sessions in ((), (("p1", "t@1"),)):
        with pytest.raises(Forbidden, match="other sessions"):
            unscoped.must_be_for(sessions)


def test_a_scope_is_a_set_of_sessions() -> None:
    one, two = ("p1", "t@1"), ("p2", "t@1")
    assert scope_of((one, two)) == scope_of((two, one))
    scopes = {scope_of(each) for each in ((), (one,), (two,), (one, two), (("p1t@1", ""),))}
    assert len(scopes) == 5
    Identity("ada", "client").must_be_for((one,))
    Identity("anonymous", "admin", proof="nothing").must_be_for((one,))


def test_two_tokens_are_never_the_same() -> None:
    tokens = {issue(SECRET, CLUSTER, "ada", "client", 60, NOW) for _ in range(10)}
    names = {jwt.decode(token, options={"verify_signature": False})["jti"] for token in tokens}
    assert len(names) == 10


def test_the_token_made_by_hand_is_a_good_one() -> None:
    assert check(SECRET, CLUSTER, signed(HEADER, CLAIMS), NOW).subject == "ada"


def test_a_token_ends() -> None:
    token = issue(SECRET, CLUSTER, "ada", "client", 60, NOW)
    assert refusal(token, NOW + 60) == "the token has expired"


def test_a_token_of_the_future_is_refused_but_clocks_may_differ_a_little() -> None:
    token = issue(SECRET, CLUSTER, "ada", "client", 3600, NOW)
    check(SECRET, CLUSTER, token, NOW - CLOCK_SKEW_SECONDS_MAX)
    assert refusal(token, NOW - CLOCK_SKEW_SECONDS_MAX - 1) == "the token is not yet valid"
    later = signed(HEADER, CLAIMS | {"nbf": NOW + 45})
    assert refusal(later) == "the token is not yet valid"


def test_a_token_of_another_cluster_is_refused() -> None:
    token = issue(SECRET, "green", "ada", "client", 60, NOW)
    assert refusal(token) == "the token is for another cluster"


def test_a_token_of_another_secret_is_refused() -> None:
    token = issue(OTHER_SECRET, CLUSTER, "ada", "admin", 60, NOW)
    assert refusal(token) == "the token's signature is wrong"


def test_changed_claims_are_refused() -> None:
    header, _, signature = issue(SECRET, CLUSTER, "ada", "client", 60, NOW).split(".")
    forged = f"{header}.{encoded(CLAIMS | {'role': 'admin'}).decode()}.{signature}"
    assert refusal(forged) == "the token's signature is wrong"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "RS256", "HS512", "hs256", "", 7])
def test_a_token_that_names_another_algorithm_is_refused(algorithm: object) -> None:
    """RS256 with a known public key as the HMAC secret is how other servers were fooled."""
    token = signed(HEADER | {"alg": algorithm}, CLAIMS)
    assert refusal(token) in (
        "the token is signed with another algorithm",
        "the token is malformed",
    )


def test_an_unsigned_token_is_refused() -> None:
    unsigned = jwt.encode(CLAIMS, "", algorithm="none")
    assert refusal(unsigned) == "the token is signed with another algorithm"


def test_a_token_of_an_unknown_role_is_refused() -> None:
    assert refusal(signed(HEADER, CLAIMS | {"role": "king"})) == "the token has an unknown role"


@pytest.mark.parametrize("missing", list(CLAIMS))
def test_a_token_that_says_too_little_is_malformed(missing: str) -> None:
    claims = {name: value for name, value in CLAIMS.items() if name != missing}
    assert refusal(signed(HEADER, claims)) == "the token is malformed"


@pytest.mark.parametrize(
    "claims",
    [
        CLAIMS | {"exp": "later"},
        CLAIMS | {"exp": None},
        CLAIMS | {"exp": float("inf")},
        CLAIMS | {"exp": float("nan")},
        json.dumps(CLAIMS | {"exp": 0}).replace('"exp": 0', '"exp": 1e999').encode(),
        CLAIMS | {"iat": float("nan")},
        CLAIMS | {"aud": [CLUSTER]},
        CLAIMS | {"sub": ""},
        CLAIMS | {"sub": "a\nb"},
        CLAIMS | {"sub": "a" * 300},
        CLAIMS | {"sub": 7},
        [],
        b"",
        b"\xff",
        b"[" * 2000,
    ],
)
def test_odd_claims_are_malformed(claims: object) -> None:
    assert refusal(signed(HEADER, claims)) == "the token is malformed"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "ä.ö.ü",
        "\udcff.a.b",
        "a" * 5000,
        signed(b"[" * 2000, CLAIMS),
        signed(b"null", CLAIMS),
        signed(HEADER | {"crit": ["x"]}, CLAIMS),
        signed(HEADER | {"b64": False}, CLAIMS),
        signed(HEADER, CLAIMS | {"pad": "x" * 5000}),
    ],
)
def test_what_is_no_token_is_malformed(token: str) -> None:
    assert refusal(token) == "the token is malformed"


@given(st.text(max_size=60) | st.from_regex(r"[\w-]{0,40}\.[\w-]{0,40}\.[\w-]{0,40}"))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(Unauthenticated):
        check(SECRET, CLUSTER, text, NOW)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_no_changed_byte_goes_unseen(position: int, change: int) -> None:
    """The last letter of a part has spare bits, so two spellings may mean the same bytes."""
    token = signed(HEADER, CLAIMS)
    at = position % len(token)
    changed = token[:at] + chr(ord(token[at]) ^ change) + token[at + 1 :]
    try:
        identity = check(SECRET, CLUSTER, changed, NOW)
    except Unauthenticated:
        return
    assert at == len(token) - 1
    assert identity == check(SECRET, CLUSTER, token, NOW)


@pytest.mark.parametrize(
    ("subject", "role", "lifetime"),
    [
        ("ada", "king", 60),
        ("", "client", 60),
        ("a\nb", "client", 60),
        ("ada", "client", 0),
        ("ada", "client", -1),
        ("ada", "client", float("nan")),
        ("ada", "client", float("inf")),
    ],
)
def test_no_token_is_issued_that_would_be_refused(subject: str, role: str, lifetime: float) -> None:
    with pytest.raises(BadInput):
        issue(SECRET, CLUSTER, subject, role, lifetime, NOW)


def test_a_short_secret_signs_and_checks_nothing() -> None:
    token = signed(HEADER, CLAIMS, b"short")
    with pytest.raises(BadInput, match="5 bytes"):
        issue(b"short", CLUSTER, "ada", "client", 60, NOW)
    with pytest.raises(BadInput, match="5 bytes"):
        check(b"short", CLUSTER, token, NOW)


# ------------------------------------------------------------------------------------- identity


def test_only_the_node_itself_is_that_node() -> None:
    assert Identity("node-1", "node").is_node("node-1")
    assert not Identity("node-1", "node").is_node("node-2")
    assert not Identity("node-1", "admin").is_node("node-1")
    assert not Identity("anonymous", "admin").is_node("anonymous")
    assert Identity("node-1", "node", proof="token and certificate").is_node("node-1")
    assert not Identity("node-1", "client", proof="token and certificate").is_node("node-1")
    assert Identity("node-1", "admin", proof="certificate").is_node("node-1")
    assert not Identity("node-1", "admin", proof="certificate").is_node("node-2")
    assert Identity("anonymous", "admin", proof="nothing").is_node("node-1")


def test_a_role_that_may_not_is_told_which_may() -> None:
    Identity("ada", "client").must_be("admin", "client")
    with pytest.raises(Forbidden, match="'ada' has the role client, but needs admin or node"):
        Identity("ada", "client").must_be("admin", "node")


# --------------------------------------------------------------------------------------- secret


def test_a_new_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two")]
    old = os.umask(0)
    try:
        for path in paths:
            make_secret(path)
    finally:
        os.umask(old)
    one, two = (read_secret(path) for path in paths)
    assert one != two
    assert len(one) >= 32
    assert stat.S_IMODE(os.stat(paths[0]).st_mode) == 0o600
    assert check(one, CLUSTER, issue(one, CLUSTER, "ada", "client", 60, NOW), NOW).subject == "ada"


def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    make_secret(path)
    before = read_secret(path)
    with pytest.raises(UnusableFile, match="exists already"):
        make_secret(path)
    assert read_secret(path) == before


def test_a_secret_that_can_not_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="No such file or directory"):
        make_secret(str(tmp_path / "nowhere" / "secret"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o610])
def test_a_secret_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    make_secret(str(path))
    text = path.read_text().strip()
    path.chmod(mode)
    with pytest.raises(UnusableFile, match=f"mode {mode:04o}.*chmod 600") as caught:
        read_secret(str(path))
    assert text not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"x" * 31 + b"\r\n", b"x" * 5000])
def test_a_secret_of_a_wrong_length_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadInput, match="use 32 to 4096 random bytes"):
        read_secret(str(path))


def test_what_is_no_file_is_no_secret(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    tmp_path.chmod(0o700)
    for path in (tmp_path / "missing", tmp_path, pipe):
        with pytest.raises(UnusableFile, match=str(path)):
            read_secret(str(path))
