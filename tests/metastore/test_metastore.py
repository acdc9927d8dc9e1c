"""Does a metastore keep what the port promises? One suite, run against every implementation."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from limosa.errors import (
    BadInput,
    HistoryTrimmed,
    IllegalRequest,
    LeaseLost,
    MetastoreUnavailable,
    StaleGuard,
)
from limosa.ports import KeyChange, KeyEntry, Metastore, Watch
from tests.metastore.clocks import FakeClock
from tests.metastore.conftest import Opener


@contextmanager
def nothing_changes(store: Metastore) -> Iterator[None]:
    before = store.read("")
    yield
    assert store.read("") == before


# Commits


def test_a_new_store_is_empty(store: Metastore) -> None:
    assert store.read("") == (0, {})
    assert store.get("a") is None


def test_a_commit_changes_many_keys_in_one_revision(store: Metastore, other: Metastore) -> None:
    """F158: all keys change together, for every reader."""
    assert store.commit({}, {"a": b"1", "b": b"2", "c": b"3"}) == 1
    assert store.commit({"a": 1}, {"a": b"4", "d": b""}, deletes=["b"]) == 2
    expected = (2, {"a": KeyEntry(b"4", 2, 1), "c": KeyEntry(b"3", 1, 1), "d": KeyEntry(b"", 2, 2)})
    assert store.read("") == expected
    assert other.read("") == expected
    assert list(other.read("")[1]) == ["a", "c", "d"]


def test_one_stale_guard_stops_the_whole_commit(store: Metastore) -> None:
    """F158: a combination that was computed from an older state is never applied in part."""
    store.commit({}, {"pending": b"1", "planned": b"1", "stable": b"1"})
    store.commit({}, {"planned": b"2"})
    with nothing_changes(store), pytest.raises(StaleGuard, match="planned") as raised:
        store.commit({"pending": 1, "planned": 1}, {"pending": b"9"}, deletes=["planned", "stable"])
    assert raised.value.keys == ("planned",)
    assert raised.value.definite


def test_a_stale_guard_names_every_key_in_order(store: Metastore) -> None:
    store.commit({}, {"here": b"1", "same": b"1"})
    with nothing_changes(store), pytest.raises(StaleGuard) as raised:
        store.commit({"same": 1, "never": 7, "here": 0}, {"a": b"1"})
    assert raised.value.keys == ("here", "never")


def test_guard_zero_lets_only_one_of_two_create_a_key(store: Metastore, other: Metastore) -> None:
    store.commit({"lock": 0}, {"lock": b"me"})
    with pytest.raises(StaleGuard):
        other.commit({"lock": 0}, {"lock": b"you"})
    assert other.get("lock") == KeyEntry(b"me", 1, 1)


def test_a_key_that_was_deleted_and_put_again_is_another(store: Metastore) -> None:
    store.commit({}, {"a": b"1"})
    store.commit({}, {"a": b"2"})
    assert store.get("a") == KeyEntry(b"2", 2, 1)
    store.commit({}, {}, deletes=["a"])
    store.commit({"a": 0}, {"a": b"2"})
    assert store.get("a") == KeyEntry(b"2", 4, 4)
    with pytest.raises(StaleGuard):
        store.commit({"a": 2}, {"a": b"3"})


def test_without_changes_only_the_guards_are_checked(store: Metastore) -> None:
    store.commit({}, {"a": b"1"})
    with nothing_changes(store):
        assert store.commit({"a": 1, "b": 0}, {}) == 1
        assert store.commit({}, {}, deletes=["absent", "absent"]) == 1
        with pytest.raises(StaleGuard):
            store.commit({"a": 0}, {})


def test_a_put_of_the_same_value_is_a_change(store: Metastore) -> None:
    store.commit({}, {"a": b"1"})
    assert store.commit({}, {"a": b"1"}) == 2
    assert store.get("a") == KeyEntry(b"1", 2, 1)


def test_a_key_named_twice_among_the_deletes_is_deleted_once(store: Metastore) -> None:
    store.commit({}, {"a": b"1"})
    assert store.commit({}, {}, deletes=["a", "a"]) == 2
    assert store.watch("", 1).poll() == [KeyChange("a", None, 2)]


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "a\U0010ffff"])
def test_a_key_that_not_every_metastore_can_hold_is_refused(store: Metastore, key: str) -> None:
    with nothing_changes(store):
        for attempt in (
            lambda: store.commit({}, {"good": b"", key: b""}),
            lambda: store.commit({key: 0}, {"good": b""}),
            lambda: store.commit({}, {"good": b""}, deletes=[key]),
            lambda: store.get(key),
        ):
            with pytest.raises(BadInput):
                attempt()


def test_contradicting_or_mistyped_requests_are_refused(store: Metastore) -> None:
    with nothing_changes(store):
        for guards, puts, deletes in (
            ({"a": -1}, {"a": b""}, []),
            ({}, {"a": b""}, ["a"]),
            ({}, {"b": b""}, "a"),
            ({}, {"a": "text"}, []),
            ({}, {1: b""}, []),
        ):
            with pytest.raises(BadInput):
                store.commit(guards, puts, deletes)  # type: ignore[arg-type]


# Reads


def test_a_prefix_reads_exactly_its_keys(store: Metastore) -> None:
    keys = ["zone", "zone/", "zone/1", "zone/é", "zone/\U0010fffe", "zone0", "zon", "Zone/1", "%_*"]
    store.commit({}, {key: key.encode() for key in keys})
    for prefix in ["", "zone/", "zone", "z", "%", "_", "none", "zone/\U0010fffe"]:
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert list(store.read(prefix)[1]) == expected


def test_a_reader_sees_each_commit_that_returned_before(store: Metastore, other: Metastore) -> None:
    for number in range(1, 4):
        other.commit({}, {f"p/{number}": b""})
        assert store.read("p/")[0] == number
        assert list(store.read("p/")[1]) == [f"p/{seen}" for seen in range(1, number + 1)]


def test_what_a_reader_does_to_its_result_stays_with_it(store: Metastore) -> None:
    store.commit({}, {"a": b"1"})
    store.read("")[1].clear()
    assert store.read("") == (1, {"a": KeyEntry(b"1", 1, 1)})


def test_values_keep_every_byte(store: Metastore) -> None:
    value = bytes(range(256)) * 100
    store.commit({}, {"a": value})
    entry = store.get("a")
    assert entry is not None
    assert entry.value == value


# Watches


def test_a_watch_tells_every_change_of_its_prefix_once_and_in_order(
    store: Metastore, other: Metastore
) -> None:
    store.commit({}, {"p/a": b"0"})
    watch = store.watch("p/", 1)
    assert watch.poll() == []
    other.commit({}, {"p/b": b"1", "p/a": b"2", "q/x": b"3"})
    store.commit({}, {"q/x": b"4"})
    other.commit({}, {"p/a": b"5"}, deletes=["p/b"])
    assert watch.poll() == [
        KeyChange("p/a", b"2", 2),
        KeyChange("p/b", b"1", 2),
        KeyChange("p/a", b"5", 4),
        KeyChange("p/b", None, 4),
    ]
    assert watch.poll() == []
    watch.close()


def test_a_watch_starts_at_any_revision_of_the_history(store: Metastore) -> None:
    for number in range(1, 6):
        store.commit({}, {"a": b"%d" % number})
    for after in range(6):
        changes = store.watch("a", after).poll()
        assert [change.revision for change in changes] == list(range(after + 1, 6))


def test_a_watch_says_how_far_it_is_also_while_others_change(store: Metastore) -> None:
    watch = store.watch("p/", 0)
    store.commit({}, {"q": b""})
    assert watch.revision == 0
    assert watch.poll() == []
    assert watch.revision == 1


def test_a_trimmed_history_is_refused_and_never_skipped(store: Metastore) -> None:
    for number in range(1, 6):
        store.commit({}, {"a": b"%d" % number})
    behind, level = store.watch("", 2), store.watch("", 3)
    with nothing_changes(store):
        store.trim(4)
        store.trim(2)
    with pytest.raises(HistoryTrimmed, match="starts at 4"):
        store.watch("", 2)
    with pytest.raises(HistoryTrimmed):
        behind.poll()
    assert [change.revision for change in level.poll()] == [4, 5]
    store.trim(6)
    assert store.watch("", 5).poll() == []
    store.commit({}, {"a": b"6"})
    assert [change.revision for change in level.poll()] == [6]


def test_a_poll_that_finds_nothing_in_its_prefix_is_not_overtaken_by_a_trim(
    store: Metastore,
) -> None:
    watch = store.watch("p/", 0)
    store.commit({}, {"q": b""})
    watch.poll()
    store.trim(2)
    assert watch.poll() == []


@pytest.mark.parametrize("revision", [-1, 2])
def test_a_revision_that_the_store_never_had_is_refused(store: Metastore, revision: int) -> None:
    store.commit({}, {"a": b""})
    with pytest.raises(IllegalRequest):
        store.watch("", revision)


def test_the_future_is_not_trimmed(store: Metastore) -> None:
    with pytest.raises(IllegalRequest):
        store.trim(2)


def test_a_waiting_poll_is_woken_by_a_commit(store: Metastore, other: Metastore) -> None:
    watch = store.watch("", 0)
    writer = threading.Timer(0.05, lambda: other.commit({}, {"a": b"1"}))
    writer.start()
    assert watch.poll(timeout=60) == [KeyChange("a", b"1", 1)]
    writer.join()


def test_a_waiting_poll_gives_up_after_its_timeout(store: Metastore) -> None:
    assert store.watch("", 0).poll(timeout=0.05) == []


def test_a_waiting_poll_sees_a_lease_end(store: Metastore, clock: FakeClock) -> None:
    lease = store.grant(3.0)
    store.commit({}, {"a": b""}, lease=lease)
    watch = store.watch("", 1)
    waker = threading.Timer(0.05, lambda: clock.advance(3.0))
    waker.start()
    assert watch.poll(timeout=60) == [KeyChange("a", None, 2)]
    waker.join()


@pytest.mark.parametrize("close_the_store", [True, False])
def test_closing_ends_a_waiting_poll(store: Metastore, close_the_store: bool) -> None:
    watch = store.watch("", 0)
    closer = threading.Timer(0.05, store.close if close_the_store else watch.close)
    closer.start()
    with pytest.raises(MetastoreUnavailable, match="closed"):
        watch.poll(timeout=60)
    closer.join()


# Leases


def test_when_a_lease_ends_its_keys_go_in_one_revision(
    store: Metastore, other: Metastore, clock: FakeClock
) -> None:
    lease = store.grant(3.0)
    store.commit({}, {"node/1": b"", "node/1/labels": b""}, lease=lease)
    store.commit({}, {"stays": b""})
    watch = other.watch("", 2)
    clock.advance(2.999)
    assert watch.poll() == []
    assert other.lease_left(lease) == pytest.approx(0.001)
    clock.advance(0.001)
    assert watch.poll() == [KeyChange("node/1", None, 3), KeyChange("node/1/labels", None, 3)]
    assert store.read("") == (3, {"stays": KeyEntry(b"", 2, 2)})
    assert store.lease_left(lease) == 0.0


def test_a_due_lease_ends_inside_whatever_comes_next(store: Metastore, clock: FakeClock) -> None:
    watch = store.watch("", 0)
    looks: list[Callable[[], bool]] = [
        lambda: "a" not in store.read("")[1],
        lambda: store.get("a") is None,
        lambda: store.commit({"a": 0}, {}) == store.read("")[0],
        lambda: watch.poll()[-1].value is None,
    ]
    for sees_no_key in looks:
        store.commit({}, {"a": b""}, lease=store.grant(3.0))
        clock.advance(3.0)
        assert sees_no_key()


def test_renewal_starts_the_time_anew_and_raises_no_revision(
    store: Metastore, other: Metastore, clock: FakeClock
) -> None:
    lease = store.grant(3.0)
    store.commit({}, {"a": b""}, lease=lease)
    for _ in range(5):
        clock.advance(2.5)
        other.renew(lease)
        assert store.lease_left(lease) == 3.0
    assert store.read("") == (1, {"a": KeyEntry(b"", 1, 1, lease)})


def test_a_lease_that_ended_can_not_be_renewed_or_used(store: Metastore, clock: FakeClock) -> None:
    lease = store.grant(3.0)
    clock.advance(3.0)
    with nothing_changes(store):
        with pytest.raises(LeaseLost, match=str(lease)):
            store.renew(lease)
        with pytest.raises(LeaseLost):
            store.commit({}, {"a": b""}, lease=lease)
        with pytest.raises(LeaseLost):
            store.commit({"a": 7}, {}, lease=lease)


@pytest.mark.parametrize("lease", [-1, 0, 77, 2**80])
def test_a_lease_that_never_was_counts_as_ended(store: Metastore, lease: int) -> None:
    with pytest.raises(LeaseLost):
        store.renew(lease)
    with pytest.raises(LeaseLost):
        store.commit({}, {"a": b""}, lease=lease)
    assert store.lease_left(lease) == 0.0
    store.revoke(lease)
    assert store.read("") == (0, {})


def test_a_revoked_lease_takes_its_keys_along(store: Metastore, other: Metastore) -> None:
    lease = store.grant(3.0)
    store.commit({}, {"a": b"", "b": b""}, lease=lease)
    other.revoke(lease)
    other.revoke(lease)
    assert store.watch("", 1).poll() == [KeyChange("a", None, 2), KeyChange("b", None, 2)]
    with pytest.raises(LeaseLost):
        store.renew(lease)


def test_a_key_belongs_to_the_lease_of_its_last_put(store: Metastore) -> None:
    first, second = store.grant(3.0), store.grant(3.0)
    store.commit({}, {"freed": b"", "taken": b"", "deleted": b""}, lease=first)
    store.commit({}, {"freed": b""})
    store.commit({}, {"taken": b""}, lease=second)
    store.commit({}, {}, deletes=["deleted"])
    with nothing_changes(store):
        store.revoke(first)
    assert store.read("")[1] == {"freed": KeyEntry(b"", 2, 1), "taken": KeyEntry(b"", 3, 1, second)}


def test_leases_that_are_due_together_end_in_the_order_of_their_time(
    store: Metastore, clock: FakeClock
) -> None:
    for ttl_seconds, key in ((9.0, "late"), (3.0, "early"), (3.0, "early, granted later")):
        store.commit({}, {key: b""}, lease=store.grant(ttl_seconds))
    clock.advance(20.0)
    assert store.watch("", 3).poll() == [
        KeyChange("early", None, 4),
        KeyChange("early, granted later", None, 5),
        KeyChange("late", None, 6),
    ]


def test_lease_ids_are_never_given_again(
    store: Metastore, other: Metastore, clock: FakeClock
) -> None:
    seen = [store.grant(1.0), other.grant(1.0)]
    store.revoke(seen[-1])
    seen.append(other.grant(1.0))
    clock.advance(5.0)
    seen.append(store.grant(1.0))
    clock.reboot("second")
    seen.append(other.grant(1.0))
    assert len(set(seen)) == len(seen)
    assert min(seen) > 0


def test_leases_without_keys_end_without_a_revision(store: Metastore, clock: FakeClock) -> None:
    store.grant(1.0)
    store.revoke(store.grant(1.0))
    clock.advance(5.0)
    assert store.read("") == (0, {})


def test_a_reboot_ends_every_lease_of_before(store: Metastore, clock: FakeClock) -> None:
    old = store.grant(3.0)
    store.commit({}, {"node/1": b""}, lease=old)
    clock.reboot("second")
    assert store.read("") == (2, {})
    with pytest.raises(LeaseLost):
        store.renew(old)
    new = store.grant(3.0)
    store.commit({}, {"node/1": b""}, lease=new)
    clock.advance(2.0)
    assert store.lease_left(new) == 1.0


@pytest.mark.parametrize("ttl_seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_needs_a_time_to_live(store: Metastore, ttl_seconds: float) -> None:
    with pytest.raises(BadInput):
        store.grant(ttl_seconds)


def test_a_holder_whose_lease_ended_can_not_commit_under_its_key(
    store: Metastore, other: Metastore, clock: FakeClock
) -> None:
    """The way a coordinator guards its commits: by its lease key and the records it read."""
    lease = store.grant(3.0)
    held = store.commit({"coordinator": 0}, {"coordinator": b"1"}, lease=lease)
    record = store.commit({"coordinator": held}, {"partition/1": b"streaming"})
    clock.advance(3.0)
    successor = other.grant(3.0)
    other.commit({"coordinator": 0}, {"coordinator": b"2"}, lease=successor)
    with nothing_changes(store), pytest.raises(StaleGuard) as raised:
        store.commit({"coordinator": held, "partition/1": record}, {"partition/1": b"use_new"})
    assert raised.value.keys == ("coordinator",)


# Closing, threads


def test_a_closed_store_refuses_everything(store: Metastore) -> None:
    watch = store.watch("", 0)
    store.close()
    store.close()
    for attempt in (
        lambda: store.read(""),
        lambda: store.get("a"),
        lambda: store.commit({}, {"a": b""}),
        lambda: store.watch("", 0),
        lambda: store.grant(1.0),
        lambda: store.renew(1),
        lambda: store.revoke(1),
        lambda: store.lease_left(1),
        lambda: store.trim(0),
        watch.poll,
    ):
        with pytest.raises(MetastoreUnavailable, match="closed"):
            attempt()
    watch.close()


def increment(store: Metastore, key: str) -> None:
    """One guarded increment, tried until nobody else was faster."""
    while True:
        entry = store.get(key)
        guard, number = (entry.revision, int(entry.value)) if entry else (0, 0)
        try:
            store.commit({key: guard}, {key: b"%d" % (number + 1), key + "/copy": b"%d" % number})
        except StaleGuard:
            continue
        return


def collect(watch: Watch, until: int, into: list[KeyChange]) -> None:
    while watch.revision < until:
        into.extend(watch.poll(timeout=0.2))


def test_threads_lose_no_update_and_watchers_no_change(open_store: Opener) -> None:
    """F158: concurrent triggers never leave a torn combination."""
    threads, times = 4, 25
    shared = open_store()
    stores = [shared, shared, open_store(), open_store()]
    seen: list[list[KeyChange]] = [[], []]
    watchers = [
        threading.Thread(target=collect, args=(store.watch("n", 0), threads * times, into))
        for store, into in zip((shared, open_store()), seen, strict=True)
    ]

    def work(store: Metastore) -> None:
        for _ in range(times):
            increment(store, "n")

    writers = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in watchers + writers:
        thread.start()
    for thread in watchers + writers:
        thread.join(60)
        assert not thread.is_alive()
    expected = [
        KeyChange(key, b"%d" % value, revision)
        for revision in range(1, threads * times + 1)
        for key, value in (("n", revision), ("n/copy", revision - 1))
    ]
    assert seen == [expected, expected]
