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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from limosa.errors import BadInput
from limosa.tabular.sizes import FRAME_BYTES_AIM
from limosa.transport.lone import SMALL_BYTES, PendingAnswers, ReadingTurns

OUTBOX_MESSAGES_MAX = 20_000
OUTBOX_BYTES_MAX = 128 << 20
FRAME_MESSAGES_MAX = 256

Encode = Callable[[Sequence[Any]], Iterable[bytes]]
"""Encodes messages as frames: one, unless the messages are larger than they were expected to be."""
SizeOf = Callable[[Any], int]
"""Approximate bytes of a message."""

CHANNEL: list[tuple[str, int | str]] = [
    # No keepalive: Flight's server refuses pings with "enhance your calm". Instead, a process that
    # waits too long for an answer cuts the link and reconnects.
    ("grpc.min_reconnect_backoff_ms", 2_000),  # timeout of a connection attempt
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
]


class FrameWriter(Protocol):
    def write_metadata(self, frame: pa.Buffer) -> None: ...


class StreamSender:
    """The sending side of one stream."""

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
        """The sending thread was woken, and has not looked into the outbox yet."""
        self._reads = threading.get_ident() if reader_pumps else None
        """The thread that reads the stream, if that thread pumps after each frame."""
        self._caller_sends_since: float | None = None
        self.closed = False

    def send(self, message: Any, quiet: bool = False) -> None:
        """Put a message into the outbox; if the outbox is closed or full, the message is lost.

        `quiet`: do not send yet; the caller flushes, pumps or wakes after its last message.
        """
        self.put((message,))
        if not quiet:
            self.flush()

    def put(self, messages: Iterable[Any]) -> None:
        """Put messages into the outbox, and do not send them yet."""
        sized = [(message, self._size_of(message)) for message in messages]
        with self._lock:
            for each in sized:
                full = len(self._outbox) >= OUTBOX_MESSAGES_MAX or self._bytes > OUTBOX_BYTES_MAX
                if self.closed or full:
                    return
                self._outbox.append(each)
                self._bytes += each[1]

    def flush(self) -> None:
        """Have the outbox sent: by the sending thread, or by this one if it pumps anyway."""
        if threading.get_ident() != self._reads:
            self.wake()

    @property
    def has_room(self) -> bool:
        return self._bytes <= OUTBOX_BYTES_MAX

    def wake(self) -> None:
        """Let the sending thread empty the outbox."""
        if self._woken:
            return  # the thread will look into the outbox anyway
        with self._filled:
            self._woken = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"to-{self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # too many threads: the messages are lost, the caller goes on
                    self._outbox.clear()
                    self._bytes = 0
                    self._woken = False
                    return
                self._thread = thread
            self._filled.notify()

    def reply(self, message: Any) -> None:
        """Send one message now, from the thread that reads this stream.

        A failure closes the sender; the reading thread then sees that its stream has ended.
        """
        with self._writing:
            try:
                self._write([message])
            except (pa.ArrowException, OSError):
                self.close()

    def pump(self) -> None:
        """Empty the outbox on the calling thread, unless another thread is sending."""
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

    def pump_as_caller(self) -> None:
        """Send a lone request on the calling thread, unless another thread is sending.

        The sending thread sends what other threads have put into the outbox meanwhile, if it is
        large: the peer may be slow to accept it.
        """
        if self._writing.acquire(blocking=False):
            try:
                with self._lock:
                    messages = self._take() if self._bytes <= SMALL_BYTES else []
                self._caller_sends_since = time.monotonic()
                if messages:
                    self._write(messages)
            except Exception as error:
                self._broke(error)
            finally:
                self._caller_sends_since = None
                self._writing.release()
        if self._outbox:
            self.wake()

    def caller_sends_for(self, now: float) -> float:
        """How many seconds a caller has been sending; 0.0 if none is."""
        since = self._caller_sends_since
        return 0.0 if since is None else now - since

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
        """The stream broke, or a message can't be encoded: close it, so that another is opened."""
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
        for frame in self._encode(messages):
            self._writer.write_metadata(pa.py_buffer(frame))

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
    """The caller's end of one open stream."""

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
            raise BadInput(
                "the peer sent a message without a frame", "check that the address is a Limosa node"
            )
        return frame

    def cancel(self) -> None:
        """End the stream from any thread; pending reads and writes fail."""
        self.link.close()
        self._reader.cancel()

    def close(self) -> None:
        """Close after the last use, or Arrow warns about a broken stream that was not closed."""
        self.cancel()
        self.link.join(1.0)
        with suppress(Exception):
            self._writer.close()


class Outbound:
    """A link to one address, opened on demand and reopened after a failure.

    Everything that can block (connecting, reading, writing) happens on the link's own threads.
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
        """When the oldest message was sent that the peer has not reacted to."""
        self.turns = ReadingTurns(self._read_for_caller, self.cut, pending)
        self._thread = threading.Thread(target=self._run, name=f"link-{name}", daemon=True)
        self._thread.start()

    def send(self, message: Any, quiet: bool = False) -> None:
        """`quiet`: do not send yet; the caller flushes, pumps or wakes after its last message."""
        self.put((message,))
        if not quiet:
            self.flush()

    def put(self, messages: Sequence[Any]) -> None:
        """Put messages into the outbox, and do not send them yet."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        with self._lock:  # keeps the messages in order across a reconnect
            if self._stream is None:
                self._waiting += messages[: OUTBOX_MESSAGES_MAX - len(self._waiting)]
                self._wanted.set()
            else:
                self._stream.link.put(messages)

    def flush(self) -> None:
        """Have the outbox sent by the sending thread."""
        stream = self._stream
        if stream is not None:
            stream.link.flush()

    @property
    def has_room(self) -> bool:
        """The next message will not be lost because the peer is slow, or not connected yet."""
        stream = self._stream
        return not self._waiting if stream is None else stream.link.has_room

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
                    stream.link.put(self._waiting)
                    self._waiting.clear()
                stream.link.flush()
                read = partial(self._read, stream)
                while True:
                    self.turns.read_as_link(read)
            except StopIteration:
                self._broke(stream, ConnectionError("the peer ended the stream"))
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
            except Exception:  # the link's thread meets the same error
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

    def pump_as_caller(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.link.pump_as_caller()

    def wake(self) -> None:
        self.turns.resume()
        stream = self._stream
        if stream is not None:
            stream.link.wake()

    def heard(self) -> None:
        """The peer is alive: it sent something, on this stream or on another."""
        self._waiting_since = None

    def cut_if_silent(self, seconds: float) -> None:
        """Cut the stream if the peer is silent; TCP would wait many minutes for a vanished peer."""
        since = self._waiting_since
        if since is not None and time.monotonic() - since > seconds:
            self._waiting_since = None
            self.cut()

    def cut_if_stuck(self, seconds: float) -> None:
        """Cut the stream if a caller has been sending for longer: the peer does not accept it."""
        stream = self._stream
        if stream is not None and stream.link.caller_sends_for(time.monotonic()) > seconds:
            self.cut()

    @property
    def is_idle(self) -> bool:
        """No caller is sending, and the peer has reacted to everything."""
        stream = self._stream
        sends = stream is not None and stream.link.caller_sends_for(time.monotonic()) > 0.0
        return self._waiting_since is None and not sends

    def cut(self) -> None:
        """Cancel the current stream; the next message opens another."""
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
