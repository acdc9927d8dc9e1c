"""Does every record survive being written down, and nothing else pass for one?"""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.core.model.codec import decode, encode
from limosa.core.model.intent import Assignment, Intent, Placement, Request, RequestKind
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.runs import (
    Controls,
    Estimate,
    Limits,
    PlannedMove,
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
TRANSITIONS = st.builds(
    Transition,
    *(NAMES, KINDS, NAMES, MANY_REPLICAS, st.none() | NAMES, SECONDS, st.booleans(), NAMES),
    *(SECONDS, SECONDS, SECONDS, SECONDS),
)
LAYOUTS = st.sets(st.integers(TOKEN_MIN + 1, TOKEN_END - 1), max_size=5).map(
    lambda more: Layout(
        "z", 3, (TOKEN_MIN, *sorted(more)), tuple(f"p{n}" for n in range(len(more) + 1))
    )
)
MEMBERS = st.builds(
    Node,
    *(NAMES, NAMES, NAMES, NAMES, NAMES, SOME_NAMES, st.booleans()),
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
        st.sampled_from(get_args(RequestKind)),
        NAMES,
        PLACES,
        SOME_NAMES,
        SECONDS,
        COUNTS,
        NAMES,
        COUNTS,
        st.sampled_from(["waiting", "done", "refused"]),
        *(NAMES, NAMES, st.none() | TABLES, NAMES, COUNTS, COUNTS, st.none() | MEMBERS, NAMES),
        *(SECONDS, st.booleans(), NAMES, st.none() | PLACE),
        *(st.none() | PLANS, SOME_NAMES, st.booleans()),
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
        Report,
        *(NAMES, NAMES, KINDS, st.sampled_from(["done", "reverted"]), NAMES),
        *(MANY_REPLICAS, MANY_REPLICAS, SECONDS, SECONDS, SECONDS, SOME_NAMES, COUNTS),
    ),
    Pipeline: st.builds(
        Pipeline, NAMES, st.sampled_from(["off", "starting", "ready", "failed"]), NAMES, SECONDS
    ),
    Mark: st.builds(Mark, NAMES),
}


def test_every_kind_of_record_is_tried() -> None:
    assert set(RECORDS) == set(Record.__subclasses__())


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
    assert "is no record of Limosa" in caught.value.message
    assert "newer version" in caught.value.advice


def test_a_layout_with_a_gap_can_not_be_read_either() -> None:
    with pytest.raises(InvalidLayout):
        decode(b'{"type":"Layout","zone":"z","version":1,"starts":[0],"partitions":["p"]}')


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode(data)


def test_a_request_from_before_there_were_times_is_read() -> None:
    old = b'{"type":"Request","id":"r","kind":"unlock","state":"done","answer":"unlocked"}'
    assert decode(old) == Request("r", "unlock", state="done", answer="unlocked")


def test_a_record_is_readable_json() -> None:
    read = msgspec.json.decode(encode(NodeLease("n", 3)))
    assert read == {"type": "NodeLease", "node": "n", "lease": 3}
