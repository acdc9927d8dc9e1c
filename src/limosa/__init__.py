"""Limosa: replicated tables whose partitions move between nodes while they are used."""

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
