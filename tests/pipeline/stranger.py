"""A stranger at Spark's ports: speaks Spark's own protocol, without Spark's secret.

    frame      length of the whole frame (8 bytes), kind (1), and then by kind
    RPC        request id (8), length of the body (4), body; answered by a response or a failure
    chunk      stream id (8), number (4); answered by the bytes of a block, or a failure

An `OpenBlocks` in an RPC to a block manager is answered by a stream id, of which chunks can then be
fetched: this is how an executor gets a broadcast variable, and with it what a task is made of.

    python stranger.py UID PORT,PORT,… BLOCK,BLOCK,… PATH,PATH,…

becomes that user, tries all of these, and prints as JSON what it could fetch, have deserialised, or
read.
"""

import encodings.idna  # noqa: F401 - another user may not be able to read it
import json
import os
import socket
import struct
import sys
from contextlib import closing, suppress
from pathlib import Path

HOST = "127.0.0.1"
SECONDS = 1.5
FRAME_BYTES_MAX = 64 << 20
CHUNK_REQUEST, CHUNK_SUCCESS, RPC_REQUEST, RPC_RESPONSE = 0, 1, 3, 4
OPEN_BLOCKS = 0


class TurnedAway(Exception):
    """The port has refused the request, or closed the connection."""


def listening_ports(process: int) -> set[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(descriptor))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def fetch_block(port: int, block: str, application: str, executor: str = "driver") -> bytes:
    """A block of a block manager, as any process of the machine can ask for it."""
    with closing(socket.create_connection((HOST, port), SECONDS)) as connection:
        wanted = [application, executor]
        body = struct.pack(">B", OPEN_BLOCKS)
        body += b"".join(map(_text, wanted)) + struct.pack(">i", 1) + _text(block)
        answer = _ask(connection, RPC_REQUEST, struct.pack(">qi", 1, len(body)) + body)
        if answer[0] != RPC_RESPONSE:
            raise TurnedAway(repr(answer[:300]))
        # The kind, the request's id, the body's length, and the kind of the handle come first.
        stream, chunks = struct.unpack_from(">qi", answer, 1 + 8 + 4 + 1)
        assert chunks == 1
        found = _ask(connection, CHUNK_REQUEST, struct.pack(">qi", stream, 0))
        if found[0] != CHUNK_SUCCESS:
            raise TurnedAway(repr(found[:300]))
        return found[1 + 12 :]


def send_object(port: int, serialised: bytes) -> bytes:
    """The answer to an RPC whose body Java would deserialise."""
    with closing(socket.create_connection((HOST, port), SECONDS)) as connection:
        head = struct.pack(">qi", 2, len(serialised))
        return _ask(connection, RPC_REQUEST, head + serialised)


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def _ask(connection: socket.socket, kind: int, content: bytes) -> bytes:
    try:
        connection.sendall(struct.pack(">qB", 8 + 1 + len(content), kind) + content)
        (length,) = struct.unpack(">q", _receive(connection, 8))
        if not 8 < length < FRAME_BYTES_MAX:
            raise TurnedAway("this is not Spark's protocol")
        return _receive(connection, length - 8)
    except OSError as error:
        raise TurnedAway(str(error)) from None


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        some = connection.recv(size - len(received))
        if not some:
            raise TurnedAway("the connection was closed")
        received += some
    return received


def is_deserialised(port: int) -> bool:
    """Whether bytes come as far as Java's `ObjectInputStream`, or the block manager's decoder."""
    try:
        answer = send_object(port, b"\0\0\0" + b"\xac\xed\x00\x05t\x00\x05hello")
    except TurnedAway:
        return False
    return any(
        each in answer
        for each in (b"ObjectInputStream", b"RequestMessage", b"BlockTransferMessage")
    )


def can_read(path: str) -> bool:
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            Path(path).read_bytes()
    except PermissionError:
        return False
    return True


def main(uid: str, ports: str, blocks: str, paths: str) -> None:
    if int(uid) != os.geteuid():
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    fetched, deserialised = [], []
    for port in map(int, ports.split(",")):
        for block in blocks.split(","):
            with suppress(TurnedAway):
                fetch_block(port, block, "application")
                fetched.append(block)
        if is_deserialised(port):
            deserialised.append(port)
    read = [path for path in paths.split(",") if can_read(path)]
    print(json.dumps({"fetched": fetched, "deserialised": deserialised, "read": read}))


if __name__ == "__main__":
    main(*sys.argv[1:])
