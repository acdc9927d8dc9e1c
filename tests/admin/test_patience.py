"""Can a client that dawdles keep its connection for ever?"""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from limosa.admin import patience, tokens
from limosa.admin.process import AdminProcess
from tests.admin.test_process import nowhere, serving

SHORT_SECONDS = 0.6
LONG_SECONDS = 60.0
HEAD = b"GET /livez HTTP/1.1\r\nHost: here\r\n"
POST = (
    "POST /v1/tables HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {}\r\nContent-Length: 1000\r\n"
)


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminProcess]:
    monkeypatch.setattr(patience, "HEADER_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(patience, "BODY_SECONDS", 2 * SHORT_SECONDS)
    with serving(tmp_path, nowhere) as process:
        yield process


def connect(process: AdminProcess) -> socket.socket:
    host, port = process.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 10.0)


def seconds_until_closed(connection: socket.socket, trickle: bytes = b"") -> float:
    """While one byte after the other is sent."""
    began = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - began < LONG_SECONDS:
        try:
            if not connection.recv(65_536):
                break
        except TimeoutError:
            pass
        except OSError:
            break
        try:
            if trickle:
                connection.send(trickle[:1])
                trickle = trickle[1:] or b"x"
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("begins", "trickle"),
    [
        (b"", b""),
        (b"", HEAD),
        (HEAD, b""),
        (HEAD, b"X-Header: value\r\n"),
        (b"\r\n", b"\r\n\r\n\r\n"),
    ],
    ids=("nothing", "a byte at a time", "half of the headers", "ever more headers", "empty lines"),
)
def test_headers_that_do_not_come_close_the_connection(
    impatient: AdminProcess, begins: bytes, trickle: bytes
) -> None:
    with closing(connect(impatient)) as connection:
        connection.send(begins)
        assert seconds_until_closed(connection, trickle) < 10 * SHORT_SECONDS


def test_nor_do_those_of_the_next_request(impatient: AdminProcess) -> None:
    with closing(connect(impatient)) as connection:
        connection.send(HEAD + b"\r\n")
        assert b"200 OK" in connection.recv(65_536)
        assert seconds_until_closed(connection, HEAD) < 10 * SHORT_SECONDS


def test_a_body_that_does_not_come_closes_the_connection(
    impatient: AdminProcess, tmp_path: Path
) -> None:
    """Also of somebody who has a token."""
    token = tokens.add(tmp_path / tokens.FILE, "ann", "admin")
    with closing(connect(impatient)) as connection:
        connection.send(POST.format(token).encode() + b"Content-Type: application/json\r\n\r\n{")
        took = seconds_until_closed(connection, b"x" * 900)
        assert 1.5 * SHORT_SECONDS < took < 15 * SHORT_SECONDS


def test_an_answer_that_nobody_reads_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS", SHORT_SECONDS)
    token = tokens.add(tmp_path / tokens.FILE, "ann", "viewer")
    request = f"GET /openapi.json HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {token}\r\n\r\n"
    with serving(tmp_path, nowhere) as process, closing(connect(process)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(0.2)
        with pytest.raises(ConnectionError):
            send_for_ever(connection, request.encode())


def send_for_ever(connection: socket.socket, request: bytes) -> None:
    began = time.monotonic()
    while time.monotonic() - began < LONG_SECONDS:
        with suppress(TimeoutError):  # the server reads no more while its answers pile up
            connection.sendall(request * 100)


def test_requests_in_time_are_answered_on_one_connection(impatient: AdminProcess) -> None:
    """For longer than any of them may take."""
    with closing(connect(impatient)) as connection:
        for _ in range(6):
            for part in (HEAD[:10], HEAD[10:], b"\r\n"):
                connection.send(part)
                time.sleep(SHORT_SECONDS / 6)
            assert b"200 OK" in connection.recv(65_536)
