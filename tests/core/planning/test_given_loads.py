"""What may a load source say, and what does it replace?"""

import math

import pytest

from limosa.core.planning.load import GIVEN, Load, as_given, check_load
from limosa.core.planning.situation import Rules
from limosa.errors import BadInput


def test_a_given_load_replaces_the_measured_figures_but_not_the_size() -> None:
    """F69: the size is still needed for the space on a disk."""
    measured = {"p": Load(1 << 20, 5.0, 7.0), "q": Load(1 << 30, 1.0, 1.0)}
    told = as_given(measured, {"p": 3.0, "dropped": 9.0})
    assert told == {"p": Load(1 << 20, 3.0, 0.0), "q": Load(1 << 30, 0.0, 0.0)}
    assert (GIVEN.bytes, GIVEN.reads) == (0.0, 0.0)
    assert GIVEN.writes > 0
    assert GIVEN.replicas == Rules().weights.replicas


def test_numbers_of_any_kind_are_taken() -> None:
    assert check_load({"p": 3, "q": 0.5, "r": 0}) == {"p": 3.0, "q": 0.5, "r": 0.0}


@pytest.mark.parametrize(
    "told",
    [None, [1.0], {"p": -1.0}, {"p": math.nan}, {"p": math.inf}, {"p": "3"}, {"p": True}, {1: 1.0}],
)
def test_anything_else_is_refused(told: object) -> None:
    with pytest.raises(BadInput, match="it returned"):
        check_load(told)
