"""What goes wrong? Each fault is a function on the world, aimed at one partition; see `FAULTS`.

A fault never breaks the assumptions of the guarantees: a node is wiped only while another in-sync
replica of each of its partitions lives, and everything heals in the end.
"""

from collections.abc import Callable
from math import inf

from limosa.core import routing
from limosa.core.machines.catalogue import MACHINES, REBALANCE, RUN_MOVE
from limosa.core.model.topology import Partition
from limosa.simulation.hosts import METASTORE, Process, SimulatedNode
from limosa.simulation.world import World


def _owner(world: World, record: Partition) -> SimulatedNode:
    if record.owner is not None:
        return world.nodes[record.owner.replica.node]
    return world.nodes[world.dice.choice(record.replicas).node]


def _target(world: World, record: Partition) -> SimulatedNode:
    """A target node of the transition; without a transition, a follower."""
    chosen = (
        routing.new_only(record)
        or routing.old_only(record)
        or record.replicas[1:]
        or record.replicas
    )
    return world.nodes[world.dice.choice(chosen).node]


def _restart_later(world: World, process: Process, least: float, most: float) -> None:
    world.schedule(world.dice.uniform(least, most), world.start, process)


def _crash(world: World, process: Process) -> None:
    if process.run:
        if isinstance(process, SimulatedNode) and process.starts % 3 == 2:
            process.stop()
            world.schedule(0.04, process.crash)
        else:
            process.crash()
        # Often within the lease, sometimes long after it.
        quick = world.dice.random() < 0.5
        _restart_later(world, process, 0.05, 0.8 if quick else 6.0)


def _pause(world: World, process: Process) -> None:
    if process.run and not process.paused:
        process.pause()
        world.schedule(world.dice.choice((0.3, 1.5, 3.2, 5.0)), process.resume)


def _cut(world: World, process: Process, others: list[str], both_ways: bool) -> None:
    for other in others:
        if other != process.name:
            world.network.cut(process.name, other, both_ways)
    world.schedule(world.dice.choice((0.3, 1.6, 2.4, 4.0, 5.0)), _mend, world, process, others)


def _mend(world: World, process: Process, others: list[str]) -> None:
    world.deaf.discard(process.name)
    for other in others:
        world.network.mend(process.name, other)


def crash_owner(world: World, record: Partition) -> None:
    _crash(world, _owner(world, record))


def crash_target(world: World, record: Partition) -> None:
    _crash(world, _target(world, record))


def pause_owner(world: World, record: Partition) -> None:
    """At once, or between the check of a read and its value."""
    node = _owner(world, record)
    if world.dice.random() < 0.5:
        node.on_read = lambda: _pause(world, node)
    else:
        _pause(world, node)


def pause_target(world: World, record: Partition) -> None:
    _pause(world, _target(world, record))


def isolate_owner(world: World, record: Partition) -> None:
    """Cut off from all: other nodes, the metastore, the coordinator, clients."""
    node = _owner(world, record)
    _cut(world, node, [METASTORE, *world.processes], both_ways=True)


def isolate_target(world: World, record: Partition) -> None:
    node = _target(world, record)
    _cut(world, node, [METASTORE, *world.processes], both_ways=True)


def cut_one_way(world: World, record: Partition) -> None:
    """The owner's messages reach no replica, or none reach it, or none of the metastore do."""
    node = _owner(world, record)
    others = [r.node for r in routing.everywhere(record)]
    if world.dice.random() < 0.4:
        others = [METASTORE]
    if world.dice.random() < 0.5:
        _cut(world, node, others, both_ways=False)
    else:
        for other in others:
            if other in world.nodes and other != node.name:
                _cut(world, world.nodes[other], [node.name], both_ways=False)


def cut_owner_from_metastore(world: World, record: Partition) -> None:
    """The owner keeps serving and replicating, and must stop by its own clock."""
    _cut(world, _owner(world, record), [METASTORE], both_ways=True)


def cut_owner_from_peers(world: World, record: Partition) -> None:
    """Cut off from the metastore, the coordinators and other nodes; clients still reach it."""
    others = [METASTORE, *(c.name for c in world.coordinators), *world.nodes]
    _cut(world, _owner(world, record), others, both_ways=True)


def silence_to_metastore(world: World, record: Partition) -> None:
    """The owner's renewals are lost and its watch is dead, but old answers still arrive."""
    node = _owner(world, record)
    world.deaf.add(node.name)
    _cut(world, node, [METASTORE], both_ways=False)


def cut_target_from_metastore(world: World, record: Partition) -> None:
    """A node that learns of no decisions continues as the owner that it was."""
    others = [METASTORE, *(coordinator.name for coordinator in world.coordinators)]
    left = routing.old_only(record)
    node = world.nodes[world.dice.choice(left).node] if left else _target(world, record)
    _cut(world, node, others, both_ways=True)


def cut_old_owner_from_peers(world: World, record: Partition) -> None:
    """An owner that was just replaced hears nothing of it, while clients still reach it."""
    left = routing.old_only(record)
    if left:
        others = [METASTORE, *(c.name for c in world.coordinators), *world.nodes]
        _cut(world, world.nodes[left[0].node], others, both_ways=True)


def wipe_replica(world: World, record: Partition) -> None:
    """A node restarts with an empty disk, while others have all of its rows and nothing fails."""
    node = world.nodes[world.dice.choice(routing.everywhere(record)).node]
    if not node.run or world.wiped:
        return
    node.crash()
    if is_calm(world, node.name):
        node.disk.wipe()
        world.wiped.add(node.name)
        world.quiet_until = world.now + 6.0
        if world.dice.random() < 0.7:
            world.quiet_until = world.now + 9.0
            world.schedule(world.dice.uniform(0.0, 0.3), stop_keepers, world, record.id, node.name)
    world.schedule(world.dice.choice((0.05, 0.5, 4.0)), _start_empty, world, node)


def rot_replica(world: World, record: Partition) -> None:
    """A replica's rows can't be read any more; nobody knows until somebody tries. Another replica
    has them, which no transition drops before that."""
    replica = world.dice.choice(routing.everywhere(record))
    node = world.nodes[replica.node]
    dropped = routing.old_only(record)
    if not any(r not in (replica, *dropped) for r in routing.electable(record)):
        return
    if world.wiped or world.gone or not node.run or not is_calm(world, node.name):
        return
    if (record.id, replica.incarnation) in node.disk.live:
        world.wiped.add(node.name)
        node.rotten.add((record.id, replica.incarnation))


def stop_keepers(world: World, partition: str, wiped: str) -> None:
    """Stop all other replicas that hold a lost replica's rows, and restart them later. Until then
    no live replica has the rows, and an empty replica must not be taken for one that has.

    Not if the lost replica was an owner: until its lease ends, it may remove others from the
    in-sync set. Nor in a transition: until then, the transition may fall back to it. Both cases
    would wait for an operator."""
    records = world.agreed.topology.partitions
    if partition not in records:
        return
    if any(each.owner is None or each.owner.replica.node == wiped for each in records.values()):
        return
    if records[partition].transition is not None:
        return
    for replica in records[partition].in_sync:
        keeper = world.nodes[replica.node]
        if replica.node != wiped and keeper.run:
            keeper.crash()
            _restart_later(world, keeper, 4.0, 7.0)


def is_calm(world: World, dead: str) -> bool:
    """Nothing else is wrong, and another in-sync replica of the side that is read lives."""
    if world.network.is_troubled() or not all(
        process.run and not process.paused
        for process in world.processes.values()
        if process.name != dead
    ):
        return False
    for record in world.agreed.topology.partitions.values():
        in_sync = set(record.in_sync)
        others = [r for r in routing.electable(record) if r.node != dead]
        if record.owner is None or not others or in_sync < set(routing.written(record)):
            return False
        if any(r.node not in world.agreed.leases for r in others):
            return False
        # A replica may be in the record without existing, if its node registered late.
        if any((record.id, r.incarnation) not in world.nodes[r.node].disk.live for r in others):
            return False
    return True


def _start_empty(world: World, node: SimulatedNode) -> None:
    """Wipe the disk if no record relies on the node any more, whatever else is wrong."""
    if node.run:
        return
    counted = any(
        replica.node == node.name
        for record in world.agreed.topology.partitions.values()
        for replica in record.in_sync
    )
    if not counted:
        node.disk.wipe()
    world.start(node)


def replace_coordinator(world: World, record: Partition) -> None:
    """The active coordinator crashes, or loses its office without noticing."""
    holder = world.agreed.coordinator
    for coordinator in world.coordinators:
        if holder is not None and coordinator.name == holder.holder:
            if world.dice.random() < 0.5:
                _crash(world, coordinator)
            else:
                _pause(world, coordinator)


def kill_mover(world: World, record: Partition) -> None:
    """Kill the mover in the middle of a slice, whose end is never sent."""
    world.mover.crash()
    _restart_later(world, world.mover, 0.01, 1.0)


def power_failure(world: World, record: Partition) -> None:
    """All nodes stop at once. Often one of them, most often the owner, stays away for good."""
    if world.dice.random() < 0.6 and not world.gone and not world.wiped:
        node = _owner(world, record) if world.dice.random() < 0.7 else _target(world, record)
        _leave_for_good(world, node.name)
    late = world.dice.random() < 0.6
    for each in world.nodes.values():
        each.crash()
        _restart_later(world, each, *((3.2, 7.0) if late else (0.05, 0.8)))


def _leave_for_good(world: World, node: str) -> None:
    topology = world.agreed.topology
    world.gone.add(node)
    world.survivors |= {
        name
        for name, record in topology.partitions.items()
        if routing.needed(record, topology.zones[record.zone]) > 1
        and any(
            replica.node != node and world.nodes[replica.node].still_has(name, replica.incarnation)
            for replica in routing.electable(record)
        )
    }


def stall_disk(world: World, record: Partition) -> None:
    """Syncs of one node take long, or hang."""
    node = _owner(world, record) if world.dice.random() < 0.5 else _target(world, record)
    seconds = world.dice.choice((0.05, 0.2, 0.2, 1.0))
    node.stalled_until = max(node.stalled_until, world.now + seconds)


def hang_disk(world: World, record: Partition) -> None:
    """No sync of one node ends, for a while or until the world heals."""
    node = _owner(world, record) if world.dice.random() < 0.6 else _target(world, record)
    if any(each.hangs for each in world.nodes.values()) or world.gone or world.wiped:
        return
    node.hangs = True
    seconds = world.dice.choice((1.0, 3.0, 6.0, inf))
    if seconds < inf:
        world.schedule(seconds, _answer_again, world, node)
    else:
        _leave_for_good(world, node.name)


def _answer_again(world: World, node: SimulatedNode) -> None:
    if node.hangs:
        node.hangs = False
        world.start(node)


def fill_disk(world: World, record: Partition) -> None:
    """The disk of one node, or of all, has no space for a while."""
    every = world.dice.random() < 0.2
    nodes = list(world.nodes.values()) if every else [_owner(world, record)]
    for node in nodes:
        node.fill(True)
        world.schedule(world.dice.choice((0.5, 2.0, 6.0)), node.fill, False)


def lose_volume(world: World, record: Partition) -> None:
    """A volume of a node fails, while others have all of its rows and nothing else is wrong."""
    replica = world.dice.choice(routing.everywhere(record))
    node = world.nodes[replica.node]
    if node.run and not world.wiped and not world.gone and is_calm(world, node.name):
        world.wiped.add(node.name)
        world.quiet_until = world.now + 6.0
        node.lose_volume(replica.volume)


def slow_link(world: World, record: Partition) -> None:
    """The owner and one of the other nodes, or a client, stay far apart for seconds."""
    one = _owner(world, record).name
    other = world.dice.choice([name for name in world.processes if name != one])
    world.network.slow_down(one, other, world.dice.choice((0.05, 0.3, 0.9)))
    world.schedule(world.dice.choice((1.0, 4.0)), world.network.slow_down, one, other, 0.0)


def slow_replication(world: World, record: Partition) -> None:
    """The owner and its followers are far apart for a moment, but stay in sync."""
    one = _owner(world, record).name
    for other in [r.node for r in routing.everywhere(record) if r.node != one]:
        world.network.slow_down(one, other, world.dice.choice((0.1, 0.15)))
        world.schedule(0.6, world.network.slow_down, one, other, 0.0)


def slow_copies(world: World, record: Partition) -> None:
    """What is copied arrives late for seconds, while writes and collections arrive at once."""
    for node in world.nodes:
        world.network.slow_down(world.mover.name, node, 0.4, both_ways=False)
        world.schedule(3.0, world.network.slow_down, world.mover.name, node, 0.0, False)


def answer_late_then_lose_renewals(world: World, record: Partition) -> None:
    """The metastore's answers reach the owner seconds late; then the owner's calls are lost, while
    clients and other nodes still reach it."""
    node = _owner(world, record).name
    world.network.slow_down(METASTORE, node, 2.4, both_ways=False)
    world.schedule(world.dice.uniform(2.5, 4.0), _lose_calls, world, node)


def _lose_calls(world: World, node: str) -> None:
    if not world.healed:
        world.network.cut(node, METASTORE, both_ways=False)
        world.schedule(7.0, world.network.mend, node, METASTORE)
        world.schedule(7.0, world.network.slow_down, METASTORE, node, 0.0)


def lose_metastore(world: World, record: Partition) -> None:
    """Nobody reaches the metastore for a while: perhaps for longer than leases last."""
    seconds = world.dice.choice((0.5, 2.0, 4.0))
    for name in world.processes:
        world.network.cut(METASTORE, name)
        world.schedule(seconds, world.network.mend, METASTORE, name)


def crash_client(world: World, record: Partition) -> None:
    """An application dies with its operations under way, and starts again as another producer."""
    client = world.dice.choice(world.clients[1:])
    client.crash()
    _restart_later(world, client, 0.05, 1.0)


FAULTS: dict[str, Callable[[World, Partition], None]] = {
    fault.__name__: fault
    for fault in (
        crash_owner,
        crash_target,
        pause_owner,
        pause_target,
        isolate_owner,
        isolate_target,
        cut_one_way,
        cut_owner_from_metastore,
        cut_owner_from_peers,
        silence_to_metastore,
        cut_target_from_metastore,
        wipe_replica,
        rot_replica,
        replace_coordinator,
        kill_mover,
        power_failure,
        stall_disk,
        hang_disk,
        fill_disk,
        lose_volume,
        slow_link,
        lose_metastore,
        crash_client,
    )
}

AIMED_FAULTS: dict[str, Callable[[World, Partition], None]] = {
    fault.__name__: fault
    for fault in (
        cut_old_owner_from_peers,
        slow_replication,
        slow_copies,
        answer_late_then_lose_renewals,
    )
}
"""Faults that make sense in few stages, or with little else: only themes about them inject them."""

STAGES: tuple[str, ...] = (
    "stable",
    *dict.fromkeys(stage.name for machine in MACHINES.values() for stage in machine.stages),
)
RUN_EDGES: tuple[tuple[str, str], ...] = tuple(
    (f"{life.name} {state}", event)
    for life in (REBALANCE, RUN_MOVE)
    for state, events in life.edges.items()
    for event in events
)
ACTIVE = ("running", "paused", "cancelling")
CELLS: tuple[tuple[str, str], ...] = (
    *((stage, fault) for stage in STAGES for fault in FAULTS),
    *RUN_EDGES,
    *((f"rebalance {state}", replace_coordinator.__name__) for state in ACTIVE),
)
"""Every fault in every stage; every edge of a run and of its moves; and every state of a run during
which the coordinator is replaced."""


def inject(world: World, partition: str, fault: str) -> None:
    """Inject a fault now, and record the stage."""
    record = world.agreed.topology.partitions.get(partition)
    if record is None or world.healed or world.now < world.quiet_until:
        return
    world.faults += 1
    of_stage = (world.stage_name(partition), fault)
    of_run = (f"rebalance {world.agreed.rebalance.state}", fault)
    world.cells |= {of_stage, of_run} & set(CELLS)
    world.tell(f"FAULT {fault}", partition)
    (FAULTS | AIMED_FAULTS)[fault](world, record)
