"""How does an operator's program connect? `limosa.operate()`, then status, requests and runs."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from limosa.client.connection import Connection
from limosa.client.requests import as_request, dated, request_id
from limosa.client.session import Session
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed
from limosa.core.model.requests import AnyWish, Request
from limosa.protocol.replica_scan import ComparisonTokens
from limosa.protocol.wire import Decoder

ASK_SECONDS = 8.0
FOLLOW_SECONDS = 2.0
"""How long a node may be behind another node that has answered."""

_comparison_tokens = msgspec.msgpack.Decoder(ComparisonTokens)
_states = msgspec.msgpack.Decoder(Agreed)


class Operator(Connection):
    """An operator's client: everything that a `Connection` can do, and status, moves and runs."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._asked = ""
        """The last request of this client that was answered."""

    # --- requests

    def ask(self, request: Request) -> Request:
        """Store the request and return at once, with the row that now has its id: an older one if
        the id was used before."""
        return as_request(self._session.call("ask", dated(request), ASK_SECONDS))

    def request(self, request: Request) -> Request:
        """Store the request and wait for its answer; raises `IllegalRequest` if it is refused."""
        return self._request(request)

    def submit(self, wish: AnyWish) -> Request:
        """Ask for a change and wait for the answer, which names the transition, run, table or nodes
        that it led to; raises `IllegalRequest` if the change is refused."""
        return self.request(Request(request_id(wish.kind.replace("_", "-")), wish))

    def _request(self, request: Request) -> Request:
        answer = super()._request(request)
        self._asked = answer.id
        return answer

    def request_state(self, id: str) -> Request | None:
        """The stored request, with its answer if there is one; None: there is no such request."""
        body = self._session.call("asked", id.encode())
        return as_request(body) if body else None

    # --- what the nodes know

    def agreed(self) -> dict[str, Any]:
        """The live nodes, the active coordinator, the lock, and the requests."""
        known: dict[str, Any] = msgspec.json.decode(self._session.call("agreed"))
        return known

    def node_status(self, node: str) -> dict[str, Any]:
        """A node's description of itself."""
        status: dict[str, Any] = msgspec.json.decode(
            self._session.call_node(node, "status", seconds=5.0)
        )
        return status

    def state(self, partition: str) -> Agreed:
        """Everything that the metastore has about one partition."""
        state: Agreed = _states.decode(self._session.call("state", partition.encode()))
        return state

    def runs(self, run: str = "") -> Agreed:
        """The agreed state of the whole cluster, with the moves of the named or the current run.
        It includes the last request of this client, whichever node answers."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            state: Agreed = _states.decode(self._session.call("runs", run.encode()))
            known = state.requests.get(self._asked)
            is_behind = bool(self._asked) and (known is None or known.state == "waiting")
            if not is_behind or time.monotonic() > deadline:
                return state
            time.sleep(0.01)

    def node_facts(self, node: str, partition: str = "") -> Status | None:
        """The status that a node reports to the coordinator, of one partition or of all; None if
        the node is not a member yet."""
        body = self._session.call_node(node, "facts", partition.encode(), seconds=5.0)
        said = Decoder(lambda _: None, trusted=True)(pa.py_buffer(body)) if body else []
        return next((each for each in said if isinstance(each, Status)), None)

    def node_digests(self, node: str) -> list[dict[str, Any]]:
        """Position, rows and digest of every replica on a node; reads all of its rows."""
        digests: list[dict[str, Any]] = msgspec.json.decode(
            self._session.call_node(node, "digests")
        )
        return digests

    def comparison_tokens(self, partitions: Sequence[str]) -> ComparisonTokens:
        """For processes that compare replicas of these partitions on behalf of this client: each
        token can read one partition's keys and hashes, for some minutes, and nothing else."""
        body = msgspec.msgpack.encode(list(partitions))
        return _comparison_tokens.decode(self._session.call("comparison_tokens", body))


operate = Operator.open
