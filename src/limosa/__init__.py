"""Limosa: tables whose partitions move to other nodes while they are read and written."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limosa.client import connect, operate

__all__ = ["connect", "operate"]


def __getattr__(name: str) -> Any:
    """The client is loaded when it is first used."""
    if name in __all__:
        from limosa import client

        return getattr(client, name)
    raise AttributeError(f"module 'limosa' has no attribute {name!r}")
