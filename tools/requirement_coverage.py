"""Which requirements and failure scenarios have a test that names them?

The rows are the lines `| F4 | … |` of docs/requirements.md and `| S42 | … |` of
docs/failure-scenarios.md. A test names a row in its docstring, or in that of its class or module:
`F4`, `F51, F53`, `F97–F104`.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("docs/requirements.md", "docs/failure-scenarios.md")

ROW = re.compile(r"^\|\s*([FS]\d+)\s*\|", re.MULTILINE)
MENTION = re.compile(r"\b([FS])(\d+)\b(?:\s*[-–]\s*([FS])?(\d+)\b)?")


@dataclass
class Coverage:
    """Every row, in the order of the documents, with its tests; and what no document defines."""

    tests_of: dict[str, list[str]]
    unknown: dict[str, list[str]] = field(default_factory=dict)

    def add(self, row: str, test: str) -> None:
        tests = self.tests_of.get(row)
        if tests is None:
            tests = self.unknown.setdefault(row, [])
        if test not in tests:
            tests.append(test)

    @property
    def shown(self) -> list[str]:
        return [row for row, tests in self.tests_of.items() if tests]

    @property
    def missing(self) -> list[str]:
        return [row for row, tests in self.tests_of.items() if not tests]


def rows_of(text: str) -> list[str]:
    """The ids that a document defines; an id that is defined twice is an error of the document."""
    rows = ROW.findall(text)
    twice = sorted({row for row in rows if rows.count(row) > 1})
    if twice:
        raise ValueError(f"defined more than once: {', '.join(twice)}")
    return rows


def ids_in(docstring: str) -> list[str]:
    """The ids that a docstring names, ranges spelled out."""
    ids: list[str] = []
    for letter, first, last_letter, last in MENTION.findall(docstring):
        if not last or (last_letter and last_letter != letter):
            ids.append(f"{letter}{first}")
            if last:
                ids.append(f"{last_letter}{last}")
        elif int(first) > int(last):
            raise ValueError(f"a range that runs backwards: {letter}{first}–{letter}{last}")
        else:
            ids.extend(f"{letter}{number}" for number in range(int(first), int(last) + 1))
    return list(dict.fromkeys(ids))


def named_tests(tree: ast.Module, path: str) -> Iterator[tuple[str, list[str]]]:
    """Each test with the ids of its own docstring, its class's and its module's."""
    return _tests_in(tree, path, _ids_of(tree))


def _tests_in(
    parent: ast.Module | ast.ClassDef, name: str, inherited: list[str]
) -> Iterator[tuple[str, list[str]]]:
    classes = {node.name: node for node in parent.body if isinstance(node, ast.ClassDef)}
    for node in parent.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield f"{name}::{node.name}", inherited + _ids_of(node)
            case ast.ClassDef() if node.name.startswith("Test"):
                yield from _tests_in(node, f"{name}::{node.name}", inherited + _ids_of(node))
            # Hypothesis: `TestBook = BookMachine.TestCase` runs the machine as a test.
            case ast.Assign(
                targets=[ast.Name(id=test)],
                value=ast.Attribute(value=ast.Name(id=machine), attr="TestCase"),
            ) if machine in classes:
                yield f"{name}::{test}", inherited + _ids_of(classes[machine])


def _ids_of(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return ids_in(ast.get_docstring(node) or "")


def measure(root: Path) -> Coverage:
    """Read the documents and the tests below `root`."""
    coverage = Coverage({})
    for document in DOCUMENTS:
        text = (root / document).read_text(encoding="utf-8")
        coverage.tests_of.update({row: [] for row in rows_of(text)})
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = file.relative_to(root).as_posix()
        for test, ids in named_tests(ast.parse(file.read_text(encoding="utf-8")), path):
            for row in ids:
                coverage.add(row, test)
    return coverage


def report(coverage: Coverage) -> Iterator[str]:
    """The lines to print: shown rows with their number of tests, rows without one, a summary."""
    for letter, title in (("F", "requirements"), ("S", "failure scenarios")):
        total = [row for row in coverage.tests_of if row.startswith(letter)]
        shown = [row for row in coverage.shown if row.startswith(letter)]
        missing = [row for row in coverage.missing if row.startswith(letter)]
        yield f"{title} with tests: {len(shown)} of {len(total)}"
        for row in shown:
            yield f"  {row:<5} {len(coverage.tests_of[row])}"
        yield f"{title} without a test: {len(missing)}"
        yield from (
            f"  {' '.join(missing[start : start + 16])}" for start in range(0, len(missing), 16)
        )
    yield f"{len(coverage.shown)} of {len(coverage.tests_of)} rows are shown by tests"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    options = parser.parse_args(arguments)
    try:
        coverage = measure(root)
    except ValueError as error:
        print(f"requirement coverage: {error}", file=sys.stderr)
        return 2
    if options.json:
        shown = {row: coverage.tests_of[row] for row in coverage.shown}
        print(
            json.dumps({"shown": shown, "missing": coverage.missing, "unknown": coverage.unknown})
        )
    elif not options.quiet:
        print("\n".join(report(coverage)))
    for row, tests in coverage.unknown.items():
        print(f"unknown id {row} in {', '.join(tests)}", file=sys.stderr)
    return 1 if coverage.unknown else 0


if __name__ == "__main__":
    sys.exit(main())
