"""Are the rules of eligible replicas safe, and do they always allow a recovery?

A model of one partition with three replicas, small enough to visit every state: nodes stop, start
and die, the owner's lease ends, messages and the owner's knowledge of the record are late by any
time, and the coordinator may be replaced at any point, since it remembers nothing here. A move that
drops a replica begins, ends and is given up. Each rule can be left out, and then the model finds
the loss, or a replica that has every row and can't be elected.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

ALL = (0, 1, 2)
WRITES_MAX = 1
"""With two writes there are 500,000 states, and no other result."""
MORTAL = 0
"""The node that may die for good: it is the first owner, and any role is its own later."""
DROPPED = 2
"""The node whose replica a move drops."""
UP, DOWN, DEAD = "up", "down", "dead"
Log = tuple[int, ...]
Some = frozenset[int]
NOBODY: Some = frozenset()
BOTH: Some = frozenset({0, 1})


class Owning(NamedTuple):
    """A process that owns, and the record as it has applied it."""

    node: int
    in_sync: Some
    eligible: Some
    is_current: bool = True
    is_open: bool = False
    proposed: Some = NOBODY
    acked: tuple[int, ...] = (-1, -1, -1)


class State(NamedTuple):
    """One partition: its record, its replicas, and what a client may have seen of it."""

    owner: int | None = 0
    in_sync: Some = frozenset(ALL)
    eligible: Some = NOBODY
    needed: int = 2
    replicas: int = 3
    """How many replicas the partition has."""
    nodes: tuple[str, ...] = (UP, UP, UP)
    logs: tuple[Log, ...] = ((), (), ())
    watermarks: tuple[int, ...] = (0, 0, 0)
    owning: Owning | None = None
    committed: Log = ()
    writes: int = 0
    move: str = ""
    """`under way`: the replica of one node will be dropped; `ended`: it was."""
    whole: Some = frozenset(ALL)
    """Replicas without which nothing was committed or may be: those in sync, and those that left
    since too few were, until the owner has enough others, or opens alone. All must be electable."""
    former: int | None = None
    """While an owner is elected: the one before, whose lease has ended."""
    late_status: bool = False
    """The coordinator has a status of the owner's node from before the election."""

    def readers(self) -> Some:
        there = frozenset(range(self.replicas))
        return there - {DROPPED} if self.move == "ended" else there

    def with_at(self, field: str, at: int, value: object) -> "State":
        changed = list(getattr(self, field))
        changed[at] = value
        fields: dict[str, Any] = {field: tuple(changed)}
        return self._replace(**fields)

    def commit(self, **record: Any) -> "State":
        """The record changes: its owner, if there is one, learns it later."""
        owning = None if self.owning is None else self.owning._replace(is_current=False)
        return self._replace(owning=owning, **record)

    def is_owned(self) -> bool:
        return self.owning is not None

    def has_every_row(self) -> bool:
        """A replica that has every row, and without which nothing is committed, may return."""
        return any(self.nodes[node] != DEAD for node in self.whole)

    def is_served(self) -> bool:
        return self.owning is not None and self.owning.is_open

    def is_well(self) -> bool:
        return self.is_served() and len(self.in_sync) >= self.needed


class LostError(Exception):
    """A row that a client may have seen is not there any more."""


class ForgottenError(Exception):
    """A replica has every row that was or will be committed, and can't be elected."""


class Rules(NamedTuple):
    """The protocol; each rule can be left out."""

    watermark_stops: bool = True
    """While a replica is eligible, the owner commits nothing."""
    only_since_then: bool = True
    """A replica that left while enough stayed in sync is not eligible, even if it is needed."""
    closed_proposes_equals: bool = True
    """An owner that is not open proposes only replicas that have all of its log."""
    owner_reports: bool = True
    """A replica is taken out only on a report of its owner, made in its present lease."""
    are_eligible: bool = True
    cleared: bool = True
    """Eligible replicas are cleared by the commit that brings enough in sync."""
    needed_changes: bool = False
    """An operator changes the number that is needed."""
    opens_alone: bool = True
    """Nobody is eligible beside an owner that is not open, if all replicas are needed."""
    closed_is_sure: bool = True
    """An owner counts as not open only by a status that has applied the eligible replicas, and
    that says that its log is not committed: while they are eligible, this owner can't open."""
    elected_alone: bool = True
    """While others are eligible, an elected replica is in sync alone, and all others that have
    every row are eligible: a dead owner is not counted among those in sync."""
    former_leaves: bool = True
    """An election may take the former owner out, if enough replicas, and at least two, stay in
    sync: every promise is younger than the end of its lease."""
    moves: bool = False
    """A move that drops a replica begins, ends, and is given up."""
    dropped_are_eligible: bool = True
    """A replica that a move will drop may be eligible, and returns if too few are in sync."""
    end_waits: bool = True
    """A move does not end while a replica that it drops is eligible, unless enough of those that
    stay are in sync."""
    mortals: Some = frozenset({MORTAL})


def steps(rules: Rules, state: State) -> Iterator[State]:
    yield from failures(rules, state)
    yield from coordinator(rules, state)
    if state.owning is not None:
        yield from owner(rules, state, state.owning)
    elif state.owner is not None and state.nodes[state.owner] == UP:
        yield state._replace(owning=Owning(state.owner, state.in_sync, state.eligible))


def failures(rules: Rules, state: State) -> Iterator[State]:
    owning = state.owning
    for node in ALL:
        if state.nodes[node] == DOWN:
            yield state.with_at("nodes", node, UP)
        alone = owning if owning is None or owning.node != node else None
        if state.nodes[node] == UP:
            yield state.with_at("nodes", node, DOWN)._replace(owning=alone)
        if node in rules.mortals and state.nodes[node] != DEAD:
            yield state.with_at("nodes", node, DEAD)._replace(owning=alone)
    if owning is not None:
        yield state._replace(owning=None)  # its lease ends


def coordinator(rules: Rules, state: State) -> Iterator[State]:
    owning = state.owning
    if rules.needed_changes:
        yield state._replace(needed=3 - state.needed)
        if state.eligible and len(state.in_sync) >= state.needed:
            yield state.commit(eligible=NOBODY, whole=state.in_sync)
    if rules.moves:
        yield from move(rules, state)
    if state.owner is None:
        for node in (state.in_sync | state.eligible) & state.readers():
            if state.nodes[node] == UP:
                yield from elect(rules, state, node)
        return
    if owning is None:
        yield state._replace(owner=None, former=state.owner)
    if owning is None and rules.owner_reports:
        return
    if state.eligible:
        yield with_eligible(rules, state, state.in_sync)
    gone = [n for n in state.in_sync if n != state.owner and state.nodes[n] != UP]
    for out in {frozenset(gone), *(frozenset({node}) for node in gone)}:
        yield with_eligible(rules, state, state.in_sync - out)
    if owning is not None and owning.is_current:
        for node in owning.proposed:
            if owning.acked[node] >= state.watermarks[owning.node]:
                yield with_eligible(rules, state, state.in_sync | {node})


def elect(rules: Rules, state: State, node: int) -> Iterator[State]:
    in_sync = state.in_sync | {node}
    if rules.elected_alone and state.eligible:
        in_sync = frozenset({node})
    elif rules.former_leaves and node != state.former:
        stay = in_sync - {state.former}
        if len(stay) >= max(2, state.needed) and not state.move:
            yield elected(rules, state, node, frozenset(stay))
    yield elected(rules, state, node, in_sync)


def elected(rules: Rules, state: State, node: int, in_sync: Some) -> State:
    after = with_eligible(rules, state, in_sync)._replace(owner=node, former=None)
    whole = after.whole if len(state.in_sync) >= state.needed else state.whole
    return after._replace(whole=whole, late_status=not rules.closed_is_sure)


def move(rules: Rules, state: State) -> Iterator[State]:
    """The move begins, is given up, or ends while its owner is open. An owner that is dropped hands
    over first, which is a failover here."""
    owning = state.owning
    if state.move == "":
        yield state.commit(move="under way")
    if state.move != "under way":
        return
    yield state.commit(move="")
    if owning is None or not owning.is_open or owning.node == DROPPED:
        return
    stay = state.in_sync - {DROPPED}
    if rules.end_waits and DROPPED in state.eligible and len(stay) < state.needed:
        return
    was = state._replace(in_sync=stay, move="ended")
    whole = state.whole if DROPPED in state.eligible else state.whole - {DROPPED}
    if len(stay) >= state.needed:
        whole = stay
    yield with_eligible(rules, was, stay)._replace(whole=whole)


def with_eligible(rules: Rules, state: State, in_sync: Some) -> State:
    """The record with other replicas in sync, and those that are eligible then."""
    readers = state.readers()
    here = in_sync & readers
    eligible = ((state.eligible | state.in_sync) - in_sync) & readers
    if not rules.only_since_then:
        eligible = readers - in_sync
    leaves = frozenset({DROPPED}) if state.move == "under way" else NOBODY
    if not rules.dropped_are_eligible:
        eligible -= leaves
    if not rules.are_eligible or (rules.cleared and len(here) >= state.needed):
        return state.commit(in_sync=in_sync, eligible=NOBODY, whole=in_sync)
    out = readers - in_sync
    dead = {n for n in leaves & out if state.nodes[n] != UP}
    whole = state.whole | in_sync
    missing = state.needed - len(here)
    none_is_left = len(out) <= missing or len(out - dead) < missing
    if rules.opens_alone and none_is_left:
        if is_closed(state):
            return state.commit(in_sync=in_sync, eligible=NOBODY, whole=in_sync)
        if state.late_status and not rules.closed_is_sure:
            eligible = NOBODY
    return state.commit(in_sync=in_sync, eligible=eligible, whole=whole)


def is_closed(state: State) -> bool:
    """Can the present owner not open, unless nobody is eligible any more?"""
    owning = state.owning
    if owning is None or owning.is_open or not owning.is_current or not state.eligible:
        return False
    return state.watermarks[owning.node] < len(state.logs[owning.node])


def owner(rules: Rules, state: State, owning: Owning) -> Iterator[State]:
    me = owning.node
    log, watermark = state.logs[me], state.watermarks[me]
    if not owning.is_current:
        applied = owning._replace(
            in_sync=state.in_sync, eligible=state.eligible, is_current=True, proposed=NOBODY
        )
        yield state._replace(owning=applied, late_status=False)
    enough = len(owning.in_sync) >= state.needed and not owning.eligible
    if owning.is_open and enough and state.writes < WRITES_MAX:
        number = state.writes + 1
        yield state.with_at("logs", me, (*log, number))._replace(writes=number)
    for peer in state.readers():
        if peer != me and state.nodes[peer] == UP:
            yield from replicate(state, owning, peer)
        if state.move == "under way" and peer == DROPPED and not owning.eligible:
            continue  # it returns only if it is needed
        limit = watermark if owning.is_open or not rules.closed_proposes_equals else len(log)
        may = owning.is_open or owning.eligible
        if may and peer != me and peer not in owning.in_sync and owning.acked[peer] >= limit:
            yield state._replace(owning=owning._replace(proposed=owning.proposed | {peer}))
    yield from advance(rules, state, owning)


def replicate(state: State, owning: Owning, peer: int) -> Iterator[State]:
    """The peer's log is cut where it differs, and gets the next entry."""
    log, theirs = state.logs[owning.node], state.logs[peer]
    common = 0
    while common < min(len(log), len(theirs)) and log[common] == theirs[common]:
        common += 1
    kept = len(state.committed)
    if common < kept and theirs[:kept] == state.committed:
        raise LostError(f"{peer} truncates {theirs[common:]}")
    for end in {common, min(common + 1, len(log))}:
        acked = [*owning.acked]
        acked[peer] = max(end, acked[peer])
        told = max(state.watermarks[peer], min(end, state.watermarks[owning.node]))
        after = state.with_at("logs", peer, log[:end]).with_at("watermarks", peer, told)
        yield after._replace(owning=owning._replace(acked=tuple(acked)))


def advance(rules: Rules, state: State, owning: Owning) -> Iterator[State]:
    me = owning.node
    log, point = state.logs[me], state.watermarks[me]
    others = [owning.acked[n] for n in owning.in_sync | owning.proposed if n != me]
    if -1 in others:
        return
    if not (owning.eligible and rules.watermark_stops):
        point = max(point, min([len(log), *others]))
    if not owning.is_open and point < len(log):
        return
    seen = log[:point]
    if seen[: len(state.committed)] != state.committed:
        raise LostError(f"{me} serves {seen}, and {state.committed} was committed")
    opened = owning._replace(is_open=True)
    yield state.with_at("watermarks", me, point)._replace(owning=opened, committed=seen)


def visit(rules: Rules, first: State) -> dict[State, list[State]]:
    """Every state, and where it leads."""
    known: dict[State, list[State]] = {}
    ahead = [first]
    while ahead:
        state = ahead.pop()
        if state not in known:
            if not state.whole <= state.in_sync | state.eligible:
                raise ForgottenError(str(state))
            known[state] = [after for after in steps(rules, state) if after != state]
            ahead.extend(known[state])
    return known


def stuck(
    graph: dict[State, list[State]], goal: Callable[[State], bool] = State.is_well
) -> list[State]:
    """States from which the partition is never well again, whatever returns."""
    before: dict[State, list[State]] = {}
    for state, following in graph.items():
        for after in following:
            before.setdefault(after, []).append(state)
    ahead = [state for state in graph if goal(state)]
    saved = set(ahead)
    while ahead:
        for state in before.get(ahead.pop(), ()):
            if state not in saved:
                saved.add(state)
                ahead.append(state)
    return [state for state in graph if state not in saved]


@pytest.mark.thorough
def test_no_row_is_lost_and_one_dead_node_never_ends_a_partition() -> None:
    """S114: whichever nodes stop, in any order, the loss of one node of three for good is survived,
    and a replica that misses a committed row is never elected."""
    graph = visit(Rules(), State())
    assert len(graph) > 10_000
    assert stuck(graph) == []


@pytest.mark.slow
def test_no_row_is_lost_while_an_operator_changes_the_number_that_is_needed() -> None:
    assert visit(Rules(needed_changes=True), State())


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        Rules(watermark_stops=False),
        Rules(only_since_then=False),
        Rules(closed_proposes_equals=False),
    ],
)
def test_without_a_rule_a_row_is_lost(rules: Rules) -> None:
    with pytest.raises(LostError):
        visit(rules, State())


@pytest.mark.slow
@pytest.mark.parametrize("rules", [Rules(are_eligible=False), Rules(cleared=False)])
def test_without_eligible_replicas_a_partition_may_never_return(rules: Rules) -> None:
    assert stuck(visit(rules, State()))


@pytest.mark.slow
def test_while_a_move_drops_a_replica_no_row_is_lost_and_no_replica_forgotten() -> None:
    """S114: as long as a replica with every row may return, the partition is served again. Until
    the move ends there are always two such replicas, so one node may die for good."""
    graph = visit(Rules(moves=True), State())
    left = stuck(graph, State.is_served)
    assert [state for state in left if state.has_every_row()] == []
    assert all(len(state.whole) >= 2 for state in graph if state.move != "ended")
    assert all(state.move == "ended" for state in left)


@pytest.mark.slow
def test_of_two_nodes_that_die_the_second_one_leaves_a_replica_that_can_be_elected() -> None:
    """S114: also if a move is about to drop the replica that is left."""
    mortal = Rules(moves=True, mortals=BOTH)
    left = stuck(visit(mortal, State(move="under way")), State.is_owned)
    assert [state for state in left if state.has_every_row()] == []


@pytest.mark.parametrize(
    "rules",
    [
        Rules(elected_alone=False),
        Rules(moves=True, dropped_are_eligible=False),
        Rules(moves=True, end_waits=False),
    ],
)
def test_without_a_rule_a_replica_that_has_every_row_is_forgotten(rules: Rules) -> None:
    with pytest.raises(ForgottenError):
        visit(rules, State())


def test_an_owner_that_opens_alone_is_judged_by_what_it_says_of_this_record() -> None:
    """A status from before its election says only that it did not own the partition then."""
    first = State(in_sync=BOTH, replicas=2, nodes=(UP, UP, DEAD), whole=BOTH)
    assert visit(Rules(), first)
    with pytest.raises(ForgottenError):
        visit(Rules(closed_is_sure=False), first)


def test_of_two_replicas_the_one_that_is_left_is_read() -> None:
    """Both are needed for a write, so the other one is not waited for: it may be dead. What this
    costs: the one that was read alone must not die, too, before the other one has caught up."""
    first = State(in_sync=BOTH, replicas=2, nodes=(UP, UP, DEAD), whole=BOTH)

    def lacks(state: State) -> bool:
        """The only replica with all rows is dead."""
        return state.in_sync == {MORTAL} and state.nodes[MORTAL] == DEAD and not state.eligible

    def ends(rules: Rules) -> list[State]:
        left = stuck(visit(rules, first), State.is_served)
        return [state for state in left if not lacks(state)]

    assert ends(Rules()) == []
    assert ends(Rules(opens_alone=False))


def test_with_one_needed_a_dead_owner_takes_no_replica_out() -> None:
    """All stop at once: only an owner that is alive takes replicas out, so the others are elected
    after the owner's death. Without this rule they are taken out while nobody serves."""
    stopped = State(needed=1, nodes=(DEAD, DOWN, DOWN))
    assert stuck(visit(Rules(), stopped)) == []
    assert stuck(visit(Rules(owner_reports=False), stopped))
