"""Statuses on a link: what is put together at its end is what was said."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.topology import Replica
from limosa.errors import BadInput
from limosa.protocol.statuses import WHOLE, StatusHearer, StatusTeller
from limosa.protocol.wire import Decoder, Encoder

few = st.integers(0, 2)
names = st.sampled_from(("p", "q", "r"))
digests = st.none() | st.tuples(st.just("s"), few, st.just(2**140))
replicas = st.builds(
    ReplicaStatus,
    st.just(Replica("n1", "i1")),
    few,
    few,
    few,
    st.just(0),
    st.none(),
    digest=digests,
)
statuses = st.builds(
    Status,
    st.just("n1"),
    st.integers(1, 2),
    few,
    few,
    st.dictionaries(names, few),
    st.dictionaries(names, st.lists(replicas, max_size=2).map(tuple)),
    st.dictionaries(st.just("volume"), few),
)


def holding(sequence: int, *partitions: str, last: int = 1) -> Status:
    held: dict[str, tuple[ReplicaStatus, ...]] = {
        name: (ReplicaStatus(Replica("n1", "i1"), 1, last, 1),) for name in partitions
    }
    return Status("n1", 7, sequence, 1, {}, held)


@settings(max_examples=200)
@given(st.lists(st.lists(statuses, max_size=3), max_size=6))
def test_statuses_arrive_as_they_were_said(frames: list[list[Status]]) -> None:
    encoder = Encoder(define=True)
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    for said in frames:
        assert decoder(pa.py_buffer(encoder(said))) == said


def test_only_what_changed_is_said() -> None:
    tell = StatusTeller()
    first = tell(holding(1, "p", "q", "r"))
    assert (first.after, set(first.replicas), first.gone) == (WHOLE, {"p", "q", "r"}, ())
    changed = Status(
        "n1", 7, 2, 1, {}, {**holding(2, "p").replicas, **holding(2, "q", last=9).replicas}
    )
    news = tell(changed)
    assert (news.after, set(news.replicas), news.gone) == (1, {"q"}, ("r",))


def test_the_next_run_of_a_node_says_all_again() -> None:
    tell = StatusTeller()
    tell(holding(1, "p"))
    assert tell(Status("n1", 8, 1, 1, {}, holding(1, "p").replicas)).after == WHOLE


def test_news_of_what_was_not_heard_are_refused() -> None:
    """As when a stream was taken for another one: it is opened again, and begins with all."""
    tell, hear = StatusTeller(), StatusHearer()
    tell(holding(1, "p"))
    second = tell(holding(2, "p"))
    with pytest.raises(BadInput, match="not received"):
        hear(second)
    hear(StatusTeller()(holding(0, "p")))
    with pytest.raises(BadInput, match="not received"):
        hear(second)
