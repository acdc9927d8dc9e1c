"""Is each key's history linearizable? Could one register have given these answers?

The search is Wing and Gong's with Lowe's two improvements: an operation takes effect only *just in
time*, when some operation returns and cannot be explained otherwise, and a configuration is never
visited twice. A configuration is what may be true of a key between two events:

    state    what the register holds
    known    which open operations, answered later, already took effect             (bits)
    spent    which operations of unknown outcome took effect                        (bits)

An operation that returns leaves `known`, so these numbers stay as small as the concurrency of one
key. When no configuration survives a return, the history up to there has no explanation. Four
observations, none of which changes the verdict, keep the search narrow:

- An operation that changes nothing (a read, a refused compare) takes effect the first time the
  state allows it: waiting gains nothing, so it never branches.
- An operation of unknown outcome need not happen. So of two configurations that differ only in
  `spent`, the one that spent a subset can do everything that the other can.
- An operation of unknown outcome is forgotten once no later operation could notice its value.
- All values that no operation needs count as one value, and of open operations with equal effect
  the one that returns first takes effect first.

Two operations are ordered only if one returned strictly before the other was invoked; operations
that touch at one instant overlap. Values are compared with `==`; `None` is an absent value.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Literal

import msgspec

STEPS_MAX = 1_000_000
"""Attempts per key to let one operation take effect, before the search gives up (about 1 s)."""


class ObservedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One client's operation on one key, and its answer.

    `returned` is `None` if there was no answer or the answer left the outcome open: the operation
    may take effect at any time after `invoked`, or never. A definite failure is not an operation.
    """

    client: str
    key: str
    kind: Literal["read", "write", "delete", "compare"]
    value: object = None  # what a write or a successful compare leaves
    expected: object = None  # what a compare needs to find
    invoked: float
    returned: float | None = None
    result: object = None  # what a read saw; whether a compare succeeded
    label: str = ""

    def __post_init__(self) -> None:
        if self.returned is not None and self.returned < self.invoked:
            raise ValueError(f"returned before it was invoked: {describe(self)}")


class Verdict(msgspec.Struct, frozen=True):
    """Whether every key behaved as a register. A search that gave up is not ok."""

    ok: bool
    gave_up: bool = False
    reason: str = ""
    key: str = ""
    """The key that the verdict is about."""


def check(operations: Iterable[ObservedOperation], steps_max: int = STEPS_MAX) -> Verdict:
    """Check each key by itself; a proven violation outranks a search that gave up."""
    by_key: dict[str, list[ObservedOperation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    gave_up: dict[str, str] = {}
    for key, mine in by_key.items():
        steps = _steps(mine)
        try:
            dead_end = _Search(steps_max).run(steps)
        except _GaveUp:
            gave_up[key] = f"{key!r} ({len(mine)} operations)"
            continue
        if dead_end is not None:
            return Verdict(False, reason=_explain(key, steps, dead_end, steps_max), key=key)
    if gave_up:
        reason = f"gave up after {steps_max} steps on key {', '.join(gave_up.values())}"
        return Verdict(ok=False, gave_up=True, reason=reason, key=next(iter(gave_up)))
    return Verdict(ok=True)


def describe(operation: ObservedOperation) -> str:
    """The operation as one line of a story."""
    value, unknown = _name(operation.value), operation.returned is None
    match operation.kind:
        case "read":
            deed = "reads, unanswered" if unknown else f"reads {_name(operation.result)}"
        case "write":
            deed = f"writes {value}"
        case "delete":
            deed = "deletes"
        case _:
            deed = f"replaces {_name(operation.expected)} by {value}"
            if not unknown:
                deed += ": done" if operation.result else ": refused"
    if unknown and operation.kind != "read":
        deed += ", outcome unknown"
    until = "…" if unknown else f"{operation.returned:.12g}"
    label = f"  ({operation.label})" if operation.label else ""
    return f"[{operation.invoked:.12g}, {until}] {operation.client} {deed}{label}"


def _name(value: object) -> str:
    return "absent" if value is None else repr(value)


# ------------------------------------------------------------------ operations as numbers

_ABSENT = 0  # the number of the value None, which every key holds at first
_ANY = -1  # what a blind write needs to find
_UNSEEN = -2  # stands for every value that no operation needs to find or to miss
_LOOK, _REFUSED, _CHANGE = range(3)
_invoked, _returned = attrgetter("invoked"), attrgetter("returned")


class _Step(msgspec.Struct, eq=False, gc=False):
    """An operation with its values numbered; `bit` is its place in `known` or `spent`."""

    operation: ObservedOperation
    shape: int
    needs: int  # the state a look or a change must find, a refused compare must not
    becomes: int
    invoked: float
    returned: float
    bit: int = 0
    leaves: int = 0  # the state afterwards, as far as other operations can tell
    twins: int = 0  # open operations of equal effect that take effect first
    noticed_until: float = inf


def _steps(operations: Iterable[ObservedOperation]) -> list[_Step]:
    """What the operations need and leave, in order of invocation, without unanswered reads."""
    number = _Numbers()
    steps = []
    for operation in operations:
        kind, returned = operation.kind, operation.returned
        shape, needs, becomes = _CHANGE, _ANY, _ABSENT
        if kind == "read":
            if returned is None:
                continue
            shape, needs = _LOOK, number(operation.result)
        elif kind == "write":
            becomes = number(operation.value)
        elif kind == "compare":
            needs, becomes = number(operation.expected), number(operation.value)
            if returned is not None and not operation.result:
                shape = _REFUSED
        end = inf if returned is None else returned
        steps.append(_Step(operation, shape, needs, becomes, operation.invoked, end))
    steps.sort(key=_invoked)
    return steps


class _Numbers:
    """Equal values get equal numbers, hashable or not."""

    def __init__(self) -> None:
        self._hashable: dict[object, int] = {None: _ABSENT}
        self._others: list[tuple[object, int]] = []

    def __call__(self, value: object) -> int:
        try:
            return self._hashable.setdefault(value, len(self._hashable) + len(self._others))
        except TypeError:
            for other, number in self._others:
                if other == value:
                    return number
            number = len(self._hashable) + len(self._others)
            self._others.append((value, number))
            return number


# ------------------------------------------------------------------ the search

_Configurations = dict[tuple[int, int], list[int]]
"""(state, known) → the smallest sets `spent` that lead there."""


class _GaveUp(Exception):
    """More steps than allowed."""


class _DeadEnd(msgspec.Struct, frozen=True):
    """The step whose return has no explanation, and what the register could hold by then."""

    step: _Step
    states: frozenset[int]


class _Search:
    """One pass over the events of one key, with every configuration that is still possible."""

    def __init__(self, steps_max: int) -> None:
        self._steps_left = steps_max
        self._configurations: _Configurations = {(_ABSENT, 0): [0]}
        self._needed: set[int] = set()
        self._bits_known = 0
        self._bits_spent = 0
        self._changes: list[_Step] = []
        self._unknown: list[_Step] = []
        self._looking: dict[int, int] = {}  # state → the open reads it satisfies
        self._refused: dict[int, int] = {}  # state → the open refused compares it does not satisfy
        self._refused_any = 0

    def run(self, steps: Sequence[_Step], *, exact: bool = False) -> _DeadEnd | None:
        """Open and settle each step (given in order of invocation); the first dead end, if any.

        An exact search is slower, and keeps each possible state apart.
        """
        self._needed = {step.needs for step in steps}
        if exact:
            self._needed |= {step.becomes for step in steps}
        returns = sorted((step for step in steps if step.returned != inf), key=_returned)
        if len(returns) < len(steps):
            _note_observers(steps)
        settled, last = 0, len(steps) - 1
        for position, step in enumerate(steps):
            invoked = step.invoked
            while settled < len(returns) and returns[settled].returned < invoked:
                if not self._settle(returns[settled]):
                    return self._dead_end(returns[settled])
                settled += 1
            alone = not self._bits_known and not self._unknown
            if alone and step.returned < (steps[position + 1].invoked if position < last else inf):
                if not self._apply_alone(step):
                    return self._dead_end(step)
                settled += 1
            else:
                self._open(step)
        for step in returns[settled:]:
            if not self._settle(step):
                return self._dead_end(step)
        return None

    def _dead_end(self, step: _Step) -> _DeadEnd:
        return _DeadEnd(step, frozenset(state for state, _ in self._configurations))

    def _apply_alone(self, step: _Step) -> bool:
        """The common case: nothing overlaps the step, so there is nothing to search."""
        here, before = (step.needs, 0), self._configurations
        if step.shape == _REFUSED:
            after = {place: spent for place, spent in before.items() if place != here}
        elif step.needs != _ANY and here not in before:
            return False
        else:
            after = {here if step.shape == _LOOK else (step.becomes, 0): [0]}
        if after:
            self._configurations = after
        return bool(after)

    def _open(self, step: _Step) -> None:
        if step.returned == inf:
            if step.noticed_until >= step.invoked:
                self._open_unknown(step)
            return
        step.bit = bit = ~self._bits_known & (self._bits_known + 1)
        self._bits_known |= bit
        needs = step.needs
        if step.shape == _CHANGE:
            self._open_change(step)
            return
        looks = step.shape == _LOOK
        if looks:
            self._looking[needs] = self._looking.get(needs, 0) | bit
        else:
            self._refused[needs] = self._refused.get(needs, 0) | bit
            self._refused_any |= bit
        self._configurations = {
            (state, known | bit if (state == needs) == looks else known): spent
            for (state, known), spent in self._configurations.items()
        }

    def _open_change(self, step: _Step) -> None:
        step.leaves = leaves = step.becomes if step.becomes in self._needed else _UNSEEN
        step.twins = 0
        for other in self._changes:
            if other.leaves == leaves and other.needs == step.needs:
                if other.returned <= step.returned:
                    step.twins |= other.bit
                else:
                    other.twins |= step.bit
        self._changes.append(step)

    def _open_unknown(self, step: _Step) -> None:
        step.bit = ~self._bits_spent & (self._bits_spent + 1)
        self._bits_spent |= step.bit
        step.leaves = leaves = step.becomes if step.becomes in self._needed else _UNSEEN
        step.twins = 0
        for other in self._unknown:
            if other.leaves == leaves and other.needs == step.needs:
                step.twins |= other.bit
        self._unknown.append(step)

    def _settle(self, step: _Step) -> bool:
        """Keep configurations in which the step took effect; False, with no change, if none."""
        if self._unknown:
            self._forget_unnoticed(step.returned)
        bit = step.bit
        after: _Configurations = {}
        seen: _Configurations = {}
        queue: list[tuple[int, int, int]] = []
        for (state, known), spents in self._configurations.items():
            if known & bit:
                for spent in spents:
                    _add(after, state, known ^ bit, spent)
            else:
                seen[state, known] = spents.copy()
                queue += [(state, known, spent) for spent in spents]
        if queue:
            self._linearise(bit, queue, seen, after)
        if not after:
            return False
        self._configurations = after
        self._close(step)
        return True

    def _linearise(
        self,
        bit: int,
        queue: list[tuple[int, int, int]],
        seen: _Configurations,
        after: _Configurations,
    ) -> None:
        """Let open changes take effect, breadth first, until the operation at `bit` has."""
        changes, unknown = self._changes, self._unknown
        looking, refused, refused_any = self._looking, self._refused, self._refused_any
        cost = len(changes) + len(unknown)
        for state, known, spent in queue:  # grows during the loop
            self._steps_left -= cost
            if self._steps_left < 0:
                raise _GaveUp
            reached = [
                (change.leaves, known | change.bit, spent)
                for change in changes
                if not known & change.bit
                and not change.twins & ~known
                and (change.needs == _ANY or change.needs == state)
            ]
            if unknown:
                reached += [
                    (change.leaves, known, spent | change.bit)
                    for change in unknown
                    if not spent & change.bit
                    and not change.twins & ~spent
                    and (change.needs == _ANY or change.needs == state)
                ]
            for new_state, new_known, new_spent in reached:
                new_known |= looking.get(new_state, 0)
                if refused_any:
                    new_known |= refused_any & ~refused.get(new_state, 0)
                if new_known & bit:
                    _add(after, new_state, new_known ^ bit, new_spent)
                elif _add(seen, new_state, new_known, new_spent):
                    queue.append((new_state, new_known, new_spent))

    def _close(self, step: _Step) -> None:
        bit = step.bit
        self._bits_known ^= bit
        if step.shape == _CHANGE:
            self._changes.remove(step)
            for other in self._changes:
                other.twins &= ~bit
        elif step.shape == _LOOK:
            self._looking[step.needs] ^= bit
        else:
            self._refused[step.needs] ^= bit
            self._refused_any ^= bit

    def _forget_unnoticed(self, now: float) -> None:
        gone = 0
        for step in self._unknown:
            if step.noticed_until < now:
                gone |= step.bit
        if not gone:
            return
        self._unknown = [step for step in self._unknown if not step.bit & gone]
        self._bits_spent ^= gone
        merged: _Configurations = {}
        for (state, known), spents in self._configurations.items():
            for spent in spents:
                _add(merged, state, known, spent & ~gone)
        self._configurations = merged


def _add(configurations: _Configurations, state: int, known: int, spent: int) -> bool:
    """Add a configuration, unless one that spent a subset exists; drop those that spent more."""
    place = (state, known)
    spents = configurations.get(place)
    if spents is None:
        configurations[place] = [spent]
        return True
    for other in spents:
        if other & spent == other:
            return False
    spents[:] = [other for other in spents if other & spent != spent]
    spents.append(spent)
    return True


def _note_observers(steps: Sequence[_Step]) -> None:
    """Until when could an operation notice that one of unknown outcome took effect?

    An operation that needs its value could, and any refused compare, which needs a value to be
    absent.
    """
    last: dict[int, float] = {}
    last_refused = -inf
    for step in steps:
        if step.shape == _REFUSED:
            last_refused = max(last_refused, step.returned)
        elif step.needs != _ANY:
            last[step.needs] = max(last.get(step.needs, -inf), step.returned)
    for step in steps:
        if step.returned == inf:
            step.noticed_until = max(last_refused, last.get(step.becomes, -inf))


# ------------------------------------------------------------------ the story of a violation


def _explain(key: str, steps: Sequence[_Step], dead_end: _DeadEnd, steps_max: int) -> str:
    core, dead_end = _shrink(steps, dead_end, steps_max)
    names = {_ABSENT: "absent"}
    for step in core:
        if step.shape == _CHANGE and step.becomes != _ABSENT:
            names[step.becomes] = _name(step.operation.value)
    states = " or ".join(names.get(s, "some other value") for s in sorted(dead_end.states))
    culprit = dead_end.step
    written = culprit.needs in (_ANY, _ABSENT) or any(
        step.shape == _CHANGE and step.becomes == culprit.needs for step in steps
    )
    return "\n".join(
        [
            f"key {key!r}: no order explains these operations ({len(core)} of {len(steps)}):",
            *(f"  {describe(step.operation)}" for step in core),
            f"the register could only hold {states} when this returned:",
            f"  {describe(culprit.operation)}",
            *(() if written else ("nobody ever wrote the value it found",)),
        ]
    )


def _shrink(
    steps: Sequence[_Step], dead_end: _DeadEnd, steps_max: int
) -> tuple[list[_Step], _DeadEnd]:
    """A small part of the history that has no explanation either.

    Only parts whose absence cannot make a possible history impossible are left out: later
    operations; an answer (a read, a refused compare); what a compare needed to find; a value, with
    all operations that wrote or found it, unless a refused compare needs some value to be present.
    """

    def fails(candidate: Sequence[_Step]) -> bool:
        try:
            return _Search(steps_max).run(candidate) is not None
        except _GaveUp:
            return False

    core = [step for step in steps if step.invoked <= dead_end.step.returned]

    answers = [[s] for s in sorted(core, key=_answer_order) if s.shape != _CHANGE]
    changes = [step for step in core if step.shape == _CHANGE]
    answers = _drop(answers, lambda kept: fails(_in_order(*kept, changes)))
    core = _in_order(*answers, changes)

    needs = [[s] for s in core if s.shape == _CHANGE and s.needs != _ANY]
    needs = _drop(needs, lambda kept: fails(_weaken(core, kept)))
    core = _weaken(core, needs)

    if all(step.shape != _REFUSED for step in core):
        core = _in_order(*_drop(_by_value(core), lambda kept: fails(_in_order(*kept))))
    try:
        return core, _Search(steps_max).run(core, exact=True) or dead_end
    except _GaveUp:
        return core, dead_end


def _answer_order(step: _Step) -> tuple[bool, float]:
    return step.shape != _REFUSED, step.invoked


def _in_order(*groups: Sequence[_Step]) -> list[_Step]:
    return sorted((step for group in groups for step in group), key=_invoked)


def _weaken(steps: Sequence[_Step], strict: Sequence[Sequence[_Step]]) -> list[_Step]:
    """Let all changes but the strict ones be blind writes."""
    kept = {step for group in strict for step in group}
    return [
        msgspec.structs.replace(step, needs=_ANY)
        if step.shape == _CHANGE and step.needs != _ANY and step not in kept
        else step
        for step in steps
    ]


def _by_value(steps: Sequence[_Step]) -> list[list[_Step]]:
    """The steps in groups that share no value; a strict compare joins the two it connects."""
    group_of: dict[int, list[_Step]] = {}
    for step in steps:
        values = [step.becomes] if step.shape == _CHANGE else []
        values += [step.needs] if step.needs != _ANY else []
        joined = [step]
        for group in {id(g): g for v in values if (g := group_of.get(v)) is not None}.values():
            joined += group
        for member in joined:
            for value in (member.becomes if member.shape == _CHANGE else _ANY, member.needs):
                if value != _ANY:
                    group_of[value] = joined
    return list({id(group): group for group in group_of.values()}.values())


def _drop(
    groups: list[list[_Step]], still_fails: Callable[[list[list[_Step]]], bool]
) -> list[list[_Step]]:
    """Leave out as many groups as possible: halves first, then ever smaller parts."""
    size = len(groups)
    while size:
        start = 0
        while start < len(groups):
            fewer = groups[:start] + groups[start + size :]
            if still_fails(fewer):
                groups = fewer
            else:
                start += size
        size //= 2
    return groups
