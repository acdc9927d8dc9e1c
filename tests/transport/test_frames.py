"""Does a frame arrive as it was sent, and can Arrow use it where it lies?"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.errors import BadInput
from limosa.tabular.bodies import padded
from limosa.transport import frames


@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 40_000), max_size=4),
    st.integers(0, 63),
)
def test_head_and_bodies_arrive_aligned_wherever_the_frame_lies(
    head: bytes, sizes: list[int], offset: int
) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    packed = frames.pack(head, bodies)
    frame = pa.py_buffer(bytes(offset) + packed).slice(offset)
    said, found = frames.unpack(frame)
    assert said == head
    at = 0
    for body in bodies:
        part = found.slice(at, len(body))
        assert part.to_pybytes() == body
        assert part.address % frames.ADDRESS_ALIGNMENT == 0
        at += padded(len(body))


def test_a_large_body_at_grpcs_addresses_is_not_copied() -> None:
    """Whatever the head's length; as gRPC puts a frame four bytes behind a multiple of 16."""
    room = pa.allocate_buffer(200_000)
    assert room.address % 16 == 0
    for length in range(60, 140):
        packed = frames.pack(bytes(length), [bytes(100_000)])
        memoryview(room).cast("B")[4 : 4 + len(packed)] = packed
        _, found = frames.unpack(room.slice(4, len(packed)))
        assert room.address < found.address < room.address + room.size


@pytest.mark.parametrize(
    "frame", [b"", b"\x01", b"\xff\xff\xff\xff", b"\x05\x00\x00\x00ab", bytes(3)]
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(BadInput):
        frames.unpack(pa.py_buffer(frame))
