"""Who may do what? Three roles; each includes the rights of the one before it."""

from typing import Literal, TypeAlias, get_args

Role: TypeAlias = Literal["viewer", "operator", "admin"]

ROLES: tuple[Role, ...] = get_args(Role)
"""From the lowest to the highest."""


def allows(has: Role, needs: Role) -> bool:
    return ROLES.index(has) >= ROLES.index(needs)
