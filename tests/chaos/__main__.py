"""`make chaos`: does a real cluster keep its promises whatever happens to its processes?

Starts a cluster of real processes with a network of our own between them, uses it all the time, and
lets something go wrong in every round, during moves of partitions, which Spark carries, or during
bursts of far more writes than the nodes can take. Prints which faults there were and what was
found, and last one line of JSON. Exit code: 0 all is well, 1 something is wrong (then the directory
is kept), 2 bad input, 130 interrupted.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos import moves, overload, rounds, torment
from tests.chaos.strikes import KINDS, STAGES, Cell

SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--rounds", type=int, default=200, help="how many times something happens")
    what.add_argument("--moves", type=int, help="or during so many moves of partitions")
    what.add_argument("--overload", type=int, help="or during so many bursts of writes")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults and the load")
    parser.add_argument("--nodes", type=int, help="default: 3, or 4 for moves and overload")
    parser.add_argument("--partitions", type=int, help="default: 8, or 200 for overload")
    parser.add_argument(
        "--lease-seconds", type=float, help="of the nodes; default: 1, or 3 for overload"
    )
    parser.add_argument("--pipeline", choices=["spark", "threads"], default="spark")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    parser.add_argument("--keep", action="store_true", help="keep the directory in any case")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell each round or move")
    options: Any = parser.parse_args(arguments)
    is_overload = options.overload is not None
    if options.nodes is None:
        options.nodes = 3 if options.moves is None and not is_overload else 4
    if options.partitions is None:
        options.partitions = 200 if is_overload else 8
    if options.lease_seconds is None:
        options.lease_seconds = 3.0 if is_overload else 1.0
    if options.rounds < 1 or options.nodes < 3 or options.partitions < 1:
        parser.error("at least 1 round, 3 nodes and 1 partition")
    if options.moves is not None and (options.moves < 1 or options.nodes < 4):
        parser.error("at least 1 move, and 4 nodes: one must have no replica yet")
    if is_overload and options.overload < 1:
        parser.error("at least 1 burst")
    directory = Path(tempfile.mkdtemp(prefix="limosa-chaos-"))
    try:
        report = _torment(directory, options)
    except KeyboardInterrupt:
        print(f"interrupted; {directory} is kept", file=sys.stderr)
        return 130
    if report.ok and not options.keep:
        shutil.rmtree(directory)
    elif not options.json:
        print(f"kept: {directory}")
    if not options.json:
        print_report(report)
        if not report.ok:
            print(f"the same faults again: python -m tests.chaos {_again(options)}")
    print(json.dumps(report.as_json() | ({} if report.ok else {"directory": str(directory)})))
    return 0 if report.ok else 1


def _torment(directory: Path, options: Any) -> torment.Report:
    tell = print_now if options.verbose and not options.json else silent
    common = {
        "seed": options.seed,
        "nodes": options.nodes,
        "partitions": options.partitions,
        "lease_seconds": options.lease_seconds,
    }
    if options.overload is not None:
        by_bursts = overload.Options(bursts=options.overload, **common)
        return overload.Overload(directory, by_bursts, tell).run()
    if options.moves is None:
        by_rounds = rounds.Options(rounds=options.rounds, **common)
        return rounds.Chaos(directory, by_rounds, tell).run()
    by_moves = moves.Options(moves=options.moves, pipeline=options.pipeline, **common)
    return moves.Moves(directory, by_moves, silent if options.json else print_now, tell).run()


def _again(options: Any) -> str:
    if options.overload is not None:
        return f"--overload {options.overload} --seed {options.seed}"
    if options.moves is None:
        return f"--rounds {options.rounds} --seed {options.seed}"
    return f"--moves {options.moves} --seed {options.seed} --pipeline {options.pipeline}"


def print_now(line: str) -> None:
    print(line, flush=True)


def silent(line: str) -> None:
    pass


def print_report(report: torment.Report) -> None:
    for kind, count in sorted(report.faults.items()):
        print(f"{count:6}  {kind}")
    print()
    if isinstance(report, moves.Report):
        print_moves(report)
    if isinstance(report, overload.Report):
        print(f"{report.bursts:6}  bursts of {report.burst_rows} rows")
        print(f"{report.slowest_recovery:6.1f}s until all was in sync and writable, at most")
    for outcome, count in sorted(report.outcomes.items()):
        print(f"{count:6}  operations ended: {outcome}")
    for error, count in report.errors.most_common(SHOWN):
        print(f"{count:6}    {error}")
    print(f"{report.acked_rows:6}  rows acknowledged")
    print(f"{report.judgements:6}  judgements")
    for finding in report.findings[:SHOWN]:
        print(f"{finding.kind}: {finding.what}")
    if len(report.findings) > SHOWN:
        print(f"… and {len(report.findings) - SHOWN} more")


def print_moves(report: moves.Report) -> None:
    """Where each kind of fault has struck, and how moves ended."""
    print("struck in: " + ", ".join(f"{n} {name}" for n, name in enumerate(STAGES, start=1)))
    print(f"{'':24}" + "".join(f"{number:5}" for number in range(1, len(STAGES) + 1)))
    for kind in KINDS:
        counts = [report.cells[Cell(stage, kind)] for stage in STAGES]
        print(f"{kind:24}" + "".join(f"{count or '·':>5}" for count in counts))
    print()
    for outcome, count in sorted(report.ended.items()):
        print(f"{count:6}  moves ended: {outcome}")
    for reason, count in report.reasons.most_common(SHOWN):
        print(f"{count:6}    {reason}")
    print(f"{report.missed:6}  strikes came too late")
    print(f"{report.spark_starts:6}  starts of Spark")
    print(f"{report.pause_seconds_max:6.2f}s longest hand-over")
    print(f"{report.seconds_max:6.1f}s longest move")


if __name__ == "__main__":
    sys.exit(main())
