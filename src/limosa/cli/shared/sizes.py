"""How is a number of bytes read? `100MiB`, `1GB`."""

import re

from limosa.errors import BadInput

UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
UNITS |= {f"{unit}b": factor for unit, factor in UNITS.items() if unit in "kmgt" and unit}
UNITS |= {f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)}


def bytes_of(given: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", given)
    if found is None or found[2].lower() not in UNITS:
        raise BadInput(f"{given!r} is not a number of bytes", "write 100MiB, 1GB or 0")
    return float(found[1]) * UNITS[found[2].lower()]
