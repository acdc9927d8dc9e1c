"""Is anything left behind? After every move is over, nothing may remind of it but its report."""

from collections.abc import Iterator
from pathlib import Path

from limosa.client import Operator
from limosa.core.model.changes import Agreed
from limosa.core.model.topology import Partition
from limosa.storage.store import Store
from tests.chaos.cluster import Cluster


def in_the_cluster(cluster: Cluster, connection: Operator) -> list[str]:
    """Transitions, intents, requests; replicas and work in the nodes that nobody asked for."""
    agreed = cluster.agreed()
    found = _in_the_agreed(agreed)
    partitions = agreed.topology.partitions
    for node in cluster.nodes:
        said = connection.node_status(node)
        held = {(each["partition"], each["incarnation"]) for each in said["replicas"]}
        found += _unnamed(node, held, partitions)
        found += [f"{node} does not serve {each}" for each in said["refused"]]
        found += [f"{node} is in trouble: {each}" for each in said["troubles"]]
        for partition in partitions:
            found += _at_work(connection, node, partition, agreed.topology.revision_of(partition))
    return found


def _at_work(connection: Operator, node: str, partition: str, revision: int) -> Iterator[str]:
    """Copies, and whatever has begun before the partition was as it is now."""
    facts = connection.node_facts(node, partition)
    if facts is None:
        yield f"{node} has no lease"
        return
    if facts.busy.get(partition, revision) < revision:
        yield f"{node} still works on {partition} as it was before generation {revision}"
    for status in facts.replicas.get(partition, ()):
        if status.copying is not None:
            yield f"{node} still takes a copy of {partition}: {status.copying}"


def _in_the_agreed(agreed: Agreed) -> list[str]:
    found = [
        f"{each.id} is in {each.transition.stage}"
        for each in agreed.topology.partitions.values()
        if each.transition is not None
    ]
    found += [
        f"{each.partition} still has an intent: {each}"
        for each in agreed.intents.values()
        if each.pending is not None or each.planned is not None or each.cancel is not None
    ]
    found += [
        f"request {each.id} waits" for each in agreed.requests.values() if each.state == "waiting"
    ]
    return found


def _unnamed(node: str, held: set[tuple[str, str]], partitions: dict[str, Partition]) -> list[str]:
    named = {
        (each.id, replica.incarnation)
        for each in partitions.values()
        for replica in each.replicas
        if replica.node == node
    }
    return [
        *(
            f"{node} holds {partition} ({made_by}), which nobody names"
            for partition, made_by in sorted(held - named)
        ),
        *(f"{node} lacks {partition} ({made_by})" for partition, made_by in sorted(named - held)),
    ]


def on_disk(directory: Path, agreed: Agreed) -> list[str]:
    """Of a cluster that has stopped: replicas that nobody names, and files of movers."""
    found = []
    for node in sorted(agreed.topology.nodes):
        with Store({"": str(directory / node / "volume")}) as store:
            held = {(each.partition, each.replica.incarnation) for each in store.restored(node)}
            unnamed = _unnamed(node, held, agreed.topology.partitions)
            found += [f"on disk: {each}" for each in unnamed]
    scratch = [path for path in directory.glob("spark-*") if path.is_dir()]  # its log stays
    for path in (*scratch, *(directory / "tmp").iterdir()):
        found.append(f"{path.relative_to(directory)} is left behind")
    return found
