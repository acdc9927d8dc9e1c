"""Does whoever follows the agreed state miss nothing, also when a record is beyond it?"""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from limosa.core.model.changes import Commit, Put, key_of
from limosa.core.model.codec import decode
from limosa.core.model.requests import StartRun
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


OLD_ROWS = Path(__file__).parents[1] / "core" / "data" / "rows_of_0_1_0.json"


def test_a_cluster_of_the_version_before_still_opens(store: Metastore) -> None:
    """Rows as version 0.1.0 wrote them are read, and what is written again is in today's form."""
    rows = [text.encode() for text in json.loads(OLD_ROWS.read_text()).values()]
    store.commit({}, {key_of(decode(row)): row for row in rows})
    agreed = AgreedStore(store).read()
    assert set(agreed.requests) == {f"r{number}" for number in range(1, 27)}
    assert agreed.requests["r16"].what == StartRun(None)
    assert agreed.topology.nodes["d"].state == "decommissioning"
    again = replace(agreed.requests["r1"], asked=9.0)
    AgreedStore(store).commit(Commit({}, (Put(again),), "written again"))
    assert AgreedStore(store).read().requests["r1"] == again
