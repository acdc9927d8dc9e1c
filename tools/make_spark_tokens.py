"""Which tokens does a real Spark give?

Writes the keys that `tests/core/test_tokens.py` compares with: edge values of every key type, one
to three columns, hashed by Spark SQL's `xxhash64`, once by generated code and once interpreted.
Needs pyspark 4.3 with pandas below 3, pyarrow and a Java; run it in an environment of its own:

    python tools/make_spark_tokens.py tests/core/data/spark_tokens.json
"""

import json
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

ZONED = pa.timestamp("us", tz="UTC")
EPOCH = datetime(1970, 1, 1)


def integers(bits: int) -> list[int]:
    near = [0, 1, -1, 2, -2, 42, -42, 100, -100]
    powers = [sign * 2**power for power in range(7, bits - 1, 8) for sign in (1, -1)]
    return [*near, *powers, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]


def floats(smallest: float, largest: float) -> list[float]:
    near = [0.0, -0.0, 1.0, -1.0, 0.5, -0.1, 3.141592653589793, 1e10]
    edges = [smallest, -smallest, largest, -largest, float("inf"), float("-inf")]
    return near + edges


def decimals(precision: int, scale: int) -> list[Decimal]:
    """Around every power of two of whole bytes, where the bytes that Spark hashes grow."""
    unscaled = [0, 1, -1, 10**precision - 1, 1 - 10**precision]
    for bits in range(7, 127, 8):
        unscaled += [2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1]
    fitting = [number for number in unscaled if abs(number) < 10**precision]
    return [Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)) for number in fitting]


LETTERS = (
    "The bar-tailed godwit flies for eleven days from Alaska to New Zealand, and does not stop"
)
STRINGS = [
    *(LETTERS[:length] for length in range(41)),
    *(LETTERS[:length] for length in (63, 64, 65, len(LETTERS))),
    (LETTERS * 12)[:1000],
    *("\0", "ä", "ß" * 9, "日本語", "🦤", "e\u0301", "\u00e9", "\U0010ffff" * 10, " ", "a\0b"),
]
BINARIES = [
    *(bytes(range(200, 200 + length)) for length in range(34)),
    *(b"\0", b"\xff", b"\xff" * 33, bytes(64), bytes(range(256)) * 2),
]
DATES = [date(*day) for day in (
    (1970, 1, 1), (1969, 12, 31), (1970, 1, 2), (2026, 10, 1), (2000, 2, 29), (1900, 2, 28),
    (1582, 10, 4), (1582, 10, 15), (1, 1, 1), (9999, 12, 31),
)]  # fmt: skip
MOMENTS = [
    EPOCH,
    *(EPOCH + timedelta(microseconds=number) for number in (1, -1, 1_000_000, -1_000_001)),
    datetime(2026, 10, 1, 12, 34, 56, 789_012),
    datetime(1900, 1, 1, 0, 0, 0, 1),
    datetime(1582, 10, 4, 23, 59, 59, 999_999),
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
INTEGERS, BIG = integers(32), integers(64)
ZONED_MOMENTS = [moment.replace(tzinfo=UTC) for moment in MOMENTS]
SMALL_DECIMAL, LARGE_DECIMAL = pa.decimal128(18, 4), pa.decimal128(38, 10)

Columns = list[tuple[pa.DataType, list[Any]]]

ALONE: Columns = [
    (pa.bool_(), [True, False]),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), INTEGERS),
    (pa.int64(), BIG),
    (pa.float32(), floats(2.0**-149, (2 - 2**-23) * 2.0**127)),
    (pa.float64(), floats(5e-324, sys.float_info.max)),
    (pa.string(), STRINGS),
    (pa.binary(), BINARIES),
    (pa.date32(), DATES),
    (pa.timestamp("us"), MOMENTS),
    (ZONED, ZONED_MOMENTS),
    (pa.decimal128(1, 0), decimals(1, 0)),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (SMALL_DECIMAL, decimals(18, 4)),
    (pa.decimal128(18, 18), decimals(18, 18)),
    (pa.decimal128(19, 0), decimals(19, 0)),
    (pa.decimal128(20, 6), decimals(20, 6)),
    (LARGE_DECIMAL, decimals(38, 10)),
]
CHAINED: list[Columns] = [
    [(pa.int64(), BIG), (pa.int64(), BIG[::-1])],
    [(pa.int64(), BIG), (pa.string(), STRINGS)],
    [(pa.string(), STRINGS), (pa.string(), STRINGS[::-1])],
    [(pa.string(), STRINGS), (pa.int32(), INTEGERS)],
    [(pa.bool_(), [True, False, True]), (pa.float64(), [-0.0, 0.0, 2.5])],
    [(pa.binary(), BINARIES[:9]), (pa.date32(), DATES), (pa.int16(), integers(16))],
    [(ZONED, ZONED_MOMENTS), (LARGE_DECIMAL, decimals(38, 10)), (pa.string(), STRINGS[8:])],
    [(SMALL_DECIMAL, decimals(18, 4)), (pa.float32(), [0.0, -0.0, 1.5]), (pa.int8(), [1, -1, 0])],
]

ENCODERS: dict[type, Callable[[Any], Any]] = {
    float: float.hex,
    bytes: bytes.hex,
    date: date.isoformat,
    datetime: datetime.isoformat,
    Decimal: str,
}


def encode(value: Any) -> Any:
    encoder = ENCODERS.get(type(value))
    return encoder(value) if encoder else value


def hash_with(spark: Any, columns: Columns) -> dict[str, Any]:
    rows = min(len(values) for _, values in columns)
    names = [f"c{place}" for place in range(len(columns))]
    arrays = [pa.array(values[:rows], key_type) for key_type, values in columns]
    frame = spark.createDataFrame(pa.table(arrays, names=names))
    results = []
    for mode in ("CODEGEN_ONLY", "NO_CODEGEN"):
        spark.conf.set("spark.sql.codegen.factoryMode", mode)
        spark.conf.set("spark.sql.codegen.wholeStage", str(mode == "CODEGEN_ONLY").lower())
        hashed = frame.selectExpr("*", f"xxhash64({', '.join(names)}) AS token").toArrow()
        # The values came through Spark unharmed, or the tokens would be those of other values.
        for name, array in zip(names, arrays, strict=True):
            assert hashed.column(name).combine_chunks().equals(array), (name, array.type)
        results.append(hashed.column("token").to_pylist())
    assert results[0] == results[1]
    keys = [[encode(value) for value in key] for key in zip(*(a for _, a in columns), strict=False)]
    return {
        "types": [str(key_type) for key_type, _ in columns],
        "keys": keys[:rows],
        "tokens": results[0],
    }


def main(path: Path) -> None:
    spark = (
        import_module("pyspark.sql")
        .SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        # Else a timestamp without a zone would be taken for one with the session's.
        .config("spark.sql.timestampType", "TIMESTAMP_NTZ")
        # Else Spark would fold the whole query into a constant, and never generate code.
        .config(
            "spark.sql.optimizer.excludedRules",
            "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
        )
        .getOrCreate()
    )
    groups = [hash_with(spark, columns) for columns in [[alone] for alone in ALONE] + CHAINED]
    lines = ",\n".join(json.dumps(group, ensure_ascii=True) for group in groups)
    path.write_text(f'{{"spark": "{spark.version}", "groups": [\n{lines}\n]}}\n')
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
