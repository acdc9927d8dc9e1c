"""Who uses the cluster meanwhile? Clients that fight for a few keys, and a writer of many rows.

    contenders   single puts, small batches, compare-and-set chains, deletes and gets of few keys
    latecomers   ask for the same keys, but only when they are told, by what they knew before
    bulk writer  rows of its own, many batches under way at once, some of them deleted later
    scanner      reads all that the bulk writer was told to be there

Every value is written once, so that a value that is read tells which write it came from.
"""

import time

from tests.chaos.bulk import BulkWriter, Scanner
from tests.chaos.client import Client, Connect
from tests.chaos.contender import Contender, Latecomer
from tests.chaos.history import History
from tests.chaos.season import Season

LATECOMERS = 3


class Load:
    """All clients together."""

    def __init__(
        self, connect: Connect, table: str, history: History, seed: int, contenders: int = 4
    ) -> None:
        self.history = history
        self.scanner = Scanner("scanner", connect, table, history, seed)
        self.latecomers = [
            Latecomer(f"l{number + 1}", connect, table, history, seed)
            for number in range(LATECOMERS)
        ]
        self.clients: list[Client] = [
            *(Contender(f"c{n + 1}", connect, table, history, seed) for n in range(contenders)),
            *self.latecomers,
            BulkWriter("bulk", connect, table, history, seed),
            self.scanner,
        ]
        self.season = Season(0)

    def start(self) -> None:
        for client in self.clients:
            client.start()
        self.begin_season()

    def begin_season(self) -> None:
        self.season = Season(self.season.number + 1)
        for client in self.clients:
            client.resume(self.season)

    def poke(self) -> None:
        """Latecomers ask now."""
        for client in self.latecomers:
            client.poke()

    def pause(self, seconds: float) -> list[str]:
        """Let everybody finish; who does not is named."""
        for client in self.clients:
            client.pause()
        deadline = time.monotonic() + seconds
        return [
            client.name
            for client in self.clients
            if not client.wait_until_idle(deadline - time.monotonic())
        ]

    def stop(self, seconds: float) -> list[str]:
        for client in self.clients:
            client.stop()
        deadline = time.monotonic() + seconds
        return [
            client.name for client in self.clients if not client.join(deadline - time.monotonic())
        ]

    @property
    def problems(self) -> list[str]:
        return [problem for client in self.clients for problem in client.problems]
