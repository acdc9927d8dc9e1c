"""What does `limosa doctor` check? One function for each check of the cluster's overview."""

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.admin.overview import Overview
from limosa.cli.shared.terminal import count, size
from limosa.core import routing

Verdict: TypeAlias = Literal["ok", "warning", "problem"]

FREE_BYTES_MIN = 1 << 30
CLOCK_SECONDS_MAX = 1.0
NAMED_AT_MOST = 5


class CheckResult(Struct, frozen=True):
    """The result of one check."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def reachable(overview: Overview) -> CheckResult:
    if overview.failures:
        node, why = min(overview.failures.items())
        return CheckResult(
            "reachable",
            "problem",
            f"no answer from {_some(overview.failures)}: {why}",
            f"see the log of {node}, and check that its address can be reached from here",
        )
    return CheckResult("reachable", "ok", f"{count(len(overview.statuses), 'node')} answered")


def coordinator(overview: Overview) -> CheckResult:
    holder = overview.agreed["coordinator"]
    if holder is None:
        return CheckResult(
            "coordinator",
            "problem",
            "no coordinator is active: no table can be created, and no dead owner is replaced",
            "start one with `limosa serve coordinator`",
        )
    return CheckResult("coordinator", "ok", f"{holder} is active")


def live(overview: Overview) -> CheckResult:
    silent = [node for node in overview.members if node not in overview.live]
    if silent:
        return CheckResult(
            "nodes",
            "problem",
            f"not live: {_some(silent)}",
            "start them again; remove a node that is lost for good and holds no replicas with "
            "`limosa node remove`",
        )
    return CheckResult("nodes", "ok", f"all {count(len(overview.members), 'node')} are live")


def owned(overview: Overview) -> CheckResult:
    lacking = overview.without_owner
    if lacking:
        return CheckResult(
            "owners",
            "problem",
            f"{count(len(lacking), 'partition')} without an owner: {_some(lacking)}",
            "wait a few seconds for an election, then start the nodes that hold their replicas",
        )
    return CheckResult(
        "owners", "ok", f"{count(len(overview.topology.partitions), 'partition')} owned"
    )


def in_sync(overview: Overview) -> CheckResult:
    zones = overview.topology.zones
    partitions = overview.topology.partitions
    behind = overview.not_in_sync
    short = []
    for id in behind:
        needed = routing.needed(partitions[id], zones[partitions[id].zone])
        if len(routing.electable(partitions[id])) < needed:
            short.append(id)
    if short:
        return CheckResult(
            "in sync",
            "problem",
            f"{count(len(short), 'partition')} can't be written to: {_some(short)}",
            "start the nodes that hold the other replicas",
        )
    if behind:
        return CheckResult(
            "in sync",
            "warning",
            f"{count(len(behind), 'partition')} with replicas out of sync: {_some(behind)}",
            "wait until the replicas have caught up, or start the nodes that hold them",
        )
    return CheckResult("in sync", "ok", "every replica is in sync")


def surprises(overview: Overview) -> CheckResult:
    """Events that the protocol rules out, and that nodes handled."""
    found = [
        f"{node}: {what} ({times} times)"
        for node, status in sorted(overview.statuses.items())
        for what, times in sorted(status["surprises"].items())
    ]
    advice = "no data is lost; report it with the node's log"
    return _listed("surprises", "warning", found, advice, "none reported")


def troubles(overview: Overview) -> CheckResult:
    advice = "repair the disk or free some space, then restart the node"
    return _listed("disks", "problem", _said(overview, "troubles"), advice, "no errors reported")


def refused(overview: Overview) -> CheckResult:
    advice = "other replicas still hold the rows: erase the damaged node's data and let it rejoin"
    return _listed("replicas", "problem", _said(overview, "refused"), advice, "none is damaged")


def free_space(overview: Overview) -> CheckResult:
    free = {
        f"{node}{':' + volume if volume else ''}": left
        for node, status in overview.statuses.items()
        for volume, left in status["free_bytes"].items()
    }
    short = [name for name, left in sorted(free.items()) if left < FREE_BYTES_MIN]
    least = size(min(free.values(), default=0))
    if short:
        return CheckResult(
            "free space",
            "problem",
            f"{least} left on {_some(short)}",
            "free some space on these disks",
        )
    return CheckResult("free space", "ok", f"at least {least} on every disk")


def clocks(overview: Overview) -> CheckResult:
    """Leases do not depend on synchronised clocks, but tokens and log lines do."""
    times = [status["time"] for status in overview.statuses.values()]
    apart = max(times) - min(times) if times else 0.0
    if apart > CLOCK_SECONDS_MAX + overview.seconds:
        return CheckResult(
            "clocks", "warning", f"the nodes' clocks are {apart:.1f} s apart", "synchronise them"
        )
    return CheckResult("clocks", "ok", "the nodes' clocks agree")


def versions(overview: Overview) -> CheckResult:
    found = sorted({status["version"] for status in overview.statuses.values()})
    if len(found) > 1:
        return CheckResult(
            "versions", "warning", f"nodes run {', '.join(found)}", "upgrade the older ones"
        )
    return CheckResult("versions", "ok", f"all nodes run {''.join(found) or 'the same'}")


CHECKS: tuple[Callable[[Overview], CheckResult], ...] = (
    *(reachable, coordinator, live, owned, in_sync),
    *(surprises, troubles, refused, free_space, clocks, versions),
)


def examine(overview: Overview) -> list[CheckResult]:
    return [check(overview) for check in CHECKS]


def _said(overview: Overview, what: str) -> list[str]:
    statuses = sorted(overview.statuses.items())
    return [f"{node}: {each}" for node, status in statuses for each in status[what]]


def _listed(check: str, verdict: Verdict, found: list[str], advice: str, fine: str) -> CheckResult:
    if found:
        return CheckResult(check, verdict, _some(found), advice)
    return CheckResult(check, "ok", fine)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return ", ".join(listed[:NAMED_AT_MOST]) + more
