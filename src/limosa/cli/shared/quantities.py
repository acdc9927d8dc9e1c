"""How are quantities read and written? `10m`, `3.4 s`, `2026-11-15 18:20:26`, `100MiB`."""

import re
from datetime import datetime

from limosa.errors import BadInput

# fmt: off
SECONDS = {
    "ms": 0.001,
    "s":  1.0,
    "m":  60.0,
    "h":  3600.0,
}
# fmt: on
SECONDS_MAX = 7 * 86_400.0

_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>[a-z]*)")

BYTES = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
BYTES |= {f"{unit}b": factor for unit, factor in BYTES.items() if unit in "kmgt" and unit}
BYTES |= {f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)}


def seconds_of(text: str, option: str) -> float:
    """Parse `50ms`, `10s`, `1.5m` or `1h`; only 0 needs no unit."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInput(
            f"{option} {text!r} is not a duration", "write a number and a unit, like 10s"
        )
    number, unit = float(found["number"]), found["unit"]
    if unit not in SECONDS and (unit or number):
        what = f"has the unit {unit!r}" if unit else "has no unit"
        raise BadInput(f"{option} {text!r} {what}", "use ms, s, m or h, like 50ms or 10m")
    seconds = number * SECONDS.get(unit, 0.0)
    if seconds > SECONDS_MAX:
        raise BadInput(f"{option} {text!r} is longer than a week", "the maximum is 168h")
    return seconds


def lasted(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `2 min 5 s`, `1 h 2 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(at: float) -> str:
    """`2026-11-15 18:20:26` in local time; empty if the time is unknown or out of range."""
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at > 0 else ""
    except (OverflowError, OSError, ValueError):
        return ""


def bytes_of(given: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", given)
    if found is None or found[2].lower() not in BYTES:
        raise BadInput(f"{given!r} is not a number of bytes", "write 100MiB, 1GB or 0")
    return float(found[1]) * BYTES[found[2].lower()]
