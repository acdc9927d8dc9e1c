"""What do the processes of nodes and coordinators consist of? Parts, put together by settings."""

import platform
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.model.topology import Node
from limosa.errors import BadInput, UnusableFile
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import Clock, Metastore
from limosa.protocol.peers import Dialer, Peers, Token
from limosa.protocol.wire import Goodbye
from limosa.runtime import audit, membership
from limosa.runtime.audit import AuditLog
from limosa.runtime.clock import BootClock
from limosa.runtime.coordinator import CoordinatorDriver, MakeMover
from limosa.runtime.directories import make_private
from limosa.runtime.journal import Journal
from limosa.runtime.load_sources import load_source
from limosa.runtime.node import NodeDriver, NodeSettings
from limosa.runtime.service import NodeService
from limosa.runtime.threads import ProcessEnd
from limosa.storage.probe import silent_volumes
from limosa.storage.recovery import CHECK_DISK
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings as VolumeSettings
from limosa.transport.keys import KeyFile
from limosa.transport.security import Security
from limosa.transport.server import Inbound, Server
from limosa.transport.tokens import issue

pa.array(np.zeros(1))
"""Arrow's first use of NumPy imports pandas if it is installed. That takes half a second, so it
happens at the start instead of during a write or a failover."""

FEATURES = ("tables",)
FRAME_WEIGHT_BYTES = 8 << 10
"""A start replays about 25,000 small frames a second; this bounds the replay to seconds."""
RESERVE_BYTES = 16 << 20
"""More than clients have under way when a node notices that its disk is full."""
TOKEN_SECONDS = 86_400.0
GOODBYE_SECONDS = 2.0
JOIN_SECONDS = 30.0
LIVE_SECONDS = 30.0


class NodeConfig(Struct, frozen=True, kw_only=True):
    """Settings of a node's process."""

    name: str
    cluster: str
    metastore: str
    data: str
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    """HOST:PORT that other processes dial; empty: where the node listens."""
    volumes: dict[str, str] = {}
    """Directories by volume name; without any, there is one volume under `data`."""
    rack: str = ""
    datacenter: str = ""
    holds_data: bool = True
    security: Security = Security()
    settings: NodeSettings = NodeSettings()
    storage: VolumeSettings = VolumeSettings(
        frame_weight_bytes=FRAME_WEIGHT_BYTES, reserve_bytes=RESERVE_BYTES
    )


class CoordinatorConfig(Struct, frozen=True, kw_only=True):
    """Settings of a coordinator's process."""

    name: str
    cluster: str
    metastore: str
    security: Security = Security()
    settings: CoordinatorSettings = CoordinatorSettings()
    load_source: str = ""
    """MODULE:FUNCTION that tells automatic runs the load; empty: the measured rates."""


def machine_id() -> str:
    """The machine's id, or its host name if it has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            found = Path(path).read_text().strip()
        except OSError:
            continue
        if found:
            return found
    return platform.node() or "unknown"


def opener(path: str, clock: Clock) -> Callable[[], Metastore]:
    """Opens the metastore at a path."""
    if path.startswith("etcd:"):
        raise BadInput("etcd is not supported as a metastore", "give the path of a file")
    plain = path.removeprefix("sqlite:")
    return lambda: SqliteMetastore(plain, clock)


def token_source(security: Security, cluster: str, subject: str, role: str) -> Token:
    """Issues tokens for this process, if it knows the cluster's secret."""
    if security.secret is None:
        return lambda: None
    keys = KeyFile(security.secret)
    return lambda: issue(keys.current(), cluster, subject, role, TOKEN_SECONDS, time.time())


def _security(config: NodeConfig | CoordinatorConfig) -> Security:
    return replace(config.security, cluster=config.cluster)


def _dialer(config: NodeConfig | CoordinatorConfig, kind: str) -> Dialer:
    security = _security(config)
    token = token_source(security, config.cluster, config.name, kind)
    return Dialer(config.cluster, kind, config.name, security, token)


class NodeProcess:
    """A node's process: storage, driver, service and server."""

    def __init__(self, config: NodeConfig, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.end = ProcessEnd()
        clock = BootClock()
        open_store = opener(config.metastore, clock)
        make_private(config.data, journal)
        volumes = config.volumes or {"": str(Path(config.data) / "volume")}
        for volume in volumes.values():
            with suppress(UnusableFile):  # the store refuses this volume, and uses the others
                make_private(volume, journal)
        seconds = config.settings.participant.sync_seconds_max
        why = f"the disk has not answered for {seconds:.0f} s"
        silent = dict.fromkeys(silent_volumes(volumes, seconds), why)
        self.store = Store(volumes, settings=config.storage, refused=silent)
        try:
            if not self.store.volumes:
                refused = self.store.refused
                why = "; ".join(refusal.why for refusal in refused)
                raise UnusableFile(
                    f"no volume can be used: {why}",
                    CHECK_DISK
                    if any(refusal.is_disk for refusal in refused)
                    else "restore the directory from a backup; if that is not possible, erase it "
                    f"and run `limosa node replace {config.name}`",
                )
            peers = Peers(_dialer(config, "node"), self._received)
            node = Node(
                config.name,
                rack=config.rack,
                datacenter=config.datacenter,
                volumes=self.store.volumes,
                tokens=config.holds_data,
                features=FEATURES,
                machine=machine_id(),
            )
            self.driver = NodeDriver(
                node,
                self.store,
                open_store,
                clock,
                peers,
                config.settings,
                journal,
                self.end.fail,
            )
            secret = config.security.secret
            service = NodeService(
                self.driver,
                config.cluster,
                journal,
                AuditLog(Path(config.data) / audit.FILE),
                None if secret is None else KeyFile(secret),
            )
            self.server = Server(config.host, config.port, _security(config), service)
        except BaseException:
            self.store.close()
            raise
        try:
            with closing(open_store()) as metastore:
                agreed = AgreedStore(metastore)
                node = replace(node, host=uuid.uuid4().hex, address=self._address())
                joined = membership.join(
                    agreed,
                    Path(config.data),
                    node,
                    config.cluster,
                    f"join-{config.name}-{uuid.uuid4().hex[:12]}",
                    JOIN_SECONDS,
                    clock.now,
                    time.sleep,
                )
                if joined.id != config.name:
                    raise BadInput(
                        f"{config.data} belongs to node {joined.id}", "start it with that name"
                    )
                self.driver.node = membership.refresh(agreed, replace(node, host=joined.host))
        except BaseException:
            self.server.stop(GOODBYE_SECONDS, _say_goodbye)
            self.store.close()
            raise
        try:
            self.driver.start()
            self.driver.wait_until_live(LIVE_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _address(self) -> str:
        """The address that other processes dial: advertised, or where the server listens."""
        if not self.config.advertise:
            return self.server.address
        return f"{self.server.address.partition('://')[0]}://{self.config.advertise}"

    def _received(self, node: str, message: object) -> None:
        """Ignored: nodes answer on the streams that they open."""

    def stop(self) -> None:
        """Stop cleanly: tell callers, give up the lease, make everything durable."""
        self.server.stop(GOODBYE_SECONDS, _say_goodbye)
        self.driver.stop()


def _say_goodbye(inbound: Inbound) -> None:
    inbound.link.send(Goodbye())


class CoordinatorProcess:
    """A coordinator's process, as leader or on standby."""

    def __init__(self, config: CoordinatorConfig, mover: MakeMover, journal: Journal) -> None:
        self.end = ProcessEnd()
        clock = BootClock()
        source = load_source(config.load_source) if config.load_source else None
        open_store = opener(config.metastore, clock)
        with closing(open_store()) as metastore:
            membership.found(AgreedStore(metastore), config.cluster, machine_id(), uuid.uuid4().hex)
        dialer = _dialer(config, "coordinator")
        self.driver = CoordinatorDriver(
            config.name,
            open_store,
            clock,
            Peers(dialer, lambda node, message: self.driver.received(node, message)),
            config.settings,
            mover,
            journal,
            self.end.fail,
            source,
        )
        self.driver.start()

    @property
    def ticks(self) -> int:
        return self.driver.ticks

    def stop(self) -> None:
        self.driver.stop()
