"""How does a status travel? As the difference from the status before it on the same link.

A node with a thousand replicas reports its status at every step of a move, and hardly anything in
it is new. A stream delivers every message or breaks, and the first status on it is complete; so the
receiver rebuilds exactly the status that the node sent.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import astuple, replace

from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.keys import PartitionId, Position, SessionId
from limosa.errors import BadInput

WHOLE: Final = -1


class DigestNews(Struct, frozen=True, array_like=True):
    """As text: a digest has more bits than a msgpack number."""

    partition: PartitionId
    place: int
    session: SessionId
    at: Position
    digest: str


class StatusNews(Status, frozen=True, tag="Status"):
    """A status with only those replicas that changed since an earlier status."""

    digests: tuple[DigestNews, ...] = ()
    after: int = WHOLE
    """The sequence of the earlier status."""
    gone: tuple[str, ...] = ()


class StatusTeller:
    """Encodes statuses on one stream: remembers the last one."""

    def __init__(self) -> None:
        self._last: Status | None = None

    def __call__(self, status: Status) -> StatusNews:
        before, self._last = self._last, status
        if before is None or before.lease != status.lease:
            return _news(status, status.replicas)
        old, new = before.replicas, status.replicas
        changed = {name: known for name, known in new.items() if old.get(name) != known}
        gone = tuple(name for name in old if name not in new)
        return _news(status, changed, before.sequence, gone)


class StatusHearer:
    """Decodes statuses on one stream: restores what the node sent."""

    def __init__(self) -> None:
        self._last: Status | None = None

    def __call__(self, news: StatusNews) -> Status:
        replicas = _replicas(news)
        if news.after != WHOLE:
            before = self._last
            if before is None or (before.lease, before.sequence) != (news.lease, news.after):
                raise BadInput("changes of a status that was not received", "reconnect")
            replicas = {**before.replicas, **replicas}
            for name in news.gone:
                replicas.pop(name, None)
        status = astuple(news)[: len(Status.__struct_fields__)]
        self._last = replace(Status(*status), replicas=replicas)
        return self._last


def _news(
    status: Status,
    replicas: dict[PartitionId, tuple[ReplicaStatus, ...]],
    after: int = WHOLE,
    gone: tuple[str, ...] = (),
) -> StatusNews:
    plain, digests = dict(replicas), []
    for partition, known in replicas.items():
        for place, each in enumerate(known):
            if each.digest is not None:
                session, at, digest = each.digest
                digests.append(DigestNews(partition, place, session, at, f"{digest:x}"))
                plain[partition] = tuple(replace(r, digest=None) for r in known)
    fields = (*astuple(replace(status, replicas=plain)), tuple(digests), after, gone)
    return StatusNews(*fields)


def _replicas(news: StatusNews) -> dict[PartitionId, tuple[ReplicaStatus, ...]]:
    replicas = dict(news.replicas)
    for each in news.digests:
        known = list(replicas[each.partition])
        digest = (each.session, each.at, int(each.digest, 16))
        known[each.place] = replace(known[each.place], digest=digest)
        replicas[each.partition] = tuple(known)
    return replicas
