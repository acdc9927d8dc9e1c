"""What do log lines look like, and how long can a log become?"""

import io
import json
from pathlib import Path

from limosa.runtime.journal import Journal


def test_a_line_says_who_and_what() -> None:
    plain, as_json = io.StringIO(), io.StringIO()
    Journal("n1", plain)("committed", why="a reason")
    assert plain.getvalue().endswith(" n1 committed why=a reason\n")
    Journal("n1", as_json, json=True)("committed", why=ValueError("no"))
    said = json.loads(as_json.getvalue())
    assert (said["who"], said["what"]) == ("n1", "committed")
    assert "ValueError: no" in said["why"]


def test_a_log_file_does_not_grow_beyond_its_limit(tmp_path: Path) -> None:
    """S129: a disk is not filled by log lines."""
    path = tmp_path / "n1.log"
    with path.open("a") as stream:
        journal = Journal("n1", stream, bytes_max=10_000)
        for number in range(1_000):
            journal("something happened", number=number)
            assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 20_200
    assert sorted(each.name for each in tmp_path.iterdir()) == ["n1.log", "n1.log.1"]
    last = path.read_text() or (tmp_path / "n1.log.1").read_text()
    assert last.endswith("number=999\n")


def test_what_is_no_file_is_not_rotated() -> None:
    stream = io.StringIO()
    journal = Journal("n1", stream, bytes_max=1)
    journal("one")
    journal("two")
    assert stream.getvalue().count("\n") == 2
