"""Which parts of the docs are printed from the code?

Text between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` in docs/ is what the generator
NAME returns; the files of FILES are generated as a whole. Without arguments the text is replaced;
`--check` changes nothing and fails on drift.
"""

import argparse
import ast
import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "limosa"

Generator = Callable[[], str]

OPENING = re.compile(r"<!-- generated:(\w+) -->")
PART = re.compile(
    r"(?P<open><!-- generated:(?P<name>\w+) -->).*?(?P<close><!-- /generated:(?P=name) -->)",
    re.DOTALL,
)


class NotYet(Exception):
    """The source of a generated part does not exist; the present text stays."""


def _machines() -> tuple[Any, dict[str, Any]]:
    names = ("limosa.core.machines.drawing", "limosa.core.machines.catalogue")
    try:
        drawing, catalogue = (importlib.import_module(name) for name in names)
    except ModuleNotFoundError as error:
        if error.name not in names:
            raise
        raise NotYet(f"there is no module {error.name}") from error
    return drawing, catalogue.MACHINES


def stage_tables() -> str:
    """Every machine as a table."""
    drawing, machines = _machines()
    return _sections({name: drawing.markdown_table(machine) for name, machine in machines.items()})


def diagrams() -> str:
    """Every machine as a diagram."""
    drawing, machines = _machines()
    return _sections(
        {name: _fenced(drawing.mermaid(machine)) for name, machine in machines.items()}
    )


def _fenced(diagram: str) -> str:
    return diagram if diagram.startswith("```") else f"```mermaid\n{diagram.strip()}\n```"


def _sections(texts: Mapping[str, str]) -> str:
    return "\n\n".join(f"### {title}\n\n{text.strip()}" for title, text in texts.items())


def lives() -> str:
    """The machines of other records, such as nodes and runs, as diagrams."""
    drawing, _ = _machines()
    catalogue = importlib.import_module("limosa.core.machines.catalogue")
    return _sections(
        {name: _fenced(drawing.mermaid_life(life)) for name, life in catalogue.LIVES.items()}
    )


def rooms() -> str:
    """The packages in the order in which they may import each other, from top to bottom."""
    return _layers("limosa")


def rooms_of_core() -> str:
    """The packages and modules of the core, in the same order."""
    return _layers("limosa.core")


def modules() -> str:
    """Every module of every package."""
    texts = {}
    for opening in sorted(PACKAGE.rglob("__init__.py")):
        package = opening.parent
        files = sorted(file for file in package.glob("*.py") if file != opening)
        if files:
            name = package.relative_to(PACKAGE.parent).as_posix()
            table = _table("module", ((file.stem, file) for file in files))
            texts[f"`{name}`"] = f"{first_paragraph(opening)}\n\n{table}"
    return _sections(texts)


def first_paragraph(file: Path) -> str:
    """How a module describes itself: the first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    found = " ".join(text.partition("\n\n")[0].split())
    if not found.endswith((".", "?")):
        raise ValueError(f"{file} does not begin with a docstring of whole sentences")
    return found


def _layers(container: str) -> str:
    """Rows in the order of the import linter's layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [container])
    folder = PACKAGE.joinpath(*container.split(".")[1:])
    names = [name for layer in layers for name in layer.split(" | ") if name != "__main__"]
    return _table("room", ((name, _file_of(folder / name)) for name in names))


def _file_of(path: Path) -> Path:
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _table(title: str, files: Iterable[tuple[str, Path]]) -> str:
    rows = (f"| `{name}` | {first_paragraph(file)} |" for name, file in files)
    return "\n".join((f"| {title} | what it answers |", "|---|---|", *rows))


GENERATORS: Mapping[str, Generator] = {
    "rooms": rooms,
    "rooms_of_core": rooms_of_core,
    "modules": modules,
    "stage_tables": stage_tables,
    "diagrams": diagrams,
    "lives": lives,
}


def openapi() -> str:
    """The description of the admin service."""
    try:
        app = importlib.import_module("limosa.admin.app")
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise NotYet(f"{error.name} is not installed") from error
    return json.dumps(app.document(), indent=1, ensure_ascii=False) + "\n"


FILES: Mapping[str, Generator] = {"docs/openapi.json": openapi}


def regenerate(text: str, generators: Mapping[str, Generator], skipped: list[str]) -> str:
    """Regenerate the parts of a text; parts whose source is missing are added to `skipped`."""
    opened = OPENING.findall(text)
    closed = [match["name"] for match in PART.finditer(text)]
    if opened != closed:
        raise ValueError(f"generated parts {opened} are not closed one by one")

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in generators:
            raise ValueError(f"there is no generator '{name}'; there are: {', '.join(generators)}")
        try:
            return f"{match['open']}\n\n{generators[name]().strip()}\n\n{match['close']}"
        except NotYet as reason:
            skipped.append(f"{name} ({reason})")
            return match[0]

    return PART.sub(replace, text)


def main(
    arguments: list[str] | None = None,
    root: Path = ROOT,
    generators: Mapping[str, Generator] = GENERATORS,
    files: Mapping[str, Generator] = FILES,
) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on drift")
    check = parser.parse_args(arguments).check
    drifted: list[str] = []

    def settle(path: str, old: str, new: str) -> None:
        if new != old and check:
            drifted.append(path)
        elif new != old:
            (root / path).write_text(new, encoding="utf-8")
            print(f"{path}: written")

    for file in sorted((root / "docs").rglob("*.md")):
        path = file.relative_to(root).as_posix()
        old = file.read_text(encoding="utf-8")
        skipped: list[str] = []
        try:
            new = regenerate(old, generators, skipped)
        except ValueError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        for part in skipped:
            print(f"{path}: skipped {part}")
        settle(path, old, new)
    for path, generate in files.items():
        there = root / path
        old = there.read_text(encoding="utf-8") if there.exists() else ""
        try:
            settle(path, old, generate())
        except NotYet as reason:
            print(f"{path}: skipped ({reason})")
    if drifted:
        print(f"out of date: {', '.join(drifted)}; run 'make docs'", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
