"""The board that plans are made on keeps its books while replicas come and go."""

from typing import cast

import numpy as np

from limosa.core.model.topology import Zone
from limosa.core.planning.board import Board
from limosa.core.planning.census import Census
from limosa.core.planning.load import Load, fair_level
from limosa.core.planning.plan import Reason
from limosa.core.planning.rebalance import in_order, moves_of
from limosa.core.planning.situation import Rules, Situation
from tests.core.planning.clusters import ZONE, nodes, partition, situation

NODES = ("a", "b", "c", "d")
A, B, C, D = range(4)


def board_of(found: Situation) -> Board:
    return Board(Census(found, Rules()))


def three_of_two(size: int = 100) -> Situation:
    """p on a and b, q on a, with room for two and a half more on each."""
    records = [partition("p", "a", "b"), partition("q", "a")]
    free = {name: {"": 250 * size // 100} for name in NODES}
    loads = {"p": Load(size), "q": Load(size)}
    return situation(nodes(*NODES), records, loads, [Zone(ZONE, 2)], free_bytes=free)


def test_what_goes_on_is_not_expected_any_more_where_it_was_expected() -> None:
    board = board_of(three_of_two())
    free, load = board.free.copy(), board.load.copy()
    board.move(0, C, "load")
    assert board.room[C] == 130
    board.move(0, D, "load")
    assert (board.room[C], board.room[D]) == (250, 130)
    assert [(move.source, move.target.node) for move in moves_of(board)] == [("a", "d")]
    board.put(0, A, A, "load")
    assert (board.free == free).all()
    assert (board.load == load).all()
    assert moves_of(board) == []


def test_a_replica_may_go_where_another_has_left_and_then_goes_second() -> None:
    """b's replica comes to a, when a's has gone to c; but never to and fro between the same."""
    board = board_of(three_of_two())
    board.move(0, C, "load")
    assert board.open_to(1).tolist() == [True, False, False, True]
    board.move(1, A, "racks")
    assert board.open_to(0).tolist() == [False, False, False, True]
    moves = sorted(moves_of(board), key=lambda move: move.why, reverse=True)
    assert [(move.source, move.target.node) for move in moves] == [("b", "a"), ("a", "c")]
    assert [move.source for move in in_order(moves)] == ["a", "b"]


def test_the_most_pressing_reason_is_told() -> None:
    board = board_of(three_of_two())
    for why, told in (("load", "load"), ("racks", "racks"), ("volumes", "racks")):
        board.move(0, C if board.node[0] != C else D, cast(Reason, why))
        assert [move.why for move in moves_of(board)] == [told]


def test_small_zones_are_counted_when_they_are_needed_and_large_ones_are_kept_counted() -> None:
    members = nodes(*(f"n{at:02d}" for at in range(20)))
    small, large = Zone("small", 1), Zone("large", 1)
    records = [partition("s", "n00", zone="small")]
    records += [partition(f"l{at}", "n00", zone="large") for at in range(9)]
    board = board_of(situation(members, records, zones=[small, large]))
    for zone, first, count in ((0, 0, 9), (1, 9, 1)):
        assert board.count_in_zone(zone)[:3].tolist() == [count, 0, 0]
        board.move(first, 1, "load")
        assert board.count_in_zone(zone)[:3].tolist() == [count - 1, 1, 0]


def test_a_fair_level_leaves_out_what_cant_be_divided() -> None:
    assert fair_level(100, 4, np.array([10] * 10)) == 25
    assert fair_level(100, 4, np.array([70, 10, 10, 10])) == 10
    assert fair_level(100, 2, np.array([60, 40])) == 40
    assert fair_level(0, 3, np.array([], np.int64)) == 0
