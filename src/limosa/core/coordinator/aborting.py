"""How is a request taken back? By another request, which depends on how far the first one got."""

from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Request, RequestKind
from limosa.core.model.runs import run_name
from limosa.errors import IllegalRequest

RUNS: tuple[RequestKind, ...] = ("start_run", "drain_nodes")


def run_of(request: Request) -> str:
    """The run that came of one that was accepted: it is named after the request's trigger."""
    return run_name(request.trigger)


def aborting(agreed: Agreed, request: Request, id: str) -> Request:
    """While it waits it is withdrawn; later the move or the run that came of it is given up.

    Raises `IllegalRequest` if there is nothing left of it.
    """
    if request.state == "waiting":
        return Request(id, "withdraw", name=request.id)
    if request.state == "done" and request.kind in RUNS:
        return Request(id, "cancel_run", name=run_of(request))
    intent = agreed.intents.get(request.partition)
    pending = None if intent is None else intent.pending
    if request.state == "done" and pending is not None and pending.trigger == request.trigger:
        return Request(id, "cancel", request.partition, cancels=pending.trigger)
    raise IllegalRequest(
        f"{request.id} has ended: {request.state}, {request.answer}", "nothing is to be aborted"
    )
