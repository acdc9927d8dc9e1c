"""Who may connect, and how is a caller identified?

    mode                 needs                          identity of a caller
    open                 nothing                        anonymous, admin: for one machine only
    tokens               certificate, key, secret       what the token says
    certificates         certificate, key, authority    the certificate's name, admin
    both                 all four                       what the token says; a node's and a
                                                        coordinator's certificate has the same name

A server that other machines can reach needs TLS and one of the two proofs, or `insecure`. Flight
shows the proofs in different places: the token's header to the middleware, before the handler runs,
and the certificate's name to the handler only. `identity_of(context)` combines them, so every
handler calls it first.

The certificate's name is its first alternative name (of any kind), or its common name if it has no
alternative name. So a node's certificate has the node's id as its first name.
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
from limosa.transport.keys import KeyFile, Keyring
from limosa.transport.tokens import Identity, check, check_again, check_expiry

MIDDLEWARE = "auth"
CALLS_MAX = 1_000
"""Most concurrent calls and streams, not counting those of nodes and coordinators with a token.
Each takes a thread from the moment it connects."""

ANYBODY = Identity("anonymous", "admin", proof="nothing")

# Seconds since 1970, as in tokens and certificates.
WallClock: TypeAlias = Callable[[], float]
Headers: TypeAlias = Mapping[str, Sequence[str] | Sequence[bytes]]


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Own certificate, trusted authority and required proofs; all but the last three are paths."""

    certificate: str | None = None  # our certificate, followed by intermediate certificates
    key: str | None = None
    authority: str | None = None  # certificate of the authority that signs the peers' certificates
    secret: str | None = None  # the secret that signs the cluster's tokens
    insecure: bool = False  # serve other machines without TLS and proofs
    cluster: str = "limosa"  # the cluster whose tokens are accepted
    # Whether a server with an authority asks its clients for certificates. If not, the authority
    # only verifies the servers that we call.
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
        """To trust the system's authorities, give the path of the system's bundle."""
        return self.authority is not None

    @property
    def asks_for_certificates(self) -> bool:
        return self.serves_tls and self.authority is not None and self.verify_clients

    @property
    def asks_for_tokens(self) -> bool:
        return self.secret is not None


# --------------------------------------------------------------------------------------- server


def check_bind(host: str, security: Security) -> None:
    """Refuse to serve other machines without TLS and a proof of identity."""
    if security.insecure or _is_loopback(host):
        return
    missing = []
    if not security.serves_tls:
        missing.append("TLS (a certificate and its key)")
    if not security.asks_for_tokens and not security.asks_for_certificates:
        missing.append("a proof of identity (a secret for tokens, or an authority for mTLS)")
    if missing:
        raise BadInput(
            f"serving '{host}' opens Limosa to other machines, without {' and '.join(missing)}",
            "configure what is missing, or bind 127.0.0.1; on a network where everybody is "
            "trusted, set insecure",
        )


def server_arguments(security: Security, clock: WallClock = time.time) -> dict[str, Any]:
    """For `FlightServerBase`. Reads certificates once: a new one needs a restart."""
    if security.authority is not None and security.verify_clients and not security.serves_tls:
        raise BadInput(
            "clients can't be asked for certificates without TLS",
            "give a certificate and its key, or set verify_clients to false",
        )
    keys = None if security.secret is None else KeyFile(security.secret)
    factory = AuthenticationFactory(
        keys, security.cluster, clock, needs_certificate=security.asks_for_certificates
    )
    arguments: dict[str, Any] = {"middleware": {MIDDLEWARE: factory}}
    if security.certificate is not None and security.key is not None:
        arguments["tls_certificates"] = [read_pair(security.certificate, security.key)]
    if security.authority is not None and security.asks_for_certificates:
        arguments["verify_client"] = True
        arguments["root_certificates"] = _read_authority(security.authority)
    return arguments


class Authentication(flight.ServerMiddleware):
    """The caller of one call, as its headers identify it."""

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
    """Refuses calls without a valid token, if the cluster uses tokens."""

    def __init__(
        self, keys: KeyFile | None, cluster: str, clock: WallClock, *, needs_certificate: bool
    ) -> None:
        super().__init__()
        self._keys = keys
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
            # An internal error must neither let the caller in nor be shown to it.
            raise to_flight_error(Unauthenticated("the token can't be checked")) from None

    def _begin(self) -> None:
        with self._lock:
            if self._calls >= CALLS_MAX:
                raise Refused(f"{CALLS_MAX} calls are in progress here already", "retry later")
            self._calls += 1

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1

    def _identity(self, headers: Headers) -> Identity:
        if self._keys is None:
            return ANYBODY
        token = _bearer(headers)
        try:
            return check(self._keys.current(), self._cluster, token, self._clock())
        except Unauthenticated:
            if not self._keys.has_changed():
                raise
            return check(self._keys.current(), self._cluster, token, self._clock())

    def check_again(self, identity: Identity, seen: Keyring | None = None) -> Keyring | None:
        """Refuse a caller whose token has expired or was revoked since its stream began.

        Returns the keys it was checked with. With the same keys, only the time is compared.
        """
        if self._keys is None:
            return None
        keys = self._keys.current()
        if keys is seen:
            check_expiry(identity, self._clock())
        else:
            check_again(keys, identity, self._clock())
        return keys


def identity_of(context: flight.ServerCallContext) -> Identity:
    """The caller by token and certificate; every handler calls this first."""
    seen = context.get_middleware(MIDDLEWARE)
    if not isinstance(seen, Authentication):
        raise Unauthenticated(
            "this server was started without its authentication middleware", "restart it"
        )
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
        raise Unauthenticated(
            "the certificate has no usable name", "issue one with an alternative name"
        )
    return name


def _bearer(headers: Headers) -> str:
    values = headers.get("authorization", [])
    if not values:
        raise Unauthenticated("the call has no token", "send the header 'authorization: Bearer …'")
    value = values[0]
    scheme, _, token = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if len(values) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "the authorization header is not a token", "send one header 'authorization: Bearer …'"
        )
    return token.strip()


# --------------------------------------------------------------------------------------- client


def scheme(encrypted: bool) -> Literal["grpc+tls", "grpc"]:
    """The scheme of a location, by `serves_tls` or `calls_tls`."""
    return "grpc+tls" if encrypted else "grpc"


def check_encrypted(address: str, security: Security) -> None:
    """Refuse an address without TLS if an authority was named: the caller expects encryption."""
    if security.authority is not None and not address.startswith(f"{scheme(True)}://"):
        raise BadInput(
            f"{address} is an address without TLS, but an authority was given",
            f"use {scheme(True)}://{address.rpartition('://')[2]} if the node serves TLS, or leave "
            "the authority out",
        )


def client_arguments(security: Security, server_name: str | None = None) -> dict[str, Any]:
    """For `FlightClient`. With a name (a node's id), the server's certificate must bear it."""
    if security.authority is None:
        if security.serves_tls:
            # Without this check the call and its token would be sent unencrypted.
            raise BadInput(
                "a call with TLS needs an authority",
                "name the authority that signs the servers' certificates, or the system's bundle",
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
    """Options of one call: its token and its timeout."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadInput("the token has invalid characters", "check that it was copied completely")
    # The stubs want text; pyarrow accepts only bytes.
    headers: list[Any] = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(timeout=timeout_seconds, headers=headers)


# ---------------------------------------------------------------------------------------- files


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False  # a host name, which may resolve to another machine tomorrow


def read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """Check the pair now: Flight accepts any two files and fails at each handshake."""
    pair = _read(certificate), _read(key)
    try:
        # Without a password callback OpenSSL would prompt for one, and block.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError):
        raise UnusableFile(
            f"{certificate} and {key} are not a certificate and its key",
            "both must be PEM files, the key without a password",
        ) from None
    return pair


def _read_authority(path: str) -> bytes:
    data = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode())
    except (ssl.SSLError, ValueError):
        raise UnusableFile(
            f"{path} has no certificate of an authority", "give a PEM file"
        ) from None
    return data


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UnusableFile(
            f"{path} can't be read: {error.strerror}", "give a PEM file that this user can read"
        ) from error
