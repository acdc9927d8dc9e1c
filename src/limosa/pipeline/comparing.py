"""Which rows differ between replicas that are being written to? A rule for one key, then for many.

Replicas are read one after the other, each at its own watermark. A replica that is behind is not
different, only late. So the *lead* (the owner, if there is one) is read first, at its watermark W;
another replica is read only once its own watermark has reached W. Both then hold everything that
was committed up to W. A version is a position in their common log, and each replica shows the
newest version of a key that it knows. Versions above W decide nothing yet:

    the same version in both                                the rows must be equal
    two versions, both up to W                              they differ, whichever is newer
    any version above W                                     open: written since; read again
    no row in the other, which collected tombstones up to
      a position above W                                    open: the row may be deleted since
    no row in one of them, a row up to W in the other       they differ
    no row in one of them, a tombstone in the other         they agree

The last line holds because tombstones are collected: one replica may have dropped a tombstone that
the other still stores, and readers see no difference. `strict` treats a tombstone that neither
replica has collected like a row, as the digests of a move's verification do.

By this rule two correct replicas never differ, whatever is written meanwhile: if the other's
version of a key is at most W, it is also its newest version up to W, which the lead shows. A key
that differs is found, unless it is written again before it is read; then its row is new in both
replicas, and the key stays open until it is read without a concurrent write.
"""

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from limosa.core.model.keys import COUNTER_BITS, NodeId, Position, epoch_of
from limosa.core.tokens import tokens
from limosa.tabular.digest import digest
from limosa.tabular.order import Indices
from limosa.tabular.rows import Flags, Versions
from limosa.tabular.schema import Table, comparable_column

Key: TypeAlias = tuple[Any, ...]
"""As returned by `Table.comparable_key`."""
Verdict: TypeAlias = Literal["same", "differs", "open"]

WORD_LENGTH_MAX = 80
KEY_LENGTH_MAX = 200


class State(NamedTuple):
    """A replica's row of a key."""

    version: Position
    deleted: bool
    hash: int


class Moment(Struct, frozen=True):
    """The state at which a replica was read."""

    watermark: Position
    collected: Position = 0


def judge(
    lead: State | None, lead_at: Moment, other: State | None, other_at: Moment, strict: bool = False
) -> Verdict:
    """The rule for one key; None: the replica has no row and no tombstone."""
    if lead == other:
        return "same"
    if lead is not None and other is not None and lead.version == other.version:
        return "differs"
    there = lead or other
    assert there is not None
    if (lead is None or other is None) and there.deleted:
        collected = max(lead_at.collected, other_at.collected)
        if not strict or there.version <= collected:
            return "same"
    newest = max(0 if state is None else state.version for state in (lead, other))
    if newest > lead_at.watermark:
        return "open"
    if other is None and other_at.collected > lead_at.watermark:
        return "open"
    return "differs"


# --- many rows


class ReplicaRows(Struct, eq=False):
    """The rows of one replica in some ranges of tokens, at one moment."""

    node: NodeId
    at: Moment
    table: Table
    keys: pa.RecordBatch
    """The key columns, in the order of the key."""
    versions: Versions
    deleted: Flags
    hashes: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def live(self) -> int:
        return len(self) - int(self.deleted.sum())

    def states(self, rows: Indices) -> list[tuple[Key, State]]:
        columns = [comparable_column(column.take(rows)).to_pylist() for column in self.keys.columns]
        values = zip(
            self.versions[rows].tolist(),
            self.deleted[rows].tolist(),
            self.hashes[rows].tolist(),
            strict=True,
        )
        keys = zip(*columns, strict=True)
        return [(key, State(*value)) for key, value in zip(keys, values, strict=True)]

    def tokens(self, rows: Indices) -> list[int]:
        hashed: list[int] = tokens([column.take(rows) for column in self.keys.columns]).tolist()
        return hashed

    def unlike(self, other: "ReplicaRows") -> Indices:
        """Rows that the other replica lacks or has differently, by the hash of the whole row."""
        return np.flatnonzero(~np.isin(self.hashes, other.hashes))


class Candidate(NamedTuple):
    """A key that differs between two replicas, or is open."""

    verdict: Verdict
    token: int
    lead: State | None
    other: State | None
    keys: pa.RecordBatch
    row: int
    """The row number at which the key can be read."""

    @property
    def words(self) -> str:
        return key_words(self.keys, self.row)


def compare(
    lead: ReplicaRows, other: ReplicaRows, only: Collection[Key] | None = None, strict: bool = False
) -> dict[Key, Candidate]:
    """The keys that differ or are open, among all or some keys; all others are equal."""
    if digest(lead.hashes) == digest(other.hashes):
        return {}
    found: dict[Key, Candidate] = {}
    ours, theirs = lead.unlike(other), other.unlike(lead)
    lead_states, other_states = lead.states(ours), other.states(theirs)
    lead_has, other_has = dict(lead_states), dict(other_states)
    for rows, places, states in ((lead, ours, lead_states), (other, theirs, other_states)):
        spots = zip(places.tolist(), rows.tokens(places), states, strict=True)
        for place, token, (key, _) in spots:
            if key in found or (only is not None and key not in only):
                continue
            one, two = lead_has.get(key), other_has.get(key)
            verdict = judge(one, lead.at, two, other.at, strict)
            if verdict != "same":
                found[key] = Candidate(verdict, token, one, two, rows.keys, place)
    return found


# --- in words


def key_words(keys: pa.RecordBatch, row: int) -> str:
    """`id=7, place='Öland'`."""
    columns = zip(keys.schema.names, keys.columns, strict=True)
    return ", ".join(f"{name}={_word(column[row])}" for name, column in columns)[:KEY_LENGTH_MAX]


def _word(value: Any) -> str:
    try:
        known = value.as_py()
    except (ValueError, OverflowError):  # a year that Python can't represent
        known = value.value
    said = repr(known) if isinstance(known, str | bytes) else str(known)
    return said if len(said) <= WORD_LENGTH_MAX else said[: WORD_LENGTH_MAX - 1] + "…"


def sentence(key: str, lead: NodeId, has: State | None, others: dict[NodeId, State | None]) -> str:
    """`id=7: version 1:42 at n1, missing at n2 and n3`."""
    by_words: dict[tuple[str, str], list[NodeId]] = {}
    for node, state in others.items():
        by_words.setdefault(_as_against(state, has), []).append(node)
    parts = [_at(_as_against(has, None), [lead])]
    parts += [_at(words, nodes) for words, nodes in by_words.items()]
    return f"{key}: {', '.join(parts)}"


def _as_against(state: State | None, lead: State | None) -> tuple[str, str]:
    """A replica's state in words, and a remark."""
    if state is None:
        return "missing", ""
    if state.deleted:
        return "deleted", f" (version {version_words(state.version)})"
    if lead is not None and lead.version == state.version and not lead.deleted:
        return "differs", " (same version, other contents)"
    return f"version {version_words(state.version)}", ""


def _at(words: tuple[str, str], nodes: Iterable[NodeId]) -> str:
    *firsts, last = nodes
    listed = f"{', '.join(firsts)} and {last}" if firsts else last
    return f"{words[0]} at {listed}{words[1]}"


def version_words(version: Position) -> str:
    """Epoch and counter."""
    return f"{epoch_of(version)}:{version & ((1 << COUNTER_BITS) - 1)}"
