"""Does `limosa mutants` tell a planted bug that was found from one that was not?

The catalogue of these tests is this module: workers import it by its name.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import Struct

from limosa.cli.main import main

Output = pytest.CaptureFixture[str]


class Mutant(Struct, frozen=True):
    name: str
    breaks: str
    seed: int
    argument: str = ""


def _leftovers(world: Any) -> list[tuple[str, str]]:
    return [("left behind", "p0")] if world.seed % 3 == 2 else []


def _assertion(world: Any) -> list[tuple[str, str]]:
    assert world.seed != 4, "an assumption"
    return []


def _mistake(world: Any) -> list[tuple[str, str]]:
    raise TypeError("badly planted")


def _nothing(world: Any) -> list[tuple[str, str]]:
    return []


PLANTS = {
    "leaves_something": _leftovers,
    "breaks_an_assumption": _assertion,
    "badly_planted": _mistake,
    "harmless": _nothing,
    "no_seed": _leftovers,
    "really_harmless": _nothing,
    "not_so_harmless": _leftovers,
}
ALL = {
    "leaves_something": Mutant("leaves_something", "the first rule", 2),
    "breaks_an_assumption": Mutant("breaks_an_assumption", "the second rule", 4),
}
BAD = {
    "badly_planted": Mutant("badly_planted", "the third rule", 1),
    "harmless": Mutant("harmless", "no rule", 1),
    "no_seed": Mutant("no_seed", "the first rule", -1),
}
MUTANTS = dict(ALL)
REDUNDANT = {
    "really_harmless": Mutant("really_harmless", "a rule", -1, "Others see to it."),
    "not_so_harmless": Mutant("not_so_harmless", "a rule", -1, "Or so we thought."),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with patch("limosa.simulation.run.leftovers", PLANTS[name]):
        yield


@pytest.fixture(autouse=True)
def _this_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limosa.cli.mutants.CATALOGUE", __name__)


@pytest.fixture
def with_bad_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MUTANTS", {**ALL, **BAD})


def mutants(capsys: Output, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    code = main(["mutants", "--jobs", "2", *arguments])
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    return code, lines[:-1], json.loads(lines[-1])


@pytest.mark.processes
def test_recorded_seeds_are_replayed(capsys: Output) -> None:
    code, lines, last = mutants(capsys)
    assert code == 0
    assert last == {"planted": 2, "found": 2, "missed": []}
    assert lines[0] == "leaves_something         2  left behind  (breaks: the first rule)"
    assert "AssertionError" in lines[1]
    assert "  really_harmless: Others see to it." in lines, "told, but not counted"


@pytest.mark.processes
def test_a_missed_mutant_fails(capsys: Output, with_bad_ones: None) -> None:
    """An exception that is no violated assertion shows a bug in the mutant, not in the protocol."""
    code, lines, last = mutants(capsys)
    assert code == 1
    assert last == {"planted": 5, "found": 2, "missed": ["badly_planted", "harmless", "no_seed"]}
    assert "MISSED: raised TypeError" in lines[2]
    assert "MISSED: nothing was violated" in lines[3]
    assert "MISSED: no seed is recorded" in lines[4]


@pytest.mark.processes
def test_json_is_the_only_line_if_asked(capsys: Output) -> None:
    assert mutants(capsys, "--json") == (0, [], {"planted": 2, "found": 2, "missed": []})


@pytest.mark.processes
def test_one_can_be_chosen(capsys: Output, with_bad_ones: None) -> None:
    code, lines, last = mutants(capsys, "--only", "harmless")
    assert code == 1
    assert last == {"planted": 1, "found": 0, "missed": ["harmless"]}
    assert len(lines) == 1


@pytest.mark.processes
def test_a_search_finds_the_first_seed_and_counts(
    capsys: Output, with_bad_ones: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limosa.cli.mutants.COUNTED", 6)
    monkeypatch.setattr("limosa.cli.mutants.SLICE", 2)
    code, lines, last = mutants(capsys, "--search", "--limit", "9")
    assert code == 1
    assert last == {"planted": 5, "found": 3, "missed": ["badly_planted", "harmless"]}
    assert "leaves_something: 2 of the first 6 seeds find it" in lines
    assert "breaks_an_assumption: 1 of the first 6 seeds find it" in lines
    assert "harmless: none of 9 seeds finds it" in lines
    assert lines[-3:] == [
        '"leaves_something": 2,',
        '"breaks_an_assumption": 4,',
        '"no_seed": 2,',
    ]
    assert "MISSED: raised TypeError" in lines[2]


@pytest.mark.processes
def test_a_redundant_one_that_is_found_is_not_redundant(capsys: Output) -> None:
    code, lines, last = mutants(capsys, "--search", "--limit", "4", "--only", "not_so_harmless")
    assert code == 1
    assert last["planted"] == 0
    assert any("it is not redundant" in line for line in lines)
    assert mutants(capsys, "--search", "--limit", "4", "--only", "really_harmless")[0] == 0


def test_a_seed_that_is_violated_without_the_mutant_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from limosa.cli.mutants import Attempt, attempt

    monkeypatch.setattr("limosa.cli.mutants._is_clean", lambda seed: False)
    finds = attempt(Attempt(__name__, "leaves_something", range(2, 3)))
    assert finds.seeds == ()
    assert finds.instead == "seed 2 is violated without the mutant too"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "nobody"], "there is no mutant nobody. There are: breaks_an_assumption,"),
        (["--limit", "5"], "--limit is for searches: add --search, or omit it."),
        (["--search", "--limit", "0"], "--limit"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, capsys: Output
) -> None:
    assert main(["mutants", *arguments]) == 2
    assert sentence in capsys.readouterr().err
