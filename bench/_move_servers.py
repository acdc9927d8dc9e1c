"""What do servers of others need to be started and watched here? Ports, and patience."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

from bench._write_peers import START_SECONDS, Unavailable

HOST = "127.0.0.1"
MOVE_SECONDS_MAX = 300.0
_POLL_SECONDS = 0.01


def free_ports(wanted: int) -> list[int]:
    """All are held until all are known, so that none comes twice."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(wanted)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_until(holds: Callable[[], bool], what: str, seconds_max: float = START_SECONDS) -> None:
    deadline = monotonic() + seconds_max
    while not holds():
        if monotonic() > deadline:
            raise Unavailable(f"waited {seconds_max:.0f} seconds for {what}")
        time.sleep(_POLL_SECONDS)
