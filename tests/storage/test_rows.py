"""Are rows split as their layout says, in one pass, and without losing their order?"""

from random import Random

import numpy as np
import pytest

from limosa.core.lookup import Lookup
from limosa.core.model.rows import ENTRY_BYTES, Entry, Starts
from limosa.tabular.rows import Batch, Bundle, hash_together
from tests.storage.samples import birds, gone, songs, versioned

MIN = -(2**63)


def starts(*inner: int) -> Starts:
    return Starts((MIN, *inner))


def keys(bundle: Bundle) -> list[object]:
    return [batch.key(row) for batch in bundle.batches for row in range(len(batch))]


@pytest.mark.parametrize("seed", range(5))
def test_each_partition_gets_its_own_rows_in_their_order(seed: int) -> None:
    dice = Random(seed)
    names = [f"bird {dice.randrange(1000)}" for _ in range(100)]
    some = birds(*((name, number) for number, name in enumerate(names)))
    flags = np.array([dice.random() < 0.3 for _ in names], np.bool_)
    versions = list(range(len(names)))
    marked = Batch(some.table, some.columns, some.tokens, versioned(some, versions).versions, flags)
    bundle = Bundle([marked, songs(*((name, 1) for name in names[:10])), gone("wren", "rook")])
    layout = starts(*sorted(dice.randrange(MIN, 2**63) for _ in range(dice.randrange(7))))
    bounds = (*layout.starts, 2**63)
    shares = bundle.split(layout)
    assert [index for index, _ in shares] == sorted({index for index, _ in shares})
    assert sum(len(part) for _, part in shares) == len(bundle)
    assert sum(part.digest() for _, part in shares) == bundle.digest()
    for index, part in shares:
        for batch in part.batches:
            assert ((bounds[index] <= batch.tokens) & (batch.tokens < bounds[index + 1])).all()
            if batch.versions is not None and batch.table is some.table:
                assert batch.versions.tolist() == sorted(batch.versions.tolist())
    if len(layout.starts) == 1:
        assert shares[0][1] is bundle
    assert bundle.split(layout)[0][0] == shares[0][0]
    assert isinstance(layout.prepared, Lookup) or len(layout.starts) == 1


def test_what_one_partition_gets_alone_is_not_copied() -> None:
    bundle = Bundle([birds(("wren", 5), ("rook", 4))])
    alone = starts(2**63 - 1)
    assert bundle.split(alone) == [(0, bundle)]
    single = Bundle([birds(("wren", 5))])
    ((index, same),) = single.split(starts(0))
    assert same is single
    assert index == int(single.batches[0].tokens[0] >= 0)
    assert keys(same) == [("wren",)]
    assert Bundle().split(alone) == []


def test_the_size_of_an_entry_is_that_of_its_rows_and_a_little_more() -> None:
    bundle = Bundle([birds(("wren", 5)), songs(("wren", 1))])
    assert bundle.bytes == sum(batch.bytes for batch in bundle.batches) > 0
    assert Entry(1, 0, bundle).bytes == ENTRY_BYTES + bundle.bytes
    assert Entry(1, 0, None).bytes == ENTRY_BYTES
    assert Entry(1, 0, None, "a producer").bytes == ENTRY_BYTES + len("a producer")


def test_tokens_of_many_batches_are_those_of_each() -> None:
    """Worked out together, they are the same; a batch that is alone is left alone."""
    some = [birds((f"bird {n}", n), (f"other {n}", n)) for n in range(5)]
    alone = songs(("a", 1))
    hash_together([*some, alone])
    assert alone.given_tokens is None
    for batch in some:
        assert batch.given_tokens is not None
        assert batch.tokens.tolist() == Batch(batch.table, batch.columns).tokens.tolist()
