"""How does Meta's Rebalancer even out the same cluster?

It is no dependency of ours, and needs Python 3.12 or newer: it runs in a process of its own, by
whichever interpreter has it. LIMOSA_REBALANCER_PYTHON names one; else those on the PATH are asked.
Read as a script, this file is that process: a problem on its standard input, the solution on its
standard output.
"""

import json
import os
import shutil
import subprocess
import sys
from time import perf_counter
from typing import Any, NamedTuple

NAMED = "LIMOSA_REBALANCER_PYTHON"
WANTED = "from rebalancer import ProblemSolver"
SECONDS_MAX = 60
GRACE_SECONDS = 60
MISSING = (
    f"install rebalancer for a Python of 3.12 or newer, and name it: {NAMED}=/path/to/bin/python"
)


class Solution(NamedTuple):
    seconds: float
    assignment: dict[str, str]

    @property
    def cut(self) -> bool:
        """It was stopped before it was done."""
        return self.seconds >= SECONDS_MAX


class NoSolution(Exception):
    """Why there is none."""


def interpreter() -> str | None:
    names = [os.environ.get(NAMED), "python3.14", "python3.13", "python3.12", "python3"]
    for name in filter(None, names):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", WANTED], capture_output=True).returncode == 0:
            return path
    return None


def solve(python: str, assignment: dict[str, list[str]], loads: dict[str, float]) -> Solution:
    """As it does by itself: its default goal of balance, single moves, local search."""
    problem = json.dumps({"assignment": assignment, "loads": loads})
    try:
        told = subprocess.run(
            [python, __file__],
            input=problem,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS_MAX + GRACE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NoSolution(f"it was cut: no solution after {SECONDS_MAX} s") from None
    except subprocess.CalledProcessError as error:
        raise NoSolution(error.stderr.strip()[-300:]) from None
    return Solution(**json.loads(told.stdout.splitlines()[-1]))


def main() -> None:
    problem: Any = json.load(sys.stdin)
    begun = perf_counter()
    from rebalancer import ProblemSolver  # type: ignore[import-not-found]

    solver = ProblemSolver(service_name="limosa", service_scope="bench")
    solver.set_object_name("partition").set_container_name("node")
    solver.set_assignment(problem["assignment"])
    solver.add_object_dimension("load", problem["loads"])
    solver.add_goal({"balanceSpec": {"name": "even", "scope": "node", "dimension": "load"}})
    search = {"moveTypeList": [{"singleMoveTypeSpec": {}}], "solveTime": SECONDS_MAX}
    solver.add_solver({"localSearchSolverSpec": search})
    found = solver.solve()["assignment"]
    print(json.dumps({"seconds": perf_counter() - begun, "assignment": found}))


if __name__ == "__main__":
    main()
