"""What do strangers do? They call a node without a token, with garbage, again and again."""

import os
import socket
import threading
from contextlib import suppress
from random import Random

import pyarrow as pa
import pyarrow.flight as flight

STRANGERS = 4
CALL_SECONDS = 2.0


class Strangers:
    """Threads that call one node until they are told to stop."""

    def __init__(self, address: str, seed: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(Random(f"{seed} {number}"),), daemon=True)
            for number in range(STRANGERS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, dice: Random) -> None:
        while not self._over.is_set():
            with suppress(OSError, flight.FlightError, pa.ArrowException):
                dice.choice((self._send_noise, self._send_ticket, self._ask))(dice)
            self._over.wait(0.01)

    def _send_noise(self, dice: Random) -> None:
        host, _, port = self._address.removeprefix("grpc://").rpartition(":")
        with socket.create_connection((host, int(port)), CALL_SECONDS) as line:
            line.sendall(os.urandom(dice.choice((1, 100, 100_000))))

    def _send_ticket(self, dice: Random) -> None:
        ticket = flight.Ticket(os.urandom(dice.choice((1, 1_000, 1_000_000))))
        with flight.connect(self._address) as client:
            client.do_get(ticket, self._options()).read_all()

    def _ask(self, dice: Random) -> None:
        action = flight.Action(dice.choice(("topology", "request", "no such")), os.urandom(10_000))
        with flight.connect(self._address) as client:
            list(client.do_action(action, self._options()))

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=CALL_SECONDS)
