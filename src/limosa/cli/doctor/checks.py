"""Is something wrong, and what is to be done? Checks of one look at the cluster."""

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


class Finding(Struct, frozen=True):
    """What one check says."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def reachable(overview: Overview) -> Finding:
    if overview.failures:
        node, why = min(overview.failures.items())
        return Finding(
            "reachable",
            "problem",
            f"no answer from {_some(overview.failures)}: {why}",
            f"look at the log of {node}, and whether its address can be reached from here",
        )
    return Finding("reachable", "ok", f"{count(len(overview.statuses), 'node')} answered")


def coordinator(overview: Overview) -> Finding:
    holder = overview.agreed["coordinator"]
    if holder is None:
        return Finding(
            "coordinator",
            "problem",
            "no coordinator is in office: no table is made, and no dead owner replaced",
            "start one with `limosa serve coordinator`",
        )
    return Finding("coordinator", "ok", f"{holder} is in office")


def live(overview: Overview) -> Finding:
    silent = [node for node in overview.members if node not in overview.live]
    if silent:
        return Finding(
            "nodes",
            "problem",
            f"silent: {_some(silent)}",
            "start them again; one that is gone for good and holds nothing is taken out with "
            "`limosa node remove`",
        )
    return Finding("nodes", "ok", f"all of {count(len(overview.members), 'node')} live")


def owned(overview: Overview) -> Finding:
    lacking = overview.without_owner
    if lacking:
        return Finding(
            "owners",
            "problem",
            f"{count(len(lacking), 'partition')} without an owner: {_some(lacking)}",
            "wait for the election; if it lasts, start the nodes that hold them",
        )
    return Finding("owners", "ok", f"{count(len(overview.topology.partitions), 'partition')} owned")


def in_sync(overview: Overview) -> Finding:
    zones = overview.topology.zones
    partitions = overview.topology.partitions
    behind = overview.not_in_sync
    short = []
    for id in behind:
        needed = routing.needed(partitions[id], zones[partitions[id].zone])
        if len(routing.electable(partitions[id])) < needed:
            short.append(id)
    if short:
        return Finding(
            "in sync",
            "problem",
            f"{count(len(short), 'partition')} can't be written to: {_some(short)}",
            "start the nodes that hold the other replicas",
        )
    if behind:
        return Finding(
            "in sync",
            "warning",
            f"{count(len(behind), 'partition')} with fewer replicas in sync: {_some(behind)}",
            "wait until they have caught up, or start the nodes that hold them",
        )
    return Finding("in sync", "ok", "every replica is in sync")


def surprises(overview: Overview) -> Finding:
    """What the protocol did not expect, and handled."""
    found = [
        f"{node}: {what} ({times} times)"
        for node, status in sorted(overview.statuses.items())
        for what, times in sorted(status["surprises"].items())
    ]
    advice = "nothing is lost by it; report it with the node's log"
    return _listed("surprises", "warning", found, advice)


def troubles(overview: Overview) -> Finding:
    advice = "mend the disk or make room, then start the node again"
    return _listed("disks", "problem", _said(overview, "troubles"), advice)


def refused(overview: Overview) -> Finding:
    advice = "the others still hold the rows: wipe the damaged replica's node, and let it join anew"
    return _listed("replicas", "problem", _said(overview, "refused"), advice)


def free_space(overview: Overview) -> Finding:
    free = {
        f"{node}{':' + volume if volume else ''}": left
        for node, status in overview.statuses.items()
        for volume, left in status["free_bytes"].items()
    }
    short = [name for name, left in sorted(free.items()) if left < FREE_BYTES_MIN]
    least = size(min(free.values(), default=0))
    if short:
        return Finding(
            "free space", "problem", f"{least} left on {_some(short)}", "make room on these disks"
        )
    return Finding("free space", "ok", f"at least {least} on every disk")


def clocks(overview: Overview) -> Finding:
    """Leases need no common time, but tokens and people do."""
    times = [status["time"] for status in overview.statuses.values()]
    apart = max(times) - min(times) if times else 0.0
    if apart > CLOCK_SECONDS_MAX + overview.seconds:
        return Finding(
            "clocks", "warning", f"the nodes' clocks are {apart:.1f} s apart", "synchronise them"
        )
    return Finding("clocks", "ok", "the nodes' clocks agree")


def versions(overview: Overview) -> Finding:
    found = sorted({status["version"] for status in overview.statuses.values()})
    if len(found) > 1:
        return Finding(
            "versions", "warning", f"nodes run {', '.join(found)}", "upgrade the older ones"
        )
    return Finding("versions", "ok", f"all nodes run {''.join(found) or 'the same'}")


CHECKS: tuple[Callable[[Overview], Finding], ...] = (
    *(reachable, coordinator, live, owned, in_sync),
    *(surprises, troubles, refused, free_space, clocks, versions),
)


def examine(overview: Overview) -> list[Finding]:
    return [check(overview) for check in CHECKS]


def _said(overview: Overview, what: str) -> list[str]:
    statuses = sorted(overview.statuses.items())
    return [f"{node}: {each}" for node, status in statuses for each in status[what]]


def _listed(check: str, verdict: Verdict, found: list[str], advice: str) -> Finding:
    if found:
        return Finding(check, verdict, _some(found), advice)
    return Finding(check, "ok", "none is reported" if check == "surprises" else "no complaints")


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return ", ".join(listed[:NAMED_AT_MOST]) + more
