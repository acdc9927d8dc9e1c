"""Who is calling over HTTP? One file holds the tokens: created, listed and revoked.

A token is 256 random bits, and only its SHA-256 is stored. A slow or salted hash would add nothing:
it protects passwords that can be guessed, and 256 random bits can't.

(The cluster's own tokens, `transport.tokens`, are signed with its secret and can't be revoked one
by one; these can.)
"""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from limosa.admin.roles import ROLES, Role
from limosa.client.discovery import replace_privately
from limosa.errors import BadInput, UnusableFile

FILE = "admin-tokens.json"
PREFIX = "limosa_"
TOKEN_BYTES = 32
TOKEN_LENGTH_MAX = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


class TokenEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored about a token."""

    name: str
    role: Role
    sha256: str
    created: float
    """Unix time."""


class AdminIdentity(Struct, frozen=True):
    """The caller's name and role."""

    subject: str
    role: Role


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


# --- the file


def read_entries(path: Path) -> list[TokenEntry]:
    """Empty if there is no file; raises if other users can access it, or it is damaged."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnusableFile(
            f"{path} can't be read: {error.strerror}", "correct its permissions"
        ) from None
    if mode & 0o077:
        raise UnusableFile(f"other users can access {path}", f"chmod 600 {path}")
    try:
        return msgspec.json.decode(data, type=list[TokenEntry])
    except (msgspec.DecodeError, ValueError) as error:
        raise UnusableFile(
            f"{path} is damaged: {error}", "remove it, and make new tokens"
        ) from None


def add(path: Path, name: str, role: str) -> str:
    """Returns the new token, which is not stored."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid name for a token",
            "use up to 64 letters, digits, _, ., @ or -; begin with a letter or a digit",
        )
    known = next((each for each in ROLES if each == role), None)
    if known is None:
        raise BadInput(f"there is no role {role!r}", f"use one of {', '.join(ROLES)}")
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    with _changing(path) as entries:
        if any(each.name == name for each in entries):
            raise BadInput(
                f"there is a token {name} already", "choose another name, or remove it first"
            )
        entries.append(TokenEntry(name, known, digest(token), round(time.time(), 3)))
    return token


def remove(path: Path, name: str) -> None:
    with _changing(path) as entries:
        kept = [each for each in entries if each.name != name]
        if len(kept) == len(entries):
            names = ", ".join(sorted(each.name for each in entries)) or "none"
            raise BadInput(f"there is no token {name}", f"there are: {names}")
        entries[:] = kept


@contextmanager
def _changing(path: Path) -> Iterator[list[TokenEntry]]:
    """Under a lock; the file is replaced atomically."""
    try:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnusableFile(
            f"{path.parent} can't be used: {error.strerror}", "name another directory"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = read_entries(path)
        yield entries
        replace_privately(path, msgspec.json.format(msgspec.json.encode(entries)) + b"\n")
    finally:
        os.close(lock)


# --- identifying callers


class Tokens:
    """The file's tokens, read again when the file has changed; several threads may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._entries: list[TokenEntry] = []

    def identify(self, token: str) -> AdminIdentity | None:
        """None if the token is unknown. Compares all entries in constant time."""
        given = digest(token)
        found: AdminIdentity | None = None
        for entry in self.entries():
            if hmac.compare_digest(entry.sha256, given):
                found = AdminIdentity(entry.name, entry.role)
        return found

    def entries(self) -> list[TokenEntry]:
        with self._lock:
            stamp = self._look()
            if stamp is None or stamp != self._stamp:
                self._entries = read_entries(self.path)
                self._stamp = stamp
            return self._entries

    def _look(self) -> tuple[int, ...] | None:
        try:
            known = os.stat(self.path)
        except OSError:
            return None
        return known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns
