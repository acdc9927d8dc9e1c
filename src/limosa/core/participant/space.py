"""Is there enough space for a write? An owner stops earlier than the followers that it depends on.

Free space is measured about once a second. Reads, leases and everything that frees space go on
whatever is free.
"""

from limosa.core.events import Measured
from limosa.core.participant.settings import ParticipantSettings

FOLLOWERS_SHARE = 4
"""A follower takes entries until only this part of the owner's limit is free."""


def lacks_space(measured: Measured, volume: str, settings: ParticipantSettings) -> str:
    """Why clients' writes to the volume are refused, in words; empty: there is enough space."""
    free = measured.free_bytes.get(volume)
    if volume in measured.full:
        return f"the disk is full{_on(volume)}"
    if free is None or free >= settings.free_bytes_min:
        return ""
    needed = settings.free_bytes_min >> 20
    return f"{free >> 20} MiB free{_on(volume)}, and {needed} MiB are needed"


def _on(volume: str) -> str:
    return f" on volume {volume}" if volume else ""


def can_follow(measured: Measured, volume: str, settings: ParticipantSettings) -> bool:
    """Otherwise a follower would hold ever more rows in memory that it can't store."""
    free = measured.free_bytes.get(volume)
    least = settings.free_bytes_min // FOLLOWERS_SHARE
    return volume not in measured.full and (free is None or free >= least)
