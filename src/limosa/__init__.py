"""Limosa: tables and streams whose partitions move while they are used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limosa.client import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """What applications import is loaded when it is first asked for."""
    if name == "connect":
        from limosa.client import connect

        return connect
    raise AttributeError(f"module 'limosa' has no attribute {name!r}")
