"""How is a request taken back? By another request, which depends on how far the first one got."""

from limosa.core.model.changes import Agreed
from limosa.core.model.requests import (
    CancelChange,
    CancelRun,
    DrainNodes,
    Request,
    StartRun,
    WithdrawRequest,
)
from limosa.errors import IllegalRequest


def aborting(agreed: Agreed, request: Request, id: str) -> Request:
    """A waiting request is withdrawn; later, the move or run that it led to is cancelled.

    Raises `IllegalRequest` if the request has ended.
    """
    if request.state == "waiting":
        return Request(id, WithdrawRequest(request.id))
    if request.run and isinstance(request.what, StartRun | DrainNodes):
        return Request(id, CancelRun(request.run))
    intent = agreed.intents.get(request.partition)
    pending = None if intent is None else intent.pending
    if request.state == "done" and pending is not None and pending.trigger == request.trigger:
        return Request(id, CancelChange(request.partition, pending.trigger))
    raise IllegalRequest(
        f"{request.id} has ended: {request.state}, {request.answer}", "nothing to abort"
    )
