"""How do Valkey and Redis move keys? As slots of a cluster of two, each by its own means.

Neither logs nor takes snapshots here, which favours them: a write is acknowledged when it is in
memory, and is nowhere else. All other settings are as they ship them.

One slot, of which there is no key, stays: a server that gives its last slot away becomes a replica
of the one that got it, and would copy everything back.
"""

import shutil
import socket
import subprocess
import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

from bench._move_servers import HOST, MOVE_SECONDS_MAX, free_ports, wait_until
from bench._move_writer import Moved, measure, value_of
from bench._write_peers import Unavailable, _command, _directory, _running, valkey_server

SLOTS = 16_384
LAST_MOVED = SLOTS - 2
PIPELINE = 1_000
_AGAIN_SECONDS = 0.001


# ---------------------------------------------------------------- talking to one server


class Refused(Exception):
    """The server answered with an error: its text."""


class Link:
    """One connection, one command at a time or a pipeline of them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.create_connection((HOST, port), timeout=MOVE_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def ask(self, *words: str | int) -> Any:
        self.send(_command(*(str(word).encode() for word in words)))
        return self.answer()

    def pipeline(self, commands: Iterable[bytes]) -> Iterator[Any]:
        """Their answers, in order."""
        left = iter(commands)
        while some := list(islice(left, PIPELINE)):
            self.send(b"".join(some))
            for _ in some:
                yield self.answer()

    def send(self, commands: bytes) -> None:
        self._socket.sendall(commands)

    def answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise ConnectionError(f"the server at port {self.port} hung up")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b"$":
            return self._answers.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest.decode()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def slot_of(name: bytes) -> int:
    return crc_hqx(name, 0) % SLOTS


def names(keys: int) -> list[bytes]:
    """As many as wanted, none of them in a slot that stays."""
    every = (b"key:%d" % number for number in count())
    return list(islice((name for name in every if slot_of(name) <= LAST_MOVED), keys))


# ---------------------------------------------------------------- two servers


class SlotPair:
    """Two servers; all slots are at the first until they move."""

    def __init__(
        self,
        name: str,
        expected_seconds: float,
        links: Sequence[Link],
        writers: Sequence[Link],
        move: Callable[["SlotPair"], None],
    ) -> None:
        self.name = name
        self.async_durability = True
        self.expected_seconds = expected_seconds
        self.source, self.target = links
        self.target_id: str = self.target.ask("CLUSTER", "MYID")
        self.version = _version(self.source)
        self._writers = {link.port: link for link in writers}
        self._owners = [writers[0]] * SLOTS
        self._names: list[bytes] = []
        self._move = move

    def load(self, keys: int) -> None:
        self._names = names(keys)
        value = value_of(0).encode()
        for _ in self.source.pipeline(_command(b"SET", name, value) for name in self._names):
            pass

    def write(self, key: int, number: int) -> None:
        """Follows redirections, and learns from those that are for good."""
        name = self._names[key]
        command = _command(b"SET", name, value_of(number).encode())
        slot = slot_of(name)
        link, asking = self._owners[slot], False
        while True:
            try:
                return _set(link, command, asking)
            except Refused as refused:
                why, *where = str(refused).split()
            asking = why == "ASK"
            if why in ("MOVED", "ASK"):
                link = self._writers[int(where[1].rpartition(":")[2])]
            elif why in ("TRYAGAIN", "CLUSTERDOWN"):
                time.sleep(_AGAIN_SECONDS)
            else:
                raise Refused(f"{why} {' '.join(where)}")
            if why == "MOVED":
                self._owners[slot] = link

    def move(self) -> None:
        self._move(self)

    def check(self, written: Mapping[int, int]) -> None:
        """A server forgets what it gave away a little later than it gives it away."""
        found = self.target.pipeline(_command(b"GET", name) for name in self._names)
        wanted = (value_of(written.get(key, 0)) for key in range(len(self._names)))
        if any(one != other for one, other in zip(found, wanted, strict=True)):
            raise Unavailable(f"{self.name} lost acknowledged writes")
        wait_until(lambda: self.source.ask("DBSIZE") == 0, "the source to be empty")


def _set(link: Link, command: bytes, asking: bool) -> None:
    link.send(_command(b"ASKING") + command if asking else command)
    if asking:
        link.answer()
    link.answer()


def _version(link: Link) -> str:
    lines: list[str] = link.ask("INFO", "server").splitlines()
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    return known.get("valkey_version") or known["redis_version"]


@contextmanager
def _pair(
    name: str, program: Path, expected_seconds: float, move: Callable[[SlotPair], None]
) -> Iterator[SlotPair]:
    with ExitStack() as stack:
        root = stack.enter_context(_directory(name))
        free = free_ports(4)
        ports, bus_ports = free[:2], free[2:]
        for port, bus_port in zip(ports, bus_ports, strict=True):
            stack.enter_context(_server(program, root / str(port), port, bus_port))
        links, writers = (
            [stack.enter_context(closing(Link(port))) for port in ports] for _ in range(2)
        )
        _join(links, bus_ports)
        yield SlotPair(name, expected_seconds, links, writers, move)


@contextmanager
def _server(program: Path, directory: Path, port: int, bus_port: int) -> Iterator[None]:
    directory.mkdir()
    where = ["--bind", HOST, "--port", str(port), "--dir", str(directory)]
    cluster = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
    in_memory = ["--save", "", "--appendonly", "no"]
    with _running([str(program), *where, *cluster, *in_memory], directory) as process:

        def listens() -> bool:
            if process.poll() is not None:
                log = (directory / "log").read_text(errors="replace").strip()
                raise Unavailable(f"{program.name} did not start: {log[-200:]}")
            with socket.socket() as probe:
                return probe.connect_ex((HOST, port)) == 0

        wait_until(listens, f"{program.name} to start")
        yield


def _join(links: Sequence[Link], bus_ports: Sequence[int]) -> None:
    for epoch, link in enumerate(links, start=1):
        link.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
    source, target = links
    source.ask("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    target.ask("CLUSTER", "MEET", HOST, source.port, bus_ports[0])
    facts = ("cluster_state:ok", "cluster_known_nodes:2", f"cluster_slots_assigned:{SLOTS}")

    def agreed() -> bool:
        told = [link.ask("CLUSTER", "INFO").splitlines() for link in links]
        return all(fact in lines for lines in told for fact in facts)

    wait_until(agreed, "the cluster to form")


# ---------------------------------------------------------------- Valkey


def valkey(keys: int) -> Moved:
    """Atomic slot migration: a snapshot, the writes since, a pause, and all slots at once.

    Durability: none; a write is acknowledged when it is in memory.
    """
    with _pair("valkey", valkey_server(), keys / 50_000, _migrate_slots) as pair:
        pair.load(keys)
        return measure(pair, keys)


def _migrate_slots(pair: SlotPair) -> None:
    wanted = ("SLOTSRANGE", 0, LAST_MOVED, "NODE", pair.target_id)
    try:
        pair.source.ask("CLUSTER", "MIGRATESLOTS", *wanted)
    except Refused as refused:
        raise Unavailable(f"Valkey {pair.version} does not migrate slots: {refused}") from None

    def succeeded() -> bool:
        (told,) = pair.source.ask("CLUSTER", "GETSLOTMIGRATIONS")
        job = dict(zip(told[::2], told[1::2], strict=True))
        if job["state"] in ("failed", "cancelled"):
            raise Unavailable(f"Valkey's migration {job['state']}: {job['message']}")
        return bool(job["state"] == "success")

    wait_until(succeeded, "Valkey's slot migration", MOVE_SECONDS_MAX)


# ---------------------------------------------------------------- Redis


def redis(keys: int) -> Moved:
    """`redis-cli --cluster reshard`: slot after slot, ten keys at a time, redirecting by the key.

    Durability: none; a write is acknowledged when it is in memory.
    """
    programs = {name: shutil.which(name) for name in ("redis-server", "redis-cli")}
    for name, found in programs.items():
        if found is None:
            raise Unavailable(f"{name} is not installed")
    client = str(programs["redis-cli"])

    def reshard(pair: SlotPair) -> None:
        given = ["--cluster-from", pair.source.ask("CLUSTER", "MYID")]
        given += ["--cluster-to", pair.target_id, "--cluster-slots", str(LAST_MOVED + 1)]
        command = [client, "--cluster", "reshard", f"{HOST}:{pair.source.port}", *given]
        done = subprocess.run(
            [*command, "--cluster-yes"],
            capture_output=True,
            check=False,
            timeout=MOVE_SECONDS_MAX,
        )
        if done.returncode:
            told = (done.stdout[-200:] + done.stderr[-200:]).decode(errors="replace")
            raise Unavailable(f"redis-cli failed to reshard: {told.strip()}")

    expected_seconds = SLOTS / 1_000 + keys / 20_000  # an empty slot takes its time, too
    with _pair("redis", Path(str(programs["redis-server"])), expected_seconds, reshard) as pair:
        pair.load(keys)
        return measure(pair, keys)
