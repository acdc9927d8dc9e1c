"""Who gets in: real Flight servers with TLS, certificates and tokens."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow.flight as flight
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from limosa.errors import BadInput, Forbidden, LimosaError, Unauthenticated, UnusableFile
from limosa.transport.failures import errors_received
from limosa.transport.keys import make_secret, read_secret
from limosa.transport.security import (
    Security,
    call_options,
    check_bind,
    client_arguments,
    identity_of,
    server_arguments,
)
from limosa.transport.tokens import Identity, Role, issue
from tests.transport.certificates import SERVER_NAMES, Authority
from tests.transport.probe import Probe, connected, options, serving, who_am_i
from tests.transport.test_failures import WAYS, Way
from tests.transport.test_tokens import CLAIMS, HEADER, signed

CLUSTER = "limosa"
NOW = 1_000_000.0
SOON = NOW + 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory / "ours")


@pytest.fixture(scope="module")
def foreign_authority(directory: Path) -> Authority:
    return Authority(directory / "foreign")


@pytest.fixture(scope="module")
def secret(directory: Path) -> str:
    path = str(directory / "secret")
    make_secret(path)
    return path


@pytest.fixture(scope="module")
def running(authority: Authority, secret: str) -> Iterator[dict[str, Probe]]:
    """One server for each mode of the table in `security`."""
    certificates = authority.security(*SERVER_NAMES)
    modes = {
        "open": Security(),
        "tokens": authority.security(*SERVER_NAMES, secret=secret, verify_clients=False),
        "certificates": certificates,
        "both": authority.security(*SERVER_NAMES, secret=secret),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(security, clock=lambda: NOW))
            for name, security in modes.items()
        }


def without_token(identity: Identity) -> Identity:
    """Who it is, whichever token says so."""
    return msgspec.structs.replace(identity, token_id="", issued_at=0.0)


def token(secret: str, subject: str = "ada", role: Role = "client", cluster: str = CLUSTER) -> str:
    return issue(read_secret(secret), cluster, subject, role, SOON - NOW, NOW)


def refused_by(server: Probe, security: Security, name: str | None = None) -> None:
    """The handshake fails: no call of this client reaches a handler."""
    before = server.calls
    with connected(server, security, name) as client, pytest.raises(flight.FlightUnavailableError):
        who_am_i(client)
    assert server.calls == before


# ------------------------------------------------------------------------------------------ TLS


def test_without_any_security_everybody_is_an_anonymous_admin(running: dict[str, Probe]) -> None:
    with connected(running["open"]) as client:
        identity = who_am_i(client)
    assert without_token(identity) == Identity("anonymous", "admin", None, "nothing")
    assert identity.is_node("node-1")


def test_an_open_server_ignores_a_token(running: dict[str, Probe]) -> None:
    with connected(running["open"]) as client:
        assert who_am_i(client, call_options("abc", 30)).subject == "anonymous"


def test_a_server_is_checked_by_its_clients(
    running: dict[str, Probe], authority: Authority, foreign_authority: Authority, secret: str
) -> None:
    server = running["tokens"]
    ours = Security(authority=authority.path)
    with connected(server, ours) as client:
        assert who_am_i(client, call_options(token(secret), 30)).subject == "ada"
    with connected(server, ours, name="server-1") as client:
        assert who_am_i(client, call_options(token(secret), 30)).subject == "ada"
    refused_by(server, ours, name="server-2")
    refused_by(server, Security(authority=foreign_authority.path))


def test_plain_text_and_tls_do_not_meet(running: dict[str, Probe], authority: Authority) -> None:
    refused_by(running["tokens"], Security())
    refused_by(running["open"], Security(authority=authority.path))


# ------------------------------------------------------------------------------------------ mTLS


@pytest.mark.parametrize("mode", ["certificates", "both"])
def test_no_certificate_no_call(running: dict[str, Probe], authority: Authority, mode: str) -> None:
    refused_by(running[mode], Security(authority=authority.path))


@pytest.mark.parametrize("mode", ["certificates", "both"])
def test_a_certificate_of_a_foreign_authority_is_refused(
    running: dict[str, Probe], authority: Authority, foreign_authority: Authority, mode: str
) -> None:
    certificate, key = foreign_authority.issue("node-1")
    refused_by(running[mode], Security(certificate=certificate, key=key, authority=authority.path))


@pytest.mark.parametrize(
    ("names", "common_name", "seen"),
    [
        (["node-1"], None, "node-1"),
        (["node-1", "node-2", "10.0.0.1"], "node-3", "node-1"),
        (["10.0.0.1", "node-1"], None, "10.0.0.1"),
        (["ada@example.org"], "node-3", "ada@example.org"),
        ([], "node-3", "node-3"),
    ],
)
def test_the_first_name_in_a_certificate_is_the_identity(
    running: dict[str, Probe],
    authority: Authority,
    names: list[str],
    common_name: str | None,
    seen: str,
) -> None:
    security = authority.security(*names, common_name=common_name)
    with connected(running["certificates"], security) as client:
        identity = who_am_i(client)
    assert without_token(identity) == Identity(seen, "admin", None, "certificate")
    assert [node for node in ("node-1", "node-2", "node-3") if identity.is_node(node)] == [
        node for node in ("node-1", "node-2", "node-3") if node == seen
    ]


def test_a_node_needs_its_token_and_its_certificate(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    one, two = authority.security("node-1"), authority.security("node-2")
    token_of_one = call_options(token(secret, "node-1", "node"), 30)
    with connected(running["both"], one) as client:
        identity = who_am_i(client, token_of_one)
        assert without_token(identity) == Identity("node-1", "node", SOON, "token and certificate")
        assert identity.is_node("node-1")
    with (
        connected(running["both"], two) as client,
        pytest.raises(Unauthenticated, match="node 'node-1' came with the certificate of 'node-2'"),
        errors_received(),
    ):
        who_am_i(client, token_of_one)


def test_a_certificate_does_not_spare_the_token(
    running: dict[str, Probe], authority: Authority
) -> None:
    with (
        connected(running["both"], authority.security("node-1")) as client,
        pytest.raises(Unauthenticated, match="the call has no token"),
        errors_received(),
    ):
        who_am_i(client)


def test_a_client_may_use_its_token_with_any_certificate(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    """The certificate is its machine's; a client who is called like a node is no node."""
    with connected(running["both"], authority.security("node-1")) as client:
        ada = who_am_i(client, call_options(token(secret), 30))
        assert without_token(ada) == Identity("ada", "client", SOON, "token and certificate")
        named = who_am_i(client, call_options(token(secret, "node-1", "client"), 30))
        assert not named.is_node("node-1")


# ---------------------------------------------------------------------------------------- tokens


def refusal(
    running: dict[str, Probe],
    authority: Authority,
    *headers: tuple[str, str],
) -> Unauthenticated:
    """What a call with these headers is told; its handler never runs."""
    server = running["tokens"]
    before = server.calls
    with connected(server, Security(authority=authority.path)) as client:
        with pytest.raises(flight.FlightUnauthenticatedError) as caught:
            who_am_i(client, options(*headers))
        with pytest.raises(Unauthenticated) as understood, errors_received():
            who_am_i(client, options(*headers))
    text = str(caught.value) + caught.value.extra_info.decode("latin-1")
    for leak in ("Traceback", ".py", "File"):
        assert leak not in text
    for _, value in headers:
        assert value.rpartition(" ")[2] not in text.replace("Bearer", "") or len(value) < 10
    assert understood.value.advice
    assert understood.value.definite
    assert server.calls == before
    return understood.value


def bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


@pytest.mark.parametrize("role", ["client", "admin", "node", "coordinator"])
def test_a_token_gives_name_role_and_end(
    running: dict[str, Probe], authority: Authority, secret: str, role: Role
) -> None:
    with connected(running["tokens"], Security(authority=authority.path)) as client:
        identity = who_am_i(client, call_options(token(secret, "node-1", role), 30))
    assert without_token(identity) == Identity("node-1", role, SOON, "token")
    assert identity.is_node("node-1") == (role == "node")


def test_without_a_token_nobody_gets_in(running: dict[str, Probe], authority: Authority) -> None:
    assert refusal(running, authority).message == "the call has no token"


def test_a_stale_token_is_refused(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    stale = issue(read_secret(secret), CLUSTER, "ada", "client", 60, NOW - 61)
    assert refusal(running, authority, bearer(stale)).message == "the token has expired"


def test_a_token_forged_with_another_secret_is_refused(
    running: dict[str, Probe], authority: Authority
) -> None:
    forged = issue(b"another secret, just as long as ours", CLUSTER, "ada", "admin", 60, NOW)
    assert refusal(running, authority, bearer(forged)).message == "the token's signature is wrong"


def test_a_token_of_another_cluster_is_refused(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    other = token(secret, cluster="green")
    assert refusal(running, authority, bearer(other)).message == "the token is for another cluster"


def test_an_unsigned_token_is_refused(running: dict[str, Probe], authority: Authority) -> None:
    unsigned = signed(HEADER | {"alg": "none"}, CLAIMS).rpartition(".")[0] + "."
    error = refusal(running, authority, bearer(unsigned))
    assert error.message == "the token is signed with another algorithm"


def test_the_servers_public_certificate_is_no_secret(
    running: dict[str, Probe], authority: Authority
) -> None:
    """RS256 by name, HMAC with the public certificate by deed."""
    public = Path(authority.path).read_bytes()
    forged = signed(HEADER | {"alg": "RS256"}, CLAIMS | {"aud": CLUSTER}, public)
    error = refusal(running, authority, bearer(forged))
    assert error.message == "the token is signed with another algorithm"


def test_a_token_of_an_unknown_role_is_refused(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    king = signed(HEADER, CLAIMS | {"aud": CLUSTER, "role": "king"}, read_secret(secret))
    assert refusal(running, authority, bearer(king)).message == "the token has an unknown role"


def test_a_deep_nest_is_a_malformed_token(running: dict[str, Probe], authority: Authority) -> None:
    nest = signed(b"[" * 2500, CLAIMS)
    assert refusal(running, authority, bearer(nest)).message == "the token is malformed"


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "Basic YWRhOmFkYQ==", "a.b.c", "Bearera.b"])
def test_another_kind_of_authorization_is_no_token(
    running: dict[str, Probe], authority: Authority, value: str
) -> None:
    error = refusal(running, authority, ("authorization", value))
    assert error.message == "the authorization header is not a token"


def test_two_tokens_are_none(running: dict[str, Probe], authority: Authority, secret: str) -> None:
    error = refusal(running, authority, bearer(token(secret)), bearer(token(secret)))
    assert error.message == "the authorization header is not a token"


def test_the_scheme_may_be_written_in_small_letters(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    with connected(running["tokens"], Security(authority=authority.path)) as client:
        header = ("authorization", f"bearer {token(secret)}")
        assert who_am_i(client, options(header)).subject == "ada"


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_call_is_guarded(
    running: dict[str, Probe], authority: Authority, way: Way
) -> None:
    server = running["tokens"]
    before = server.calls
    with (
        connected(server, Security(authority=authority.path)) as client,
        pytest.raises(Unauthenticated, match="the call has no token"),
        errors_received(),
    ):
        way(client)
    assert server.calls == before


def test_a_role_that_may_not_is_forbidden(
    running: dict[str, Probe], authority: Authority, secret: str
) -> None:
    with connected(running["tokens"], Security(authority=authority.path)) as client:
        admin = call_options(token(secret, role="admin"), 30)
        assert who_am_i(client, admin, "administrate").role == "admin"
        with pytest.raises(Forbidden, match="needs admin"), errors_received():
            who_am_i(client, call_options(token(secret), 30), "administrate")
        with pytest.raises(flight.FlightUnauthorizedError):
            who_am_i(client, call_options(token(secret), 30), "administrate")


def test_a_broken_clock_lets_nobody_in(secret: str) -> None:
    def broken() -> float:
        raise OSError("/etc/localtime")

    with (
        serving(Security(secret=secret), broken) as server,
        connected(server) as client,
        pytest.raises(flight.FlightUnauthenticatedError) as caught,
    ):
        who_am_i(client, call_options(token(secret), 30))
    assert "localtime" not in str(caught.value)


def test_a_handler_without_the_middleware_trusts_nobody() -> None:
    class Careless(flight.FlightServerBase):
        def do_action(  # type: ignore[override]
            self, context: flight.ServerCallContext, action: flight.Action
        ) -> Iterator[flight.Result]:
            try:
                identity_of(context)
            except Unauthenticated:
                return iter([flight.Result(b"nobody")])
            return iter([])

    with (
        Careless("grpc://127.0.0.1:0") as server,
        flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        (result,) = client.do_action(flight.Action("who", b""), options())
        assert result.body.to_pybytes() == b"nobody"


def test_a_token_with_odd_characters_is_not_sent() -> None:
    for odd in ("a\nb", "ä", "a\x00"):
        with pytest.raises(BadInput, match="copied completely") as caught:
            call_options(odd)
        assert odd not in str(caught.value)


# ------------------------------------------------------------------------------------------ bind


ANYWHERE = ["0.0.0.0", "::", "[::]", "", "10.0.0.7", "example.org", "128.0.0.1", "127.0.0.1.org"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"]
)
def test_one_machine_needs_no_security(host: str) -> None:
    check_bind(host, Security())


@pytest.mark.parametrize("host", ANYWHERE)
def test_other_machines_need_tls_and_a_proof(host: str) -> None:
    tls = Security(certificate="c", key="k")
    for security, missing in [
        (Security(), r"TLS .* and a proof"),
        (Security(secret="s"), "TLS"),
        (Security(authority="a"), r"TLS .* and a proof"),
        (tls, "a proof"),
        (Security(certificate="c", key="k", authority="a", verify_clients=False), "a proof"),
    ]:
        with pytest.raises(BadInput, match=f"without {missing}.*bind 127.0.0.1.*insecure"):
            check_bind(host, security)
    check_bind(host, Security(certificate="c", key="k", secret="s"))
    check_bind(host, Security(certificate="c", key="k", authority="a"))
    check_bind(host, Security(insecure=True))


def test_a_certificate_and_its_key_belong_together() -> None:
    with pytest.raises(BadInput, match="give both"):
        Security(certificate="c")
    with pytest.raises(BadInput, match="give both"):
        Security(key="k")


# ----------------------------------------------------------------------------------------- files


def test_a_server_never_forgets_to_ask_for_certificates(authority: Authority) -> None:
    with pytest.raises(BadInput, match="without TLS"):
        server_arguments(Security(authority=authority.path))
    server_arguments(Security(authority=authority.path, verify_clients=False))


def test_a_client_with_a_certificate_never_calls_in_plain_text(authority: Authority) -> None:
    certificate, key = authority.issue("node-1")
    with pytest.raises(BadInput, match="needs an authority"):
        client_arguments(Security(certificate=certificate, key=key))


def test_files_that_do_not_fit_are_found_at_the_start(
    authority: Authority, directory: Path, secret: str
) -> None:
    certificate, key = authority.issue("node-1")
    other_certificate, other_key = authority.issue("node-2")
    private = trustme.CA().issue_cert("x").private_key_pem.bytes()
    locked = directory / "locked.pem"
    locked.write_bytes(
        serialization.load_pem_private_key(private, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    empty = directory / "empty.pem"
    empty.write_bytes(b"")
    missing = str(directory / "missing.pem")
    pairs = [
        (certificate, other_key),
        (key, certificate),
        (certificate, str(locked)),
        (certificate, missing),
        (missing, key),
        (str(empty), key),
        (str(directory), key),
        (other_certificate, str(empty)),
    ]
    for one, two in pairs:
        for arguments in (server_arguments, client_arguments):
            with pytest.raises(UnusableFile):
                arguments(Security(certificate=one, key=two, authority=authority.path))
    for path in (missing, str(empty), key, secret):
        bad = Security(certificate=certificate, key=key, authority=path)
        for arguments in (server_arguments, client_arguments):
            with pytest.raises(UnusableFile):
                arguments(bad)


def test_a_secret_that_others_can_read_starts_no_server(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(str(path))
    path.chmod(0o644)
    with pytest.raises(LimosaError, match="chmod 600"):
        server_arguments(Security(secret=str(path)))
