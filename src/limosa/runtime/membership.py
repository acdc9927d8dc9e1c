"""How does a process become a node, and stay one? By a handshake, recorded on its disk.

`JOINING` is in the directory before the request is in the metastore, and `NODE` after its answer,
so a process that comes back knows whether it is a member, is none, or must not guess. Only the
answer to its own request counts. Nothing of the node is started before it has joined.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.coordinator.answers import check_name
from limosa.core.coordinator.members import check_cluster, enabled, missing_features
from limosa.core.model.changes import (
    CLUSTER_KEY,
    FEATURES_KEY,
    Commit,
    Put,
    Remove,
    Topology,
    node_key,
    request_key,
)
from limosa.core.model.codec import decode
from limosa.core.model.keys import LeaseId, NodeId, Revision
from limosa.core.model.requests import JoinCluster, Request
from limosa.core.model.topology import Cluster, Features, Node
from limosa.core.participant.lease import registration
from limosa.errors import (
    BadInput,
    IllegalRequest,
    LimosaError,
    MetastoreUnavailable,
    OutcomeUnknown,
    Refused,
    StaleGuard,
    UnusableFile,
)
from limosa.metastore.agreed import AgreedStore
from limosa.ports import Metastore

JOINING, MEMBER = "JOINING", "NODE"
POLL_SECONDS = 0.05
ATTEMPTS = 10


class NodeIdentity(Struct, frozen=True, forbid_unknown_fields=True):
    """What a directory says of its node."""

    node: NodeId
    host: str
    cluster: str = ""
    """The cluster's id; empty while it is not known yet."""
    request: str = ""
    """By which it asked to join."""


# --- a cluster


def found(store: AgreedStore, name: str, machine: str, id: str) -> Cluster:
    """This metastore belongs to that cluster from now on; one that already does stays as it is."""
    check_name("cluster", name)
    new = Cluster(name, id, machine)
    commit = Commit(
        {CLUSTER_KEY: 0, FEATURES_KEY: 0}, (Put(new), Put(Features())), f"{name} is founded"
    )
    with suppress(StaleGuard):
        store.commit(commit)
    cluster = cluster_of(store.read().topology)
    if cluster.name != name:
        raise BadInput(
            f"this metastore belongs to the cluster {cluster.name}", "give every cluster its own"
        )
    return cluster


def cluster_of(topology: Topology) -> Cluster:
    if topology.cluster is None:
        raise IllegalRequest("this metastore belongs to no cluster", "found one first")
    return topology.cluster


# --- a node


def member(store: AgreedStore, directory: Path) -> Node | None:
    """Whose directory this is, according to the metastore; None: nobody's, so it can join."""
    known = _read(directory / MEMBER)
    if known is None:
        if (directory / JOINING).exists():
            raise IllegalRequest(
                f"an earlier join from {directory} did not finish",
                "wipe the directory and join again, under a new name if the old one is taken",
            )
        return None
    topology = store.read().topology
    if cluster_of(topology).id != known.cluster:
        raise IllegalRequest(
            f"{directory} belongs to a node of another cluster", "look at the metastore's address"
        )
    node = topology.nodes.get(known.node)
    if node is None or node.host != known.host:
        raise IllegalRequest(
            f"{directory} belongs to {known.node}, which the cluster does not know as such",
            "wipe the directory and join under a new name",
        )
    _check_stays(node)
    with suppress(FileNotFoundError):
        _remove(directory / JOINING)
    return node


def _check_stays(node: Node) -> None:
    if node.state == "left":
        raise IllegalRequest(
            f"{node.id} was removed", "wipe its directory and join under a new name"
        )


def join(
    store: AgreedStore,
    directory: Path,
    node: Node,
    cluster: str,
    request_id: str,
    wait_seconds: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Node:
    """The node's row once it is a member; a directory that has joined before is not asked again."""
    known = member(store, directory)
    if known is not None:
        return known
    directory.mkdir(parents=True, exist_ok=True)
    identity = NodeIdentity(node.id, node.host, request=request_id)
    _write(directory / JOINING, identity)
    try:
        _ask(store, Request(request_id, JoinCluster(node, cluster), asked=time.time()))
        answer = _wait(store, request_id, wait_seconds, now, sleep)
        if answer.state == "refused":
            raise IllegalRequest(f"{node.id} may not join: {answer.answer}")
    except LimosaError as error:
        if error.definite:
            _remove(directory / JOINING)
        raise
    topology = store.read().topology
    _write(directory / MEMBER, replace(identity, cluster=cluster_of(topology).id))
    _remove(directory / JOINING)
    return topology.nodes[node.id]


def _ask(store: AgreedStore, request: Request) -> None:
    commit = Commit({request_key(request.id): 0}, (Put(request),), "a node asks to join")
    try:
        store.commit(commit)
    except StaleGuard as error:
        raise BadInput(
            f"there is a request {request.id} already", "make an id that is nobody's"
        ) from error
    except OutcomeUnknown:
        pass  # whether it is there shows while we wait


def _wait(
    store: AgreedStore,
    request: str,
    wait_seconds: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Request:
    """The answer to this request, or the certainty that it will never be answered."""
    deadline = now() + wait_seconds
    while True:
        with suppress(MetastoreUnavailable):
            row = store.read().requests.get(request)
            if row is not None and row.state != "waiting":
                return row
            if now() >= deadline:
                _withdraw(store, request)
        if now() >= deadline + wait_seconds:
            raise OutcomeUnknown(
                "the metastore does not answer, so nobody knows whether the node joined",
                "look at the nodes; if it is none, wipe its directory and join again",
            )
        sleep(POLL_SECONDS)


def _withdraw(store: AgreedStore, request: str) -> None:
    """Take the request back, unless it is answered at this very moment."""
    key = request_key(request)
    guards = {key: store.read().revision_of(key)}
    with suppress(StaleGuard, OutcomeUnknown):
        store.commit(Commit(guards, (Remove(key),), "nobody answered"))
        raise Refused(
            "no coordinator answered, so the node did not join",
            "start a coordinator, then join again",
        )


def refresh(store: AgreedStore, node: Node) -> Node:
    """A member comes back as it is now: another address, an upgrade. What all can do is enabled."""
    for _ in range(ATTEMPTS):
        topology = store.read().topology
        known = topology.nodes.get(node.id)
        if known is None:
            raise IllegalRequest(f"{node.id} is no member", "join first")
        _check_stays(known)
        check_cluster(topology, cluster_of(topology).name, node)
        missing = missing_features(topology, node)
        if missing:
            raise IllegalRequest(
                f"{node.id} lacks what this cluster uses: {missing}", "start its newer version"
            )
        new = replace(node, state=known.state, host=known.host)
        if new == known:
            return known
        keys = (CLUSTER_KEY, FEATURES_KEY, *map(node_key, topology.nodes))
        guards = {key: topology.revisions.get(key, 0) for key in keys}
        with suppress(StaleGuard):
            changes = (Put(new), Put(enabled(topology, new)))
            store.commit(Commit(guards, changes, f"{node.id} as it is now"))
            return new
    raise Refused(f"the members change all the time, so {node.id} could not", "try again")


def register(
    store: Metastore, node: Node, lease: LeaseId, previous: Revision | None = None
) -> Revision:
    """This run of the node is alive from this revision on."""
    key = node_key(node.id)
    entry = store.get(key)
    known = None if entry is None else decode(entry.value)
    if entry is None or not isinstance(known, Node) or known.host != node.host:
        raise IllegalRequest(f"{node.id} is no member", "join first")
    _check_stays(known)
    commit = registration(node.id, lease, entry.revision, previous)
    return AgreedStore(store).commit(commit, lease)


# --- what a directory says


def _read(path: Path) -> NodeIdentity | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeIdentity)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise UnusableFile(
            f"{path} can't be read: {error}", "wipe the directory and join under a new name"
        ) from error


def _write(path: Path, identity: NodeIdentity) -> None:
    """Whole or not at all, and durable: the file first, then its name."""
    draft = path.with_name(path.name + ".new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(identity))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_directory(path.parent)


def _remove(path: Path) -> None:
    path.unlink()
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
