"""How does one process send to another without waiting for it?

A `StreamSender` is the sending side of one stream. Any thread puts messages into its outbox and
never blocks; the sender's own thread packs the outbox into frames and sends them. If the peer does
not accept them, the outbox overflows and messages are lost, as on any network: the core retries.

An `Outbound` keeps a link to one address open: it connects, reconnects when the stream broke, and
passes on what the peer sends on the same stream. Its own thread reads, or a caller does (`lone`).
`protocol.peers.NodeLinks` keeps one `Outbound` for each node.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from limosa.errors import BadInput
from limosa.transport.lone import PendingAnswers, ReadingTurns

OUTBOX_MESSAGES_MAX = 20_000
OUTBOX_BYTES_MAX = 128 << 20
FRAME_MESSAGES_MAX = 256
FRAME_BYTES_AIM = 4 << 20

Encode = Callable[[Sequence[Any]], bytes]
"""Messages to one frame."""
SizeOf = Callable[[Any], int]
"""About how many bytes a message takes."""

CHANNEL: list[tuple[str, int | str]] = [
    # Flight's server answers keepalive pings with "enhance your calm", so there are none: who
    # waits for an answer too long cuts the link, and connects again.
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long a connection may take to come about
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
]


class FrameWriter(Protocol):
    def write_metadata(self, frame: pa.Buffer) -> None: ...


class StreamSender:
    """One stream's sending side."""

    def __init__(
        self,
        name: str,
        writer: FrameWriter,
        encode: Encode,
        size_of: SizeOf,
        broken: Callable[[], None] = lambda: None,
        reader_pumps: bool = False,
    ) -> None:
        self.name = name
        self._broken = broken
        self._writer = writer
        self._encode = encode
        self._size_of = size_of
        self._outbox: deque[Any] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = False
        """That thread is about to look into the outbox."""
        self._reads = threading.get_ident() if reader_pumps else None
        """The thread that reads the stream, and pumps after each frame that it has read."""
        self.closed = False

    def send(self, message: Any, quiet: bool = False) -> None:
        """Put it into the outbox; a closed or overfull one loses it.

        `quiet`: there is more to come; the caller pumps or wakes afterwards.
        """
        size = self._size_of(message)
        with self._lock:
            full = len(self._outbox) >= OUTBOX_MESSAGES_MAX or self._bytes > OUTBOX_BYTES_MAX
            if self.closed or full:
                return
            self._outbox.append((message, size))
            self._bytes += size
        if not (quiet or threading.get_ident() == self._reads):
            self.wake()

    def wake(self) -> None:
        """Let a thread of its own send what is in the outbox."""
        if self._woken:
            return  # and has not looked yet
        with self._filled:
            self._woken = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"to-{self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # there are too many; whoever sends must not suffer from it
                    self._outbox.clear()
                    self._bytes = 0
                    self._woken = False
                    return
                self._thread = thread
            self._filled.notify()

    def reply(self, message: Any) -> None:
        """Send it now, on the caller's time: for the thread that reads this very stream.

        A caller who is gone is no error here: its stream ends, and its reader sees that.
        """
        with self._writing:
            try:
                self._write([message])
            except (pa.ArrowException, OSError):
                self.close()

    def pump(self) -> None:
        """Send what is in the outbox, on the caller's time, unless somebody is at it already."""
        while self._outbox and self._writing.acquire(blocking=False):
            try:
                with self._lock:
                    messages = self._take()
                if messages:
                    self._write(messages)
            except Exception as error:
                self._broke(error)
            finally:
                self._writing.release()

    def _run(self) -> None:
        while True:
            with self._filled:
                self._woken = False
                while not self._outbox and not self.closed:
                    self._filled.wait()
                    self._woken = False
                if self.closed:
                    return
                messages = self._take()
            try:
                with self._writing:
                    self._write(messages)
            except Exception as error:
                self._broke(error)

    def _broke(self, error: Exception) -> None:
        """The stream is gone, or what was said can't be written: the next stream may do better."""
        self.close()
        self._broken()
        if not isinstance(error, pa.ArrowException | OSError):
            sys.excepthook(type(error), error, error.__traceback__)

    def _take(self) -> list[Any]:
        messages: list[Any] = []
        taken = 0
        while self._outbox and len(messages) < FRAME_MESSAGES_MAX and taken < FRAME_BYTES_AIM:
            message, size = self._outbox.popleft()
            messages.append(message)
            taken += size
        self._bytes -= taken
        return messages

    def _write(self, messages: Sequence[Any]) -> None:
        self._writer.write_metadata(pa.py_buffer(self._encode(messages)))

    def close(self) -> None:
        with self._filled:
            self.closed = True
            self._outbox.clear()
            self._bytes = 0
            self._filled.notify_all()

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)


class Stream:
    """The client's end of one open stream."""

    def __init__(
        self,
        client: flight.FlightClient,
        hello: bytes,
        options: flight.FlightCallOptions,
        name: str,
        encode: Encode,
        size_of: SizeOf,
    ) -> None:
        self._client = client  # lives as long as its stream
        descriptor = flight.FlightDescriptor.for_command(hello)
        self._writer, self._reader = client.do_exchange(descriptor, options)
        self.link = StreamSender(name, self._writer, encode, size_of, self._reader.cancel)

    def read(self) -> pa.Buffer:
        """The next frame; raises StopIteration at the end and FlightError when it broke."""
        frame = self._reader.read_chunk().app_metadata
        if frame is None:
            raise BadInput("a message without a frame", "is this a Limosa node?")
        return frame

    def cancel(self) -> None:
        """End it, from whatever thread; who reads or writes gets an error."""
        self.link.close()
        self._reader.cancel()

    def close(self) -> None:
        """After its last use. Arrow would complain of a broken stream that nobody closed."""
        self.cancel()
        self.link.join(1.0)
        with suppress(Exception):
            self._writer.close()


class Outbound:
    """A link to one address, opened when it is needed and again when it broke.

    Everything that can block (connecting, reading, writing) happens on its own threads.
    """

    RETRY_SECONDS = 0.1

    def __init__(
        self,
        name: str,
        connect: Callable[[], Stream],
        received: Callable[[pa.Buffer], None],
        disconnected: Callable[[BaseException], None] = lambda error: None,
        pending: PendingAnswers | None = None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._received = received
        self._disconnected = disconnected
        self._stream: Stream | None = None
        self._waiting: list[Any] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._waiting_since: float | None = None
        """When something was said that nothing was heard after."""
        self.turns = ReadingTurns(self._read_for_caller, self.cut, pending)
        self._thread = threading.Thread(target=self._run, name=f"link-{name}", daemon=True)
        self._thread.start()

    def send(self, message: Any, quiet: bool = False) -> None:
        """`quiet`: there is more to come; the caller pumps or wakes afterwards."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        with self._lock:  # also around the outbox: messages stay in their order
            if self._stream is None:
                if len(self._waiting) < OUTBOX_MESSAGES_MAX:
                    self._waiting.append(message)
                self._wanted.set()
            else:
                self._stream.link.send(message, quiet)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            if self._stopping.is_set():
                return
            self._wanted.clear()
            stream: Stream | None = None
            try:
                stream = self._connect()
                with self._lock:
                    self._stream = stream
                    for message in self._waiting:
                        stream.link.send(message)
                    self._waiting.clear()
                read = partial(self._read, stream)
                while True:
                    self.turns.read_as_link(read)
            except StopIteration:
                self._broke(stream, ConnectionError("the other side ended the stream"))
            except Exception as error:
                self._broke(stream, error)

    def _read(self, stream: Stream) -> None:
        frame = stream.read()
        self.heard()
        self._received(frame)

    def _read_for_caller(self) -> None:
        stream = self._stream
        if stream is not None:
            try:
                self._read(stream)
            except Exception:  # the link's thread finds it again
                stream.cancel()

    def _broke(self, stream: Stream | None, error: BaseException) -> None:
        with self._lock:
            self._stream = None
            self._waiting.clear()
        if stream is not None:
            stream.close()
        if not self._stopping.is_set():
            self._disconnected(error)
            self._stopping.wait(self.RETRY_SECONDS)

    def pump(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.link.pump()

    def wake(self) -> None:
        self.turns.resume()
        stream = self._stream
        if stream is not None:
            stream.link.wake()

    def heard(self) -> None:
        """The other side lives: it said something, here or elsewhere."""
        self._waiting_since = None

    def cut_if_silent(self, seconds: float) -> None:
        """A connection whose other end vanished would be waited for, for many minutes."""
        since = self._waiting_since
        if since is not None and time.monotonic() - since > seconds:
            self._waiting_since = None
            self.cut()

    def cut(self) -> None:
        """Let go of the present stream: it does not answer."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        self._stopping.set()
        self._wanted.set()
        self.cut()
        self.turns.resume()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)
