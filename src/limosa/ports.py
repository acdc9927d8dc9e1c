"""What does Limosa need from its environment?

Each port is a `Protocol`: what the drivers need, and what every implementation guarantees. One
test suite per port runs against all of its implementations.

**The metastore** keeps the agreed state as keys (`str`) and values (`bytes`). It guarantees only
what both an embedded file and etcd v3 could guarantee:

- One `revision` counts the commits that changed something. A put always changes something; a delete
  does if the key exists. Granting and renewing leases never raise it.
- A commit is a set of guards and a set of changes, and happens completely or not at all.
- Every change can be watched, in order and without gaps, until the history is trimmed.
- A lease ends one time to live after its last renewal, by a clock that counts sleep, never by wall
  time; a reboot ends every lease. When a lease ends, its keys are deleted in one revision. The next
  operation of any kind ends due leases first, so no reader sees a key whose lease is due.
"""

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from limosa.core.model.keys import PartitionId
from limosa.core.planning.load import Load
from limosa.errors import BadInput

# Unicode gives its last code point no meaning and never will. No key holds it, so `prefix + LAST`
# lies above every key with that prefix, and a prefix is a plain range of keys.
LAST = "\U0010ffff"


class Clock(Protocol):
    """Time that keeps counting while the machine sleeps (CLOCK_BOOTTIME), reset by a reboot."""

    def now(self) -> float:
        """Seconds since some moment of this boot; never goes back while `boot_id` is the same."""
        ...

    def boot_id(self) -> str:
        """The boot that `now` belongs to. Called with every operation, so it should be cheap."""
        ...


class LoadSource(Protocol):
    """Tells automatic runs how much load each partition causes, instead of the measured rates."""

    def __call__(self, measured: Mapping[PartitionId, Load]) -> Mapping[PartitionId, float]:
        """The load of a replica of each partition, from 0 up, in any unit; 0 if it is left out.

        Called on a thread of its own, once per interval of the policy: it may take its time. After
        an error there is no run, until it is asked again.
        """
        ...


class KeyEntry(msgspec.Struct, frozen=True):
    """A key's value and revisions."""

    value: bytes
    revision: int
    """The revision of the last change, for guards."""
    created: int
    """The revision that created the key; it changes if the key is deleted and put again."""
    lease: int | None = None
    """The lease that the key ends with, if the last put named one."""


class KeyChange(msgspec.Struct, frozen=True):
    """What one commit did to one key: the new value, or None for a delete."""

    key: str
    value: bytes | None
    revision: int


class Watch(Protocol):
    """The changes of the keys with one prefix, each exactly once, from one revision on."""

    @property
    def revision(self) -> int:
        """All changes up to this revision were returned; it rises with other prefixes, too."""
        ...

    def poll(self, timeout: float = 0.0) -> list[KeyChange]:
        """All changes since the last poll, by revision and then by key; never a part of a commit.

        Waits up to `timeout` seconds of real time for the first one, then returns an empty list.
        Raises `HistoryTrimmed` when the history was trimmed beyond this watch's revision: the
        caller reads again and opens another watch. Raises `MetastoreUnavailable` once closed.
        """
        ...

    def nudge(self) -> None:
        """Wake a poll that waits in another thread: something has probably changed."""
        ...

    def close(self) -> None:
        """End the watch; a poll that waits in another thread raises `MetastoreUnavailable`."""
        ...


class Metastore(Protocol):
    """Where the agreed state lives. All methods may be called from several threads.

    Every method may raise `MetastoreUnavailable` (the operation did not happen), and methods that
    change something `OutcomeUnknown` (the caller reads to find out).
    """

    @property
    def operations_max(self) -> int:
        """How many guards, and how many changes, one commit should have at most, so that it takes
        no longer than others can wait. Callers divide their work; larger commits are possible only
        if the store says so."""
        ...

    def read(self, prefix: str) -> tuple[int, dict[str, KeyEntry]]:
        """The store's revision and, in key order, the entries with the prefix at that revision."""
        ...

    def get(self, key: str) -> KeyEntry | None:
        """One entry, or None if there is no such key."""
        ...

    def commit(
        self,
        guards: Mapping[str, int],
        puts: Mapping[str, bytes],
        deletes: Collection[str] = (),
        lease: int | None = None,
    ) -> int:
        """Makes all the changes if every guard holds, and returns the store's revision after it.

        A guard is the revision that the key must have, 0 for "must be absent". The put keys are
        attached to `lease`, or to none: a put without one takes the key off its lease. A delete of
        an absent key is no change; without changes the guards are checked and the revision stays.

        Raises, with nothing changed: `LeaseLost` if the given lease has ended (also when guards
        fail too), then `StaleGuard`, whose `keys` are all those with another revision, in order.
        """
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch:
        """The changes with a higher revision than `after_revision`, usually that of a `read`.

        Raises `HistoryTrimmed` if some of them are gone, and `IllegalRequest` for a revision that
        the store has not reached.
        """
        ...

    def grant(self, ttl_seconds: float) -> int:
        """A new lease. Its id is above 0 and is never reused, not even after a restart."""
        ...

    def renew(self, lease: int) -> None:
        """Restarts the lease's time to live. Raises `LeaseLost` if the lease has ended."""
        ...

    def revoke(self, lease: int) -> None:
        """Ends the lease now and deletes its keys; does nothing if it has ended before."""
        ...

    def lease_left(self, lease: int) -> float:
        """Seconds until the lease ends; 0 if it has ended."""
        ...

    def trim(self, before_revision: int) -> None:
        """Deletes the history, not the entries, before this revision.

        A watch after `before_revision - 1` or later still works. Raises `IllegalRequest` for more
        than one above the store's revision.
        """
        ...

    def close(self) -> None:
        """Releases everything; later calls raise `MetastoreUnavailable`. Ends no lease."""
        ...


# What every metastore refuses, so that a key that works in one works in all.


def check_commit(
    guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Collection[str]
) -> None:
    """Refuses keys, values and guards that no metastore can hold."""
    if isinstance(deletes, str):
        raise BadInput("deletes is one string", "pass a collection of keys")
    for key, revision in guards.items():
        check_key(key)
        if revision < 0:
            raise BadInput(
                f"guard {revision!r} of key {key!r}", "use its revision, or 0 for absent"
            )
    for key, value in puts.items():
        check_key(key)
        if not isinstance(value, bytes):
            raise BadInput(f"value of key {key!r} is {type(value).__name__}", "values are bytes")
    for key in deletes:
        check_key(key)
        if key in puts:
            raise BadInput(f"key {key!r} is both put and deleted", "choose one")


def check_key(key: str) -> None:
    """Refuses a key that no metastore can hold."""
    if not key:
        raise BadInput("a key is empty", "give it a name")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Refuses text that can't be the beginning of a key."""
    if not isinstance(prefix, str):
        raise BadInput(f"key or prefix {prefix!r} is not text", "use str")
    if not prefix.isascii():
        try:
            prefix.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"key or prefix {prefix!r} is not valid Unicode", "fix it") from error
    if "\0" in prefix or LAST in prefix:
        raise BadInput(f"key or prefix {prefix!r} contains U+0000 or U+10FFFF", "remove it")


def check_ttl(ttl_seconds: float) -> None:
    """Refuses a time to live that is not positive and finite."""
    if not (math.isfinite(ttl_seconds) and ttl_seconds > 0):
        raise BadInput(f"time to live of {ttl_seconds} s", "it must be finite and above 0")
