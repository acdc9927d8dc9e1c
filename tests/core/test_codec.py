"""Does every record survive being written down, and nothing else pass for one?"""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.codec import decode, encode
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CancelRun,
    CompleteMove,
    CreateTable,
    DrainNodes,
    DropTable,
    FollowNodes,
    JoinCluster,
    LedToNodes,
    LedToRun,
    LedToTable,
    LedToTransition,
    LockCluster,
    MovePartition,
    MoveToVolume,
    PauseRun,
    RebuildReplicas,
    RemoveNode,
    RepairPartition,
    ReplaceNode,
    Request,
    RequestKind,
    ResumeRun,
    ReverseMove,
    SetBalancing,
    SetPolicy,
    SetReplicas,
    StartRun,
    UndrainNodes,
    UnlockCluster,
    Wish,
    WithdrawRequest,
)
from limosa.core.model.runs import (
    Controls,
    Estimate,
    Limits,
    PlannedMove,
    Policy,
    Rebalance,
    Run,
    RunMove,
    RunPlan,
    Totals,
)
from limosa.core.model.topology import (
    Cluster,
    CoordinatorLease,
    Features,
    Grant,
    Layout,
    Mark,
    NamedTable,
    Node,
    NodeLease,
    NodeState,
    Partition,
    Record,
    Replica,
    Transition,
    Zone,
)
from limosa.errors import BadInput, InvalidLayout

NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 2**53)
SECONDS = st.floats(0, 1e6)
KINDS = st.sampled_from(["move", "rebuild", "volume_move", "repair"])
RANGES = st.tuples(st.integers(TOKEN_MIN, TOKEN_END - 1), st.integers(1, 2**64)).map(
    lambda both: TokenRange(both[0], min(both[0] + both[1], TOKEN_END))
)
REPLICAS = st.builds(Replica, NAMES, NAMES, NAMES)
MANY_REPLICAS = st.lists(REPLICAS, max_size=3).map(tuple)
PLACES = st.lists(st.builds(Placement, NAMES, NAMES), max_size=3).map(tuple)
SOME_NAMES = st.lists(NAMES, max_size=3).map(tuple)
ASSIGNMENTS = st.builds(Assignment, KINDS, PLACES, SOME_NAMES, SECONDS, COUNTS, SECONDS)
GIVEN_UP = st.just(("", "")) | st.tuples(
    st.text(min_size=1, max_size=8), st.sampled_from(["operator", "run", "cluster"])
)
"""Why, and by whom."""
TRANSITIONS = st.builds(
    lambda change, given_up: replace(change, giving_up=given_up[0], given_up_by=given_up[1]),
    st.builds(
        Transition,
        *(NAMES, KINDS, NAMES, MANY_REPLICAS, st.none() | NAMES, SECONDS, st.booleans()),
        *(st.just(""), SECONDS, SECONDS, SECONDS, SECONDS),
    ),
    GIVEN_UP,
)
LAYOUTS = st.sets(st.integers(TOKEN_MIN + 1, TOKEN_END - 1), max_size=5).map(
    lambda more: Layout(
        "z", 3, (TOKEN_MIN, *sorted(more)), tuple(f"p{n}" for n in range(len(more) + 1))
    )
)
MEMBERS = st.builds(
    Node,
    *(NAMES, NAMES, NAMES, NAMES, st.sampled_from(get_args(NodeState)), SOME_NAMES, st.booleans()),
    *(NAMES, SOME_NAMES, NAMES),
)
PLACE = st.builds(Placement, NAMES, NAMES)
LIMITS = st.builds(Limits, COUNTS, COUNTS, COUNTS)
ESTIMATES = st.none() | st.builds(Estimate, COUNTS, SECONDS, COUNTS, SECONDS)
WHO = st.sampled_from(["operator", "balancer"])
PLANS = st.builds(
    RunPlan,
    NAMES,
    st.lists(st.builds(PlannedMove, NAMES, NAMES, PLACE), max_size=3).map(tuple),
    *(LIMITS, SECONDS, SECONDS, ESTIMATES, WHO, NAMES, SOME_NAMES, st.booleans()),
)
TABLES = st.builds(NamedTable, NAMES, NAMES, NAMES, st.binary(max_size=40))
MOVED = (NAMES, PLACES, NAMES, st.none() | PLACE, SECONDS, SECONDS)
WISHES: dict[type[Wish], tuple[st.SearchStrategy[Any], ...]] = {
    MovePartition: (*MOVED, st.booleans()),
    MoveToVolume: MOVED,
    RebuildReplicas: (NAMES, SOME_NAMES, SECONDS, SECONDS),
    RepairPartition: (NAMES,),
    CancelChange: (NAMES, COUNTS),
    ReverseMove: (NAMES,),
    CompleteMove: (NAMES,),
    SetReplicas: (NAMES, COUNTS),
    FollowNodes: (NAMES,),
    CreateTable: (TABLES, COUNTS, COUNTS, COUNTS),
    DropTable: (NAMES, NAMES),
    JoinCluster: (MEMBERS, NAMES),
    RemoveNode: (NAMES,),
    ReplaceNode: (NAMES,),
    UndrainNodes: (SOME_NAMES,),
    StartRun: (st.none() | PLANS,),
    DrainNodes: (st.none() | PLANS,),
    PauseRun: (NAMES,),
    ResumeRun: (NAMES,),
    CancelRun: (NAMES,),
    SetBalancing: (st.booleans(),),
    SetPolicy: (st.builds(Policy, st.booleans(), SECONDS, SECONDS, SECONDS),),
    LockCluster: (NAMES,),
    UnlockCluster: (),
    WithdrawRequest: (NAMES,),
}
LED_TO = st.one_of(
    st.builds(LedToTransition, NAMES, NAMES),
    st.builds(LedToRun, NAMES),
    st.builds(LedToTable, NAMES, NAMES),
    st.builds(LedToNodes, SOME_NAMES),
)
RECORDS: dict[type[Record], st.SearchStrategy[Record]] = {
    Cluster: st.builds(Cluster, NAMES, NAMES, NAMES),
    Features: st.builds(Features, SOME_NAMES),
    Node: MEMBERS,
    Zone: st.builds(Zone, NAMES, COUNTS, COUNTS, SOME_NAMES),
    NamedTable: TABLES,
    Layout: LAYOUTS,
    Partition: st.builds(
        Partition,
        NAMES,
        NAMES,
        RANGES,
        MANY_REPLICAS,
        MANY_REPLICAS,
        COUNTS,
        st.none() | st.builds(Grant, REPLICAS, COUNTS),
        COUNTS,
        st.none() | TRANSITIONS,
    ),
    Intent: st.builds(
        Intent,
        NAMES,
        PLACES,
        st.none() | ASSIGNMENTS,
        st.none() | ASSIGNMENTS,
        st.none() | COUNTS,
        COUNTS,
    ),
    Request: st.builds(
        Request,
        NAMES,
        st.one_of([st.builds(kind, *of) for kind, of in WISHES.items()]),
        st.sampled_from(["waiting", "done", "refused"]),
        NAMES,
        st.none() | LED_TO,
        *(NAMES, COUNTS, SECONDS, SECONDS),
    ),
    Rebalance: st.builds(
        Rebalance, st.sampled_from(["idle", "running", "paused", "cancelling"]), NAMES
    ),
    Run: st.builds(
        Run,
        *(NAMES, NAMES, COUNTS, WHO, NAMES, LIMITS, SECONDS, SECONDS, ESTIMATES),
        *(SOME_NAMES, st.booleans(), SECONDS, SECONDS),
        *(st.sampled_from(["", "done", "cancelled", "failed-in-part"]), NAMES),
        st.builds(Totals, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, SECONDS),
        COUNTS,
    ),
    RunMove: st.builds(
        RunMove,
        *(NAMES, COUNTS, NAMES, NAMES, PLACE),
        st.sampled_from(["PENDING", "DUAL_WRITE", "COPYING", "COMMITTED", "FAILED"]),
        *(COUNTS, COUNTS, st.booleans(), COUNTS, COUNTS, SECONDS, SECONDS, SECONDS, NAMES),
    ),
    Controls: st.builds(Controls, NAMES, st.booleans()),
    NodeLease: st.builds(NodeLease, NAMES, COUNTS),
    CoordinatorLease: st.builds(CoordinatorLease, NAMES, COUNTS),
    Report: st.builds(
        lambda report, given_up: replace(report, why=given_up[0], given_up_by=given_up[1]),
        st.builds(
            Report,
            *(NAMES, NAMES, KINDS, st.sampled_from(["done", "reverted"]), st.just("")),
            *(MANY_REPLICAS, MANY_REPLICAS, SECONDS, SECONDS, SECONDS, SOME_NAMES, COUNTS),
        ),
        GIVEN_UP,
    ),
    Pipeline: st.builds(
        Pipeline, NAMES, st.sampled_from(["off", "starting", "ready", "failed"]), NAMES, SECONDS
    ),
    Mark: st.builds(Mark, NAMES),
}


def test_every_kind_of_record_and_of_request_is_tried() -> None:
    assert set(RECORDS) == set(Record.__subclasses__())
    assert set(WISHES) == set(get_args(AnyWish))
    assert {kind.__struct_config__.tag for kind in WISHES} == set(get_args(RequestKind))


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_a_record_that_is_written_down_is_read_as_the_same(
    kind: type[Record], data: st.DataObject
) -> None:
    """Also replicas, targets, stage, kind and session of a transition."""
    record = data.draw(RECORDS[kind])
    read = decode(encode(record))
    assert type(read) is kind
    assert read == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"Stranger"}',
        b'{"type":"Node"}',
        b'{"type":"Node","id":5}',
        b'{"type":"Node","id":"n","colour":"red"}',
        b'{"type":"Request","id":"r","kind":"dance","partition":"p"}',
        encode(Node("n"))[:-1],
        encode(Node("n")) + b"}",
    ],
)
def test_bytes_that_are_no_record_are_refused_with_advice(data: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        decode(data)
    assert "is not a record of Limosa" in caught.value.message
    assert "newer version" in caught.value.advice


def test_a_layout_with_a_gap_can_not_be_read_either() -> None:
    with pytest.raises(InvalidLayout):
        decode(b'{"type":"Layout","zone":"z","version":1,"starts":[0],"partitions":["p"]}')


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode(data)


# --- rows that version 0.1.0 wrote

OLD_ROWS: dict[str, str] = json.loads(
    (Path(__file__).parent / "data" / "rows_of_0_1_0.json").read_text()
)
"""By what they are; each as the code of that version encoded it."""
SSD = Placement("d", "ssd")
PLACED = (Placement("b"), Placement("c"), SSD)
PLAN = RunPlan(
    "spread the load",
    (PlannedMove("p", "a", SSD),),
    Limits(1, 3, 5),
    2.0,
    0.05,
    Estimate(1, 2.0, 3, 0.5),
    "operator",
    "because",
)
MEMBER = Node("d", "host:1", "r1", "east", host="h4", features=("tables",), machine="m1")
OLD_WISHES: dict[str, AnyWish] = {
    "r1": MovePartition("p", PLACED, "", None, 3.0, 0.05, True),
    "r2": MovePartition("p", (), "a", SSD, 1.0),
    "r3": RebuildReplicas("p", ("a",)),
    "r4": MoveToVolume("p", (), "a", Placement("a", "ssd")),
    "r5": MoveToVolume("p", PLACED),
    "r6": RepairPartition("p"),
    "r7": CancelChange("p", 9),
    "r8": ReverseMove("p"),
    "r9": CompleteMove("p"),
    "r10": SetReplicas("z", 3),
    "r11": FollowNodes("z"),
    "r12": CreateTable(NamedTable("items", "items", "t1", b"schema"), 4, 3, 2),
    "r13": DropTable("items", "t1"),
    "r14": JoinCluster(MEMBER, "birds"),
    "r15": RemoveNode("c"),
    "r16": StartRun(PLAN),
    "r17": DrainNodes(replace(PLAN, drains=("a",), decommission=True)),
    "r18": PauseRun("r16"),
    "r19": ResumeRun(),
    "r20": CancelRun("r16"),
    "r21": UndrainNodes(("a", "b")),
    "r22": SetBalancing(False),
    "r23": SetPolicy(Policy(True, 3.0, 10.0, 20.0)),
    "r24": LockCluster("upgrade"),
    "r25": UnlockCluster(),
    "r26": WithdrawRequest("r1"),
}


def old(name: str) -> Record:
    return decode(OLD_ROWS[name].encode())


def old_request(name: str) -> Request:
    row = old(name)
    assert isinstance(row, Request)
    return row


@pytest.mark.parametrize("name", OLD_WISHES)
def test_a_request_that_an_old_cluster_left_waiting_is_read(name: str) -> None:
    row = old_request(f"{name} waiting")
    first = name == "r1"
    expected = Request(
        name, OLD_WISHES[name], fingerprint="f" if first else "", asked=5.0 if first else 0.0
    )
    assert row == expected
    assert decode(encode(row)) == row


@pytest.mark.parametrize("name", [name for name in OLD_ROWS if " done: " in name])
def test_an_answer_of_an_old_cluster_names_what_it_led_to(name: str) -> None:
    row = old_request(name)
    request, words = name.split(" done: ")
    assert (row.id, row.state, row.answer, row.trigger) == (request, "done", words, 77)
    assert row.answered == 8.0
    if isinstance(row.what, StartRun | DrainNodes):
        assert row.led_to == LedToRun("r77")
        assert row.what.plan is None
    elif row.partition and words == "accepted":
        assert row.led_to == LedToTransition("p", "t77")
    else:
        assert row.led_to is None


@pytest.mark.parametrize("name", [name for name in OLD_ROWS if " refused: " in name])
def test_a_refusal_of_an_old_cluster_led_to_nothing(name: str) -> None:
    row = old_request(name)
    assert (row.state, row.answer) == ("refused", name.split(" refused: ")[1])
    assert row.led_to is None


@pytest.mark.parametrize(
    ("why", "by"),
    [
        ("", ""),
        ("cancelled", "operator"),
        ("reversed by request", "operator"),
        ("its run was cancelled", "run"),
        ("nothing was copied for 300 s", "cluster"),
    ],
)
def test_who_gave_an_old_transition_up_is_known_by_its_sentence(why: str, by: str) -> None:
    report, record = old(f"report {why}"), old(f"partition {why}")
    assert isinstance(report, Report)
    assert (report.why, report.given_up_by) == (why, by)
    assert isinstance(record, Partition)
    assert record.transition is not None
    assert (record.transition.giving_up, record.transition.given_up_by) == (why, by)


@pytest.mark.parametrize(
    "name", ["node", "node decommissioning", "intent", "run", "run move", "controls"]
)
def test_other_old_rows_are_read_as_they_were_written(name: str) -> None:
    assert encode(old(name)).decode() == OLD_ROWS[name]


@pytest.mark.parametrize(
    ("row", "wish"),
    [
        ('"kind":"create_table"', CreateTable(NamedTable("", "", "", b""))),
        ('"kind":"join"', JoinCluster(Node(""), "")),
        ('"kind":"set_policy"', SetPolicy(Policy())),
        ('"kind":"unlock","state":"done","answer":"unlocked"', UnlockCluster()),
    ],
)
def test_an_old_request_that_leaves_something_out_is_read(row: str, wish: AnyWish) -> None:
    """Else one row that was refused long ago would keep a cluster from starting."""
    read = decode(f'{{"type":"Request","id":"r",{row}}}'.encode())
    assert isinstance(read, Request)
    assert read.what == wish


def test_a_record_is_readable_json() -> None:
    read = msgspec.json.decode(encode(NodeLease("n", 3)))
    assert read == {"type": "NodeLease", "node": "n", "lease": 3}
