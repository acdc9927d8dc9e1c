"""How does an application use a cluster? `limosa.connect()`, then tables by name."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import pyarrow as pa
from msgspec import Struct

from limosa.client.discovery import LOCAL, VARIABLE, find_local
from limosa.client.requests import PARTITIONS, answered, creation, request_id
from limosa.client.schema import schema_of
from limosa.client.session import Session
from limosa.client.table import TableHandle
from limosa.core.client import ClientSettings
from limosa.core.model.changes import Topology
from limosa.core.model.requests import DropTable, Request
from limosa.errors import BadInput, OutcomeUnknown, UnknownTable
from limosa.protocol.peers import Dialer
from limosa.transport.keys import KeyFile
from limosa.transport.security import Security, check_encrypted, scheme
from limosa.transport.tokens import issue

TOKEN_SECONDS = 86_400.0
OPEN_SECONDS = 30.0
PATIENCE_SECONDS = 5.0


class Description(Struct, frozen=True):
    """A table's columns, key and replication."""

    name: str
    id: str
    zone: str
    columns: dict[str, str]
    """Types by the columns' names."""
    key: tuple[str, ...]
    partitions: int
    replicas: int
    min_in_sync: int


class Connection:
    """An application's client; may be used by several threads. Close it, or use a `with` block."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    def open(
        cls,
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
    ) -> Self:
        """Connect to a cluster.

        `cluster` is the address of a node (`host:port`, or several), or the directory of a local
        `limosa up`. The default is the environment variable LIMOSA_CLUSTER, then ./limosa-data,
        then the local cluster that was started last.

        A secured cluster needs a `token`, or `secret`, the path of the cluster's secret, from
        which the client makes its own tokens; with an address, `cluster_name` says for which
        cluster. `authority` (and `certificate`, `key`) are PEM files for TLS (and mTLS).

        An operation without an answer within `timeout_seconds` fails; time in the client's own
        queue does not count while the nodes accept other writes.
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
            certificate=certificate,
            key=key,
            authority=authority,
            secret=secret,
            verify_clients=False,
        )
        keys = None if secret is None or token is not None else KeyFile(secret)

        def current_token() -> str | None:
            if keys is None:
                return token
            subject = f"{name}@{os.uname().nodename}"
            return issue(
                keys.current(), known_as or LOCAL, subject, "admin", TOKEN_SECONDS, time.time()
            )

        for address in addresses.values():
            check_encrypted(address, security)
        dialer = Dialer(known_as, "client", name, security, current_token)
        settings = ClientSettings(
            operation_seconds=timeout_seconds,
            patience_seconds=min(PATIENCE_SECONDS, timeout_seconds),
        )
        return cls(Session(addresses, dialer, settings, name))

    # --- tables

    def table(self, name: str) -> TableHandle:
        """Open a table by its name; raises `UnknownTable` if there is none."""
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
        """Create a table; returns when it can be written.

        `schema` is an Arrow schema, or a mapping from column names to types. The default number of
        replicas is three, or the number of nodes if that is less.
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
        self._request(request)
        self._await_open(name)
        return self.table(name)

    def drop_table(self, name: str) -> None:
        """Drop a table and all of its rows."""
        self._session.refresh()
        named, _ = self._session.tables.named(name)
        self._request(Request(request_id("drop"), DropTable(name, named.id)))

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

    def _await(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + OPEN_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    "the request was accepted, but the nodes have not carried it out yet",
                    "see `limosa status`",
                )
            time.sleep(0.02)
            self._session.refresh()

    def _request(self, request: Request) -> Request:
        return answered(self._session, request)

    # --- the cluster

    @property
    def topology(self) -> Topology:
        """The topology that this client knows; `refresh` asks for the newest."""
        return self._session.topology

    def refresh(self) -> Topology:
        return self._session.refresh()

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_directory(text: str) -> bool:
    return os.path.isdir(text) or ("/" in text and "://" not in text)


def _address(text: str, encrypted: bool) -> str:
    text = text.strip()
    if "://" in text:
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(
            f"{text!r} is not an address", "give HOST:PORT, or the directory of `limosa up`"
        )
    return f"{scheme(encrypted)}://{text}"


connect = Connection.open
