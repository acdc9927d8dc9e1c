"""Which rows do benchmarks of a cluster write? Ones of 120 bytes, with random contents."""

from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS: dict[str, pa.DataType] = {
    "key": pa.int64(),
    "moment": pa.int64(),
    "amount": pa.int64(),
    "price": pa.float64(),
    "name": pa.string(),
    "note": pa.string(),
}
SCHEMA = pa.schema(COLUMNS)
NAME_BYTES, NOTE_BYTES = 24, 56


def batch_of(dice: np.random.Generator, keys: Any) -> pa.RecordBatch:
    count = len(keys)
    columns: list[Any] = [
        pa.array(keys),
        pa.array(dice.integers(0, 1 << 50, count)),
        pa.array(dice.integers(0, 1000, count)),
        pa.array(dice.random(count)),
        _text(dice, count, NAME_BYTES),
        _text(dice, count, NOTE_BYTES),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _text(dice: np.random.Generator, count: int, width: int) -> Any:
    letters = dice.integers(97, 123, count * width, dtype=np.uint8)
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes())]
    return pa.Array.from_buffers(pa.string(), count, buffers)
