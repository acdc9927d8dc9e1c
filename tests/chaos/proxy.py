"""What lies between the processes? A network of our own, in which every line can be cut.

Everybody dials a node at its proxy. Who dials is found out from the operating system (which
process has the other end of the connection?), so that a rule holds for one caller and one node. A
node talks to another on the line that it opened itself and is answered on the other's, so to cut
n1 → n2 is to cut one direction.

A line that is cut stays open, and nothing passes: neither bytes nor its end. When it is healed,
what was held back goes on its way, late, as with TCP; or the line is reset, and all of it is lost.
"""

import asyncio
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

CHUNK_BYTES = 1 << 16
POLL_SECONDS = 0.02
"""How often a line that is cut looks whether it still is."""
LOOKS = 3
"""The kernel's table of connections, read while it changes, may lack one that is there."""
CONNECT_SECONDS = 5.0
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset."""

STRANGER = "stranger"

Address = tuple[str, int, int]
"""Where a caller calls from, and which port it calls: its own may have other lines, or one that has
just ended."""
Pair = tuple[str, str]
"""A caller's name and a node's."""


class Line:
    """One connection, from a caller to a node."""

    def __init__(self, caller: str, node: str, near: socket.socket) -> None:
        self.pair: Pair = (caller, node)
        """Without a caller as long as it is not known."""
        self.near = near
        self.far: socket.socket | None = None
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Both ends are told: connection reset by peer."""
        self.linger()
        if self.task is not None:
            self.task.cancel()

    def linger(self) -> None:
        """Whenever it is closed, let it be by a reset."""
        for end in (self.near, self.far):
            if end is not None:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)

    def close(self) -> None:
        for end in (self.near, self.far):
            if end is not None:
                end.close()


class Network:
    """A proxy for each node, all of them on one thread; rules may be changed by any other."""

    def __init__(
        self,
        nodes: Iterable[str],
        processes: Callable[[], Mapping[int, str]],
        others: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        self._processes = (processes, others)
        """Who may call: names by process id. The others are asked for only if it is none of the
        first, since it takes a while to find them."""
        self._targets: dict[str, tuple[str, int]] = {}
        self._cut: set[Pair] = set()
        self._delays: dict[Pair, float] = {}
        self._refused: set[str] = set()
        self._lines: set[Line] = set()
        self._unknown: dict[Address, asyncio.Future[str]] = {}
        """Callers whose process is to be found."""
        self._finding = False
        self._finder = ThreadPoolExecutor(1, thread_name_prefix="chaos-callers")
        self.callers: Counter[str] = Counter()
        """How many lines each has opened; those of nobody whom we know are strangers'."""
        self._loop = asyncio.new_event_loop()
        self._listeners = {node: _listen() for node in nodes}
        self._thread = threading.Thread(target=self._run, name="chaos-network", daemon=True)
        self._thread.start()

    def address(self, node: str) -> str:
        """What the node is to advertise."""
        host, port = self._listeners[node].getsockname()
        return f"{host}:{port}"

    def lead_to(self, node: str, address: str) -> None:
        """The node listens there now."""
        host, _, port = address.rpartition("://")[2].rpartition(":")
        self._targets[node] = (host, int(port))

    # --- faults

    def cut(self, callers: Iterable[str], nodes: Iterable[str]) -> set[Pair]:
        """Nothing passes from these to those, silently, until it is healed."""
        nodes = list(nodes)
        pairs = {(caller, node) for caller in callers for node in nodes if caller != node}
        self._cut |= pairs
        return pairs

    def delay(self, callers: Iterable[str], nodes: Iterable[str], seconds: float) -> set[Pair]:
        nodes = list(nodes)
        pairs = {(caller, node) for caller in callers for node in nodes if caller != node}
        self._delays |= dict.fromkeys(pairs, seconds)
        return pairs

    def heal(self, pairs: Iterable[Pair]) -> None:
        """What was held back goes on."""
        pairs = set(pairs)
        self._cut -= pairs
        for pair in pairs:
            self._delays.pop(pair, None)

    def refuse(self, node: str, refused: bool) -> None:
        """New connections to the node are reset at once, as if nobody listened."""
        (self._refused.add if refused else self._refused.discard)(node)

    def reset(self, pairs: Iterable[Pair]) -> int:
        """End their lines; returns how many there were."""
        return asyncio.run_coroutine_threadsafe(self._abort(set(pairs)), self._loop).result(10.0)

    def lines(self) -> list[Pair]:
        """Which are open now, of callers that are known."""
        return [line.pair for line in list(self._lines) if line.pair[0]]

    async def _abort(self, pairs: set[Pair]) -> int:
        lines = [line for line in self._lines if line.pair in pairs]
        for line in lines:
            line.abort()
        await asyncio.gather(*(line.task for line in lines if line.task), return_exceptions=True)
        return len(lines)

    # --- lines

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for node, listener in self._listeners.items():
            self._loop.create_task(self._accept(node, listener))
        self._loop.run_forever()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, node: str, listener: socket.socket) -> None:
        while True:
            near, _ = await self._loop.sock_accept(listener)
            near.setblocking(False)
            line = Line("", node, near)
            self._lines.add(line)
            line.task = self._loop.create_task(self._carry(line))

    async def _carry(self, line: Line) -> None:
        """Until both ends have ended, or one broke."""
        try:
            line.pair = (await self._who_calls(line.near), line.pair[1])
            self.callers[line.pair[0]] += 1
            if line.pair[1] in self._refused:
                raise ConnectionRefusedError(f"{line.pair[1]} refuses")
            await self._pass(line)
            line.far = await self._dial(line.pair[1])
            async with asyncio.TaskGroup() as both:  # if one breaks, the other must not go on
                both.create_task(self._pump(line, line.near, line.far))
                both.create_task(self._pump(line, line.far, line.near))
        except* OSError:
            line.linger()
        finally:
            line.close()
            self._lines.discard(line)

    async def _who_calls(self, near: socket.socket) -> str:
        """All who wait are found together: that takes a while, and many may call at once."""
        caller = (*near.getpeername(), near.getsockname()[1])
        found: asyncio.Future[str] = self._loop.create_future()
        self._unknown[caller] = found
        if len(self._unknown) == 1 and not self._finding:
            self._finding = True
            self._loop.create_task(self._find())
        return await found

    async def _find(self) -> None:
        while self._unknown:
            unknown, self._unknown = self._unknown, {}
            names: dict[Address, str] = {}
            for _ in range(LOOKS):
                missing = [address for address in unknown if address not in names]
                if missing:
                    names |= await self._loop.run_in_executor(
                        self._finder, who_call, missing, *self._processes
                    )
            for address, found in unknown.items():
                if not found.done():
                    found.set_result(names.get(address, STRANGER))
        self._finding = False

    async def _dial(self, node: str) -> socket.socket:
        target = self._targets.get(node)
        if target is None:
            raise ConnectionRefusedError(f"{node} has not said where it listens")
        far = socket.socket()
        far.setblocking(False)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.wait_for(self._loop.sock_connect(far, target), CONNECT_SECONDS)
        except BaseException:
            far.close()
            raise
        return far

    async def _pump(self, line: Line, source: socket.socket, sink: socket.socket) -> None:
        while True:
            data = await self._loop.sock_recv(source, CHUNK_BYTES)
            await self._pass(line)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, data)

    async def _pass(self, line: Line) -> None:
        """Wait as long as the rules say."""
        delay = self._delays.get(line.pair)
        if delay:
            await asyncio.sleep(delay)
        while line.pair in self._cut:
            await asyncio.sleep(POLL_SECONDS)

    # --- the end

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._finder.shutdown()
        for listener in self._listeners.values():
            listener.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _listen() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    return listener


# --- who calls


def who_call(
    addresses: Iterable[Address], *processes: Callable[[], Mapping[int, str]]
) -> dict[Address, str]:
    """The names of the processes at the other ends; of strangers there are none."""
    sockets = {f"socket:[{inode}]": address for address, inode in _inodes(addresses).items()}
    found: dict[Address, str] = {}
    for look in processes:
        for pid, name in look().items() if sockets else ():
            for link in _links(pid):
                address = sockets.pop(link, None)
                if address is not None:
                    found[address] = name
    return found


def _inodes(addresses: Iterable[Address]) -> dict[Address, str]:
    """Of the sockets at these ends: the tables' tenth column.

    Who speaks both versions of the protocol is in the table of the newer one, with an address
    that ends like the older one's.
    """
    wanted = {
        (f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}", f"{called:04X}"): (
            host,
            port,
            called,
        )
        for host, port, called in addresses
    }
    length = len("0100007F:0000")
    found: dict[Address, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            address = wanted.get((columns[1][-length:], columns[2][-4:]))
            if address is not None:
                found[address] = columns[9]
    return found


def _links(pid: int) -> Iterator[str]:
    """What its descriptors stand for; it may end meanwhile."""
    directory = f"/proc/{pid}/fd"
    with suppress(OSError):
        for descriptor in os.listdir(directory):
            with suppress(OSError):
                yield os.readlink(f"{directory}/{descriptor}")
