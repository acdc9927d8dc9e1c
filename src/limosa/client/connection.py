"""How does an application begin? `limosa.connect()`, then tables by their names."""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from limosa.client.discovery import LOCAL, VARIABLE, find_local
from limosa.client.session import Session
from limosa.client.table import TableHandle
from limosa.core.client import ClientSettings
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed, Topology
from limosa.core.model.codec import decode, encode
from limosa.core.model.intent import Placement, Request, RequestKind
from limosa.core.model.runs import Policy, RunPlan
from limosa.core.model.topology import NamedTable
from limosa.errors import BadInput, OutcomeUnknown, UnknownTable
from limosa.protocol.peers import Dialer
from limosa.protocol.wire import Decoder
from limosa.tabular.schema import Table
from limosa.transport.security import Security, scheme
from limosa.transport.tokens import issue, read_secret

TOKEN_SECONDS = 86_400.0
REQUEST_SECONDS = 30.0
ASK_SECONDS = 8.0
OPEN_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
FOLLOW_SECONDS = 2.0
"""How long a node may be behind another one that has answered us."""
PARTITIONS = 16

_states = msgspec.msgpack.Decoder(Agreed)


class Description(Struct, frozen=True):
    """What a table is."""

    name: str
    id: str
    zone: str
    columns: dict[str, str]
    """Types by the columns' names."""
    key: tuple[str, ...]
    partitions: int
    replicas: int
    min_in_sync: int


def connect(
    cluster: str | Sequence[str] | None = None,
    *,
    cluster_name: str | None = None,
    token: str | None = None,
    secret: str | None = None,
    authority: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    timeout_seconds: float = 30.0,
    name: str = "client",
) -> "Connection":
    """Connect to a cluster.

    `cluster` is a node's address (`host:port`, or several), the directory of a local `limosa up`,
    or nothing: then the environment's LIMOSA_CLUSTER, ./limosa-data, or the last local cluster.
    A `token` proves who we are where tokens are asked for; `secret`, the path of the cluster's
    secret, makes one, at an address for the cluster of `cluster_name`. `authority` (and
    `certificate`, `key`) are PEM files for TLS (and mTLS).
    """
    wanted = cluster if cluster is not None else os.environ.get(VARIABLE)
    known_as = cluster_name or ""
    if wanted is None or (isinstance(wanted, str) and _is_directory(wanted)):
        local = find_local(wanted)
        addresses: dict[str, str] = dict(local.nodes)
        known_as = local.cluster
        secret = secret or local.secret
    else:
        several = [wanted] if isinstance(wanted, str) else list(wanted)
        found = [
            _address(one, authority is not None) for each in several for one in each.split(",")
        ]
        addresses = {address: address for address in found}
    security = Security(
        certificate=certificate, key=key, authority=authority, secret=secret, verify_clients=False
    )
    secret_bytes = None if secret is None or token is not None else read_secret(secret)

    def current_token() -> str | None:
        if secret_bytes is None:
            return token
        subject = f"{name}@{os.uname().nodename}"
        return issue(secret_bytes, known_as or LOCAL, subject, "admin", TOKEN_SECONDS, time.time())

    dialer = Dialer(known_as, "client", name, security, current_token)
    settings = ClientSettings(
        operation_seconds=timeout_seconds,
        patience_seconds=min(PATIENCE_SECONDS, timeout_seconds),
    )
    return Connection(Session(addresses, dialer, settings, name))


def _is_directory(text: str) -> bool:
    return os.path.isdir(text) or ("/" in text and "://" not in text)


def _address(text: str, encrypted: bool) -> str:
    text = text.strip()
    if "://" in text:
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"{text!r} is no address", "give HOST:PORT, or the directory of `limosa up`")
    return f"{scheme(encrypted)}://{text}"


class Connection:
    """A cluster; may be used by several threads. Close it, or use it in a `with`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked = ""
        """The last request of ours that was answered."""

    # --- tables

    def table(self, name: str) -> TableHandle:
        """A table by its name; raises `UnknownTable` if there is none."""
        try:
            return TableHandle(self._session, name)
        except UnknownTable:
            self._session.refresh()
            return TableHandle(self._session, name)

    def tables(self) -> list[str]:
        self._session.refresh()
        return self._session.tables.names

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Mapping[str, str | pa.DataType],
        key: str | Sequence[str],
        *,
        partitions: int = PARTITIONS,
        replicas: int | None = None,
        min_in_sync: int = 0,
        zone: str | None = None,
    ) -> TableHandle:
        """Make a table; returns when it can be written to.

        `schema` is an Arrow schema, or types by the columns' names. Without a count there are
        three replicas, or as many as there are nodes.
        """
        columns = schema if isinstance(schema, pa.Schema) else schema_of(schema)
        keys = (key,) if isinstance(key, str) else tuple(key)
        request = creation(
            request_id("create"),
            self._session.refresh(),
            name,
            columns,
            keys,
            partitions,
            replicas,
            min_in_sync,
            zone,
        )
        self.request(request)
        self._await_open(name)
        return self.table(name)

    def drop_table(self, name: str) -> None:
        """Drop a table and all of its rows."""
        self._session.refresh()
        named, _ = self._session.tables.named(name)
        self.request(Request(request_id("drop"), "drop_table", name=name, table_id=named.id))

        def is_gone() -> bool:
            now = self._session.topology.tables.get(name)
            return now is None or now.id != named.id

        self._await(is_gone)

    def describe(self, name: str) -> Description:
        self._session.refresh()
        named, definition = self._session.tables.named(name)
        topology = self._session.topology
        zone = topology.zones[named.zone]
        return Description(
            name,
            named.id,
            named.zone,
            {field.name: str(field.type) for field in definition.columns},
            definition.key,
            len(topology.layouts[named.zone].partitions),
            zone.replica_count,
            zone.needed_in_sync(),
        )

    def _await_open(self, name: str) -> None:
        def is_open() -> bool:
            topology = self._session.topology
            named = topology.tables.get(name)
            if named is None:
                return False
            partitions = topology.layouts[named.zone].partitions
            return all(topology.partitions[each].owner is not None for each in partitions)

        self._await(is_open)

    def _await(self, done: Any) -> None:
        deadline = time.monotonic() + OPEN_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    "it was agreed upon, but the nodes have not followed yet", "look at the status"
                )
            time.sleep(0.02)
            self._session.refresh()

    def ask(self, request: Request) -> Request:
        """Put a request, and do not wait for its answer.

        Returns the row that is there now under its id: another one, if the id was used before.
        """
        return _as_request(self._session.call("ask", encode(dated(request)), ASK_SECONDS))

    def request_state(self, id: str) -> Request | None:
        """A request as it was put, with its answer if there is one; None: there is none."""
        body = self._session.call("asked", id.encode())
        return _as_request(body) if body else None

    def request(self, request: Request) -> Request:
        """Put a request, and wait for its answer; raises `IllegalRequest` if it is refused."""
        body = self._session.call("request", encode(dated(request)), REQUEST_SECONDS)
        answer = _as_request(body)
        self._asked = answer.id
        return answer

    # --- the cluster

    @property
    def topology(self) -> Topology:
        """As this client knows it now."""
        return self._session.topology

    def refresh(self) -> Topology:
        return self._session.refresh()

    def agreed(self) -> dict[str, Any]:
        """Who lives, who coordinates, which requests there are."""
        known: dict[str, Any] = msgspec.json.decode(self._session.call("agreed"))
        return known

    def node_status(self, node: str) -> dict[str, Any]:
        """What a node says of itself."""
        status: dict[str, Any] = msgspec.json.decode(
            self._session.call_node(node, "status", seconds=5.0)
        )
        return status

    def state(self, partition: str) -> Agreed:
        """All that is agreed about one partition."""
        state: Agreed = _states.decode(self._session.call("state", partition.encode()))
        return state

    def runs(self, run: str = "") -> Agreed:
        """What is agreed about the whole cluster, with the moves of the named run, or of the one
        that is under way. What this connection asked for is in it, whichever node answers."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            state: Agreed = _states.decode(self._session.call("runs", run.encode()))
            known = state.requests.get(self._asked)
            is_behind = bool(self._asked) and (known is None or known.state == "waiting")
            if not is_behind or time.monotonic() > deadline:
                return state
            time.sleep(0.01)

    def start_run(self, plan: RunPlan) -> Request:
        """Begin a run of many moves, or one that empties nodes; raises `IllegalRequest` if it can't
        be. Its name is in the answer."""
        kind: RequestKind = "drain_nodes" if plan.drains else "start_run"
        return self.request(Request(request_id("run"), kind, run=plan))

    def change_run(self, kind: RequestKind, run: str = "") -> Request:
        """Pause, resume or cancel a run: the named one, or whichever is under way."""
        return self.request(Request(request_id(kind.replace("_", "-")), kind, name=run))

    def switch(self, kind: RequestKind, *, on: bool = True, why: str = "") -> Request:
        """Lock or unlock the cluster, or let the balancer begin runs or not."""
        return self.request(Request(request_id(kind.replace("_", "-")), kind, name=why, on=on))

    def set_policy(self, policy: Policy) -> Request:
        """When the balancer begins runs by itself."""
        return self.request(Request(request_id("policy"), "set_policy", policy=policy))

    def withdraw(self, request: str) -> Request:
        """Take back a request that still waits."""
        return self.request(Request(request_id("withdraw"), "withdraw", name=request))

    def undrain_nodes(self, names: Sequence[str]) -> Request:
        """Let nodes that were drained, and did not leave, take part again."""
        return self.request(Request(request_id("undrain"), "undrain_nodes", names=tuple(names)))

    def node_facts(self, node: str, partition: str = "") -> Status | None:
        """What a node tells the coordinator about one partition, or all of them; None: it is not a
        member yet."""
        body = self._session.call_node(node, "facts", partition.encode(), seconds=5.0)
        said = Decoder(lambda _: None, trusted=True)(pa.py_buffer(body)) if body else []
        return next((each for each in said if isinstance(each, Status)), None)

    def change_partition(
        self,
        kind: RequestKind,
        partition: str,
        *,
        source: str = "",
        target: Placement | None = None,
        hold_seconds: float = 0.0,
        max_pause_seconds: float = 0.0,
        cancels: int = 0,
    ) -> Request:
        """Ask for a move from `source` to `target`, or for the end of one.

        Returns when it is agreed upon; raises `IllegalRequest` if it can't be.
        """
        return self.request(
            Request(
                request_id(kind),
                kind,
                partition,
                source=source,
                target=target,
                hold_seconds=hold_seconds,
                max_pause_seconds=max_pause_seconds,
                cancels=cancels,
            )
        )

    def node_digests(self, node: str) -> list[dict[str, Any]]:
        """Position, rows and digest of every replica on a node; reads all of its rows."""
        digests: list[dict[str, Any]] = msgspec.json.decode(
            self._session.call_node(node, "digests")
        )
        return digests

    def token(self) -> str | None:
        """A fresh proof of who we are, for whoever calls the nodes in our name."""
        return self._session.token()

    def remove_node(self, node: str) -> None:
        """A node that is gone for good, and holds nothing, leaves the cluster."""
        self.request(Request(request_id("remove"), "remove_node", name=node))

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def creation(
    id: str,
    topology: Topology,
    name: str,
    columns: pa.Schema,
    key: tuple[str, ...],
    partitions: int = PARTITIONS,
    replicas: int | None = None,
    min_in_sync: int = 0,
    zone: str | None = None,
) -> Request:
    """The request for a new table; a zone that is there decides about its numbers."""
    definition = Table(f"t{uuid.uuid4().hex[:16]}", columns, key)
    if replicas is None:
        holders = [n for n in topology.nodes.values() if n.tokens and n.state == "normal"]
        replicas = min(3, len(holders))
    joins = zone is not None and zone in topology.zones
    return Request(
        id,
        "create_table",
        table=NamedTable(name, zone or name, definition.id, definition.encode()),
        partitions=0 if joins else partitions,
        count=0 if joins else replicas,
        min_in_sync=0 if joins else min_in_sync,
    )


def dated(request: Request) -> Request:
    """People see since when it waits."""
    return replace(request, asked=time.time())


def _as_request(body: bytes) -> Request:
    answer = decode(body)
    assert isinstance(answer, Request)
    return answer


def schema_of(types: Mapping[str, str | pa.DataType]) -> pa.Schema:
    """An Arrow schema from types by name; `timestamp` is of microseconds, in UTC."""
    return pa.schema([(name, type_of(name, wanted)) for name, wanted in types.items()])


def type_of(name: str, wanted: str | pa.DataType) -> pa.DataType:
    if not isinstance(wanted, str):
        return wanted
    if wanted == "timestamp":
        return pa.timestamp("us", tz="UTC")
    try:
        known: pa.DataType = pa.type_for_alias(wanted)  # type: ignore[call-overload]
        return known
    except ValueError:
        raise BadInput(
            f"column {name} can't be of type {wanted!r}",
            "use int64, float64, string, bool, binary, date32, timestamp, …",
        ) from None


def request_id(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:16]}"
