"""What does a benchmark say at its end? Ratios beside their aims, and what is missing."""

import json
import signal
import sys
from collections.abc import Mapping

Aims = Mapping[str, tuple[str, float]]
"""`<=` or `>=`, and a number, by the ratios' names."""


class Report:
    """Ratios as they come in, and what else is worth knowing."""

    def __init__(self, bench: str, aims: Aims) -> None:
        self.bench = bench
        self.aims = aims
        self.ratios: dict[str, float] = {}
        self.notes: dict[str, float] = {}
        self.missing: dict[str, str] = {}

    def ratio(self, name: str, value: float) -> None:
        self.ratios[name] = round(value, 3)
        sign, aim = self.aims[name]
        print(f"  {name:36} {value:12.3f}   aim {sign} {aim}", flush=True)

    def note(self, name: str, value: float) -> None:
        self.notes[name] = round(value, 3)
        print(f"  {name:36} {value:12.3f}", flush=True)

    def miss(self, name: str, why: str) -> None:
        self.missing[name] = why
        print(f"  {name:36} missing: {why}", flush=True)

    def finish(self) -> int:
        """Prints the last line; the process's exit code."""
        for name in self.aims:
            if name not in self.ratios:
                self.missing.setdefault(name, "not measured")
        met = not self.missing and all(map(self._holds, self.ratios))
        aims = {name: f"{sign} {aim}" for name, (sign, aim) in self.aims.items()}
        result = {"bench": self.bench, "ratios": self.ratios, "aims": aims, "met": met}
        rest = {"missing": list(self.missing), "reasons": self.missing, "notes": self.notes}
        print(json.dumps({**result, **rest}), flush=True)
        return 0 if met else 1

    def _holds(self, name: str) -> bool:
        sign, aim = self.aims[name]
        return self.ratios[name] >= aim if sign == ">=" else self.ratios[name] <= aim


def end_cleanly_when_told() -> None:
    """SIGTERM ends this process as Ctrl-C does: what it started is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
