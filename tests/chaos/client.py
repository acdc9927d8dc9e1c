"""What is a client's life? It does one thing after the other, and now and then begins anew."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from limosa.client import Connection, TableHandle
from limosa.errors import LimosaError
from tests.chaos.history import History
from tests.chaos.season import Season

Connect = Callable[[str], Connection]
LIFE_OPERATIONS = 300
"""After about so many a client connects anew: it is another producer then."""


class Client(ABC):
    """One thread with a connection of its own, which it now and then replaces."""

    def __init__(
        self, name: str, connect: Connect, table: str, history: History, seed: int
    ) -> None:
        self.name = name
        self.history = history
        self.dice = Random(f"{seed} {name}")
        self.season = Season(0)
        self.problems: list[str] = []
        self._connect = connect
        self._table_name = table
        self._connection: Connection | None = None
        self._table: TableHandle | None = None
        self._life = 0
        self._may_run = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chaos-{name}", daemon=True)

    # --- for whoever runs it

    def start(self) -> None:
        self._thread.start()

    def resume(self, season: Season) -> None:
        self.season = season
        self._idle.clear()
        self._may_run.set()

    def pause(self) -> None:
        self._may_run.clear()

    def wait_until_idle(self, seconds: float) -> bool:
        return self._idle.wait(max(0.0, seconds))

    def stop(self) -> None:
        self._stopping.set()
        self._may_run.set()

    def join(self, seconds: float) -> bool:
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    # --- its thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._may_run.is_set():
                self._settle()
                self._idle.set()
                self._may_run.wait()
                continue
            try:
                self._live()
            except Exception as error:  # a client must not raise anything but its own errors
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
                self._hang_up()
                time.sleep(0.5)
        self._settle()
        self._hang_up()
        self._idle.set()

    def _live(self) -> None:
        if self._life <= 0:
            self._settle()
            self._hang_up()
            self._life = self.dice.randint(LIFE_OPERATIONS // 2, LIFE_OPERATIONS * 2)
        if self._table is None and not self._dial():
            return
        assert self._table is not None
        self._life -= 1
        self.step(self._table)

    def _dial(self) -> bool:
        try:
            self._connection = self._connect(self.name)
            self._table = self._connection.table(self._table_name)
        except LimosaError:
            self._hang_up()
            time.sleep(0.1)
            return False
        return True

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._table = None

    @abstractmethod
    def step(self, table: TableHandle) -> None:
        """One operation, or a few."""

    def _settle(self) -> None:  # noqa: B027 – most have nothing under way
        """Wait for what is under way."""
