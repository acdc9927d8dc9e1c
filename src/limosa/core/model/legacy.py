"""How are rows of version 0.1.0 read? Its requests had one flat struct for all kinds.

That version also told only by a sentence why a transition was given up.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model import requests
from limosa.core.model.keys import transition_id
from limosa.core.model.reports import Report
from limosa.core.model.requests import AnyWish, LedTo, Request, RequestKind, RequestState
from limosa.core.model.runs import Policy, RunPlan, run_name
from limosa.core.model.topology import GivenUpBy, NamedTable, Node, Partition, Placement, Record

_GIVEN_UP_BY: dict[str, GivenUpBy] = {
    "cancelled": "operator",
    "reversed by request": "operator",
    "its run was cancelled": "run",
}


class _Flat(Struct, frozen=True, tag="Request", forbid_unknown_fields=True):
    """A request of any kind, with the fields of all kinds."""

    id: str
    kind: RequestKind
    partition: str = ""
    placements: tuple[Placement, ...] = ()
    renewed: tuple[str, ...] = ()
    hold_seconds: float = 0.0
    cancels: int = 0
    zone: str = ""
    count: int = 0
    state: RequestState = "waiting"
    answer: str = ""
    name: str = ""
    table: NamedTable | None = None
    table_id: str = ""
    partitions: int = 0
    min_in_sync: int = 0
    node: Node | None = None
    cluster: str = ""
    max_pause_seconds: float = 0.0
    after_pending: bool = False
    source: str = ""
    target: Placement | None = None
    run: RunPlan | None = None
    names: tuple[str, ...] = ()
    on: bool = True
    policy: Policy | None = None
    fingerprint: str = ""
    trigger: int = 0
    asked: float = 0.0
    answered: float = 0.0


_decoder = msgspec.json.Decoder(_Flat)


def decode_flat(data: bytes) -> Request:
    """Raises `msgspec.DecodeError` if the bytes are not a flat request."""
    old = _decoder.decode(data)
    return Request(
        old.id,
        _wish(old),
        old.state,
        old.answer,
        _led_to(old) if old.state == "done" else None,
        old.fingerprint,
        old.trigger,
        old.asked,
        old.answered,
    )


def _wish(old: _Flat) -> AnyWish:
    """A missing table, node or policy becomes one that the coordinator refuses."""
    table = old.table or NamedTable("", "", "", b"")
    times = (old.hold_seconds, old.max_pause_seconds)
    moved = (old.partition, old.placements, old.source, old.target, *times)
    wishes: dict[RequestKind, AnyWish] = {
        "move": requests.MovePartition(*moved, old.after_pending),
        "volume_move": requests.MoveToVolume(*moved),
        "rebuild": requests.RebuildReplicas(old.partition, old.renewed, *times),
        "repair": requests.RepairPartition(old.partition),
        "cancel": requests.CancelChange(old.partition, old.cancels),
        "reverse": requests.ReverseMove(old.partition),
        "complete": requests.CompleteMove(old.partition),
        "set_replicas": requests.SetReplicas(old.zone, old.count),
        "follow_nodes": requests.FollowNodes(old.zone),
        "create_table": requests.CreateTable(table, old.partitions, old.count, old.min_in_sync),
        "drop_table": requests.DropTable(old.name, old.table_id),
        "join": requests.JoinCluster(old.node or Node(""), old.cluster),
        "remove_node": requests.RemoveNode(old.name),
        "start_run": requests.StartRun(old.run),
        "drain_nodes": requests.DrainNodes(old.run),
        "pause_run": requests.PauseRun(old.name),
        "resume_run": requests.ResumeRun(old.name),
        "cancel_run": requests.CancelRun(old.name),
        "undrain_nodes": requests.UndrainNodes(old.names),
        "set_balancing": requests.SetBalancing(old.on),
        "set_policy": requests.SetPolicy(old.policy or Policy()),
        "lock": requests.LockCluster(old.name),
        "unlock": requests.UnlockCluster(),
        "withdraw": requests.WithdrawRequest(old.name),
    }
    return wishes[old.kind]


def _led_to(old: _Flat) -> LedTo | None:
    """The transition of an accepted change, or the run that was started."""
    if old.kind in ("start_run", "drain_nodes"):
        return requests.LedToRun(run_name(old.trigger))
    if old.partition and old.answer == "accepted":
        return requests.LedToTransition(old.partition, transition_id(old.trigger))
    return None


def completed(record: Record) -> Record:
    """The record, with `given_up_by` derived from the sentence if it is missing."""
    if isinstance(record, Report) and record.why and not record.given_up_by:
        return replace(record, given_up_by=_GIVEN_UP_BY.get(record.why, "cluster"))
    change = record.transition if isinstance(record, Partition) else None
    if change is not None and change.giving_up and not change.given_up_by:
        by = _GIVEN_UP_BY.get(change.giving_up, "cluster")
        return replace(record, transition=replace(change, given_up_by=by))
    return record
