"""What is valid in a path, a query or a body? Names, pages, and no unknown fields."""

from typing import Annotated, TypeAlias

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
LONG_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$"

Name: TypeAlias = Annotated[str, Field(pattern=NAME)]
PartitionName: TypeAlias = Annotated[str, Field(pattern=LONG_NAME)]

NodeInPath: TypeAlias = Annotated[str, Path(pattern=NAME, description="A node's name.")]
TableInPath: TypeAlias = Annotated[str, Path(pattern=NAME, description="A table's name.")]
PartitionInPath: TypeAlias = Annotated[
    str, Path(pattern=LONG_NAME, description="A partition's name.")
]
OperationInPath: TypeAlias = Annotated[
    str, Path(pattern=LONG_NAME, description="An operation's id.")
]

Limit: TypeAlias = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of items.")]
After: TypeAlias = Annotated[
    str,
    Query(max_length=200, pattern=r"^[A-Za-z0-9_.-]*$", description="`next` of the previous page."),
]
LIMIT = 1_000


class ChangeBody(BaseModel):
    """A request's body: unknown fields and text instead of numbers are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
