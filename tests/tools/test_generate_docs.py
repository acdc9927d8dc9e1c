"""Generated parts of the docs are written from the code, and drift is noticed."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools import drawing
from tools.generate_docs import (
    ROOT,
    NotYet,
    diagrams,
    first_paragraph,
    main,
    modules,
    openapi,
    rooms,
    rooms_of_core,
    stage_tables,
)

OLD = "# Page\n\n<!-- generated:part -->\nold\n<!-- /generated:part -->\n\nend\n"
NEW = "# Page\n\n<!-- generated:part -->\n\nnew\n\n<!-- /generated:part -->\n\nend\n"

GENERATORS = {"part": lambda: "new\n"}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text(OLD, encoding="utf-8")
    return page


def run(page: Path, *arguments: str) -> int:
    return main(list(arguments), page.parents[1], GENERATORS, {})


def test_a_part_is_replaced_and_the_rest_kept(page: Path) -> None:
    assert run(page) == 0
    assert page.read_text(encoding="utf-8") == NEW
    assert run(page, "--check") == 0


def test_a_check_fails_on_drift_and_changes_nothing(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(page, "--check") == 1
    assert page.read_text(encoding="utf-8") == OLD
    assert "docs/page.md; run 'make docs'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<!-- generated:other -->\n<!-- /generated:other -->\n", "no generator 'other'"),
        ("<!-- generated:part -->\n", "not closed"),
        (
            "<!-- generated:part -->\n<!-- generated:part -->\n<!-- /generated:part -->\n",
            "not closed",
        ),
    ],
)
def test_a_broken_page_is_refused(
    page: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    page.write_text(text, encoding="utf-8")
    assert run(page) == 2
    assert error in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == text


def test_a_part_whose_source_is_missing_is_skipped_aloud(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise NotYet("no such module")

    assert main(["--check"], page.parents[1], {"part": missing}, {"docs/all": missing}) == 0
    printed = capsys.readouterr().out
    assert "skipped part (no such module)" in printed
    assert "docs/all: skipped (no such module)" in printed


def test_a_whole_file_is_written_and_its_drift_noticed(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"docs/all.json": lambda: "{}\n"}
    there = page.with_name("all.json")
    assert main(["--check"], page.parents[1], GENERATORS, files) == 1
    assert not there.exists()
    assert "docs/all.json" in capsys.readouterr().err
    assert main([], page.parents[1], GENERATORS, files) == 0
    assert there.read_text() == "{}\n"
    assert main(["--check"], page.parents[1], GENERATORS, files) == 0


def test_the_description_of_the_admin_service_is_checked_in() -> None:
    assert (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8") == openapi()


def test_without_the_extra_the_description_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("limosa.admin.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(NotYet, match="fastapi"):
        openapi()


def test_machines_are_drawn_from_their_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = ModuleType("limosa.core.machines.catalogue")
    catalogue.__dict__["MACHINES"] = {"move": "a", "repair": "b"}
    monkeypatch.setattr(drawing, "markdown_table", lambda m: f"| {m} |\n")
    monkeypatch.setattr(drawing, "mermaid", lambda m: f"graph {m}\n")
    monkeypatch.setitem(sys.modules, catalogue.__name__, catalogue)
    assert stage_tables() == "### move\n\n| a |\n\n### repair\n\n| b |"
    assert diagrams().startswith("### move\n\n```mermaid\ngraph a\n```\n\n### repair")


def test_a_missing_catalogue_is_not_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "limosa.core.machines.catalogue", None)
    with pytest.raises(NotYet):
        stage_tables()


def test_the_architecture_lists_every_module_with_its_own_first_sentence() -> None:
    listed = modules()
    for file in (ROOT / "src" / "limosa").rglob("*.py"):
        assert (
            file.name == "__init__.py" or f"| `{file.stem}` | {first_paragraph(file)} |" in listed
        )
    assert listed in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_rooms_are_listed_from_top_to_bottom() -> None:
    names = [line.split("`")[1] for line in rooms().splitlines()[2:]]
    assert names[0] == "cli"
    assert names[-2:] == ["core", "errors"]
    assert rooms_of_core().splitlines()[-1].startswith("| `model` |")


def test_a_module_that_does_not_say_what_it_answers_is_refused(tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("x = 1\n")
    with pytest.raises(ValueError, match="does not begin with a docstring"):
        first_paragraph(silent)
