"""Statuses on a link: what arrives is what was said, also if an earlier version said it."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core.messages import WHOLE_STATUS, Look, ReplicaStatus, Status
from limosa.core.model.topology import Replica
from limosa.errors import BadInput
from limosa.protocol.statuses import DigestNews, StatusNews, packed, unpacked
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
    st.just(()),
    st.integers(WHOLE_STATUS, 2),
    st.lists(names, max_size=2).map(tuple),
)


@pytest.mark.thorough
@settings(max_examples=200)
@given(st.lists(st.lists(statuses, max_size=3), max_size=6))
def test_statuses_arrive_as_they_were_said(frames: list[list[Status]]) -> None:
    encoder = Encoder(define=True)
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    for said in frames:
        assert decoder(pa.py_buffer(encoder(said))) == said


def test_a_digest_of_a_replica_that_is_not_named_is_refused() -> None:
    news = packed(Status("n1", 7, 1, 1, {}, {}))
    for place in (-1, 0):
        odd = DigestNews("p", place, "s", 1, "ff")
        fields = [getattr(news, name) for name in StatusNews.__struct_fields__]
        fields[StatusNews.__struct_fields__.index("digests")] = (odd,)
        with pytest.raises(BadInput, match="does not name"):
            unpacked(StatusNews(*fields))


def test_a_look_of_an_earlier_version_asks_for_a_whole_status() -> None:
    """Its coordinator does not say what it knows."""
    encoder = Encoder(define=True)
    decoder = Decoder(lambda fingerprint: None, trusted=True)
    frame = encoder([Look(7, whole=False)])
    assert decoder(pa.py_buffer(frame)) == [Look(7, whole=False)]
    assert Look(7).whole
