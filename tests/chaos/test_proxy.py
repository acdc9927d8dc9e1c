"""Does the network between the processes do what the faults ask of it, and only that?"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import STRANGER, Network
from tests.waiting import eventually, left_after

NAMES = {os.getpid(): "we"}


class Echo:
    """Says everything again."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(near,), daemon=True))
            self._threads[-1].start()

    def _answer(self, near: socket.socket) -> None:
        with near:
            try:
                while data := near.recv(1 << 16):
                    near.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5.0)


@pytest.fixture
def network() -> Iterator[Network]:
    echo = Echo()
    with Network(["n1", "n2"], lambda: NAMES) as network:
        for node in ("n1", "n2"):
            network.lead_to(node, f"grpc://{echo.address}")
        yield network
    echo.close()


def dial(network: Network, node: str) -> socket.socket:
    host, _, port = network.address(node).rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=5.0)
    line.settimeout(5.0)
    return line


def said(line: socket.socket, what: bytes) -> bytes:
    line.sendall(what)
    found = b""
    while len(found) < len(what):
        found += line.recv(1 << 16)
    return found


def test_bytes_pass_in_both_directions_and_the_caller_is_known(network: Network) -> None:
    with dial(network, "n1") as line:
        what = os.urandom(1 << 20)
        sender = threading.Thread(target=line.sendall, args=(what,))
        sender.start()
        found = b""
        while len(found) < len(what):
            found += line.recv(1 << 16)
        sender.join()
        assert found == what
        assert network.lines() == [("we", "n1")]


def test_an_end_passes_and_the_line_is_forgotten(network: Network) -> None:
    with dial(network, "n1") as line:
        assert said(line, b"x") == b"x"
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    assert left_after(network.lines, 5.0) == []


def test_what_is_cut_stays_open_and_arrives_late(network: Network) -> None:
    with dial(network, "n1") as cut, dial(network, "n2") as whole:
        assert said(cut, b"x") == b"x"
        pairs = network.cut(["we"], ["n1"])
        cut.sendall(b"late")
        cut.settimeout(0.3)
        with pytest.raises(TimeoutError):
            cut.recv(4)
        assert said(whole, b"y") == b"y"
        network.heal(pairs)
        cut.settimeout(5.0)
        assert cut.recv(4) == b"late"


def test_a_caller_is_known_whatever_else_has_its_port(network: Network) -> None:
    """A line that has just ended stays in the kernel's table for a while, and is nobody's."""
    for _ in range(10):
        with dial_from(0, network, "n1") as ended:
            assert said(ended, b"x") == b"x"
            port = ended.getsockname()[1]
        with dial_from(port, network, "n2") as line:
            assert said(line, b"y") == b"y"
    assert network.callers == {"we": 20}


def dial_from(port: int, network: Network, node: str) -> socket.socket:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    line.bind(("127.0.0.1", port))
    line.settimeout(5.0)
    host, _, called = network.address(node).rpartition(":")
    line.connect((host, int(called)))
    return line


def test_a_new_line_through_a_cut_opens_and_says_nothing(network: Network) -> None:
    pairs = network.cut(["we"], ["n1"])
    with dial(network, "n1") as line:
        line.sendall(b"late")
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(4)
        network.heal(pairs)
        line.settimeout(5.0)
        assert line.recv(4) == b"late"


def test_what_is_reset_is_lost(network: Network) -> None:
    with dial(network, "n1") as line, dial(network, "n2") as other:
        assert said(line, b"x") == b"x"
        assert said(other, b"x") == b"x"
        assert network.reset({("we", "n1")}) == 1
        with pytest.raises(ConnectionResetError):
            line.recv(1)
        assert said(other, b"y") == b"y"


def test_what_is_refused_is_reset_at_once(network: Network) -> None:
    network.refuse("n1", True)
    with dial(network, "n1") as line, pytest.raises(ConnectionResetError):
        line.recv(1)
    network.refuse("n1", False)
    with dial(network, "n1") as line:
        assert said(line, b"x") == b"x"


def test_a_delay_delays_each_way(network: Network) -> None:
    with dial(network, "n1") as line:
        assert said(line, b"x") == b"x"
        pairs = network.delay(["we"], ["n1"], 0.1)
        began = time.monotonic()
        assert said(line, b"y") == b"y"
        assert time.monotonic() - began >= 0.2
        network.heal(pairs)


@pytest.mark.processes
def test_a_rule_for_one_caller_is_none_for_another(network: Network) -> None:
    """Also one that speaks both versions of the internet protocol, as gRPC does."""
    program = (
        "import socket, sys; line = socket.socket(socket.AF_INET6); line.settimeout(5.0);"
        "line.connect(('::ffff:127.0.0.1', int(sys.argv[1]))); sys.stdin.read(1);"
        "line.sendall(b'x'); print(line.recv(1).decode())"
    )
    port = network.address("n1").rpartition(":")[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        NAMES[other.pid] = "other"
        try:
            assert eventually(network.lines, "it is connected") == [("other", "n1")]
            network.cut(["we"], ["n1"])
            answer, _ = other.communicate(b"\n", timeout=10.0)
            assert answer == b"x\n"
        finally:
            del NAMES[other.pid]
    assert network.callers[STRANGER] == 0
