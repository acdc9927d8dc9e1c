"""Are the rows that were asked for printed, in the shape that was asked for?"""

import io
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest

from tests.cli.running import COMMAND, Cluster, Limosa

ROWS = b"""id,name,price,at
1,pear,1.5,2024-01-01 00:00:00Z
2,apple,2.5,2024-01-02 00:00:00Z
3,,3.5,2024-01-03 00:00:00Z
4,o'neil,,2024-01-04 00:00:00Z
"""


@pytest.fixture
def fruit(limosa: Limosa) -> str:
    if limosa("table", "describe", "fruit").code:
        columns = ("id:int64", "name:string", "price:float64", "at:timestamp")
        options = [word for column in columns for word in ("--column", column)]
        limosa.well("table", "create", "fruit", *options, "--key", "id", "--partitions", "3")
    limosa.well("write", "fruit", "-", "--format", "csv", stdin=ROWS)
    return "fruit"


def ids(limosa: Limosa, *arguments: str) -> list[int]:
    return sorted(row["id"] for row in limosa.well("read", "fruit", *arguments, "--json").rows)


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["price > 1.5"], [2, 3]),
        (["price>=1.5", "price < 3"], [1, 2]),
        (["name = pear"], [1]),
        (["name == 'pear'"], [1]),
        (["name != 'pear'"], [2, 4]),
        (["name = 'o''neil'"], [4]),
        (["name is null"], [3]),
        (["price IS NOT NULL"], [1, 2, 3]),
        (["id in (1, 3, 99)"], [1, 3]),
        (["name in ('pear', 'apple')"], [1, 2]),
        (["at > 2024-01-02T12:00:00Z"], [3, 4]),
        (["at in ('2024-01-02 00:00:00Z')"], [2]),
        (["id <= 2", "name = apple"], [2]),
    ],
)
def test_conditions_choose_rows(
    limosa: Limosa, fruit: str, conditions: list[str], found: list[int]
) -> None:
    where = [word for each in conditions for word in ("--where", each)]
    assert ids(limosa, *where) == found
    assert limosa.well("read", fruit, *where, "--count").text == f"{len(found)}\n"


def test_keys_choose_rows(limosa: Limosa, fruit: str) -> None:
    assert ids(limosa, "--key", "2", "--key", "4", "--key", "77") == [2, 4]
    row = limosa.well("read", fruit, "--key", "1", "--json", "--columns", "name,id").json
    assert row == {"name": "pear", "id": 1}
    assert list(row) == ["name", "id"]
    assert ids(limosa, "--key", "3", "--eventual") == [3]


def test_keys_of_two_columns_have_commas(limosa: Limosa) -> None:
    columns = ("--column", "a:string", "--column", "b:int64", "--key", "a", "--key", "b")
    limosa("table", "create", "pairs", *columns)
    limosa.well("write", "pairs", "-", "--format", "csv", stdin=b'a,b\n"x,y",1\nz,2\n')
    found = limosa.well("read", "pairs", "--key", "z,2", "--key", '"x,y",1', "--json").rows
    assert sorted(row["b"] for row in found) == [1, 2]
    assert limosa("read", "pairs", "--key", "z").code == 2


def test_a_limit_is_kept(limosa: Limosa, fruit: str) -> None:
    assert len(limosa.well("read", fruit, "--limit", "2", "--json").rows) == 2
    assert limosa.well("read", fruit, "--limit", "0", "--json").out == b""
    assert len(limosa.well("read", fruit, "--limit", "9", "--eventual", "--json").rows) == 4


def test_every_shape_has_the_rows(limosa: Limosa, fruit: str) -> None:
    def read(format: str) -> bytes:
        return limosa.well("read", fruit, "--format", format).out

    expected = limosa.well("read", fruit, "--format", "arrow").out
    rows = pa.ipc.open_stream(expected).read_all().sort_by("id")
    assert rows.column("name").to_pylist() == ["pear", "apple", None, "o'neil"]
    assert parquet.read_table(io.BytesIO(read("parquet"))).sort_by("id").equals(rows)
    csv = arrow_csv.read_csv(io.BytesIO(read("csv"))).sort_by("id")
    assert csv.column("id").to_pylist() == [1, 2, 3, 4]
    assert len(read("ndjson").splitlines()) == 4
    table = limosa.well("read", fruit)
    assert "o'neil" in table.text
    assert table.err == "4 rows.\n"


def test_a_file_is_written_whole_by_its_suffix(limosa: Limosa, fruit: str, tmp_path: Path) -> None:
    for suffix in ("csv", "ndjson", "parquet", "arrow"):
        file = tmp_path / f"out.{suffix}"
        said = limosa.well("read", fruit, "--output", str(file), "--where", "id < 3")
        assert said.err == f"2 rows written to {file}.\n"
        assert said.out == b""
        assert file.stat().st_size > 0
    assert len(list(tmp_path.glob("out.*"))) == 4, "no drafts are left"


def test_a_count_may_be_json(limosa: Limosa, fruit: str) -> None:
    answer = limosa.well("read", fruit, "--count", "--json").json
    assert answer == {"table": "fruit", "rows": 4}


def test_a_table_shows_a_hundred_rows_unless_told(limosa: Limosa) -> None:
    many = b"id\n" + b"".join(b"%d\n" % id for id in range(300))
    create = ("--create", "--key", "id", "--partitions", "2")
    limosa("write", "many", "-", "--format", "csv", *create, stdin=many)
    shown = limosa.well("read", "many")
    assert len(shown.text.strip().splitlines()) == 102
    assert "Only 100 rows are shown" in shown.err
    assert len(limosa.well("read", "many", "--limit", "250").text.strip().splitlines()) == 252


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--where", "nane = 1"], "there is no column nane"),
        (["--where", "price"], "'price' is not a condition"),
        (["--where", "price ~ 1"], "is not a condition"),
        (
            ["--where", "price > much"],
            "'much' is not a value of column price, which has the type double",
        ),
        (["--where", "at > noon"], "of column at, which has the type timestamp"),
        (["--where", "id in 3"], "has no list of values"),
        (["--where", "name is null 3"], "has text after null"),
        (["--columns", "id,nane"], "there is no column nane"),
        (["--columns", "id,id"], "named twice"),
        (["--key", "x"], "'x' is not a value of column id"),
        (["--key", "1", "--where", "id = 1"], "--key and --where can't be combined"),
        (["--json", "--format", "csv"], "--json means --format ndjson"),
        (["--output", "x.dat"], "is not known from its suffix"),
        (["--output", "x.csv", "--format", "table"], "the format table can't be written to a file"),
        (["--output", "/nowhere/x.csv"], "/nowhere/x.csv"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    limosa: Limosa, fruit: str, arguments: list[str], sentence: str
) -> None:
    ran = limosa("read", fruit, *arguments)
    assert ran.code == 2
    assert sentence in ran.error


def test_who_stops_listening_is_no_error_worth_a_traceback(
    cluster: Cluster, limosa: Limosa, fruit: str
) -> None:
    """`limosa read … | head -1`."""
    command = " ".join([*COMMAND, "read", fruit, "--format", "ndjson"])
    ran = subprocess.run(
        f"{command} --cluster {cluster.directory} | head -0",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, **cluster.environment},
        timeout=60,
        check=False,
    )
    assert ran.stderr == ""
