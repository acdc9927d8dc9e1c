"""What is an answer? What changes, and in words; a refusal seldom changes anything."""

import re
from typing import Literal, NamedTuple

from limosa.core.model.changes import Change
from limosa.core.model.requests import LedTo
from limosa.errors import IllegalRequest

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class RequestAnswer(NamedTuple):
    """What a request leads to."""

    changes: tuple[Change, ...]
    words: str
    led_to: LedTo | None = None
    state: Literal["done", "refused"] = "done"


def check_name(what: str, name: str) -> None:
    """Names become parts of keys, of directories and of addresses."""
    if NAME.fullmatch(name) is None:
        raise IllegalRequest(
            f"{name!r} is no name of a {what}",
            "begin with a letter or _, go on with letters, digits, _, . or -, up to 64 in all",
        )
