"""What does a bare Flight call cost? A server that answers each message with the same bytes.

It speaks as Limosa's transport does: metadata-only messages on a long-lived `do_exchange`. Asked
for `durable`, it appends the bytes to a file and syncs it before it answers. It runs in a process
of its own until its standard input ends.

    python bench/_echo.py FILE
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


class EchoServer(flight.FlightServerBase):
    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__("grpc://127.0.0.1:0")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        durable = descriptor.command == b"durable"
        file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            while True:
                message = reader.read_chunk().app_metadata
                if durable:
                    os.write(file, message)
                    os.fdatasync(file)
                writer.write_metadata(message)
        except StopIteration:
            pass
        finally:
            os.close(file)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        return [flight.Result(action.body)]


class Echo:
    """The server's process, and one client of it."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, __file__, str(directory / "echo.log")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert self._process.stdout is not None
            port = int(self._process.stdout.readline())
            self._client = flight.FlightClient(f"grpc://127.0.0.1:{port}")
            self._streams = {kind: self._open(kind) for kind in (b"plain", b"durable")}
        except BaseException:
            self._process.kill()
            raise

    def _open(self, kind: bytes) -> tuple[Any, Any]:
        return self._client.do_exchange(flight.FlightDescriptor.for_command(kind))

    def call(self, message: pa.Buffer, kind: bytes = b"plain") -> None:
        writer, reader = self._streams[kind]
        writer.write_metadata(message)
        assert reader.read_chunk().app_metadata.size == message.size

    def durable_call(self, message: pa.Buffer) -> None:
        self.call(message, b"durable")

    def action(self, message: pa.Buffer) -> None:
        (answer,) = self._client.do_action(flight.Action("echo", message))
        assert answer.body.size == message.size

    def __enter__(self) -> "Echo":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for writer, _ in self._streams.values():
                writer.close()
            self._client.close()
        finally:
            self._process.kill()
            self._process.communicate()


def serve(path: str) -> None:
    server = EchoServer(path)
    print(server.port, flush=True)
    threading.Thread(target=server.serve, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
