"""What does one frame on a stream look like?

A frame is a head (messages) and bodies (rows, as Arrow messages). It travels as the metadata of a
Flight message, not as Flight's own record batch: so one stream carries rows of every table, and a
stranger's rows are neither decoded nor decompressed before they are checked.

    | size of head: 27 bits | shift: 5 bits | head | zeros to a multiple of 64 + shift | bodies |

Arrow needs aligned numbers. gRPC delivers large messages at addresses that are always the same
modulo 16, a few bytes of its own header behind a multiple of 16. The sender shifts the bodies to
the next multiple, so that the receiver can use them in place. If gRPC changes its header, bodies
are copied, as small frames always are.
"""

import struct
from collections.abc import Sequence

import pyarrow as pa

from limosa.errors import BadInput
from limosa.tabular.bodies import ALIGNMENT, padded
from limosa.tabular.sizes import FRAME_BYTES_MAX, HEAD_BYTES_MAX

ADDRESS_ALIGNMENT = 16
"""Alignment of what Arrow is given: the size of its largest number."""
LARGE_BYTES = 16 << 10
_ZEROS = bytes(2 * ALIGNMENT)
_SIZE_BITS = 27
_FIRST = struct.Struct("<I")


def pack(head: bytes, bodies: Sequence[pa.Buffer | bytes] = ()) -> bytes:
    """Bodies follow each other, each padded; `BodyPart.at` is an offset into them."""
    shift = _shift(len(head) + sum(len(body) for body in bodies)) if bodies else 0
    pieces = [(len(head) | shift << _SIZE_BITS).to_bytes(4, "little"), head]
    if bodies:
        pieces.append(_ZEROS[: padded(4 + len(head)) - 4 - len(head) + shift])
        for body in bodies:
            pieces.append(memoryview(body))  # type: ignore[arg-type]
            pieces.append(_ZEROS[: padded(len(body)) - len(body)])
    return b"".join(pieces)


def _shift(size: int) -> int:
    """How far bodies are shifted to arrive aligned, given the header that gRPC adds."""
    if size < LARGE_BYTES:
        return 0
    before = 4 if size < 2 << 20 else 5  # the size of a frame is a number of three or four bytes
    return ADDRESS_ALIGNMENT - before


def unpack(frame: pa.Buffer, head_bytes_max: int = HEAD_BYTES_MAX) -> tuple[bytes, pa.Buffer]:
    """The head, and the bodies at an address that Arrow can use."""
    if frame.size > FRAME_BYTES_MAX:
        raise BadInput(f"a frame has {frame.size} bytes", f"send at most {FRAME_BYTES_MAX}")
    head, start = unpack_head(frame, head_bytes_max)
    return head, _NOTHING if start >= frame.size else aligned(frame.slice(start))


def unpack_head(frame: pa.Buffer, head_bytes_max: int) -> tuple[bytes, int]:
    """The head of a frame of any size, and where the bodies start."""
    data = memoryview(frame)
    length = len(data)
    if length < 4:
        raise BadInput(f"a frame has {length} bytes", "send at least 4")
    (first,) = _FIRST.unpack_from(data)
    size, shift = first & ((1 << _SIZE_BITS) - 1), first >> _SIZE_BITS
    if size > head_bytes_max:
        raise BadInput(f"a frame's head has {size} bytes", f"send at most {head_bytes_max}")
    if 4 + size > length:
        raise BadInput("a frame is shorter than its head", "send the whole head")
    return bytes(data[4 : 4 + size]), padded(4 + size) + shift


def aligned(body: pa.Buffer) -> pa.Buffer:
    if body.address % ADDRESS_ALIGNMENT == 0:
        return body
    copy = pa.allocate_buffer(body.size)
    memoryview(copy)[:] = memoryview(body)
    return copy


_NOTHING = pa.py_buffer(b"")
