"""What does one message on a stream look like?

A frame is a head (what is said) and bodies (rows, as Arrow messages). It travels as the metadata of
a Flight message, not as Flight's own record batch: so one stream carries every table, and nothing
of a stranger's rows is decoded, or inflated, before we have looked at it.

    | size of the head, 4 bytes | head | zeros up to a multiple of 64 | bodies |
"""

from collections.abc import Sequence

import pyarrow as pa

from limosa.errors import BadInput

ALIGNMENT = 64
FRAME_BYTES_MAX = 80 << 20
HEAD_BYTES_MAX = 64 << 20
_ZEROS = bytes(ALIGNMENT)


def padded(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def pack(head: bytes, bodies: Sequence[pa.Buffer | bytes] = ()) -> bytes:
    """Bodies follow each other, each padded, as `Part.at` counts them."""
    pieces = [len(head).to_bytes(4, "little"), head]
    if bodies:
        pieces.append(_ZEROS[: padded(4 + len(head)) - 4 - len(head)])
        for body in bodies:
            pieces.append(memoryview(body))  # type: ignore[arg-type]
            pieces.append(_ZEROS[: padded(len(body)) - len(body)])
    return b"".join(pieces)


def unpack(frame: pa.Buffer, head_bytes_max: int = HEAD_BYTES_MAX) -> tuple[bytes, pa.Buffer]:
    """The head, and the bodies where Arrow can use them: what the network gives has any address."""
    if frame.size < 4 or frame.size > FRAME_BYTES_MAX:
        raise BadInput(f"a frame of {frame.size} bytes", "send frames of 4 bytes to 80 MiB")
    size = int.from_bytes(frame[:4], "little")
    if size > head_bytes_max:
        raise BadInput(f"a head of {size} bytes", f"send at most {head_bytes_max}")
    if 4 + size > frame.size:
        raise BadInput("a frame that is shorter than its head", "send the whole head")
    head = frame[4 : 4 + size].to_pybytes()
    start = padded(4 + size)
    if start >= frame.size:
        return head, _NOTHING
    return head, aligned(frame.slice(start))


def aligned(body: pa.Buffer) -> pa.Buffer:
    if body.address % ALIGNMENT == 0:
        return body
    copy = pa.allocate_buffer(body.size)
    memoryview(copy)[:] = memoryview(body)
    return copy


_NOTHING = pa.py_buffer(b"")
