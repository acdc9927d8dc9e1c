"""How are rows of version 0.1.0 read? Its requests had one flat struct for all kinds.

That version also told only by a sentence why a transition was given up.
"""

from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from limosa.core.model.keys import transition_id
from limosa.core.model.reports import Report
from limosa.core.model.requests import AnyWish, LedTo, LedToRun, LedToTransition, Request
from limosa.core.model.runs import run_name
from limosa.core.model.topology import GivenUpBy, Partition, Record

_GIVEN_UP_BY: dict[str, GivenUpBy] = {
    "cancelled": "operator",
    "reversed by request": "operator",
    "its run was cancelled": "run",
}
_WISHES: dict[Any, Any] = {kind.__struct_config__.tag: kind for kind in get_args(AnyWish)}
_OLD_NAMES = {
    "plan": {"start_run": "run", "drain_nodes": "run"},
    "node": {"remove_node": "name"},
    "nodes": {"undrain_nodes": "names"},
    "run": {"pause_run": "name", "resume_run": "name", "cancel_run": "name"},
    "why": {"lock": "name"},
    "request": {"withdraw": "name"},
}
"""By today's name of a field and the kind of request."""
_DEFAULTS: dict[str, Any] = {
    "table": {"type": "NamedTable", "name": "", "zone": "", "id": "", "definition": ""},
    "node": {"type": "Node", "id": ""},
    "cluster": "",
    "policy": {},
}
"""What stands for a missing field; the coordinator refuses it, or did so long ago."""


def decode_flat(data: bytes) -> Request:
    """Raises `msgspec.DecodeError` if the bytes are not a flat request."""
    row = msgspec.json.decode(data, type=dict[str, Any])
    kind = str(row.get("kind"))
    if row.get("type") != "Request" or kind not in _WISHES:
        raise msgspec.ValidationError("this is not a flat request")
    what: dict[str, Any] = {"kind": kind}
    for field in _WISHES[kind].__struct_fields__:
        value = row.get(_OLD_NAMES.get(field, {}).get(kind, field))
        if value is not None or field in ("plan", *_DEFAULTS):
            what[field] = _DEFAULTS.get(field) if value is None else value
    kept = {field: row[field] for field in Request.__struct_fields__ if field in row}
    request = msgspec.convert({"type": "Request", **kept, "what": what}, Request)
    return replace(request, led_to=_led_to(request) if request.state == "done" else None)


def _led_to(request: Request) -> LedTo | None:
    """The transition of an accepted change, or the run that was started."""
    if request.kind in ("start_run", "drain_nodes"):
        return LedToRun(run_name(request.trigger))
    if request.partition and request.answer == "accepted":
        return LedToTransition(request.partition, transition_id(request.trigger))
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
