"""What does a node do for its callers? It receives messages, answers calls and serves scans.

This is the trust boundary: a client's requests are checked here completely, before the participant
or the storage sees them.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import astuple, replace

from limosa.core.events import Received, Ticked
from limosa.core.insight.explaining import about, about_run, status_about
from limosa.core.messages import Answer, Chunk, Message, Read, Refuse, SessionMessage, Wait, Write
from limosa.core.model.changes import Commit, Put, Topology, request_key
from limosa.core.model.codec import decode, encode
from limosa.core.model.requests import CreateTable, JoinCluster, Request
from limosa.core.model.runs import RunPlan
from limosa.core.model.topology import NamedTable
from limosa.core.participant.admission import admissible
from limosa.errors import (
    BadInput,
    Forbidden,
    IllegalRequest,
    InvalidLayout,
    InvalidSchema,
    LimosaError,
    OutcomeUnknown,
    Redirected,
    StaleGuard,
    TooManyBytes,
    UnknownSchema,
    VolumeFailed,
)
from limosa.metastore.agreed import AgreedStore
from limosa.protocol.replica_scan import ComparisonTokens, is_replica_scan
from limosa.protocol.scan import TICKET_BYTES_MAX, Scan, too_long
from limosa.protocol.wire import Decoder, Encoder, Unreadable, size_of, unknown_schema
from limosa.runtime.audit import AuditLog
from limosa.runtime.node import NodeDriver
from limosa.runtime.replicas import holding, read_replica
from limosa.storage.view import Size
from limosa.tabular.rows import Batch, Bundle, hash_together
from limosa.tabular.schema import Table
from limosa.tabular.sizes import WRITE_BYTES_MAX, check_rows, in_pieces
from limosa.transport.keys import KeyFile
from limosa.transport.links import Encode
from limosa.transport.server import Inbound
from limosa.transport.tokens import COMPARISON, Identity, Role, issue
from limosa.transport.tokens import NAME_LENGTH_MAX as SUBJECT_LENGTH_MAX

REQUEST_SECONDS = 20.0
ASK_SECONDS = 5.0
NAME_LENGTH_MAX = 200
PRODUCER_LENGTH_MAX = 100
PARTITIONS_MAX = 10_000
COMPARISON_SECONDS = 900.0
SEQUENCE_MAX = 2**62
TOGETHER_MAX = 64
"""Writes of one caller that are ordered before other callers get their turn."""
PATIENT = {"client": 0.5, "mover": 0.25}
"""Callers that wait while more than this share of the memory for rows is in use: copies first, then
clients. Replication by an owner never waits, since clients wait for it."""
NOTHING = Size(0, 0)

_WORD = re.compile(r"[A-Za-z0-9_.-]+")

_partition_names = msgspec.msgpack.Decoder(
    Annotated[
        list[Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]], Meta(max_length=PARTITIONS_MAX)
    ]
)
_scans = msgspec.msgpack.Decoder(Scan)
_topologies = msgspec.msgpack.Encoder()


class NodeService:
    """Implements `transport.server.Service` for a node."""

    def __init__(
        self,
        driver: NodeDriver,
        cluster: str,
        log: Callable[..., None],
        audit: AuditLog,
        keys: KeyFile | None = None,
    ) -> None:
        self.driver = driver
        self.cluster = cluster
        self.node = driver.node.id
        self.log = log
        self._audit = audit
        self._keys = keys
        self._shelved_bytes = driver.settings.participant.shelved_bytes
        self._decoders: dict[int, Decoder] = {}
        self._encoded: tuple[Topology | None, bytes] = (None, b"")
        self._zones: tuple[object, dict[str, str]] = (None, {})
        self._calls: Mapping[str, tuple[tuple[Role, ...], Callable[[Identity, bytes], bytes]]] = {
            "topology": (("client", "admin", "node", "coordinator"), self._topology),
            "status": (("client", "admin"), self._status),
            "agreed": (("client", "admin"), self._agreed),
            "state": (("client", "admin"), self._state),
            "runs": (("client", "admin"), self._runs),
            "facts": (("client", "admin"), self._facts),
            "digests": (("admin",), self._digests),
            "replica": (("admin", "mover"), self._replica),
            "comparison_tokens": (("admin",), self._comparison_tokens),
            "request": (("admin",), self._request),
            "ask": (("admin",), self._ask),
            "asked": (("client", "admin"), self._asked),
        }

    def encoder(self, kind: str) -> Encode:
        """Clients know their tables; for others, definitions precede the first rows."""
        return Encoder(define=kind != "client").frames

    def size_of(self, message: Any) -> int:
        return size_of(message)

    # --- streams

    def opened(self, inbound: Inbound) -> None:
        kind = inbound.hello.kind
        decoder = Decoder(self.driver.tables.by_fingerprint, kind != "client", kind)
        self._decoders[id(inbound)] = decoder
        self.driver.peers.add(inbound)

    def closed(self, inbound: Inbound) -> None:
        self._decoders.pop(id(inbound), None)
        self.driver.peers.remove(inbound)

    def received(self, inbound: Inbound, frame: pa.Buffer) -> None:
        share = PATIENT.get(inbound.hello.kind)
        if share is not None and self.driver.store.is_behind(share):
            self._wait_for_room(share)
        decoder = self._decoders[id(inbound)]
        said = decoder(frame)
        if inbound.hello.kind == "client":
            self._serve(inbound, said, decoder.lone)
        else:
            for each in said:
                if isinstance(each, SessionMessage) and inbound.hello.kind == "mover":
                    inbound.check_session(each.partition, each.session)
                if isinstance(each, Chunk) and each.rows.bytes < self._shelved_bytes:
                    each.rows.digest()  # computed here, where only the mover waits for it
            self.driver.peers.heard(inbound.name)
            self.driver.deliver_all(
                [Received(inbound.name, each) for each in said if isinstance(each, Message)]
            )

    def _wait_for_room(self, share: float) -> None:
        """Wait here, where only this caller is held up, not under the node's lock."""
        with suppress(VolumeFailed):  # the write itself reports the failure
            self.driver.store.wait_for_room(share)

    def _serve(self, inbound: Inbound, said: list[Message | Unreadable], lone: bool) -> None:
        writes: list[Write] = []
        for request in said:
            match request:
                case Write():
                    writes.append(request)
                case Read():
                    inbound.link.reply(self._read(request))
                case Unreadable(id=id, error=UnknownSchema(fingerprint=schema)) if (
                    self.driver.may_learn(schema)
                ):
                    inbound.link.reply(Wait(id, "the table is not known here yet"))
                case Unreadable(id=id, error=error):
                    inbound.link.reply(refusal(id, error))
                case _:
                    raise Forbidden(
                        f"a client can't send {type(request).__name__}",
                        "check the client's version",
                    )
        if writes:
            self._write(inbound, writes, lone)

    def _read(self, request: Read) -> Answer:
        try:
            answer = self.driver.reader.read(request)
        except LimosaError as error:
            return refusal(request.id, error)
        if isinstance(answer, Wait):
            self.driver.deliver(Ticked())
        return answer

    def _write(self, inbound: Inbound, requests: list[Write], lone: bool) -> None:
        """Write the requests of a frame together: they share one wait, and usually one sync."""
        sizes = {each.id: sum(batch.bytes for batch in _batches(each)) for each in requests}
        inbound.take_up(sizes)  # first, since it may block
        hash_together(batch for each in requests for batch in _batches(each))
        checked: list[Write] = []
        for request in requests:
            try:
                checked.append(self._checked(inbound.identity, request))
            except LimosaError as error:
                inbound.settle((request.id,))
                inbound.link.reply(refusal(request.id, error))
            else:
                self.driver.traffic.wrote(request.partition, len(request.rows))
                if any(batch.deleted is not None for batch in _batches(request)):
                    self.driver.note_deletes(request.partition)
        for first in range(0, len(checked), TOGETHER_MAX):
            some = checked[first : first + TOGETHER_MAX]
            self.driver.write(inbound.name, some, lone)

    def _checked(self, identity: Identity, request: Write) -> Write:
        """The write in the form that the participant may receive."""
        _check_sequence(request)
        rows = request.rows
        assert isinstance(rows, Bundle)
        if not rows.batches:
            raise BadInput("a write without rows", "send at least one row")
        if request.expected is not None:
            if len(rows) != 1:
                raise BadInput("a compare-and-set of several rows", "send one row at a time")
            rows.batches[0].key(0)  # refuses a key that Python can't represent
        size = sum(batch.bytes for batch in rows.batches)
        if size > WRITE_BYTES_MAX:
            raise TooManyBytes(
                f"a write has {size:,} bytes, and a write may have {WRITE_BYTES_MAX:,}",
                "write fewer rows at once",
            )
        for batch in rows.batches:
            check_rows(batch.table.id, batch.columns, batch.bytes)
        producer = producer_of(identity, request.producer)
        topology = self.driver.brain.topology
        zones = (self._zone_of(topology, batch.table.id) for batch in rows.batches)
        checked = admissible(topology, replace(request, producer=producer), zones)
        if checked.version == request.version and not all(
            batch.lies_in(request.range) for batch in rows.batches
        ):
            raise BadInput(
                "rows belong to another partition",
                "hash and route keys as the client library does",
            )
        return checked

    def _zone_of(self, topology: Topology, table: str) -> str | None:
        if self._zones[0] is not topology.tables:
            zones = {named.id: named.zone for named in topology.tables.values()}
            self._zones = (topology.tables, zones)
        return self._zones[1].get(table)

    # --- scans

    def scan(self, identity: Identity, ticket: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if is_replica_scan(ticket):
            identity.must_be("admin", "mover")
            return read_replica(self.driver.store, ticket, partial(_check_comparison, identity))
        identity.must_be("client", "admin")
        if len(ticket) > TICKET_BYTES_MAX:
            raise too_long(len(ticket))
        try:
            scan = _scans.decode(ticket)
        except (ValueError, RecursionError):
            raise BadInput("malformed ticket of a scan", "check the client's version") from None
        table = self.driver.tables.by_fingerprint(scan.table)
        if table is None:
            if self.driver.may_learn(scan.table):
                raise Redirected("the table is not known here yet", "ask again")
            raise unknown_schema(scan.table)
        schema = table.columns
        if scan.columns is not None:
            unknown = [name for name in scan.columns if name not in table.names]
            if unknown:
                raise BadInput(
                    f"no such columns: {', '.join(unknown)[:NAME_LENGTH_MAX]}",
                    "use columns of the table",
                )
            if not 0 < len(scan.columns) == len(set(scan.columns)):
                raise BadInput(
                    "a scan has no columns, or one of them twice", "name each column once"
                )
            schema = pa.schema([schema.field(name) for name in scan.columns])
        batches = self.driver.reader.scan(scan, table)
        return schema, (piece.cast(schema) for batch in batches for piece in in_pieces(batch))

    # --- calls

    def act(self, identity: Identity, name: str, body: bytes) -> bytes:
        known = self._calls.get(name)
        if known is None:
            raise BadInput(
                f"no such call: {name[:NAME_LENGTH_MAX]!r}", "check the client's version"
            )
        roles, call = known
        identity.must_be(*roles)
        return call(identity, body)

    def _topology(self, caller: Identity, body: bytes) -> bytes:
        """The applied topology; empty if the caller has it already."""
        topology = self.driver.brain.topology
        if body and int.from_bytes(body, "little") >= topology.generation:
            return b""
        if self._encoded[0] is not topology:
            self._encoded = (topology, _topologies.encode(topology))
        return self._encoded[1]

    def _status(self, caller: Identity, body: bytes) -> bytes:
        driver = self.driver
        brain = driver.brain
        lease = brain.lease
        sizes = driver.store.sizes()
        rates = driver.traffic.rates
        replicas = [
            {
                "partition": partition,
                "incarnation": incarnation,
                "volume": held.replica.volume,
                "epoch": held.epoch,
                "last": held.last,
                "watermark": held.watermark,
                "owner": (owner := brain.owners.get(partition)) is not None
                and owner.held is held
                and owner.open,
                "rows": sizes.get((partition, incarnation), NOTHING).rows,
                "bytes": sizes.get((partition, incarnation), NOTHING).bytes,
                "damaged": held.damaged,
                "written_a_second": rates.get(partition, (0.0, 0.0))[0],
                "read_a_second": rates.get(partition, (0.0, 0.0))[1],
            }
            for (partition, incarnation), held in sorted(brain.held.copy().items())
        ]
        refused = driver.store.refused
        return json.dumps(
            {
                "node": self.node,
                "cluster": self.cluster,
                "version": version("limosa"),
                "time": time.time(),
                "generation": brain.topology.generation,
                "lease": None if lease is None else lease.id,
                "lease_seconds_left": 0.0
                if lease is None
                else max(0.0, lease.valid_until - driver.now()),
                "replicas": replicas,
                "free_bytes": driver.store.free_bytes(),
                "refused": [f"{r.what}: {r.why}" for r in refused],
                "refused_disks": [f"{r.what}: {r.why}" for r in refused if r.is_disk],
                "troubles": driver.store.troubles,
                "keys": self._key_troubles(),
                "surprises": dict(driver.surprises),
                "threads": threading.active_count(),
                "vitals": msgspec.to_builtins(brain.vitals.seen(driver.now())),
            }
        ).encode()

    def _key_troubles(self) -> list[str]:
        """Why the secret's file can't be read again; the node goes on with the keys it has read."""
        trouble = "" if self._keys is None else self._keys.trouble
        return [trouble] if trouble else []

    def _agreed(self, caller: Identity, body: bytes) -> bytes:
        """What the topology does not contain: live nodes, the coordinator, the lock, requests."""
        agreed = self.driver.agreed
        holder = agreed.coordinator
        return json.dumps(
            {
                "revision": agreed.revision,
                "generation": agreed.topology.generation,
                "live": sorted(agreed.leases),
                "coordinator": None if holder is None else holder.holder,
                "locked": agreed.controls.locked,
                "pipeline": "" if agreed.pipeline is None else agreed.pipeline.words,
                "requests": [
                    {
                        "id": request.id,
                        "kind": request.kind,
                        "state": request.state,
                        "answer": request.answer,
                        "asked": request.asked,
                        "answered": request.answered,
                        "about": request.about,
                        "author": request.author,
                        "revision": agreed.revision_of(request_key(request.id)),
                    }
                    for request in agreed.requests.values()
                ],
            }
        ).encode()

    def _state(self, caller: Identity, body: bytes) -> bytes:
        """The agreed state of one partition."""
        return _topologies.encode(about(self.driver.agreed, _name_in(body)))

    def _runs(self, caller: Identity, body: bytes) -> bytes:
        """The agreed state of the whole cluster, and the moves of one run."""
        return _topologies.encode(about_run(self.driver.agreed, _name_in(body)))

    def _facts(self, caller: Identity, body: bytes) -> bytes:
        """The status for the coordinator, of one partition or all; empty without a lease."""
        if not body:
            self.driver.look_for_room()  # plans need current measurements
        status = self.driver.status()
        if status is None:
            return b""
        return Encoder(define=False)([status_about(status, _name_in(body))])

    def _digests(self, caller: Identity, body: bytes) -> bytes:
        """Volume, number of rows and digest of every replica on this node."""
        out = []
        for (partition, incarnation), held in sorted(self.driver.brain.held.copy().items()):
            view = self.driver.store.view(partition, incarnation)
            with self.driver.noticing(partition, incarnation):
                rows = sum(view.count(table.table) for table in view.tables.values())
                digest = str(view.digest())
            out.append(
                {
                    "partition": partition,
                    "incarnation": incarnation,
                    "watermark": view.watermark,
                    "last": held.last,
                    "rows": rows,
                    "digest": digest,
                }
            )
        return json.dumps(out).encode()

    def _replica(self, caller: Identity, body: bytes) -> bytes:
        """Rough contents of one replica; a `ReplicaScan` reads its rows."""
        check = partial(_check_comparison, caller)
        return holding(self.driver.store, self.driver.brain.topology, body, check)

    def _comparison_tokens(self, caller: Identity, body: bytes) -> bytes:
        """A token for each of these partitions, with which a task may compare its replicas."""
        try:
            partitions = _partition_names.decode(body)
        except ValueError:
            raise BadInput("malformed names of partitions", "check the client's version") from None
        if self._keys is None:
            return msgspec.msgpack.encode(ComparisonTokens())
        now, keys = time.time(), self._keys.current()
        tokens = tuple(
            issue(
                keys,
                self.cluster,
                f"compare:{caller.subject}"[:SUBJECT_LENGTH_MAX],
                "mover",
                COMPARISON_SECONDS,
                now,
                ((partition, COMPARISON),),
            )
            for partition in partitions
        )
        return msgspec.msgpack.encode(ComparisonTokens(tokens))

    def _request(self, caller: Identity, body: bytes) -> bytes:
        """Store a request for the coordinator, and wait for the answer."""
        request = _read_request(caller, body)
        with self._audited(caller, request) as audited:
            answered = self._put(request, lambda known: known.state != "waiting", REQUEST_SECONDS)
            audited.answer = answered
        if answered is None:
            raise OutcomeUnknown(
                "no coordinator answered the request in time",
                "the request is stored and will be answered: start a coordinator, then look again",
            )
        if answered.state == "refused":
            raise IllegalRequest(answered.answer)
        return encode(answered)

    def _ask(self, caller: Identity, body: bytes) -> bytes:
        """Store a request for the coordinator; returns the stored record of that id."""
        request = _read_request(caller, body)
        with self._audited(caller, request) as audited:
            row = self._put(request, lambda known: True, ASK_SECONDS)
            audited.answer = row
        if row is None:
            raise OutcomeUnknown("the request was not seen in time", "look it up by its id")
        return encode(row)

    def _asked(self, caller: Identity, body: bytes) -> bytes:
        """A request's record; empty if there is none."""
        row = self.driver.agreed.requests.get(_name_in(body))
        return b"" if row is None else encode(row)

    @contextmanager
    def _audited(self, caller: Identity, request: Request) -> Iterator["AuditedRequest"]:
        """Write to the audit log who asks for what before it is stored, and then the answer."""
        facts: dict[str, Any] = {
            "author": request.author,
            "role": caller.role,
            "proof": caller.proof,
            "token": caller.token_id,
            "operation": request.id,
        }
        self._audit.write("asked", **facts, request=request.kind, body=request.what)
        audited = AuditedRequest()
        try:
            yield audited
        finally:
            answer = audited.answer
            try:
                self._audit.write(
                    "answered",
                    **facts,
                    state="unknown" if answer is None else answer.state,
                    answer="" if answer is None else answer.answer,
                )
            except LimosaError as error:  # the change is already requested
                self.log("not in the audit log", operation=request.id, error=str(error))

    def _put(
        self, request: Request, is_enough: Callable[[Request], bool], seconds: float
    ) -> Request | None:
        """The request's record once it satisfies the caller; None: timeout."""
        failure: list[LimosaError] = []

        def put(store: AgreedStore) -> None:
            try:
                key = request_key(request.id)
                store.commit(Commit({key: 0}, (Put(request),), f"request {request.id}"))
            except StaleGuard:
                pass  # sent before, perhaps through another node
            except LimosaError as error:
                failure.append(error)

        self.driver.watcher.do(put)
        deadline = self.driver.now() + seconds
        while self.driver.now() < deadline:
            known = self.driver.agreed.requests.get(request.id)
            if known is not None and is_enough(known):
                return known
            if failure:
                raise failure[0]
            time.sleep(0.01)
        return None


class AuditedRequest(Struct):
    """A request that is being stored, and the answer that its caller will get."""

    answer: Request | None = None


def _check_comparison(caller: Identity, partition: str) -> None:
    caller.must_be_for(((partition, COMPARISON),))


def author_of(caller: Identity, claimed: str) -> str:
    """The authenticated caller, and for whom the caller says it asks: the admin service names its
    own caller."""
    if not claimed.isprintable() or len(claimed) > NAME_LENGTH_MAX:
        raise BadInput("the author of a request is not a name", "use printable characters")
    return f"{claimed} via {caller.subject}" if claimed else caller.subject


def _read_request(caller: Identity, body: bytes) -> Request:
    try:
        request = decode(body)
    except (ValueError, RecursionError, InvalidLayout):
        raise BadInput("this is no request", "send a record of kind Request") from None
    if not isinstance(request, Request) or request.state != "waiting":
        raise BadInput("this is no request", "send a record of kind Request that waits")
    if not 0 < len(request.id) <= NAME_LENGTH_MAX or not _WORD.fullmatch(request.id):
        raise BadInput("a request's id has invalid characters", "use letters, digits and dashes")
    if isinstance(request.what, JoinCluster):
        raise Forbidden("a node can only join by itself", "start the node")
    _check_names(request)
    if isinstance(request.what, CreateTable):
        _check_definition(request.what.table)
    return replace(request, author=author_of(caller, request.author))


def producer_of(identity: Identity, name: str) -> str:
    """An authenticated caller has its own names: no other caller can use its sequences."""
    return name if identity.proof == "nothing" else f"{identity.subject}\n{name}"


def _check_sequence(request: Write) -> None:
    if not 0 < len(request.producer) <= PRODUCER_LENGTH_MAX or "\n" in request.producer:
        raise BadInput(
            "a write without a valid producer name", f"use 1 to {PRODUCER_LENGTH_MAX} characters"
        )
    if not 0 < request.sequence <= SEQUENCE_MAX:
        raise BadInput("a write without a valid sequence", "count from 1")
    if not (0 <= request.after < request.sequence and 0 <= request.floor <= request.sequence):
        raise BadInput(
            f"sequence {request.sequence} after {request.after} with floor {request.floor}",
            "a write's sequence must be above `after` and not below its floor",
        )


def _check_names(request: Request) -> None:
    """Refuse names that can't be keys of the metastore: the coordinator would retry for ever."""
    for name in (request.fingerprint, *_names_in(request.what)):
        if len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise BadInput(
                f"{name[:40]!r} is not a valid name",
                f"use at most {NAME_LENGTH_MAX} printable characters",
            )


def _names_in(value: object) -> Iterator[str]:
    """Every text in a wish; a plan is checked when its run starts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _names_in(each)
    elif isinstance(value, Struct) and not isinstance(value, RunPlan):
        yield from _names_in(astuple(value))


def _name_in(body: bytes) -> str:
    try:
        return body[: 4 * NAME_LENGTH_MAX].decode()
    except UnicodeDecodeError:
        raise BadInput("a name is not text", "check the client's version") from None


def _check_definition(named: NamedTable) -> None:
    """Every node and client decodes agreed definitions: an invalid one would stop them all."""
    if Table.decode(named.definition).id != named.id:
        raise InvalidSchema(
            "the definition is of another table", "encode the table that the request names"
        )


def _batches(request: Write) -> tuple[Batch, ...]:
    assert isinstance(request.rows, Bundle)
    return request.rows.batches


def refusal(request: str, error: LimosaError) -> Refuse:
    return Refuse(request, error.message, type(error).__name__, error.advice)
