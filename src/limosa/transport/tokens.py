"""Who is the caller? A signed token says so.

A token is a JSON Web Token signed with the cluster's secret (HMAC with SHA-256, and nothing else:
a token that names another algorithm is refused before its signature is looked at). It says who
(`sub`), in which role (`role`), in which cluster (`aud`), from when (`iat`, `nbf`) and until when
(`exp`). The secret can sign tokens for any subject, so only its owner may read the secret's file.

The time comes in as an argument: seconds since 1970, as in the token. No error repeats the token
or the secret.
"""

import math
import os
import secrets
import stat
from contextlib import suppress
from typing import Literal, TypeAlias, get_args

import jwt
import msgspec

from limosa.errors import BadInput, Forbidden, Unauthenticated, UnusableFile

ALGORITHM = "HS256"
SECRET_BYTES_MIN = 32
SECRET_BYTES_MAX = 4096
TOKEN_LENGTH_MAX = 4096
NAME_LENGTH_MAX = 256
# How far the clock of the token's issuer may be ahead.
CLOCK_SKEW_SECONDS_MAX = 30.0

Role: TypeAlias = Literal["client", "admin", "node", "coordinator", "mover"]
Proof: TypeAlias = Literal["nothing", "token", "certificate", "token and certificate"]

ROLES: tuple[Role, ...] = get_args(Role)
NEW_TOKEN = "ask an administrator of the cluster for a new token"


class Identity(msgspec.Struct, frozen=True):
    """Who calls, in which role, by which proof, and until when the proof is valid."""

    subject: str
    role: Role
    expires_at: float | None = None  # seconds since 1970; None: no end
    proof: Proof = "token"

    def is_node(self, node_id: str) -> bool:
        """Whether the caller is this node.

        A token must have the role and the name of the node. A certificate without a token has no
        role, so its name decides. Without proofs (a cluster on one machine) every caller passes.
        """
        match self.proof:
            case "nothing":
                return True
            case "certificate":
                return self.subject == node_id
            case "token" | "token and certificate":
                return self.role == "node" and self.subject == node_id

    @property
    def has_role(self) -> bool:
        """Whether a token gave the caller its role; a certificate alone only has a name."""
        return self.proof in ("token", "token and certificate")

    def must_be(self, *roles: Role) -> None:
        """Refuse a caller that has none of these roles."""
        if self.role not in roles:
            raise Forbidden(
                f"'{self.subject}' has the role {self.role}, but needs {' or '.join(roles)}",
                "use a token with that role",
            )


class _Claims(msgspec.Struct, forbid_unknown_fields=False):
    """The claims of a token; a token without them, or with other types, is malformed."""

    sub: str
    role: str
    aud: str
    exp: float
    iat: float
    jti: str
    nbf: float = -math.inf


_signatures = jwt.PyJWS(algorithms=[ALGORITHM])
_claims_decoder = msgspec.json.Decoder(_Claims)


# --------------------------------------------------------------------------------------- tokens


def issue(
    secret: bytes, cluster: str, subject: str, role: str, lifetime_seconds: float, now: float
) -> str:
    """A new token for `subject`, valid from now on."""
    _check_secret_length(secret, "the secret")
    if role not in ROLES:
        raise BadInput(f"unknown role '{role}'", f"use one of {', '.join(ROLES)}")
    if not _is_name(subject) or not _is_name(cluster):
        raise BadInput(
            "a token needs a subject and a cluster's name",
            f"use 1 to {NAME_LENGTH_MAX} printable characters for each",
        )
    if not (math.isfinite(lifetime_seconds) and lifetime_seconds > 0):
        raise BadInput(
            f"a token can't be valid for {lifetime_seconds} seconds", "use a positive number"
        )
    claims = {
        "sub": subject,
        "role": role,
        "aud": cluster,
        "iat": now,
        "exp": now + lifetime_seconds,
        "jti": secrets.token_hex(16),
    }
    return jwt.encode(claims, secret, algorithm=ALGORITHM)


def check(secret: bytes, cluster: str, token: str, now: float) -> Identity:
    """The token's identity; raises `Unauthenticated` with the reason if it is not valid."""
    _check_secret_length(secret, "the secret")
    claims = _signed_claims(secret, token)
    if not _is_name(claims.sub) or not math.isfinite(claims.exp) or not math.isfinite(claims.iat):
        raise _malformed()
    if claims.aud != cluster:
        raise Unauthenticated("the token is for another cluster", NEW_TOKEN)
    if claims.exp <= now:
        raise Unauthenticated("the token has expired", NEW_TOKEN)
    if not max(claims.iat, claims.nbf) <= now + CLOCK_SKEW_SECONDS_MAX:
        raise Unauthenticated(
            "the token is not yet valid", "compare the clocks of this machine and of the issuer"
        )
    for role in ROLES:
        if role == claims.role:
            return Identity(claims.sub, role, claims.exp)
    raise Unauthenticated("the token has an unknown role", f"use one of {', '.join(ROLES)}")


def _signed_claims(secret: bytes, token: str) -> _Claims:
    if len(token) > TOKEN_LENGTH_MAX:
        raise _malformed()
    try:
        return _claims_decoder.decode(_signatures.decode(token, secret, [ALGORITHM]))
    except jwt.InvalidAlgorithmError:
        raise Unauthenticated("the token is signed with another algorithm", NEW_TOKEN) from None
    except jwt.InvalidSignatureError:
        raise Unauthenticated("the token's signature is wrong", NEW_TOKEN) from None
    except Exception:
        # A hostile token can cause other errors than ValueError, such as RecursionError by nesting.
        raise _malformed() from None


def _malformed() -> Unauthenticated:
    return Unauthenticated("the token is malformed", NEW_TOKEN)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable()


# --------------------------------------------------------------------------------------- secret


def make_secret(path: str) -> None:
    """Write a new random secret into a new file that only its owner can read."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UnusableFile(
            f"{path} exists already",
            "a new secret invalidates all tokens; to replace it anyway, remove the file first",
        ) from None
    except OSError as error:
        raise UnusableFile(f"{path} can't be created: {error.strerror}") from error
    try:
        with os.fdopen(file, "wb") as writer:
            os.fchmod(file, 0o600)
            writer.write(secrets.token_hex(SECRET_BYTES_MIN).encode() + b"\n")
            writer.flush()
            os.fsync(file)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise UnusableFile(f"{path} can't be written: {error.strerror}") from error


def read_secret(path: str) -> bytes:
    """The secret in a file that nobody but its owner can read or write."""
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
                    f"run: chmod 600 {path}; if others could read it, make a new secret",
                )
            secret = reader.read(SECRET_BYTES_MAX + 1).rstrip(b"\r\n")
    except OSError as error:
        raise UnusableFile(
            f"the secret {path} can't be read: {error.strerror}",
            "create one with make_secret, and copy it to every machine of the cluster",
        ) from error
    _check_secret_length(secret, f"the secret in {path}")
    return secret


def _check_secret_length(secret: bytes, what: str) -> None:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise BadInput(
            f"{what} has {len(secret)} bytes",
            f"use {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes",
        )
