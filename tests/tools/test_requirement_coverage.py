"""The list of rows with tests is right, and a test can't name a row that does not exist."""

import json
from pathlib import Path

import pytest

from tools.requirement_coverage import ROOT, ids_in, main, measure, rows_of

# Ids in this file's docstrings would count, so the samples are plain strings.
SAMPLE = '''
"""A module about F1."""

def test_one():
    """F2–F3 and S1."""

def helper():
    """F5 is not a test."""

class TestGroup:
    """S2"""

    async def test_two(self):
        pass

class Machine:
    """F4"""

TestMachine = Machine.TestCase
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    table = "| id | requirement |\n|---|---|\n"
    numbers = range(1, 6)
    (tmp_path / "docs/requirements.md").write_text(
        table + "".join(f"| F{number} | … |\n" for number in numbers), encoding="utf-8"
    )
    (tmp_path / "docs/failure-scenarios.md").write_text(
        table + "| S1 | F5 | … |\n| S2 | … | … |\n", encoding="utf-8"
    )
    return tmp_path


def write_test(project: Path, text: str) -> None:
    (project / "tests/test_sample.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("docstring", "ids"),
    [
        ("shows F4.", ["F4"]),
        ("F51, F53", ["F51", "F53"]),
        ("F3-F5", ["F3", "F4", "F5"]),
        ("F3–5", ["F3", "F4", "F5"]),
        ("S1 – S2; F9, S1", ["S1", "S2", "F9"]),
        ("F9–S1", ["F9", "S1"]),
        ("UTF8, F, D9, XS3, F4a", []),
    ],
)
def test_ids_and_ranges_are_read(docstring: str, ids: list[str]) -> None:
    assert ids_in(docstring) == ids


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ids_in("F5–F3")


def test_a_row_defined_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="F1"):
        rows_of("| F1 | … |\n| F1 | … |\n")


def test_a_test_shows_the_rows_of_its_own_docstring_its_class_and_its_module(project: Path) -> None:
    write_test(project, SAMPLE)
    coverage = measure(project)
    one, group, machine = (
        f"tests/test_sample.py::{name}"
        for name in ("test_one", "TestGroup::test_two", "TestMachine")
    )
    assert coverage.tests_of == {
        "F1": [one, group, machine],
        "F2": [one],
        "F3": [one],
        "F4": [machine],
        "F5": [],
        "S1": [one],
        "S2": [group],
    }
    assert coverage.missing == ["F5"]


def test_the_report_counts_tests_and_lists_what_has_none(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_test(project, SAMPLE)
    assert main([], project) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "requirements with tests: 4 of 5" in lines
    assert "  F1    3" in lines
    assert "  F5" in lines
    assert lines[-1] == "6 of 7 rows are shown by tests"


def test_an_unknown_id_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_test(project, 'def test_it():\n    """F4–F6"""\n')
    assert main(["--json"], project) == 1
    output = capsys.readouterr()
    test = "tests/test_sample.py::test_it"
    assert json.loads(output.out)["unknown"] == {"F6": [test]}
    assert output.err == f"unknown id F6 in {test}\n"


def test_a_broken_document_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "docs/requirements.md").write_text("| F1 | |\n| F1 | |\n", encoding="utf-8")
    assert main(["--quiet"], project) == 2
    assert "more than once: F1" in capsys.readouterr().err


def test_the_documents_have_every_row() -> None:
    requirements = [f"F{number}" for number in range(1, 200)]
    scenarios = [f"S{number}" for number in range(1, 131)]
    assert list(measure(ROOT).tests_of) == requirements + scenarios
