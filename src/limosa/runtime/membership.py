"""How does a process become a node, and stay one? By a handshake, recorded on its disk.

The directory gets `JOINING` before the request is in the metastore, and `NODE` after the answer. So
a restarted process knows whether it is a member, is not, or can't tell and must stop. Only the
answer to its own request counts. The node starts nothing before it has joined.
"""

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
from limosa.storage.files import PosixFiles, replace_durably

JOINING, MEMBER = "JOINING", "NODE"
POLL_SECONDS = 0.05
ATTEMPTS = 10


class NodeIdentity(Struct, frozen=True, forbid_unknown_fields=True):
    """The record of a node in its directory."""

    node: NodeId
    host: str
    cluster: str = ""
    """The cluster's id; empty until it is known."""
    request: str = ""
    """The id of the request to join."""


# --- a cluster


def found(store: AgreedStore, name: str, machine: str, id: str) -> Cluster:
    """Found the cluster in this metastore; does nothing if it was founded before."""
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
            f"this metastore belongs to the cluster {cluster.name}", "use one metastore per cluster"
        )
    return cluster


def cluster_of(topology: Topology) -> Cluster:
    if topology.cluster is None:
        raise IllegalRequest("this metastore has no cluster", "start a coordinator first")
    return topology.cluster


# --- a node


def member(store: AgreedStore, directory: Path) -> Node | None:
    """The node that owns the directory, as the metastore knows it; None: it can join."""
    known = _read(directory / MEMBER)
    if known is None:
        if (directory / JOINING).exists():
            raise IllegalRequest(
                f"an earlier join from {directory} did not finish",
                "wipe the directory and join again, with a new name if the old one is taken",
            )
        return None
    topology = store.read().topology
    if cluster_of(topology).id != known.cluster:
        raise IllegalRequest(
            f"{directory} belongs to a node of another cluster", "check the path of the metastore"
        )
    node = topology.nodes.get(known.node)
    if node is None or node.host != known.host:
        raise IllegalRequest(
            f"{directory} belongs to {known.node}, which the cluster does not know",
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
    """Join the cluster; returns the node's record. A directory that has joined joins only once."""
    known = member(store, directory)
    if known is not None:
        return known
    directory.mkdir(parents=True, exist_ok=True)
    identity = NodeIdentity(node.id, node.host, request=request_id)
    _write(directory / JOINING, identity)
    try:
        _ask(
            store,
            Request(request_id, JoinCluster(node, cluster), asked=time.time(), author=node.id),
        )
        answer = _wait(store, request_id, wait_seconds, now, sleep)
        if answer.state == "refused":
            raise IllegalRequest(f"{node.id} can't join: {answer.answer}")
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
        raise BadInput(f"request {request.id} exists already", "use a new id") from error
    except OutcomeUnknown:
        pass  # the wait shows whether the request was stored


def _wait(
    store: AgreedStore,
    request: str,
    wait_seconds: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Request:
    """Wait for the answer; on a timeout, withdraw the request."""
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
                "the metastore does not answer, so it is unknown whether the node joined",
                "list the nodes; if it is not among them, wipe its directory and join again",
            )
        sleep(POLL_SECONDS)


def _withdraw(store: AgreedStore, request: str) -> None:
    """Withdraw the request, unless it was answered in the meantime."""
    key = request_key(request)
    guards = {key: store.read().revision_of(key)}
    with suppress(StaleGuard, OutcomeUnknown):
        store.commit(Commit(guards, (Remove(key),), "nobody answered"))
        raise Refused(
            "no coordinator answered in time, so the node did not join",
            "start a coordinator, then join again",
        )


def refresh(store: AgreedStore, node: Node) -> Node:
    """Update a returning member's record, and enable features that all members support."""
    for _ in range(ATTEMPTS):
        topology = store.read().topology
        known = topology.nodes.get(node.id)
        if known is None:
            raise IllegalRequest(f"{node.id} is not a member", "join first")
        _check_stays(known)
        check_cluster(topology, cluster_of(topology).name, node)
        missing = missing_features(topology, node)
        if missing:
            raise IllegalRequest(
                f"{node.id} lacks features of this cluster: {missing}",
                "start a newer version of it",
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
    raise Refused(f"the list of members kept changing, so {node.id} was not updated", "retry")


def register(store: Metastore, node: Node, lease: LeaseId, previous: Revision) -> Revision:
    """Register this process as the live node; returns the revision of the registration.

    `previous` is the revision of the node's lease key before the lease was granted.
    """
    key = node_key(node.id)
    entry = store.get(key)
    known = None if entry is None else decode(entry.value)
    if entry is None or not isinstance(known, Node) or known.host != node.host:
        raise IllegalRequest(f"{node.id} is not a member", "join first")
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
            f"{path} can't be read: {error}",
            "restore the directory from a backup; if that is not possible, erase it and run "
            "`limosa node replace NODE` for its node",
        ) from error


def _write(path: Path, identity: NodeIdentity) -> None:
    """Write the file atomically and durably."""
    encoded = msgspec.json.encode(identity)
    replace_durably(PosixFiles(), str(path.parent), path.name, [encoded])


def _remove(path: Path) -> None:
    path.unlink()
    PosixFiles().sync_directory(str(path.parent))
