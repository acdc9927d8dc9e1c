"""A cluster of nobody's: the agreed state in memory, and requests answered by the core's rules."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from limosa.admin import app, tokens
from limosa.admin.runs import MoveFacts, RunBody, RunFacts, RunPreview, Runs, RunStatus, TurnWish
from limosa.admin.service import AdminService, AdminSettings
from limosa.admin.tokens import Tokens
from limosa.client.connection import Description
from limosa.client.requests import creation
from limosa.client.schema import schema_of
from limosa.core.coordinator.requests import answer
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight.explaining import about as state_about
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed, Put, Topology, apply, request_key
from limosa.core.model.requests import CancelRun, FollowNodes, PauseRun, Request, ResumeRun
from limosa.core.model.topology import (
    Cluster,
    CoordinatorLease,
    Grant,
    Node,
    NodeLease,
    Record,
    Zone,
)
from limosa.errors import IllegalRequest, UnknownTable
from limosa.runtime.audit import AuditLog
from limosa.tabular.schema import Table

NODES = ("n1", "n2", "n3", "n4")
ITEMS = "items"
FIRST = "items-0000"
ASKED, ANSWERED = 1_999_999_999.0, 2_000_000_000.0
"""By wall clocks."""


class FakeCluster:
    """n1 to n3 live and hold `items`; n4 lives and holds nothing; n5 is dead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = Agreed()
        self.answers = True
        """Whether there is somebody who answers requests at once."""
        self.failure: Exception | None = None
        self.delay_seconds = 0.0
        self.put(Cluster("birds", "c1"), CoordinatorLease("coordinator", 99))
        for number, name in enumerate((*NODES, "n5")):
            self.put(Node(name, f"grpc://{name}:1"))
            if name in NODES:
                self.put(NodeLease(name, number + 1))
        self._make_items()
        self.asked: list[Request] = []

    def put(self, *records: Record) -> None:
        changes = [Put(record) for record in records]
        self.now = apply(self.now, changes, self.now.revision + 1)

    def _make_items(self) -> None:
        holders = ("n1", "n2", "n3")
        leases = self.now.leases
        self.now = replace(self.now, leases={name: leases[name] for name in holders})
        columns = schema_of({"id": "int64", "name": "string"})
        request = creation("make", self.now.topology, ITEMS, columns, ("id",), 2, 3)
        self._ask(request)
        self.now = replace(self.now, leases=leases)
        for record in list(self.now.topology.partitions.values()):
            owner = Grant(record.replicas[0], leases[record.replicas[0].node].lease)
            self.put(replace(record, epoch=1, owner=owner))

    # --- what a `Cluster` can do

    @property
    def topology(self) -> Topology:
        return self.now.topology

    def refresh(self) -> Topology:
        self._misbehave()
        return self.now.topology

    def agreed(self) -> dict[str, Any]:
        self._misbehave()
        holder = self.now.coordinator
        return {
            "revision": self.now.revision,
            "generation": self.now.topology.generation,
            "live": sorted(self.now.leases),
            "coordinator": None if holder is None else holder.holder,
            "locked": self.now.controls.locked,
            "requests": [
                {
                    "id": each.id,
                    "kind": each.kind,
                    "state": each.state,
                    "answer": each.answer,
                    "asked": each.asked,
                    "answered": each.answered,
                    "about": each.about,
                    "revision": self.now.revision_of(request_key(each.id)),
                }
                for each in self.now.requests.values()
            ],
        }

    def state(self, partition: str) -> Agreed:
        self._misbehave()
        return state_about(self.now, partition)

    def node_status(self, node: str) -> dict[str, Any]:
        if node == "n3":
            raise IllegalRequest("n3 does not say")
        return {"free_bytes": {"": 1 << 30}, "replicas": []}

    def runs(self, run: str = "") -> Agreed:
        self._misbehave()
        return self.now

    def node_facts(self, node: str, partition: str = "") -> Status | None:
        return None

    def describe(self, name: str) -> Description:
        self._misbehave()
        named = self.now.topology.tables.get(name)
        if named is None:
            raise UnknownTable(f"there is no table '{name}'", "create it first")
        table = Table.decode(named.definition)
        zone = self.now.topology.zones[named.zone]
        assert isinstance(zone, Zone)
        columns = {field.name: str(field.type) for field in table.columns}
        partitions = len(self.now.topology.layouts[named.zone].partitions)
        numbers = (partitions, zone.replica_count, zone.needed_in_sync())
        return Description(name, named.id, named.zone, columns, table.key, *numbers)

    def tables(self) -> list[str]:
        self._misbehave()
        return sorted(self.now.topology.tables)

    def ask(self, request: Request) -> Request:
        self._misbehave()
        with self._lock:
            self.asked.append(request)
            return self._ask(replace(request, asked=ASKED))

    def _ask(self, request: Request) -> Request:
        if request.id not in self.now.requests:
            self.put(request)
            if self.answers:
                self.answer(request.id)
        return self.now.requests[request.id]

    def answer(self, id: str) -> None:
        commit = answer(ClusterView(self.now, {}, 0, 0.0, ANSWERED), self.now.requests[id])
        self.now = apply(self.now, commit.changes, self.now.revision + 1)

    def request_state(self, id: str) -> Request | None:
        self._misbehave()
        return self.now.requests.get(id)

    def _misbehave(self) -> None:
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        if self.failure is not None:
            raise self.failure


class FakeRuns(Runs):
    """One run at a time, of no moves."""

    def __init__(self) -> None:
        self.state = "IDLE"
        self.wanted: list[RunBody] = []

    def plan(self, wanted: RunBody) -> RunPreview:
        moves = (
            MoveFacts(each.partition, each.source, each.to, "PENDING")
            for each in wanted.moves or ()
        )
        return RunPreview(tuple(moves))

    def start(self, id: str, wanted: RunBody) -> Request:
        if self.state != "IDLE":
            raise IllegalRequest("a run is under way already", "wait for its end, or cancel it")
        self.wanted.append(wanted)
        return self._become("RUNNING", id)

    def turn(self, id: str, wish: TurnWish) -> Request:
        match wish:
            case PauseRun():
                return self._become("PAUSED", id, "RUNNING")
            case ResumeRun():
                return self._become("RUNNING", id, "PAUSED")
            case CancelRun():
                return self._become("IDLE", id, "RUNNING", "PAUSED")

    def _become(self, state: str, id: str, *needed: str) -> Request:
        if needed and self.state not in needed:
            raise IllegalRequest(f"the rebalance is {self.state}", "look at its status")
        self.state = state
        return Request(id, FollowNodes(ITEMS))

    def status(self) -> RunStatus:
        return RunStatus(self.state, 3, 1, 0, (FIRST,))

    def history(self) -> list[RunFacts]:
        return [RunFacts("r1", "DONE", 3, 3, 0, started=1.0, ended=2.0)]


class Stand:
    """A service before a fake cluster, and a token for each role."""

    def __init__(
        self, directory: Path, runs: Runs | None = None, settings: AdminSettings | None = None
    ) -> None:
        self.directory = directory
        self.cluster = FakeCluster()
        self.lines: list[tuple[str, dict[str, object]]] = []
        path = directory / tokens.FILE
        self.tokens = {
            "viewer": tokens.add(path, "vera", "viewer"),
            "operator": tokens.add(path, "olga", "operator"),
            "admin": tokens.add(path, "anna", "admin"),
        }
        self.audit = AuditLog(directory / "audit.ndjson")
        self.service = AdminService(
            self.cluster,
            Tokens(path),
            self.audit,
            self.log,
            runs or FakeRuns(),
            settings or AdminSettings(),
        )
        self.app = app.build(self.service)

    def log(self, what: str, **details: object) -> None:
        self.lines.append((what, details))

    def headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}

    def call(self, role: str, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {**self.headers(role), **given.pop("headers", {})}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
                return await client.request(method, path, headers=headers, **given)

        return asyncio.run(ask())
