"""Who may connect, and how is a caller identified?

    mode                 needs                          who somebody is
    open                 nothing                        anonymous, admin: for one machine only
    tokens               certificate, key, secret       what the token says
    certificates         certificate, key, authority    the certificate's name, admin
    both                 all four                       what the token says; a node's and a
                                                        coordinator's certificate has the same name

A server that is reached from other machines needs TLS and one of the proofs, or `insecure`. The
two proofs are not seen in one place: the token's header by the middleware, before the handler; the
certificate's name only by the handler. `identity_of(context)` puts them together, so handlers ask
it first, and nothing else.

The certificate's name is the first of its alternative names (of whatever kind), or without any its
common name. So a node's certificate has the node's id as its first name.
"""

import ipaddress
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow.flight as flight

from limosa.errors import BadInput, Refused, Unauthenticated, UnusableFile
from limosa.transport.failures import to_flight_error
from limosa.transport.tokens import Identity, check, read_secret

MIDDLEWARE = "auth"
CALLS_MAX = 1_000
"""Calls and streams under way at once, without those of nodes and coordinators that say so by a
token. Each takes a thread, from before it has said anything."""

ANYBODY = Identity("anonymous", "admin", proof="nothing")

# Seconds since 1970, as in tokens and certificates.
WallClock: TypeAlias = Callable[[], float]
Headers: TypeAlias = Mapping[str, Sequence[str] | Sequence[bytes]]


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are, whom we trust, and what we ask of others; all but the last two are paths."""

    certificate: str | None = None  # ours, with what lies between it and the authority
    key: str | None = None
    authority: str | None = None  # who signs the others' certificates
    secret: str | None = None  # of the cluster's tokens
    insecure: bool = False  # serve other machines without any of it
    cluster: str = "limosa"  # whose tokens we take
    # Whether a server with an authority asks its clients for certificates. Without it, the
    # authority is only for the servers that we call.
    verify_clients: bool = True

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise BadInput(
                "a certificate and its key belong together", "give both of them, or neither"
            )

    @property
    def serves_tls(self) -> bool:
        return self.certificate is not None

    @property
    def calls_tls(self) -> bool:
        """For an authority that the system trusts, name the system's file of authorities."""
        return self.authority is not None

    @property
    def asks_for_certificates(self) -> bool:
        return self.serves_tls and self.authority is not None and self.verify_clients

    @property
    def asks_for_tokens(self) -> bool:
        return self.secret is not None


# --------------------------------------------------------------------------------------- server


def check_bind(host: str, security: Security) -> None:
    """Refuse to serve other machines without TLS and a proof of who they are."""
    if security.insecure or _is_loopback(host):
        return
    missing = []
    if not security.serves_tls:
        missing.append("TLS (a certificate and its key)")
    if not security.asks_for_tokens and not security.asks_for_certificates:
        missing.append("a proof of who connects (a secret for tokens, or an authority for mTLS)")
    if missing:
        raise BadInput(
            f"serving '{host}' opens Limosa to other machines, without {' and '.join(missing)}",
            "give what is missing, or bind 127.0.0.1; on a network where you trust everybody, "
            "set insecure",
        )


def server_arguments(security: Security, clock: WallClock = time.time) -> dict[str, Any]:
    """For `FlightServerBase`. Reads the files once: a new certificate needs a new server."""
    if security.authority is not None and security.verify_clients and not security.serves_tls:
        raise BadInput(
            "clients can't be asked for certificates without TLS",
            "give a certificate and its key, or set verify_clients to false",
        )
    secret = None if security.secret is None else read_secret(security.secret)
    factory = AuthenticationFactory(
        secret, security.cluster, clock, needs_certificate=security.asks_for_certificates
    )
    arguments: dict[str, Any] = {"middleware": {MIDDLEWARE: factory}}
    if security.certificate is not None and security.key is not None:
        arguments["tls_certificates"] = [read_pair(security.certificate, security.key)]
    if security.authority is not None and security.asks_for_certificates:
        arguments["verify_client"] = True
        arguments["root_certificates"] = _read_authority(security.authority)
    return arguments


class Authentication(flight.ServerMiddleware):
    """What the headers of one call say about who calls."""

    def __init__(
        self, identity: Identity, needs_certificate: bool, ended: Callable[[], None]
    ) -> None:
        super().__init__()
        self.identity = identity
        self.needs_certificate = needs_certificate
        self._ended = ended

    def call_completed(self, exception: BaseException | None) -> None:
        self._ended()


class AuthenticationFactory(flight.ServerMiddlewareFactory):
    """Lets no call through whose token is missing or wrong, if tokens are asked for."""

    def __init__(
        self, secret: bytes | None, cluster: str, clock: WallClock, *, needs_certificate: bool
    ) -> None:
        super().__init__()
        self._secret = secret
        self._cluster = cluster
        self._clock = clock
        self._needs_certificate = needs_certificate
        self._calls = 0
        self._lock = threading.Lock()

    def start_call(self, info: flight.CallInfo, headers: Headers) -> Authentication:
        try:
            identity = self._identity(headers)
            if identity.role in ("node", "coordinator", "mover"):
                return Authentication(identity, self._needs_certificate, lambda: None)
            self._begin()
            return Authentication(identity, self._needs_certificate, self._end)
        except Refused as error:
            raise to_flight_error(error) from None
        except Exception:
            # Nobody gets in by a mistake of ours, or sees it.
            raise to_flight_error(Unauthenticated("the token can't be checked")) from None

    def _begin(self) -> None:
        with self._lock:
            if self._calls >= CALLS_MAX:
                raise Refused(f"{CALLS_MAX} calls are under way here already", "try again later")
            self._calls += 1

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1

    def _identity(self, headers: Headers) -> Identity:
        if self._secret is None:
            return ANYBODY
        return check(self._secret, self._cluster, _bearer(headers), self._clock())


def identity_of(context: flight.ServerCallContext) -> Identity:
    """Who calls, by token and certificate together; the first line of every handler."""
    seen = context.get_middleware(MIDDLEWARE)
    if not isinstance(seen, Authentication):
        raise Unauthenticated("this server does not look at who calls", "start it anew")
    if not seen.needs_certificate:
        return seen.identity
    return _combined(seen.identity, _certificate_name(context))


def _combined(identity: Identity, name: str) -> Identity:
    if identity.proof == "nothing":
        return Identity(name, identity.role, proof="certificate")
    if identity.role in ("node", "coordinator") and identity.subject != name:
        raise Unauthenticated(
            f"the token of {identity.role} '{identity.subject}' came with the certificate of "
            f"'{name}'",
            "the first name in the certificate must be the token's subject",
        )
    return msgspec.structs.replace(identity, proof="token and certificate")


def _certificate_name(context: flight.ServerCallContext) -> str:
    try:
        name = context.peer_identity().decode()
    except UnicodeDecodeError:
        name = ""
    if not name or not name.isprintable():
        raise Unauthenticated("the certificate has no usable name", "give it an alternative name")
    return name


def _bearer(headers: Headers) -> str:
    values = headers.get("authorization", [])
    if not values:
        raise Unauthenticated("there is no token", "send the header 'authorization: Bearer …'")
    value = values[0]
    scheme, _, token = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if len(values) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "the authorization is no token", "send one header 'authorization: Bearer …'"
        )
    return token.strip()


# --------------------------------------------------------------------------------------- client


def scheme(encrypted: bool) -> Literal["grpc+tls", "grpc"]:
    """What a location begins with, by `serves_tls` or `calls_tls`."""
    return "grpc+tls" if encrypted else "grpc"


def client_arguments(security: Security, server_name: str | None = None) -> dict[str, Any]:
    """For `FlightClient`. With a name (a node's id), only a server with that name will do."""
    if security.authority is None:
        if security.serves_tls:
            # Without one the call, and the token with it, would go unencrypted.
            raise BadInput(
                "with TLS, a call needs to know whom to trust",
                "give the authority that signs the servers' certificates, or the system's file",
            )
        return {}
    arguments: dict[str, Any] = {"tls_root_certs": _read_authority(security.authority)}
    if security.certificate is not None and security.key is not None:
        arguments["cert_chain"], arguments["private_key"] = read_pair(
            security.certificate, security.key
        )
    if server_name is not None:
        arguments["override_hostname"] = server_name
    return arguments


def call_options(
    token: str | None, timeout_seconds: float | None = None
) -> flight.FlightCallOptions:
    """For one call: with this token, and not longer than this."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadInput("the token has characters that no token has", "was it copied whole?")
    # The stubs ask for text; pyarrow takes nothing but bytes.
    headers: list[Any] = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(timeout=timeout_seconds, headers=headers)


# ---------------------------------------------------------------------------------------- files


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False  # a name, which may be anybody's by tomorrow


def read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """Flight takes any two files, and fails at each handshake; better now."""
    pair = _read(certificate), _read(key)
    try:
        # Without the password OpenSSL would ask for one, and wait.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError):
        raise UnusableFile(
            f"{certificate} and {key} are no certificate with its key",
            "both must be PEM files, the key without a password",
        ) from None
    return pair


def _read_authority(path: str) -> bytes:
    data = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode())
    except (ssl.SSLError, ValueError):
        raise UnusableFile(
            f"{path} has no certificate of an authority", "name a PEM file"
        ) from None
    return data


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UnusableFile(
            f"{path} can't be read: {error.strerror}", "name a PEM file that this user can read"
        ) from error
