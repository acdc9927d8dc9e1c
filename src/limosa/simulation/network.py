"""What does a network do to messages? Delay, drop, duplicate, reorder and cut, both ways or one."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from limosa.core.messages import Answer, Message, Read, Write


class Weather(Struct, frozen=True):
    """How unreliable the network is; drawn from the seed."""

    latency_seconds: float = 0.002
    dropped: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    """Share of messages that take up to half a second."""
    stuck: float = 0.0
    """Share of messages that take several seconds, and arrive when no process expects them."""


_ONCE = (Write, Read, Answer)
"""A client's request and its answer use one stream, which may lose but never duplicates them."""


class Network:
    """Delivers messages between processes, or loses them."""

    def __init__(self, dice: Random, schedule: Callable[..., None], weather: Weather) -> None:
        self._dice = dice
        self._schedule = schedule
        self.weather = weather
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], float] = {}
        """Links that stay slow, and the seconds that they add."""

    def cut(self, one: str, other: str, both_ways: bool = True) -> None:
        self._cut.add((one, other))
        if both_ways:
            self._cut.add((other, one))

    def slow_down(self, one: str, other: str, seconds: float, both_ways: bool = True) -> None:
        """Delay everything between two processes, or from one to the other; 0: no longer."""
        for path in ((one, other), (other, one))[: 1 + both_ways]:
            self._slow.pop(path, None)
            if seconds:
                self._slow[path] = seconds

    def is_troubled(self) -> bool:
        weather = self.weather
        return bool(self._cut or self._slow) or weather.stuck > 0 or weather.dropped > 0

    def mend(self, one: str, other: str) -> None:
        self._cut.discard((one, other))
        self._cut.discard((other, one))

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()
        self.weather = Weather(latency_seconds=self.weather.latency_seconds)

    def send(
        self,
        sender: str,
        to: str,
        message: Message | None,
        arrive: Callable[..., None],
        *arguments: object,
    ) -> None:
        if (sender, to) in self._cut:
            return
        weather, dice = self.weather, self._dice
        if weather.dropped and dice.random() < weather.dropped:
            return
        path = (sender, to)
        self._schedule(self._latency(path), self._arrive, path, arrive, arguments)
        if weather.doubled and dice.random() < weather.doubled and not isinstance(message, _ONCE):
            self._schedule(self._latency(path), self._arrive, path, arrive, arguments)

    def _arrive(
        self, path: tuple[str, str], arrive: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        """Deliver a message, unless the path was cut meanwhile."""
        if path not in self._cut:
            arrive(*arguments)

    def _latency(self, path: tuple[str, str]) -> float:
        weather, dice = self.weather, self._dice
        if path in self._slow:
            return self._slow[path] * (0.8 + 0.4 * dice.random())
        chance = dice.random()
        if chance < weather.stuck:
            return 0.5 + dice.random() * 6
        if chance < weather.stuck + weather.slow:
            return dice.random() * 0.5
        return weather.latency_seconds * (0.2 + 2 * dice.random())
