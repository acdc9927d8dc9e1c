"""Can tables be made, described, listed and dropped by typing?"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.cli.running import Limosa


def test_a_table_is_made_described_listed_and_dropped(limosa: Limosa) -> None:
    made = limosa.well(
        *("table", "create", "pears", "--column", "id:int64", "--column", "name:string"),
        *("--column", "at:timestamp", "--key", "id", "--partitions", "4", "--min-in-sync", "1"),
        "--json",
    ).json
    assert made["columns"] == {"id": "int64", "name": "string", "at": "timestamp[us, tz=UTC]"}
    assert made["key"] == ["id"]
    assert (made["partitions"], made["replicas"], made["min_in_sync"]) == (4, 3, 1)
    assert limosa.well("table", "describe", "pears", "--json").json == made
    assert "timestamp[us, tz=UTC]" in limosa.well("table", "describe", "pears").text
    assert made in limosa.well("tables", "--json").json["tables"]
    assert "pears" in limosa.well("tables").text
    assert limosa.well("table", "drop", "pears", "--yes", "--json").json == {"dropped": "pears"}
    assert limosa("table", "describe", "pears").code == 2


def test_a_table_may_share_a_zone(limosa: Limosa) -> None:
    columns = ("--column", "id:int64", "--key", "id")
    limosa.well("table", "create", "zoned", *columns, "--partitions", "3", "--replicas", "2")
    said = limosa.well("table", "create", "lodger", *columns, "--zone", "zoned")
    assert said.text == "Created the table lodger: 3 partitions of 2 replicas each.\n"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson"])
def test_a_table_can_be_like_a_file(limosa: Limosa, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        rows = {"id": pa.array([1], pa.uint16()), "name": pa.array(["a"]).dictionary_encode()}
        parquet.write_table(pa.table(rows), file)
    else:
        file.write_text("id,name\n1,a\n" if suffix == "csv" else '{"id": 1, "name": "a"}\n')
    name = f"like-{suffix}"
    made = limosa.well("table", "create", name, "--like", str(file), "--key", "id", "--json").json
    wide = "int32" if suffix == "parquet" else "int64"
    assert made["columns"] == {"id": wide, "name": "string"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--column", "id", "--key", "id"], "'id' is not a column"),
        (["--column", "id:integer", "--key", "id"], "column id can't be of type 'integer'"),
        (["--column", "id:int64", "--column", "id:int8", "--key", "id"], "id is given twice"),
        (["--column", "id:int64", "--key", "x"], "no such key columns: x"),
        (["--column", "id:uint8", "--key", "id"], "column id can't be of type uint8"),
        (["--key", "id"], "the columns come either"),
        (["--like", "x.csv", "--column", "id:int64", "--key", "id"], "the columns come either"),
        (["--like", "nowhere.csv", "--key", "id"], "nowhere.csv can't be read: No such file"),
        (["--like", "nowhere.txt", "--key", "id"], "is not known from its suffix"),
    ],
)
def test_a_table_that_can_t_be_is_bad_input(
    limosa: Limosa, arguments: list[str], sentence: str
) -> None:
    ran = limosa("table", "create", "bad", *arguments)
    assert ran.code == 2
    assert sentence in ran.error
    assert ran.out == b""


def test_the_cluster_may_refuse_a_table(limosa: Limosa) -> None:
    create = ("table", "create", "twice", "--column", "id:int64", "--key", "id")
    limosa.well(*create, "--partitions", "1")
    ran = limosa(*create, "--json")
    assert ran.code == 1
    error = ran.json["error"]
    assert error["code"] == "IllegalRequest"
    assert "there is a table twice already" in error["message"]
    assert error["definite"] is True
    assert "there is a table twice already" in ran.error
    many = limosa("table", "create", "copies", *create[3:], "--replicas", "5")
    assert many.code == 1
    assert "5 replicas" in many.error or "nodes" in many.error


def test_nothing_is_dropped_without_a_yes(limosa: Limosa, monkeypatch: pytest.MonkeyPatch) -> None:
    limosa.well("table", "create", "dear", "--column", "id:int64", "--key", "id")
    ran = limosa("table", "drop", "dear")
    assert ran.code == 2
    assert "needs confirmation (add --yes)" in ran.error
    monkeypatch.setattr("limosa.cli.table.is_terminal", lambda: True)
    assert limosa("table", "drop", "dear", stdin=b"n\n").code == 1
    limosa.well("table", "describe", "dear")
    limosa.well("table", "drop", "dear", stdin=b"y\n")
    assert limosa("table", "describe", "dear").code == 2


def test_an_unknown_table_is_named(limosa: Limosa) -> None:
    for arguments in (
        ["table", "drop", "nobody", "--yes"],
        ["table", "describe", "nobody"],
        ["partitions", "nobody"],
        ["read", "nobody"],
        ["write", "nobody", "x.csv"],
    ):
        ran = limosa(*arguments, "--json")
        assert ran.code == 2
        assert ran.json["error"]["code"] == "UnknownTable"
        assert "nobody" in ran.error
