"""Which secrets sign tokens, and which tokens are revoked? One file, the secret's, says so.

    # limosa keys 1
    {"keys": [{"id": …, "secret": …, "made": …}, …], "revoked": [{"subject": …, "at": …}, …]}

The first key signs; up to two keys verify, so that a secret is replaced without invalidating the
tokens of the one before. A file that holds nothing but a secret is one key with the empty id.

Every process looks at the file about once a second, and keeps the keys that it has if the file
can't be used. So a change takes effect without a restart.
"""

import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limosa.errors import BadInput, LimosaError, Unauthenticated, UnusableFile

HEADING = b"# limosa keys 1\n"
SECRET_BYTES_MIN = 32
SECRET_BYTES_MAX = 4096
FILE_BYTES_MAX = 1 << 20
KEYS_MAX = 2
LOOK_SECONDS = 0.5
"""How long a process uses the keys that it has read before it looks at the file again."""
NEW_TOKEN = "ask an administrator of the cluster for a new token"


class Key(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret and its name, which tokens carry (`kid`)."""

    id: str
    secret: bytes
    made: float = 0.0
    """Seconds since 1970; 0: unknown."""

    def __post_init__(self) -> None:
        check_length(self.secret, f"the secret {self.id}".rstrip())

    def __repr__(self) -> str:
        return f"Key({self.id!r})"


class Revocation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token, by its id, or all tokens of a subject that were made up to a moment."""

    at: float
    id: str = ""
    subject: str = ""

    def covers(self, id: str, subject: str, issued_at: float) -> bool:
        if self.id:
            return self.id == id
        return self.subject == subject and issued_at <= self.at


class Keyring(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys, newest first, and what is revoked."""

    keys: tuple[Key, ...]
    revoked: tuple[Revocation, ...] = ()

    def __post_init__(self) -> None:
        ids = {key.id for key in self.keys}
        if not 0 < len(self.keys) == len(ids) <= KEYS_MAX:
            raise BadInput(f"{len(self.keys)} keys", f"use one or {KEYS_MAX}, each with its own id")

    @property
    def signing(self) -> Key:
        return self.keys[0]

    def candidates(self, id: str | None) -> tuple[Key, ...]:
        """The keys that may have signed a token; a token without a key's id: any of them."""
        return self.keys if id is None else tuple(key for key in self.keys if key.id == id)

    def check_valid(self, key: str, id: str, subject: str, issued_at: float) -> None:
        """Refuse a token whose signature was right, if its key is gone or it is revoked."""
        if not any(each.id == key for each in self.keys):
            raise Unauthenticated("the secret that signed the token was replaced", NEW_TOKEN)
        if any(each.covers(id, subject, issued_at) for each in self.revoked):
            raise Unauthenticated("the token was revoked", NEW_TOKEN)

    # --- changes

    def rotated(self, key: Key) -> "Keyring":
        """With a new key that signs. The one before still verifies; any other is dropped, and
        revocations of tokens that only a dropped key could verify."""
        kept = (key, *self.keys[: KEYS_MAX - 1])
        oldest = kept[-1].made
        return Keyring(kept, tuple(each for each in self.revoked if each.at >= oldest))

    def with_revoked(self, revocation: Revocation) -> "Keyring":
        return replace(self, revoked=(*self.revoked, revocation))


def keyring_of(given: "Keyring | bytes") -> Keyring:
    """A secret by itself is a keyring of one key."""
    return Keyring((Key("", given),)) if isinstance(given, bytes) else given


def check_length(secret: bytes, what: str) -> None:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise BadInput(
            f"{what} has {len(secret)} bytes",
            f"use {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes",
        )


def new_key(now: float) -> Key:
    return Key(secrets.token_hex(4), secrets.token_hex(SECRET_BYTES_MIN).encode(), now)


# --- the file


def make_secret(path: str) -> None:
    """Write a new random secret into a new file that only its owner can read."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UnusableFile(
            f"{path} exists already",
            "replace its secret with `limosa token rotate`, or name another file",
        ) from None
    except OSError as error:
        raise UnusableFile(f"{path} can't be created: {error.strerror}") from error
    try:
        _fill(file, secrets.token_hex(SECRET_BYTES_MIN).encode() + b"\n")
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise UnusableFile(f"{path} can't be written: {error.strerror}") from error


def read_keys(path: str) -> Keyring:
    """The keys in a file that nobody but its owner can read or write."""
    content = _read(path)
    if not content.startswith(HEADING):
        secret = content.rstrip(b"\r\n")
        check_length(secret, f"the secret in {path}")
        return Keyring((Key("", secret),))
    try:
        return msgspec.json.decode(content.removeprefix(HEADING), type=Keyring)
    except (msgspec.DecodeError, UnicodeDecodeError, BadInput) as error:
        # The error may repeat a part of the file, so only its kind is shown.
        raise UnusableFile(
            f"the keys in {path} are damaged ({type(error).__name__})",
            "restore the file from another machine of the cluster",
        ) from None


def read_secret(path: str) -> bytes:
    """The secret that signs new tokens."""
    return read_keys(path).signing.secret


def change_keys(path: str, change: Callable[[Keyring], Keyring]) -> Keyring:
    """Replace the file atomically, one process at a time; returns the new keys."""
    with _locked(path):
        changed = change(read_keys(path))
        draft = f"{path}.{os.getpid()}.new"
        try:
            # Only its owner reads the draft, too, and it has the file's owner.
            owner = os.stat(path)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if (os.geteuid(), os.getegid()) != (owner.st_uid, owner.st_gid):
                os.fchown(file, owner.st_uid, owner.st_gid)
            _fill(file, HEADING + msgspec.json.format(msgspec.json.encode(changed)) + b"\n")
            os.replace(draft, path)
            _sync_directory(os.path.dirname(os.path.abspath(path)))
        except OSError as error:
            raise UnusableFile(f"{path} can't be replaced: {error.strerror}") from None
        finally:
            with suppress(OSError):
                os.unlink(draft)
    return changed


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnusableFile(f"{path}.lock can't be made: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _fill(file: int, content: bytes) -> None:
    with os.fdopen(file, "wb") as writer:
        os.fchmod(file, 0o600)
        writer.write(content)
        writer.flush()
        os.fsync(file)


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: str) -> bytes:
    try:
        # Non-blocking: opening a named pipe would wait for a writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as reader:
            mode = os.fstat(file).st_mode
            if not stat.S_ISREG(mode):
                raise UnusableFile(f"{path} is not a file", "give the path of the cluster's secret")
            if mode & 0o077:
                raise UnusableFile(
                    f"other users can access the secret in {path} (mode {stat.S_IMODE(mode):04o})",
                    f"run: chmod 600 {path}; if others could read it, replace the secret: limosa "
                    "token rotate",
                )
            return reader.read(FILE_BYTES_MAX)
    except OSError as error:
        raise UnusableFile(
            f"the secret {path} can't be read: {error.strerror}",
            "create one with make_secret, and copy it to every machine of the cluster",
        ) from error


class KeyFile:
    """The keys of a file, as it is now; several threads may use it."""

    def __init__(self, path: str, now: Callable[[], float] = time.monotonic) -> None:
        """Raises if the file can't be used."""
        self.path = path
        self.trouble = ""
        """Why the file can't be read again; the keys that were read last are used meanwhile."""
        self._now = now
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._keys = read_keys(path)
        self._looked_at = now()

    def current(self) -> Keyring:
        """The same object until the file has changed."""
        if self._now() - self._looked_at >= LOOK_SECONDS:
            with self._lock:
                if self._now() - self._looked_at >= LOOK_SECONDS:
                    self._refresh()
                    self._looked_at = self._now()
        return self._keys

    def has_changed(self) -> bool:
        """Look at the file now: another process may have read a new key a moment earlier."""
        with self._lock:
            before = self._keys
            self._refresh()
            self._looked_at = self._now()
            return self._keys != before

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp and not self.trouble:
            return
        try:
            self._keys = read_keys(self.path)
            self.trouble = ""
            self._stamp = stamp
        except LimosaError as error:
            self.trouble = error.message

    def _look(self) -> tuple[int, ...] | None:
        try:
            known = os.stat(self.path)
        except OSError:
            return None
        return known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_mode
