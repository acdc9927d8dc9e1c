"""Do the rows of files get into tables exactly, and is what is wrong with a file said?"""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import Future
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from limosa.cli.write.command import Sender
from limosa.client.rows import exact_array
from limosa.core.client import Finished
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table
from tests.cli.running import COMMAND, Cluster, Limosa
from tests.waiting import eventually

EVERYTHING = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "small": pa.array([1, None, -3], pa.int8()),
        "ratio": pa.array([0.1, None, -1e300], pa.float64()),
        "flag": pa.array([True, False, None]),
        "name": pa.array(['a "quoted", text', "", None]),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "day": pa.array([date(2024, 2, 29), None, date(1969, 1, 1)], pa.date32()),
        "at": pa.array(
            [datetime(2024, 1, 1, 12, 30, 0, 123456, UTC), None, datetime(1960, 1, 1, tzinfo=UTC)],
            pa.timestamp("us", tz="UTC"),
        ),
        "local": pa.array([datetime(2024, 1, 1), None, None], pa.timestamp("ns")),
        "price": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
    }
)
NESTED = EVERYTHING.append_column("tags", pa.array([["a", None], [], None], pa.list_(pa.string())))


def rows_of(file: Path) -> pa.Table:
    return parquet.read_table(file).sort_by("id")


def test_200_000_rows_come_back_exactly(limosa: Limosa, tmp_path: Path) -> None:
    source, back = tmp_path / "rows.parquet", tmp_path / "back.parquet"
    made = limosa.well("generate", "200000", str(source), "--json").json
    assert made["rows"] == 200_000
    written = limosa.well("write", "big", str(source), "--create", "--key", "id", "--json")
    assert written.json["rows"] == 200_000
    assert written.json["created"] is True
    assert written.err == "", "a progress bar is for terminals"
    limosa.well("read", "big", "--output", str(back))
    assert rows_of(back).equals(rows_of(source))
    assert rows_of(back).schema == rows_of(source).schema
    # Again: the same rows replace themselves.
    said = limosa.well("write", "big", str(source)).text
    assert said.startswith("200,000 rows written to big in ")
    assert limosa.well("read", "big", "--count").text == "200000\n"


@pytest.mark.parametrize("format", ["parquet", "arrow", "ndjson", "csv"])
def test_every_type_survives_every_format(limosa: Limosa, tmp_path: Path, format: str) -> None:
    rows = EVERYTHING.drop_columns("raw") if format == "csv" else NESTED
    parquet.write_table(rows, tmp_path / "rows.parquet")
    name = f"types-{format}"
    create = ("--create", "--key", "id", "--partitions", "2")
    limosa.well("write", name, str(tmp_path / "rows.parquet"), *create)
    between = tmp_path / f"between.{format}"
    limosa.well("read", name, "--output", str(between))
    limosa.well(
        "table", "create", f"{name}-2", "--like", str(tmp_path / "rows.parquet"), *create[1:3]
    )
    limosa.well("write", f"{name}-2", str(between))
    limosa.well("read", f"{name}-2", "--output", str(tmp_path / "back.parquet"))
    assert rows_of(tmp_path / "back.parquet").to_pylist() == rows.to_pylist()
    # And through a pipe.
    piped = limosa.well("read", name, "--format", format).out
    limosa.well("write", f"{name}-2", "-", "--format", format, stdin=piped)
    assert limosa.well("read", f"{name}-2", "--count").text == "3\n"


@pytest.fixture
def items(limosa: Limosa) -> str:
    """An empty table of an id, a name, a price and a time."""
    name = f"items-{time.monotonic_ns()}"
    columns = ("id:int64", "name:string", "price:float32", "at:timestamp")
    options = [word for column in columns for word in ("--column", column)]
    limosa.well("table", "create", name, *options, "--key", "id", "--partitions", "2")
    return name


def test_columns_may_come_in_any_order_and_be_left_out(limosa: Limosa, items: str) -> None:
    csv = b"at,id\n2024-01-01 00:00:00Z,1\n,2\n"
    limosa.well("write", items, "-", "--format", "csv", stdin=csv)
    lines = b'{"price": 2, "id": 3}\n\n{"id": 4, "at": "2024-01-01T00:00:00+01:00"}\n'
    limosa.well("write", items, "-", "--format", "ndjson", stdin=lines)
    rows = sorted(limosa.well("read", items, "--json").rows, key=lambda row: row["id"])
    empty = {"name": None, "price": None, "at": None}
    assert rows == [
        {**empty, "id": 1, "at": "2024-01-01 00:00:00.000000Z"},
        {**empty, "id": 2},
        {**empty, "id": 3, "price": 2.0},
        {**empty, "id": 4, "at": "2023-12-31 23:00:00.000000Z"},
    ]


def test_numbers_of_another_width_are_converted(limosa: Limosa, items: str, tmp_path: Path) -> None:
    rows = {"id": pa.array([1], pa.int8()), "price": pa.array([1.5]), "name": pa.array([None])}
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    limosa.well("write", items, str(tmp_path / "rows.parquet"))
    assert limosa.well("read", items, "--json").rows[0]["price"] == 1.5


def test_a_file_without_rows_writes_none(limosa: Limosa, items: str) -> None:
    for format, text in (("csv", b"id,name\n"), ("ndjson", b"\n")):
        ran = limosa("write", items, "-", "--format", format, "--json", stdin=text)
        assert ran.code == (0 if format == "csv" else 2)
    assert limosa.well("read", items, "--count").text == "0\n"


# fmt: off
WRONG = {
    "unknown column": ("csv", b"id,nane\n1,a\n", "the table has no column nane"),
    "missing key": ("csv", b"name\na\n", "the key column id is missing"),
    "null key": ("csv", b"id,name\n1,a\n,b\n", "the key column id is null in row 2"),
    "no number": ("csv", b"id\n1\nx\n", "column id: Row #2: CSV conversion error to int64"),
    "no zone": ("csv", b"id,at\n1,2024-01-01\n", "column at: Row #1: CSV conversion error"),
    "too few fields": ("csv", b"id,name\n1\n", "Expected 2 columns, got 1"),
    "column twice": ("csv", b"id,id\n1,1\n", "two columns are named id"),
    "no header": ("csv", b"", "the first line does not name the columns"),
    "no UTF-8": ("csv", b"id,name\n1,\xff\n", "column name"),
    "no JSON": ("ndjson", b'{"id": 1}\n{"id": \n', "line 2 is not JSON"),
    "no object": ("ndjson", b'{"id": 1}\n[2]\n', "line 2 is not an object"),
    "unknown field": ("ndjson", b'{"id": 1, "x": 2}\n', "the table has no column x"),
    "text for a number": ("ndjson", b'{"id": "1"}\n', "column id can't be converted to int64"),
    "half a number in CSV": ("csv", b"id\n1.5\n", "column id: Row #1"),
    "half a number": ("ndjson", b'{"id": 1.5}\n', "column id can't be converted to int64"),
    "null key in JSON": ("ndjson", b'{"id": 1}\n{"name": "a"}\n', "id is null in row 2"),
    "no time": ("ndjson", b'{"id": 1, "at": "noon"}\n', "at can't be converted to timestamp"),
    "no Parquet": ("parquet", b"PAR0", "Parquet"),
    "no Arrow": ("arrow", b"nothing of the sort", "standard input"),
}
# fmt: on


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_wrong_is_said_and_nothing_is_written(
    limosa: Limosa, items: str, what: str
) -> None:
    format, text, sentence = WRONG[what]
    ran = limosa("write", items, "-", "--format", format, "--json", stdin=text)
    assert ran.code == 2, ran.err
    assert sentence in ran.error
    assert "standard input" in ran.error
    assert ran.json["error"]["definite"] is True
    assert limosa.well("read", items, "--count").text == "0\n"


def test_a_file_of_other_kinds_is_refused(limosa: Limosa, items: str, tmp_path: Path) -> None:
    for column, why in (
        (pa.array(["1"]), "can't be converted from string to int64"),
        (pa.array([2.5]), "can't be converted from double to int64"),
        (pa.array([True]), "can't be converted from bool to int64"),
    ):
        file = tmp_path / "rows.parquet"
        parquet.write_table(pa.table({"id": column}), file)
        ran = limosa("write", items, str(file))
        assert ran.code == 2
        assert str(file) in ran.error
        assert why in ran.error


def test_null_keys_far_into_a_parquet_file_are_seen_before(
    limosa: Limosa, items: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    ids = pa.array([*range(300_000), None])
    parquet.write_table(pa.table({"id": ids}), file, row_group_size=50_000)
    ran = limosa("write", items, str(file))
    assert ran.code == 2
    assert "the key column id is null in 1 row" in ran.error
    assert limosa.well("read", items, "--count").text == "0\n"


def test_of_a_later_error_it_is_said_what_was_written(
    limosa: Limosa, items: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.ndjson"
    lines = "".join(f'{{"id": {id}, "name": "{"x" * 50}"}}\n' for id in range(150_000))
    file.write_text(lines + '{"id": "last"}\n')
    ran = limosa("write", items, str(file))
    assert ran.code == 2
    assert "column id can't be converted to int64" in ran.error
    written = int(limosa.well("read", items, "--count").text)
    assert 0 < written < 150_000
    assert f"{written:,} rows acknowledged" in ran.error


def test_no_table_is_made_for_a_bad_file(limosa: Limosa) -> None:
    for key, text in (("id", b"id,b\n1,2\n3"), ("nobody", b"id\n1\n"), ("id", b"id,b\n1,2\n,3\n")):
        create = ("write", "never", "-", "--format", "csv", "--create", "--key", key)
        assert limosa(*create, stdin=text).code == 2
    assert "never" not in limosa.well("tables").text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x.csv", "--key", "id"], "add --create"),
        (["x.csv", "--create"], "a new table needs a key"),
        (["-"], "the format of standard input is not known"),
        (["nowhere.csv"], "nowhere.csv can't be read: No such file"),
        (["x.dat"], "is not known from its suffix"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    limosa: Limosa, items: str, arguments: list[str], sentence: str
) -> None:
    ran = limosa("write", items, *arguments)
    assert ran.code == 2
    assert sentence in ran.error


def test_ctrl_c_says_how_many_rows_were_acknowledged(
    limosa: Limosa, items: str, cluster: Cluster
) -> None:
    """Rows come through a pipe that does not end."""
    command = [*COMMAND, "write", items, "-", "--format", "ndjson"]
    process = subprocess.Popen(
        [*command, "--cluster", str(cluster.directory)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    lines = "".join(json.dumps({"id": id, "name": "x" * 80}) + "\n" for id in range(100_000))
    process.stdin.write(lines + lines)
    process.stdin.flush()
    eventually(lambda: limosa.well("read", items, "--count").text != "0\n", "rows are written")
    os.kill(process.pid, signal.SIGINT)
    process.wait(30)
    said = process.stderr.read()
    process.stdin.close()
    process.stderr.close()
    assert process.returncode == 130
    assert said.startswith("Interrupted: ")
    assert "rows acknowledged" in said
    assert "Traceback" not in said


def test_samples_are_the_same_each_time(limosa: Limosa, tmp_path: Path) -> None:
    for suffix in ("csv", "ndjson", "parquet"):
        files = [tmp_path / f"{n}.{suffix}" for n in range(2)]
        for file in files:
            limosa.well("generate", "10", str(file))
        assert files[0].read_bytes() == files[1].read_bytes()
    ids = parquet.read_table(tmp_path / "0.parquet").column("id").to_numpy()
    assert np.array_equal(ids, np.arange(10))
    assert limosa("generate", "10", "x.dat").code == 2
    assert limosa("generate", "10", "/nowhere/x.csv").code == 2


# --- when the cluster can't take it now


class Reluctant:
    """A table that does not always take what it gets; `taken` is what it holds, in order."""

    def __init__(self, *outcomes: str) -> None:
        self.definition = Table("t", pa.schema([("id", pa.int64())]), ("id",))
        self._outcomes = list(outcomes)
        self.taken: list[int] = []

    def submit(self, batch: Batch) -> "Future[Finished]":
        outcome = self._outcomes.pop(0) if self._outcomes else "done"
        if outcome == "done":
            self.taken += [int(id) for id in batch.columns.column(0).to_numpy()]
        future: Future[Finished] = Future()
        future.set_result(Finished("1", outcome, "1 replicas in sync, 2 needed"))  # type: ignore[arg-type]
        return future


def sent(table: Reluctant, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("limosa.cli.write.command.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("limosa.cli.write.command.BYTES_UNDER_WAY", 60)
    advanced: list[int] = []
    sender = Sender(table, advanced.append)  # type: ignore[arg-type]
    for id in range(4):
        sender.send(pa.record_batch([pa.array([id])], names=["id"]))
    sender.finish()
    assert sum(advanced) == sender.acked
    return sender.acked


def test_what_is_refused_for_now_is_sent_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Reluctant("done", "failed", "unknown", "done", "failed")
    assert sent(table, monkeypatch) == 4
    last = {id: place for place, id in enumerate(table.taken)}
    assert sorted(last, key=lambda id: last[id]) == [0, 1, 2, 3]


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limosa.cli.write.command.PATIENCE_SECONDS", -1.0)
    with pytest.raises(LimosaError, match="1 replicas in sync, 2 needed"):
        sent(Reluctant("failed"), monkeypatch)


NUMBERS = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("half", "wanted"),
    [
        (1.5, pa.int64()),
        (float("nan"), pa.int64()),
        ([1, 1.5], NUMBERS),
        ({"n": [1.5]}, pa.struct([("n", NUMBERS)])),
    ],
)
def test_a_fraction_is_not_cut_off(half: object, wanted: pa.DataType) -> None:
    """`pa.array([1.5], pa.int64())` is 1: a key would become another one."""
    with pytest.raises(ValueError, match="has a fraction"):
        exact_array([None, half], wanted)
    assert exact_array([1.0, 2], pa.int64()).to_pylist() == [1, 2]
