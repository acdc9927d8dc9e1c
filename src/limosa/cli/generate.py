"""Where do sample rows come from? `limosa generate` makes a file of them."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from limosa.cli.shared.options import AsJson
from limosa.cli.shared.row_files import errors_of, format_of
from limosa.cli.shared.row_writers import writer_of
from limosa.cli.shared.terminal import count, print_answer

ROWS_AT_ONCE = 100_000
START_MICROSECONDS = 1_735_689_600_000_000
"""2025-01-01."""
FIELDS: "list[pa.Field[Any]]" = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("name", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
]
SCHEMA = pa.schema(FIELDS)


def generate(
    rows: Annotated[int, typer.Argument(min=0, help="Number of rows.")],
    file: Annotated[
        str, typer.Argument(help="The file to write: .parquet, .csv, .ndjson or .arrow.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a file of sample rows.

    The columns are id (the key), name, price and at. The rows are the same each time.

    \b
    Examples:
      limosa generate 5000000 items.parquet
      limosa generate 1000 items.csv
    """
    began = time.monotonic()
    with errors_of(file), writer_of(format_of(file, None), file, SCHEMA) as writer:
        for start in range(0, rows, ROWS_AT_ONCE):
            writer.write(sample(start, min(rows, start + ROWS_AT_ONCE)))
    answer: dict[str, Any] = {
        "file": file,
        "rows": rows,
        "bytes": Path(file).stat().st_size,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_answer(as_json, answer, f"{count(rows, 'row')} written to {file}.")


def sample(start: int, end: int) -> pa.Table:
    """Rows that depend only on their numbers: each block has its own random seed."""
    dice = np.random.default_rng(start)
    id = np.arange(start, end)
    price = dice.integers(100, 10_000, end - start) / 100
    at = pa.array(START_MICROSECONDS + id * 1_000_000).cast(pa.timestamp("us", tz="UTC"))
    name = pa.array([f"item {each}" for each in id.tolist()], pa.string())
    return pa.Table.from_arrays([pa.array(id), name, pa.array(price), at], schema=SCHEMA)
