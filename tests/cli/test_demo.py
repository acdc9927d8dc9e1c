"""Would `limosa demo` see a lost row, a wrong read, an unequal replica? And does it find none?"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from limosa.cli.demo.command import DemoVerdict, in_words
from limosa.cli.demo.ledger import (
    Counts,
    Ledger,
    ReaderThread,
    WriterThread,
    fill,
    unequal_replicas,
    values_of,
)
from limosa.client.table import TableHandle
from limosa.errors import Refused
from tests.cli.running import COMMAND
from tests.waiting import eventually


class FakeTable:
    """A table in memory, which can be told to misbehave."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.loses = self.forgets = False
        self.refuses = 0

    def write(self, batch: Any) -> int:
        if self.refuses:
            self.refuses -= 1
            raise Refused("not now")
        if not self.loses:
            keys, values, _ = (each.to_pylist() for each in batch.columns)
            self.values.update(zip(keys, values, strict=True))
        return int(batch.num_rows)

    def get_many(self, keys: Any) -> pa.Table:
        found = [key for key in keys.column("key").to_pylist() if key in self.values]
        values = [0 if self.forgets else self.values[key] for key in found]
        columns = [pa.array(found, pa.int64()), pa.array(values, pa.int64())]
        return pa.table(columns, names=["key", "value"])

    def scan(self) -> pa.Table:
        return self.get_many(pa.table({"key": list(self.values)}))


def step(worker: Any, times: int = 1) -> None:
    for _ in range(times):
        worker._step()


def a_run(table: Any) -> tuple[Ledger, WriterThread, ReaderThread]:
    ledger = Ledger(20)
    writer = WriterThread(table, ledger, 1, range(20), rows_at_once=5)
    return ledger, writer, ReaderThread(table, ledger, 2, rows_at_once=20)


def final(table: FakeTable) -> Any:
    return values_of(np.arange(20, dtype=np.int64), table.scan())


def test_a_table_that_keeps_everything_passes() -> None:
    table = FakeTable()
    table.refuses = 2
    ledger, writer, reader = a_run(table)
    step(writer, 3)
    step(reader)
    assert writer.counts.rows == 15
    assert writer.counts.longest_pause() >= 0
    assert (reader.counts.rows, reader.counts.wrong) == (20, 0)
    assert ledger.lost_rows(final(table)) == ledger.invented_rows(final(table)) == []
    assert ledger.acked.max() == ledger.attempted.max() == 3


def test_every_key_has_a_row_before_the_load_begins() -> None:
    table, ledger = FakeTable(), Ledger(20)
    fill(cast(TableHandle, table), ledger, 7)
    assert table.values == dict.fromkeys(range(20), 1)
    writer = WriterThread(cast(TableHandle, table), ledger, 1, range(20), rows_at_once=5)
    step(writer)
    assert ledger.acked.max() == ledger.attempted.max() == 2
    assert ledger.lost_rows(final(table)) == ledger.invented_rows(final(table)) == []


def test_a_pause_counts_where_some_of_it_is() -> None:
    counts = Counts(pauses=[(10.0, 1.0), (20.0, 4.0), (21.0, 1.0)])
    assert counts.longest_pause() == 4.0
    assert counts.longest_pause(0.0, 12.0) == 1.0
    assert counts.longest_pause(15.0, 17.0) == 4.0
    assert counts.longest_pause(20.5, 22.0) == 1.0
    assert counts.longest_pause(30.0, 40.0) == 0.0


def test_a_lost_row_is_seen() -> None:
    table = FakeTable()
    table.loses = True
    ledger, writer, reader = a_run(table)
    step(writer)
    step(reader)
    assert reader.counts.wrong == 5
    assert len(reader.counts.examples) == 5
    assert len(ledger.lost_rows(final(table))) == 5


def test_an_old_value_is_seen() -> None:
    table = FakeTable()
    ledger, writer, reader = a_run(table)
    step(writer)
    table.forgets = True
    step(reader)
    assert reader.counts.wrong == 5
    assert "expected 1 to 1" in reader.counts.examples[0]
    assert len(ledger.lost_rows(final(table))) == 5


def test_a_value_that_nobody_wrote_is_seen() -> None:
    table = FakeTable()
    ledger, writer, reader = a_run(table)
    step(writer)
    table.values[3] = 99
    step(reader)
    assert reader.counts.wrong == 1
    assert ledger.invented_rows(final(table)) == [
        f"key 3 holds 99, attempted {ledger.attempted[3]}"
    ]


def test_what_was_attempted_may_be_there_or_not() -> None:
    ledger = Ledger(2)
    ledger.attempted[:] = 5
    ledger.acked[:] = 4
    keys, floor = np.array([0, 1]), np.array([4, 4])
    assert ledger.wrong_reads(keys, np.array([4, 5]), floor) == []
    assert len(ledger.wrong_reads(keys, np.array([3, 6]), floor)) == 2


def test_a_thread_that_fails_says_so() -> None:
    table = FakeTable()
    _, _, reader = a_run(table)
    table.get_many = None  # type: ignore[method-assign,assignment]
    reader.start()
    assert reader.join(5)
    assert "TypeError" in reader.counts.failure


def test_unequal_and_missing_replicas_are_seen() -> None:
    def held(*digests: str) -> list[dict[str, Any]]:
        return [
            {"partition": f"p{n}", "rows": 1, "digest": digest} for n, digest in enumerate(digests)
        ]

    assert unequal_replicas({"n1": held("a", "b"), "n2": held("a", "b")}, 2) == []
    assert unequal_replicas({"n1": held("a", "b"), "n2": held("a", "x")}, 2) == ["p1"]
    assert unequal_replicas({"n1": held("a", "b"), "n2": held("a")}, 2) == ["p1"]


def test_a_bad_end_is_not_called_good() -> None:
    assert in_words(DemoVerdict(ok=True, replicas_equal=True)).endswith("Nothing was lost.")
    bad = in_words(DemoVerdict(lost=2, examples=["key 3 holds 1, acknowledged 2"]))
    assert "lost           2" in bad
    assert "DIFFERENT" in bad
    assert "key 3 holds 1" in bad
    assert bad.endswith("FAILED: see above.")


# --- the real thing


def start(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
        start_new_session=True,
    )


def processes_in(directory: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"\0serve\0" in words and str(directory).encode() in words:
            found.append(entry.name)
    return found


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.mark.processes
@linux
def test_a_node_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """F61, F74: under load a node joins and is filled, another is drained, and one is killed."""
    with start(tmp_path, "--seconds", "6", "--pipeline", "threads", "--json") as process:
        output, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    verdict = json.loads(output.splitlines()[-1])
    assert verdict["ok"]
    assert verdict["lost"] == verdict["wrong"] == 0
    assert verdict["replicas_equal"]
    assert verdict["joined"] == "n4"
    assert verdict["drained"] == "n1"
    assert verdict["moves"] > 12, "some replicas to the new node, a third of all from the other"
    assert verdict["moved_megabytes"] > 0
    assert 0 < verdict["longest_hand_over_seconds"] < 5
    assert 0 < verdict["longest_pause_without_move_seconds"] <= verdict["longest_pause_seconds"]
    assert verdict["killed"] in ("n2", "n3", "n4")
    assert verdict["rows_acked"] > 0
    assert verdict["reads"] > 0
    assert f"kill -9 {verdict['killed']}" in errors
    assert processes_in(tmp_path) == []
    assert list(tmp_path.glob("limosa-demo-*")) == []


@pytest.mark.processes
@linux
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        eventually(lambda: len(processes_in(tmp_path)) > 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert processes_in(tmp_path) == []
    assert list(tmp_path.glob("limosa-demo-*")) == []
