"""How long is `10m`? A number and its unit, read and written as people do."""

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


def seconds_of(text: str, option: str) -> float:
    """Of `50ms`, `10s`, `1.5m`, `1h`; without a unit only 0 is clear."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInput(
            f"{option} {text!r} is no duration", "write a number with its unit, like 10s"
        )
    number, unit = float(found["number"]), found["unit"]
    if unit not in SECONDS and (unit or number):
        what = f"has the unit {unit!r}" if unit else "has no unit"
        raise BadInput(f"{option} {text!r} {what}", "use ms, s, m or h, like 50ms or 10m")
    seconds = number * SECONDS.get(unit, 0.0)
    if seconds > SECONDS_MAX:
        raise BadInput(f"{option} {text!r} is longer than a week", "choose a shorter one")
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
    """`2026-11-15 18:20:26`, here; empty: nobody knows, or it is no time."""
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at > 0 else ""
    except (OverflowError, OSError, ValueError):
        return ""
