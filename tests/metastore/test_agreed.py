"""Does whoever follows the agreed state miss nothing, also when a record is beyond it?"""

import pytest

from limosa.core.model.changes import Commit, Put
from limosa.core.model.topology import Node
from limosa.errors import BadInput
from limosa.metastore.agreed import AgreedStore
from limosa.ports import Metastore

STRANGE = "topology/strange/1"


def add(store: AgreedStore, name: str) -> None:
    store.commit(Commit({}, (Put(Node(name)),), f"{name} is here"))


def test_after_a_record_that_cannot_be_read_everything_is_read_again(
    store: Metastore, other: Metastore
) -> None:
    """The watch has moved on when a newer version's record turns up: whatever came along with it
    would otherwise be missing for ever, at a revision that says that it is known."""
    reader, writer = AgreedStore(other), AgreedStore(store)
    add(writer, "n1")
    assert set(reader.read().topology.nodes) == {"n1"}
    add(writer, "n2")
    store.commit({}, {STRANGE: b"\xc1 of a newer kind"})
    for _ in range(3):
        with pytest.raises(BadInput, match="not a record of Limosa"):
            reader.read()
    store.commit({}, {}, [STRANGE])
    add(writer, "n3")
    agreed = reader.read()
    assert set(agreed.topology.nodes) == {"n1", "n2", "n3"}
    assert agreed == AgreedStore(store).read()
    add(writer, "n4")
    assert set(reader.read().topology.nodes) == {"n1", "n2", "n3", "n4"}, "it follows as before"
