"""Is the service alive, and is it ready? Routes for monitoring; they need no token."""

from msgspec import Struct

from limosa.admin.problems import unavailable
from limosa.admin.routing import Calling, Routes

routes = Routes("health")


class Health(Struct, frozen=True):
    status: str


@routes.get("/livez", role="open", answers=Health)
def livez() -> Health:
    """The process answers."""
    return Health("ok")


@routes.get("/readyz", role="open", answers=Health)
def readyz(caller: Calling) -> Health:
    """The cluster can be reached, and has a coordinator."""
    trouble = caller.service.readiness.trouble()
    if trouble is not None:
        raise unavailable(*trouble)
    return Health("ok")
