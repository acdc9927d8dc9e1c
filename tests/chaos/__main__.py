"""`make chaos`: does a real cluster keep its promises whatever happens to its processes?

Starts a cluster of real processes with a network of our own between them, uses it all the time, and
lets something go wrong in every round. Prints which faults there were and what was found, and last
one line of JSON. Exit code: 0 all is well, 1 something is wrong (then the directory is kept), 2 bad
input, 130 interrupted.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.rounds import Chaos, Options, Report

SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="how many times something happens")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults and the load")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--lease-seconds", type=float, default=1.0, help="of the nodes")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    parser.add_argument("--keep", action="store_true", help="keep the directory in any case")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell each round")
    options: Any = parser.parse_args(arguments)
    if options.rounds < 1 or options.nodes < 3 or options.partitions < 1:
        parser.error("at least 1 round, 3 nodes and 1 partition")
    directory = Path(tempfile.mkdtemp(prefix="limosa-chaos-"))
    wanted = Options(
        rounds=options.rounds,
        seed=options.seed,
        nodes=options.nodes,
        partitions=options.partitions,
        lease_seconds=options.lease_seconds,
    )
    told = options.verbose and not options.json
    try:
        report = Chaos(directory, wanted, print_now if told else lambda line: None).run()
    except KeyboardInterrupt:
        print(f"interrupted; {directory} is kept", file=sys.stderr)
        return 130
    if report.ok and not options.keep:
        shutil.rmtree(directory)
    elif not options.json:
        print(f"kept: {directory}")
    if not options.json:
        print_report(report, options.seed)
    print(json.dumps(report.as_json() | ({} if report.ok else {"directory": str(directory)})))
    return 0 if report.ok else 1


def print_now(line: str) -> None:
    print(line, flush=True)


def print_report(report: Report, seed: int) -> None:
    for kind, count in sorted(report.faults.items()):
        print(f"{count:6}  {kind}")
    print()
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
    if not report.ok:
        print(
            f"the same faults again: python -m tests.chaos --rounds {report.rounds} --seed {seed}"
        )


if __name__ == "__main__":
    sys.exit(main())
