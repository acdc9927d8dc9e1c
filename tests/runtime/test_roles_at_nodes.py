"""Who may say what to a node? Every role, on every kind of stream, with every message; and calls.

    stream         role              messages
    client         client, admin     Write, Read
    node           node (its name)   Probe, Replicate, Probed, Acked, Unheld
    coordinator    coordinator       Look, Seal, Verify, DropReplica, Link
    mover          mover (sessions)  Fetch, Chunk, End

Everything else is refused, with the reason, and changes nothing.
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import limosa
from limosa.client import Operator
from limosa.core import messages
from limosa.core.messages import Message
from limosa.core.model.codec import encode
from limosa.core.model.keys import WHOLE
from limosa.core.model.requests import LockCluster, Request
from limosa.core.model.topology import Replica
from limosa.errors import BadInput, Forbidden, LimosaError, Unauthenticated
from limosa.protocol.replica_scan import Named, ReplicaScan
from limosa.protocol.scan import Scan
from limosa.protocol.statuses import StatusNews
from limosa.protocol.wire import Encoder, FoundRow, Goodbye, Keys
from limosa.runtime.local import LocalCluster
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from limosa.transport.keys import change_keys, new_key, read_keys
from limosa.transport.server import Hello
from limosa.transport.tokens import COMPARISON, ROLES, Role, Sessions, issue
from tests.transport.attacker import Attacker, told

KINDS = ("client", "node", "coordinator", "mover")
PARTITION, SESSION = "nowhere-0000", "t@1"
SESSIONS: Sessions = ((PARTITION, SESSION),)
GARBAGE = b"\0\0\0\0 this is no frame"
# fmt: off
MAY_OPEN: dict[str, tuple[Role, ...]] = {
    "client":      ("client", "admin"),
    "node":        ("node",),
    "coordinator": ("coordinator",),
    "mover":       ("mover",),
}
MAY_SEND: dict[str, tuple[str, ...]] = {
    "client":      ("Write", "Read"),
    "node":        ("Probe", "Replicate", "Probed", "Acked", "Unheld"),
    "coordinator": ("Look", "Seal", "Verify", "DropReplica", "Link"),
    "mover":       ("Fetch", "Chunk", "End"),
}
MAY_CALL: dict[str, tuple[Role, ...]] = {
    "topology":          ("client", "admin", "node", "coordinator"),
    "status":            ("client", "admin"),
    "agreed":            ("client", "admin"),
    "state":             ("client", "admin"),
    "runs":              ("client", "admin"),
    "facts":             ("client", "admin"),
    "asked":             ("client", "admin"),
    "digests":           ("admin",),
    "replica":           ("admin", "mover"),
    "comparison_tokens": ("admin",),
    "request":           ("admin",),
    "ask":               ("admin",),
}
# fmt: on


class Guarded:
    """A node with rows, and peers in every role."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory, nodes=1, of_coordinators=["--pipeline", "threads"])
        self.cluster.start()
        assert self.cluster.secret is not None
        self.secret: str = self.cluster.secret
        self.address = self.cluster.addresses["n1"]
        self.operator: Operator = limosa.operate(self.address, secret=self.secret)
        table = self.operator.create_table("items", {"id": "int64"}, "id", partitions=1)
        table.write(pa.table({"id": list(range(100))}))
        self.table: Table = table.definition
        self.partition = self.operator.topology.layouts["items"].partitions[0]
        self.replica: Replica = self.operator.topology.partitions[self.partition].replicas[0]

    def token(self, role: str, sessions: Sessions = SESSIONS) -> str:
        """The role's name is its subject; a mover's token is for these sessions."""
        given = sessions if role == "mover" else ()
        keys, now = read_keys(self.secret), time.time()
        return issue(keys, self.cluster.cluster, role, role, 600.0, now, given)

    def peer(self, role: str, sessions: Sessions = SESSIONS) -> Attacker:
        return Attacker(self.address, self.token(role, sessions))

    def state(self) -> tuple[Any, ...]:
        """All that a message could change."""
        record = self.operator.refresh().partitions[self.partition]
        return self.operator.node_digests("n1"), record, self.operator.agreed()["requests"]


@pytest.fixture(scope="module")
def guarded(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded") / "cluster")
    try:
        yield made
    finally:
        made.operator.close()
        made.cluster.stop()


def samples(table: Table) -> list[Message]:
    """One of every message that there is; about a partition that is nowhere."""
    rows = Bundle([Batch(table, pa.record_batch({"id": pa.array([7])}))])
    held = Replica("n2", "c1")
    head = (PARTITION, "c1", SESSION, 1)
    return [
        messages.Write("w", PARTITION, 1, 1, "me", 1, 0, 0, WHOLE, rows),
        messages.Read("r", PARTITION, 1, 1, 1, Keys(table, (7,)), table.id),
        messages.Written("w", 1),
        messages.Mismatched("w", 1),
        messages.Found("r", FoundRow([7], 1)),
        messages.Redirect("w", "n2", 1, 1),
        messages.Wait("w", "because"),
        messages.Refuse("w", "because"),
        messages.Probe(PARTITION, "c1", 1, 1),
        messages.Replicate(PARTITION, "c1", 1, 1, 0, (), 0),
        messages.Probed(PARTITION, held, 1, 0, 0, 1),
        messages.Acked(PARTITION, held, 1, 1, 1),
        messages.Unheld(PARTITION, held, 1, 1, "fenced"),
        messages.Fetch(*head, 0, 1),
        messages.Fetched(PARTITION, SESSION, 0, Bundle(), 1, (), 0),
        messages.Chunk(*head, 0, "a", 0, Bundle()),
        messages.End(*head, 0, 1, "a", 0, 0, 1, ()),
        messages.Landed(PARTITION, SESSION, 0),
        messages.Denied(PARTITION, SESSION, 0, "because"),
        messages.Link(*head, "c2"),
        messages.Look(1),
        messages.Seal(PARTITION, 1),
        messages.Verify(PARTITION, SESSION),
        messages.DropReplica(PARTITION, "c1", 1),
        messages.Status("n2", 1, 1, 1, {}, {}),
        Goodbye(),
    ]


def all_messages() -> set[type[Message]]:
    """Every class of message that has no classes of its own below it, as processes send them."""

    def leaves(kind: type[Message]) -> set[type[Message]]:
        below = [each for each in kind.__subclasses__() if not each.__name__.startswith("_")]
        below = [each for each in below if each is not StatusNews]  # how a status travels
        return {kind} if not below else {leaf for each in below for leaf in leaves(each)}

    return leaves(Message)


def test_every_message_has_a_sample(guarded: Guarded) -> None:
    assert {type(each) for each in samples(guarded.table)} == all_messages()


@pytest.mark.parametrize(("role", "kind"), list(itertools.product((*ROLES, "another node"), KINDS)))
def test_a_stream_carries_the_messages_of_its_kind_for_its_role_and_no_others(
    guarded: Guarded, role: str, kind: str
) -> None:
    before = guarded.state()
    peer = guarded.peer(role.removeprefix("another "))
    name = "n9" if role == "another node" else role
    hello = Hello("", kind, name, sessions=SESSIONS if kind == "mover" else ())
    for message in samples(guarded.table):
        said = type(message).__name__
        talk = peer.open(hello)
        frame = Encoder(define=kind != "client")([message])
        if role not in MAY_OPEN[kind]:
            refused = talk.refused(frame)
            assert isinstance(refused, Forbidden), (said, refused)
            assert refused.advice
        elif said in MAY_SEND[kind]:
            talk.send(frame)
            # The frame after it is refused, so this one was not.
            refused = talk.refused(GARBAGE)
            assert isinstance(refused, BadInput), (said, refused)
            assert "may not send" not in refused.message, (said, refused)
        else:
            refused = talk.refused(frame)
            assert isinstance(refused, BadInput | Forbidden), (said, refused)
            assert f"a {kind} may not send this" in refused.message, (said, refused)
            assert refused.advice
    peer.close()
    assert guarded.state() == before


def test_a_stream_of_an_unknown_kind_is_refused_to_all(guarded: Guarded) -> None:
    for role in ROLES:
        for kind in ("", "admin", "owner", "Client"):
            refused = guarded.peer(role).open(Hello("", kind, role)).refused()
            assert isinstance(refused, BadInput)
            assert "unknown kind of stream" in refused.message


def test_a_movers_token_is_for_its_sessions_only(guarded: Guarded) -> None:
    """A token that was taken from a task reads no other partition, and not the next copy."""
    before = guarded.state()
    record = guarded.operator.topology.partitions[guarded.partition]
    peer = guarded.peer("mover")
    other = (guarded.partition, SESSION)
    for sessions in ((), (other,), (*SESSIONS, other), ((PARTITION, "t@2"),)):
        refused = peer.open(Hello("", "mover", "m", sessions=sessions)).refused()
        assert isinstance(refused, Forbidden)
        assert "is for other sessions" in refused.message
    for partition, session in (other, (PARTITION, "t@2")):
        head = (partition, guarded.replica.incarnation, session, record.epoch)
        for message in (messages.Fetch(*head, 0, 1), messages.End(*head, 0, 1, "a", 0, 0, 1, ())):
            talk = peer.open(Hello("", "mover", "m", sessions=SESSIONS))
            refused = talk.refused(Encoder(define=True)([message]))
            assert isinstance(refused, Forbidden)
            assert f"is not for session {session} of partition {partition}" in refused.message
    assert guarded.state() == before


@pytest.mark.parametrize(("role", "call"), list(itertools.product(ROLES, MAY_CALL)))
def test_a_call_is_answered_for_its_roles_and_no_others(
    guarded: Guarded, role: Role, call: str
) -> None:
    if call in ("request", "ask") and role in MAY_CALL[call]:
        return  # they change things: the next test
    bodies = {
        "state": guarded.partition.encode(),
        "replica": msgspec.msgpack.encode(Named(guarded.partition, guarded.replica.incarnation)),
        "comparison_tokens": msgspec.msgpack.encode([guarded.partition]),
        "request": encode(Request("lock-1", LockCluster("because"))),
        "ask": encode(Request("lock-1", LockCluster("because"))),
    }
    before = guarded.state()
    peer = guarded.peer(role, ((guarded.partition, COMPARISON),))
    body = bodies.get(call, b"")
    if role in MAY_CALL[call]:
        peer.act(call, body)
    else:
        refused = refusal(lambda: peer.act(call, body))
        assert isinstance(refused, Forbidden)
        assert f"has the role {role}, but needs" in refused.message
    if call == "replica" and role == "mover":
        refused = refusal(lambda: guarded.peer("mover").act(call, body))
        assert "is for other sessions" in refused.message
    assert guarded.state() == before


def refusal(act: Any) -> LimosaError:
    with pytest.raises((pa.ArrowException, OSError)) as raised:
        act()
    return told(raised.value)


@pytest.mark.parametrize("role", ROLES)
def test_rows_are_read_by_clients_and_hashes_by_those_who_compare(
    guarded: Guarded, role: Role
) -> None:
    peer = guarded.peer(role, ((guarded.partition, COMPARISON),))
    topology = guarded.operator.topology
    record = topology.partitions[guarded.partition]
    layout = topology.layouts["items"]
    scan = Scan(
        guarded.table.fingerprint,
        guarded.partition,
        layout.version,
        record.epoch,
        topology.generation,
    )
    compared = ReplicaScan(
        guarded.partition, guarded.replica.incarnation, guarded.table.encode(), ((-(2**63), 2**63),)
    ).encode()
    for ticket, roles in (
        (msgspec.msgpack.encode(scan), ("client", "admin")),
        (compared, ("admin", "mover")),
    ):
        if role in roles:
            assert peer.scan(ticket).num_rows == 100
        else:
            assert isinstance(refusal(lambda ticket=ticket: peer.scan(ticket)), Forbidden)


def test_an_open_stream_ends_when_its_secret_is_no_longer_valid(guarded: Guarded) -> None:
    """F197: rotated once, its secret still counts; rotated twice, it does not."""
    talk = guarded.peer("client").open()
    read = Encoder(define=False)([samples(guarded.table)[1]])
    assert talk.ask(read)
    for is_valid in (True, False):
        change_keys(guarded.secret, lambda ring: ring.rotated(new_key(time.time())))
        time.sleep(1.0)  # processes look at the file that often
        if is_valid:
            assert talk.ask(read)
    refused = talk.refused(read)
    assert isinstance(refused, Unauthenticated)
    assert "was replaced" in refused.message
    assert guarded.peer("client").open().ask(read)
