"""Who is the caller? A signed token says so.

A token is a JSON Web Token signed with a secret of the cluster (HMAC with SHA-256, and nothing
else: a token that names another algorithm is refused before its signature is looked at). It says
who (`sub`), in which role (`role`), in which cluster (`aud`), from when (`iat`, `nbf`) and until
when (`exp`), its own id (`jti`), and by which of the cluster's secrets it is signed (`kid`). Such a
secret can sign tokens for any subject, so only its owner may read its file; see `keys`.

A mover's token is for a few sessions (`scope`): a mover copies or compares nothing else with it.

The time comes in as an argument: seconds since 1970, as in the token. No error repeats the token
or the secret.
"""

import hashlib
import math
import secrets
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import jwt
import msgspec

from limosa.errors import BadInput, Forbidden, Unauthenticated
from limosa.transport.keys import NEW_TOKEN, Key, Keyring, keyring_of

ALGORITHM = "HS256"
TOKEN_LENGTH_MAX = 4096
NAME_LENGTH_MAX = 256
# How far the clock of the token's issuer may be ahead.
CLOCK_SKEW_SECONDS_MAX = 30.0

Role: TypeAlias = Literal["client", "admin", "node", "coordinator", "mover"]
Proof: TypeAlias = Literal["nothing", "token", "certificate", "token and certificate"]
Sessions: TypeAlias = tuple[tuple[str, str], ...]
"""Partitions, and the session of each."""

ROLES: tuple[Role, ...] = get_args(Role)
COMPARISON = "compare"
"""The session of a token that compares a partition's replicas, and copies nothing."""


class Identity(msgspec.Struct, frozen=True):
    """Who calls, in which role, by which proof, and until when the proof is valid."""

    subject: str
    role: Role
    expires_at: float | None = None  # seconds since 1970; None: no end
    proof: Proof = "token"
    token_id: str = ""
    key: str = ""
    """The id of the key that signed the token."""
    issued_at: float = 0.0
    scope: str = ""
    """Of a mover: see `scope_of`."""

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

    def must_be_for(self, sessions: Sessions) -> None:
        """Refuse a mover whose token is for other sessions than exactly these."""
        if self.has_role and self.role == "mover" and self.scope != scope_of(sessions):
            raise Forbidden(
                f"the token of '{self.subject}' is for other sessions",
                "use the token that was made for this copy or comparison",
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
    scope: str = ""


class _Header(msgspec.Struct, forbid_unknown_fields=False):
    kid: str | None = None


_signatures = jwt.PyJWS(algorithms=[ALGORITHM])
_claims_decoder = msgspec.json.Decoder(_Claims)


def scope_of(sessions: Iterable[tuple[str, str]]) -> str:
    """A hash of sessions, since a token must be short and a mover may have thousands of them."""
    return hashlib.sha256(msgspec.msgpack.encode(sorted(sessions))).hexdigest()


def issue(
    secret: Key | Keyring | bytes,
    cluster: str,
    subject: str,
    role: str,
    lifetime_seconds: float,
    now: float,
    sessions: Sessions = (),
) -> str:
    """A new token for `subject`, valid from now on; a mover's is for these sessions only."""
    signing = secret if isinstance(secret, Key) else keyring_of(secret).signing
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
    if (role == "mover") != bool(sessions):
        raise BadInput(
            "a mover's token is for sessions, and no other token is",
            "leave movers' tokens to the coordinator, which makes one for each copy",
        )
    claims: dict[str, object] = {
        "sub": subject,
        "role": role,
        "aud": cluster,
        "iat": now,
        "exp": now + lifetime_seconds,
        "jti": secrets.token_hex(16),
    }
    if sessions:
        claims["scope"] = scope_of(sessions)
    header = {"kid": signing.id} if signing.id else None
    return jwt.encode(claims, signing.secret, algorithm=ALGORITHM, headers=header)


def check(keys: Keyring | bytes, cluster: str, token: str, now: float) -> Identity:
    """The token's identity; raises `Unauthenticated` with the reason if it is not valid."""
    ring = keyring_of(keys)
    key, claims = _signed_claims(ring, token)
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
            identity = Identity(
                claims.sub,
                role,
                claims.exp,
                token_id=claims.jti,
                key=key.id,
                issued_at=claims.iat,
                scope=claims.scope,
            )
            check_again(ring, identity, now)
            return identity
    raise Unauthenticated("the token has an unknown role", f"use one of {', '.join(ROLES)}")


class TokenClaims(msgspec.Struct, frozen=True):
    """What a token says of itself."""

    id: str
    subject: str
    expires_at: float


def claims_of(token: str) -> TokenClaims:
    """Without checking them: for those who made the token, or want it revoked."""
    try:
        payload = jwt.PyJWS().decode_complete(token, options={"verify_signature": False})["payload"]
        claims = _claims_decoder.decode(payload)
    except Exception:
        raise BadInput("this is not a token", "check that it was copied completely") from None
    return TokenClaims(claims.jti, claims.sub, claims.exp)


def check_again(keys: Keyring, identity: Identity, now: float) -> None:
    """Whether an identity that was checked before is still valid."""
    check_expiry(identity, now)
    keys.check_valid(identity.key, identity.token_id, identity.subject, identity.issued_at)


def check_expiry(identity: Identity, now: float) -> None:
    if identity.expires_at is not None and now >= identity.expires_at:
        raise Unauthenticated("the token has expired", "reconnect with a new one")


def _signed_claims(ring: Keyring, token: str) -> tuple[Key, _Claims]:
    if len(token) > TOKEN_LENGTH_MAX:
        raise _malformed()
    try:
        header = msgspec.convert(_signatures.get_unverified_header(token), _Header)
    except Exception:
        # A hostile token can cause other errors than ValueError, such as RecursionError by nesting.
        raise _malformed() from None
    candidates = ring.candidates(header.kid)
    if not candidates:
        raise Unauthenticated("the token is signed with a secret that is not valid here", NEW_TOKEN)
    for key in candidates:
        try:
            return key, _claims_decoder.decode(_signatures.decode(token, key.secret, [ALGORITHM]))
        except jwt.InvalidAlgorithmError:
            raise Unauthenticated("the token is signed with another algorithm", NEW_TOKEN) from None
        except jwt.InvalidSignatureError:
            continue
        except Exception:
            raise _malformed() from None
    raise Unauthenticated("the token's signature is wrong", NEW_TOKEN)


def _malformed() -> Unauthenticated:
    return Unauthenticated("the token is malformed", NEW_TOKEN)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable()
