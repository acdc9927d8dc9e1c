"""Which commits are made next? The newest one of each key, and as many as one as fit together.

If a guard of such a united commit is stale, nothing of it happens. The parts with a stale guard
leave the queue, because the coordinator computes them again from the newer state, and the others
are tried again at once. If the metastore can't say which guards are stale, half as many are tried.
So thousands of stale commits cost a few transactions, not thousands.
"""

from collections.abc import Collection, Iterable

from limosa.core.model.changes import Commit, change_key, merged
from limosa.core.model.keys import Revision

ALL = 1 << 30
REASONS_SHOWN = 4
NAMES_SHOWN = 3


class CommitQueue:
    """What a coordinator wants committed, and has not seen in the agreed state yet.

    One united commit is under way at a time; the driver reports its outcome by `made` or `stale`,
    or by the event `CommitLost`.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Commit] = {}
        """By place; a newer commit of the same key takes the place of the older one."""
        self._places: dict[str, int] = {}
        """The places of the waiting commits, by each key that they change."""
        self._last_place = 0
        self._under_way: dict[int, Commit] = {}
        self._made: list[tuple[Revision, list[Commit]]] = []
        """Commits that were made, and that the coordinator has not read yet."""
        self._ending: dict[str, Commit] = {}
        """Commits under way, and commits that were made but not read yet, by changed key."""
        self._read: Revision = 0
        self._at_most = ALL
        """How many are tried at once: fewer after stale guards that the metastore did not name."""
        self._again = ALL
        """How many are tried next, once: after stale guards only those that were tried before."""

    def __bool__(self) -> bool:
        """Is there anything to take?"""
        return bool(self._waiting) and not self._under_way

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, commit: Commit) -> None:
        """Queue a commit instead of all older ones that change one of its keys."""
        keys = _keys(commit)
        older = sorted({self._places[key] for key in keys if key in self._places})
        for place in older:
            self._forget_keys(place)
        for place in older[1:]:
            del self._waiting[place]
        if not older:
            self._last_place += 1
            older.append(self._last_place)
        self._waiting[older[0]] = commit
        self._places.update(dict.fromkeys(keys, older[0]))

    def holds(self, commit: Commit) -> bool:
        """Is this commit, computed from the same state, in the queue already?"""
        key = change_key(commit.changes[0])
        place = self._places.get(key)
        known = self._ending.get(key) if place is None else self._waiting[place]
        return known is not None and known.guards == commit.guards

    def concerns(self, key: str) -> bool:
        """Does a commit in the queue change this key?"""
        return key in self._places or key in self._ending

    def take(self, operations_max: int) -> list[Commit]:
        """What is made as one commit next; nothing: there is nothing to do."""
        if self._under_way:
            return []
        at_most, self._again = min(self._at_most, self._again), ALL
        together = merged(self._waiting.values(), operations_max, at_most)
        for commit in together:
            place = self._places[change_key(commit.changes[0])]
            self._forget_keys(place)
            self._under_way[place] = self._waiting.pop(place)
            self._ending.update(dict.fromkeys(_keys(commit), commit))
        return together

    def made(self, revision: Revision) -> None:
        """What was taken is committed, at this revision or before it."""
        made = self._end()
        self._at_most = min(ALL, 2 * self._at_most)
        if revision > self._read:
            self._made.append((revision, list(made.values())))
            for commit in made.values():
                self._ending.update(dict.fromkeys(_keys(commit), commit))

    def read(self, revision: Revision) -> None:
        """The coordinator has read the agreed state at this revision."""
        self._read = max(self._read, revision)
        while self._made and self._made[0][0] <= self._read:
            self._forget_ending(self._made.pop(0)[1])

    def stale(self, keys: Collection[str]) -> list[Commit]:
        """Nothing was committed, because these guards are stale; none: it is not known which.
        Returns the commits that leave the queue; the others are tried again."""
        tried, named = self._end(), frozenset(keys)
        stale = {pair for commit in tried.values() for pair in _guards(commit, named)}
        out = [place for place, commit in tried.items() if _guards(commit, named)]
        if not out and len(tried) > 1:
            self._at_most = len(tried) // 2
        elif not out:
            out, self._at_most = list(tried), 2
        dropped = [tried.pop(place) for place in out]
        dropped += self._drop_waiting(named, stale)
        self._again = self._put_back(tried) or ALL
        return dropped

    def lost(self) -> list[Commit]:
        """It is not known whether what was taken was committed. Returns it: the coordinator looks
        again."""
        return list(self._end().values())

    def clear(self) -> None:
        """Another office begins, or this one has ended: its commits would all be stale."""
        self._waiting.clear()
        self._places.clear()
        for _, made in self._made:
            self._forget_ending(made)
        self._made.clear()
        self._at_most = ALL

    def _end(self) -> dict[int, Commit]:
        """Nothing is under way any more; returns what was."""
        ended, self._under_way = self._under_way, {}
        self._forget_ending(ended.values())
        return ended

    def _forget_ending(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            for key in _keys(commit):
                if self._ending.get(key) is commit:
                    del self._ending[key]

    def _forget_keys(self, place: int) -> None:
        for key in _keys(self._waiting[place]):
            self._places.pop(key, None)

    def _drop_waiting(
        self, named: frozenset[str], stale: set[tuple[str, Revision]]
    ) -> list[Commit]:
        """Other commits that expect the same stale revisions need not be tried."""
        out = [
            place
            for place, commit in self._waiting.items()
            if any(pair in stale for pair in _guards(commit, named))
        ]
        for place in out:
            self._forget_keys(place)
        return [self._waiting.pop(place) for place in out]

    def _put_back(self, tried: dict[int, Commit]) -> int:
        """To the front, except for those with a newer commit of the same key; how many."""
        kept = {
            place: commit
            for place, commit in tried.items()
            if not any(key in self._places for key in _keys(commit))
        }
        for place, commit in kept.items():
            self._places.update(dict.fromkeys(_keys(commit), place))
        self._waiting = kept | self._waiting
        return len(kept)


def summary(reasons: Iterable[str]) -> str:
    """Many reasons in one line: how often each one occurs, and some of the partitions.

    A reason names what it is about first, as in `t-0001: n1 owns epoch 2`.
    """
    names: dict[str, list[str]] = {}
    for reason in reasons:
        name, found, why = reason.partition(": ")
        names.setdefault(why if found else reason, []).append(name if found else "")
    often = sorted(names, key=lambda why: -len(names[why]))
    parts = [_part(why, names[why]) for why in often[:REASONS_SHOWN]]
    others = sum(len(names[why]) for why in often[REASONS_SHOWN:])
    return "; ".join(parts + [f"and {others} others"] * bool(others))


def _part(why: str, names: list[str]) -> str:
    known = [name for name in names if name]
    some = ", ".join(known[:NAMES_SHOWN])
    if len(names) == 1:
        return f"{some}: {why}" if some else why
    more = ", …" if len(known) > NAMES_SHOWN else ""
    return f"{why} ({len(names)}: {some}{more})" if some else f"{why} ({len(names)})"


def _keys(commit: Commit) -> list[str]:
    return [change_key(change) for change in commit.changes]


def _guards(commit: Commit, named: frozenset[str]) -> list[tuple[str, Revision]]:
    """The guards of these keys."""
    return [(key, revision) for key, revision in commit.guards.items() if key in named]
