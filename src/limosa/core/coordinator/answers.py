"""What is an answer? The changes, and a sentence for people; a refusal seldom changes anything."""

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
    """Names become parts of metastore keys, directories and addresses."""
    if NAME.fullmatch(name) is None:
        raise IllegalRequest(
            f"{name!r} is not a valid {what} name",
            "use up to 64 letters, digits, _, . and -, starting with a letter or _",
        )
