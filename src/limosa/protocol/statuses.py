"""How does a status travel? Digests have more bits than a msgpack number, so they go as text."""

from msgspec import Struct, field
from msgspec.structs import replace

from limosa.core.messages import WHOLE_STATUS, Message, ReplicaStatus, Status
from limosa.core.model.keys import LeaseId, NodeId, PartitionId, Position, Revision, SessionId
from limosa.errors import BadInput


class DigestNews(Struct, frozen=True, array_like=True):
    """The digest of the replica at a place among the partition's replicas."""

    partition: PartitionId
    place: int
    session: SessionId
    at: Position
    digest: str


class StatusNews(Message, frozen=True, tag="Status"):
    """A status on the wire; its fields are those of `Status`."""

    node: NodeId
    lease: LeaseId
    sequence: int
    generation: Revision
    busy: dict[PartitionId, Revision]
    replicas: dict[PartitionId, tuple[ReplicaStatus, ...]]
    free_bytes: dict[str, int] = field(default_factory=dict)
    failed_volumes: tuple[str, ...] = ()
    digests: tuple[DigestNews, ...] = ()
    after: int = WHOLE_STATUS
    gone: tuple[PartitionId, ...] = ()


def packed(status: Status) -> StatusNews:
    plain, digests = dict(status.replicas), []
    for partition, known in status.replicas.items():
        for place, each in enumerate(known):
            if each.digest is not None:
                session, at, digest = each.digest
                digests.append(DigestNews(partition, place, session, at, f"{digest:x}"))
                plain[partition] = tuple(replace(r, digest=None) for r in known)
    return StatusNews(
        status.node,
        status.lease,
        status.sequence,
        status.generation,
        status.busy,
        plain,
        status.free_bytes,
        status.failed_volumes,
        tuple(digests),
        status.after,
        status.gone,
    )


def unpacked(news: StatusNews) -> Status:
    replicas = news.replicas
    for each in news.digests:
        known = list(replicas.get(each.partition, ()))
        if not 0 <= each.place < len(known):
            raise BadInput("a digest of a replica that the status does not name", "reconnect")
        digest = (each.session, each.at, int(each.digest, 16))
        known[each.place] = replace(known[each.place], digest=digest)
        replicas[each.partition] = tuple(known)
    return Status(
        news.node,
        news.lease,
        news.sequence,
        news.generation,
        news.busy,
        replicas,
        news.free_bytes,
        news.failed_volumes,
        news.after,
        news.gone,
    )
