"""Can secrets be replaced and tokens revoked while processes go on? And by nobody else?"""

import os
import re
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from limosa.errors import BadInput, Unauthenticated, UnusableFile
from limosa.transport import keys as module
from limosa.transport.keys import (
    HEADING,
    LOOK_SECONDS,
    Key,
    KeyFile,
    Keyring,
    Revocation,
    change_keys,
    make_secret,
    new_key,
    read_keys,
    read_secret,
)
from limosa.transport.tokens import check, check_again, issue

CLUSTER = "blue"
NOW = 1_000_000.0
HOUR = 3_600.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "secret")
    make_secret(made)
    return made


def token(ring: Keyring, subject: str = "ada", now: float = NOW) -> str:
    return issue(ring, CLUSTER, subject, "client", 10 * HOUR, now)


def refusal(ring: Keyring, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        check(ring, CLUSTER, token, NOW + HOUR)
    assert refused.value.advice
    return refused.value.message


def rotate(path: str, at: float) -> Keyring:
    return change_keys(path, lambda ring: ring.rotated(new_key(at)))


# --- rotation


def test_a_secret_of_an_earlier_version_is_a_key_without_a_name(path: str) -> None:
    ring = read_keys(path)
    assert ring.signing == Key("", read_secret(path))
    assert check(ring, CLUSTER, token(ring), NOW).key == ""


def test_two_secrets_are_valid_at_a_time(path: str) -> None:
    """F197: a token outlives the next rotation, and not the one after it."""
    rings = [read_keys(path), *(rotate(path, NOW + minute) for minute in range(3))]
    tokens = [token(ring) for ring in rings]
    assert read_keys(path) == rings[-1]
    for number, ring in enumerate(rings):
        assert len(ring.keys) == min(2, number + 1)
        for age, made in enumerate(reversed(tokens[: number + 1])):
            if age < 2:
                assert check(ring, CLUSTER, made, NOW).key == rings[number - age].signing.id
            else:
                words = "signature is wrong|signed with a secret that is not valid here"
                assert re.search(words, refusal(ring, made))
    assert len({key.id for ring in rings for key in ring.keys}) == 4


def test_a_token_is_only_checked_with_the_key_that_it_names(path: str) -> None:
    ring = rotate(path, NOW)
    other = Keyring((Key(ring.signing.id, b"x" * 32),))
    assert refusal(ring, token(other)) == "the token's signature is wrong"
    assert "not valid here" in refusal(ring, token(Keyring((Key("k9", b"x" * 32),))))
    old = Keyring(ring.keys[1:])
    assert check(ring, CLUSTER, token(old), NOW).key == "", "a token without a name: any key"


@pytest.mark.parametrize("kid", [7, None, ["a"], {"a": 1}, "x" * 5_000])
def test_whatever_names_its_key_strangely_is_refused(path: str, kid: object) -> None:
    import jwt

    ring = rotate(path, NOW)
    claims = {"sub": "ada", "role": "client", "aud": CLUSTER, "iat": NOW, "exp": NOW + 60}
    forged = jwt.encode({**claims, "jti": "1"}, b"x" * 32, headers={"kid": "x"})
    head = msgspec.json.encode({"alg": "HS256", "typ": "JWT", "kid": kid})
    import base64

    made = base64.urlsafe_b64encode(head).rstrip(b"=").decode() + forged[forged.index(".") :]
    assert refusal(ring, made)


# --- revocation


def test_a_revoked_token_is_refused_and_others_are_not(path: str) -> None:
    """F197: one token, or all that a subject was given until now."""
    ring = read_keys(path)
    lost, kept, others = token(ring), token(ring), token(ring, "bob")
    id = check(ring, CLUSTER, lost, NOW).token_id
    one = change_keys(path, lambda each: each.with_revoked(Revocation(NOW + 1, id=id)))
    assert refusal(one, lost) == "the token was revoked"
    check(one, CLUSTER, kept, NOW)
    all_of = change_keys(path, lambda each: each.with_revoked(Revocation(NOW, subject="ada")))
    for each in (lost, kept):
        assert refusal(all_of, each) == "the token was revoked"
    check(all_of, CLUSTER, others, NOW)
    check(all_of, CLUSTER, token(all_of, now=NOW + 0.1), NOW + 1)  # made afterwards
    assert read_keys(path) == all_of


def test_what_was_checked_before_is_refused_after_a_revocation(path: str) -> None:
    """The stream of a caller ends, although its token was valid when it began."""
    ring = read_keys(path)
    identity = check(ring, CLUSTER, token(ring), NOW)
    check_again(ring, identity, NOW)
    with pytest.raises(Unauthenticated, match="expired"):
        check_again(ring, identity, NOW + 10 * HOUR)
    with pytest.raises(Unauthenticated, match="revoked"):
        check_again(ring.with_revoked(Revocation(NOW, subject="ada")), identity, NOW)
    once = ring.rotated(new_key(NOW))
    check_again(once, identity, NOW)
    with pytest.raises(Unauthenticated, match="was replaced"):
        check_again(once.rotated(new_key(NOW)), identity, NOW)


def test_a_revocation_is_kept_as_long_as_a_key_can_verify_what_it_revokes() -> None:
    old, new, newest = (Key(f"k{n}", b"x" * 32, NOW + n) for n in range(3))
    before, between = Revocation(NOW + 0.5, subject="a"), Revocation(NOW + 1.5, subject="b")
    ring = Keyring((new, old), (before, between))
    assert ring.rotated(newest) == Keyring((newest, new), (between,))
    plain = Keyring((Key("", b"x" * 32),), (before,))
    assert plain.rotated(new).revoked == (before,)


# --- the file


def test_the_file_stays_private_and_whole(path: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        rotate(path, NOW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Path(path).read_bytes().startswith(HEADING)
    assert {each.name for each in tmp_path.iterdir()} == {"secret", "secret.lock"}
    assert stat.S_IMODE((tmp_path / "secret.lock").stat().st_mode) == 0o600


def test_changes_of_several_processes_are_all_kept(path: str) -> None:
    def revoke(number: int) -> None:
        revocation = Revocation(NOW, subject=f"s{number}")
        change_keys(path, lambda ring: ring.with_revoked(revocation))

    threads = [threading.Thread(target=revoke, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.subject for each in read_keys(path).revoked} == {f"s{n}" for n in range(8)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"keys": []}',
        b'{"keys": [{"id": "a", "secret": "c2hvcnQ="}]}',
        b'{"keys": [], "more": 1}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_not_taken_for_a_secret(path: str, content: bytes) -> None:
    """Nor does the error repeat what may be a part of one."""
    Path(path).write_bytes(HEADING + content)
    with pytest.raises(UnusableFile, match="damaged") as refused:
        read_keys(path)
    assert "c2hvcnQ" not in str(refused.value)
    with pytest.raises(UnusableFile):
        rotate(path, NOW)
    assert Path(path).read_bytes() == HEADING + content


def test_a_keyring_has_one_or_two_keys_of_different_names() -> None:
    one, two = Key("a", b"x" * 32), Key("b", b"x" * 32)
    for keys in ((), (one, one), (one, two, Key("c", b"x" * 32))):
        with pytest.raises(BadInput, match="keys"):
            Keyring(keys)
    assert "xxx" not in repr(Keyring((one, two)))


def test_a_file_that_can_not_be_replaced_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path(path).read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_fill", fail)
    with pytest.raises(UnusableFile, match="No space left"):
        rotate(path, NOW)
    assert Path(path).read_bytes() == before
    assert not list(Path(path).parent.glob("*.new"))
    with pytest.raises(UnusableFile, match=r"lock can't be made"):
        change_keys(str(Path(path).parent / "nowhere" / "secret"), lambda ring: ring)


# --- processes that go on


class Watch:
    now = 50.0

    def __call__(self) -> float:
        return self.now

    def wait(self) -> None:
        self.now += LOOK_SECONDS


def test_a_process_learns_of_a_change_without_a_restart(path: str) -> None:
    watch = Watch()
    file = KeyFile(path, watch)
    first = file.current()
    rotated = rotate(path, NOW)
    assert file.current() is first, "it does not look at the file for every call"
    watch.wait()
    assert file.current() == rotated
    watch.wait()
    assert file.current() is file.current()


def test_a_process_keeps_its_keys_while_the_file_can_not_be_used(path: str) -> None:
    """It neither lets everybody in nor shuts everybody out, and says what is wrong."""
    watch = Watch()
    file = KeyFile(path, watch)
    first, content = file.current(), Path(path).read_bytes()
    for harm in (
        lambda: Path(path).write_bytes(b"short"),
        lambda: Path(path).write_bytes(HEADING + b"damaged"),
        lambda: os.chmod(path, 0o644),
        lambda: os.unlink(path),
    ):
        harm()
        watch.wait()
        assert file.current() is first
        assert file.trouble
    Path(path).write_bytes(content)
    os.chmod(path, 0o600)
    watch.wait()
    assert file.current() == first
    assert not file.trouble
    with pytest.raises(UnusableFile):
        KeyFile(path + "-nowhere")
