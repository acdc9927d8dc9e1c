"""A service before a fake cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.fakes import FakeRuns, Stand


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path, FakeRuns())
    yield made
    made.service.close()
