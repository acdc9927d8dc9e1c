"""Which metastores does the suite run against? Each that is listed here, the fake first."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from limosa.metastore.memory import MemoryMetastore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import Metastore
from tests.metastore.clocks import FakeClock

Opener = Callable[[], Metastore]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def open_store(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> Iterator[Opener]:
    """Opens one more handle on the same agreed state, as another process would."""
    with ExitStack() as opened:
        if request.param == "memory":
            shared = MemoryMetastore(clock)
            yield lambda: shared
        else:
            path = tmp_path / "metastore.db"
            yield lambda: opened.enter_context(closing(SqliteMetastore(path, clock)))


@pytest.fixture
def store(open_store: Opener) -> Metastore:
    return open_store()


@pytest.fixture
def other(open_store: Opener, store: Metastore) -> Metastore:
    """Another process's handle."""
    return open_store()
