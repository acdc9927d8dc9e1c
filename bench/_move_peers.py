"""How fast do others move keys under a writer, and how long do they stall it?

Each moves all keys of one server, with values of 120 bytes, to a second one by its own means, while
one client writes keys among them, one at a time, and goes where it is sent. All servers are real
ones on this machine, and are gone in the end. A peer that can't be had says why instead.

    python bench/_move_peers.py [--keys 100000] [valkey] [redis] [postgres]
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._move_postgres import postgres
from bench._move_slots import Refused, redis, valkey
from bench._move_writer import Moved
from bench._report import end_cleanly_when_told
from bench._write_peers import Unavailable

MOVERS: dict[str, Callable[[int], Moved]] = {
    "valkey": valkey,
    "redis": redis,
    "postgres": postgres,
}


def moved_by(name: str, keys: int) -> Moved | str:
    """What it measured, or why it could not."""
    try:
        return MOVERS[name](keys)
    except (Unavailable, Refused, OSError, subprocess.SubprocessError) as error:
        return str(error) or type(error).__name__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="peer", help=", ".join(MOVERS))
    parser.add_argument("--keys", type=int, default=100_000)
    given = parser.parse_args()
    end_cleanly_when_told()
    for name in given.names or MOVERS:
        moved = moved_by(name, given.keys)
        if isinstance(moved, str):
            print(f"{name}: missing: {moved}", flush=True)
        else:
            print(f"{moved}, {moved.keys_per_second:,.0f} keys/s", flush=True)


if __name__ == "__main__":
    main()
