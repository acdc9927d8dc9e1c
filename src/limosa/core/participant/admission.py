"""May a write be ordered as it was routed? Checked against one applied topology.

A write that cannot be checked against this topology gets a version that no layout has. So the
participant answers with `Wait` or `Redirect`, whichever topology it has applied by then.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from limosa.core.messages import Write
from limosa.core.model.changes import Topology
from limosa.core.model.keys import ZoneId
from limosa.errors import BadInput

NEVER_YET, NO_MORE = 2**62, -1
"""Versions that no layout has."""


def admissible(topology: Topology, write: Write, zones: Iterable[ZoneId | None]) -> Write:
    """The write as it may be ordered; `zones` are those of its rows' tables (None: unknown)."""
    record = topology.partitions.get(write.partition)
    layout = None if record is None else topology.layouts.get(record.zone)
    known = 0 if layout is None else layout.version
    if record is None or write.version != known:
        return replace(write, version=NEVER_YET if write.version > known else NO_MORE)
    if write.range != record.range:
        raise BadInput("the write's range is not the partition's", "refresh the topology")
    for zone in zones:
        if zone is None:  # the table was created a moment ago, or dropped
            return replace(write, version=NEVER_YET)
        if zone != record.zone:
            raise BadInput("the rows' table is not in the partition's zone", "refresh the topology")
    return write
