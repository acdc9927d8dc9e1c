"""What does `limosa doctor` check? One function for each check of the cluster's overview."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.admin.overview import Overview
from limosa.cli.shared.terminal import count, size
from limosa.core import routing
from limosa.core.coordinator.limits import NODE_REPLICAS_MAX
from limosa.core.model.topology import Partition
from limosa.core.participant.vitals import NodeVitals

Verdict: TypeAlias = Literal["ok", "warning", "problem"]

FREE_BYTES_MIN = 1 << 30
CLOCK_SECONDS_MAX = 1.0
LAG_SECONDS_MAX = 1.0
"""A node that needs longer until it comes round to its regular work is overloaded."""
ASKED_SECONDS_MAX = 5.0
"""A coordinator asks every node for a report each second."""
REPLICAS_MAX = NODE_REPLICAS_MAX // 2
NAMED_AT_MOST = 5
LESS_LOAD = "let fewer clients write at once, write more rows at a time, use fewer partitions, or \
add nodes"


class CheckResult(Struct, frozen=True):
    """The result of one check."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def _judged(
    check: str, wrong: str, advice: str, fine: str, verdict: Verdict = "problem"
) -> CheckResult:
    """Fine if nothing is wrong."""
    return CheckResult(check, verdict, wrong, advice) if wrong else CheckResult(check, "ok", fine)


def reachable(overview: Overview) -> CheckResult:
    node, why = min(overview.failures.items(), default=("", ""))
    return _judged(
        "reachable",
        f"no answer from {_some(overview.failures)}: {why}" if node else "",
        f"see the log of {node}, and check that its address can be reached from here",
        f"{count(len(overview.statuses), 'node')} answered",
    )


def coordinator(overview: Overview) -> CheckResult:
    holder = overview.agreed["coordinator"]
    none = "no coordinator is active: no table can be created, and no dead owner is replaced"
    return _judged(
        "coordinator",
        none if holder is None else "",
        "start one with `limosa serve coordinator`",
        f"{holder} is active",
    )


def live(overview: Overview) -> CheckResult:
    silent = [node for node in overview.members if node not in overview.live]
    replace = f"limosa node replace {min(silent, default='')}"
    return _judged(
        "nodes",
        f"not live: {_some(silent)}" if silent else "",
        "start them again. If a disk does not answer: check the disk, then start the node. If a "
        "node's directory is lost or damaged: erase it, run "
        f"`{replace}`, and start the node (`limosa up` does that by itself)",
        f"all {count(len(overview.members), 'node')} are live",
    )


def owned(overview: Overview) -> CheckResult:
    lacking = overview.without_owner
    return _judged(
        "owners",
        f"{count(len(lacking), 'partition')} without an owner: {_some(lacking)}" if lacking else "",
        "wait a few seconds for an election. " + _about_nodes(overview, lacking),
        f"{count(len(overview.topology.partitions), 'partition')} owned",
    )


def in_sync(overview: Overview) -> CheckResult:
    zones = overview.topology.zones
    behind = [overview.topology.partitions[id] for id in overview.not_in_sync]
    short = [
        each.id
        for each in behind
        if not routing.takes_writes(each, routing.needed(each, zones[each.zone]))
    ]
    if short:
        return CheckResult(
            "in sync",
            "problem",
            f"{count(len(short), 'partition')} can't be written to: {_some(short)}",
            _about_nodes(overview, short),
        )
    what = f"{count(len(behind), 'partition')} with replicas out of sync: "
    return _judged(
        "in sync",
        what + _some(each.id for each in behind) if behind else "",
        _about_nodes(overview, overview.not_in_sync),
        "every replica is in sync",
        "warning",
    )


def _about_nodes(overview: Overview, partitions: Iterable[str]) -> str:
    """What to do about the nodes of partitions that lack an owner or a replica in sync."""
    records = [overview.topology.partitions[each] for each in partitions]
    away = {node for each in records for node in _lacking(each) if node not in overview.live}
    if away:
        return f"start the nodes that hold their replicas: {_some(away)}"
    if overview.overloaded(LAG_SECONDS_MAX):
        return f"all their nodes are live, but overloaded: {LESS_LOAD}"
    return (
        "all their nodes are live, and their replicas catch up: wait. If that takes longer than a "
        "minute, see `limosa explain PARTITION` and the nodes' logs"
    )


def _lacking(record: Partition) -> list[str]:
    """The nodes of replicas that are not in sync, or of all while there is no owner."""
    in_sync = record.in_sync if record.owner is not None else ()
    return [replica.node for replica in record.replicas if replica not in in_sync]


def load(overview: Overview) -> CheckResult:
    """Nodes that are behind with their own work."""
    late = overview.overloaded(LAG_SECONDS_MAX)
    wrong = _some(f"{node} is {lag:.1f} s behind with its own work" for node, lag in late.items())
    return _judged("load", wrong, LESS_LOAD, "every node keeps up with its work", "warning")


def coordination(overview: Overview) -> CheckResult:
    """A coordinator that is behind, or that some nodes do not hear. A node that is behind itself is
    no witness."""
    late = overview.overloaded(LAG_SECONDS_MAX)
    holder = overview.agreed["coordinator"]
    waits = {
        node: max(seen.asked_seconds or 0.0, seen.unheard_seconds or 0.0)
        for node, seen in overview.vitals.items()
        if holder is not None and node not in late
    }
    waiting = {node: seconds for node, seconds in waits.items() if seconds > ASKED_SECONDS_MAX}
    fine = "the coordinator takes up every node's reports"
    if not waiting:
        return CheckResult("coordination", "ok", fine)
    seconds = max(waiting.values())
    if len(waiting) == len(waits):
        what = f"{holder} is behind: it took up no report of the nodes for {seconds:.0f} s"
        advice = (
            "see its log. It catches up when the load ends; until then no dead owner is replaced "
            "in time. Use fewer partitions, or give it a faster machine or disk"
        )
    else:
        what = f"{holder} took up no report of {_some(waiting)} for {seconds:.0f} s"
        advice = "check the network between them and the coordinator, and see their logs"
    return CheckResult("coordination", "warning", what, advice)


def churn(overview: Overview) -> CheckResult:
    """Partitions that lose replicas or owners again and again, although nobody asked for it."""
    seen = max(overview.vitals.values(), key=lambda each: each.restless, default=NodeVitals())
    wrong = (
        f"{count(seen.restless, 'partition')} lost replicas or owners again and again in the last "
        f"minute: {count(seen.changes, 'change')} that nobody asked for"
    )
    if overview.overloaded(LAG_SECONDS_MAX):
        advice = f"the nodes are overloaded: {LESS_LOAD}"
    else:
        advice = "see the nodes' logs: a node, a disk or a network comes and goes"
    wrong = wrong if seen.restless else ""
    return _judged("churn", wrong, advice, "owners and replicas are steady", "warning")


def partitions(overview: Overview) -> CheckResult:
    """Nodes with so many replicas that everything about them takes longer."""
    held = Counter(
        replica.node for each in overview.topology.partitions.values() for replica in each.replicas
    )
    full = [
        f"{node} holds {number:,} replicas of at most {NODE_REPLICAS_MAX:,}"
        for node, number in held.items()
        if number > REPLICAS_MAX
    ]
    most = max(held.values(), default=0)
    advice = (
        "failovers and starts take seconds longer, small writes are slower, and each replica needs "
        "memory: create tables with fewer partitions, or add nodes"
    )
    fine = f"at most {count(most, 'replica')} on a node"
    return _judged("partitions", _some(full), advice, fine, "warning")


def surprises(overview: Overview) -> CheckResult:
    """Events that the protocol rules out, and that nodes handled."""
    found = [
        f"{node}: {what} ({times} times)"
        for node, status in sorted(overview.statuses.items())
        for what, times in sorted(status["surprises"].items())
    ]
    advice = "no data is lost; report it with the node's log"
    return _judged("surprises", _some(found), advice, "none reported", "warning")


def troubles(overview: Overview) -> CheckResult:
    advice = "free some space, and the node goes on; after a repair of the disk, restart it"
    return _judged("disks", _said(overview, "troubles"), advice, "no errors reported")


def keys(overview: Overview) -> CheckResult:
    advice = "repair the secret's file: until then, rotations and revocations have no effect there"
    wrong = _some(
        f"{node}: {each}"
        for node, status in sorted(overview.statuses.items())
        for each in status.get("keys", ())  # missing: a node of an earlier version
    )
    return _judged("secret", wrong, advice, "every node can read its keys")


def refused(overview: Overview) -> CheckResult:
    statuses = overview.statuses.values()
    # "refused_disks" is missing in the status of a node of an earlier version.
    disks = any(status.get("refused_disks", ()) for status in statuses)
    files = any(set(each["refused"]) - set(each.get("refused_disks", ())) for each in statuses)
    advice = ["wait: the replicas are rebuilt from others"]
    if disks:
        advice.append(
            "for a disk that failed or does not answer: check the disk, then restart the node"
        )
    if files:
        advice.append(
            "if damaged replicas are not rebuilt: stop the node, erase its directory, run `limosa "
            "node replace NODE`, and start the node"
        )
    return _judged("replicas", _said(overview, "refused"), "; ".join(advice), "none is damaged")


def damaged(overview: Overview) -> CheckResult:
    """Damaged files that were found while the node ran."""
    found = overview.damaged
    only = [each for each in found if each.only]
    what = _some(f"{each.partition} on {each.node}: {each.why}" for each in only or found)
    if only:
        return CheckResult(
            "damage",
            "problem",
            f"the only replica in sync is damaged: {what}",
            "start the nodes that hold other replicas; if there are none, stop the node, restore "
            "the file from a backup, and start the node again",
        )
    advice = "wait: the replicas are rebuilt from others; replace a disk that does this repeatedly"
    return _judged("damage", what, advice, "every file that was read is sound", "warning")


def free_space(overview: Overview) -> CheckResult:
    free = {
        f"{node}{':' + volume if volume else ''}": left
        for node, status in overview.statuses.items()
        for volume, left in status["free_bytes"].items()
    }
    short = [name for name, left in sorted(free.items()) if left < FREE_BYTES_MIN]
    least = size(min(free.values(), default=0))
    wrong = f"{least} left on {_some(short)}" if short else ""
    advice = "free some space on these disks"
    return _judged("free space", wrong, advice, f"at least {least} on every disk")


def clocks(overview: Overview) -> CheckResult:
    """Leases do not depend on synchronised clocks, but tokens and log lines do."""
    times = [status["time"] for status in overview.statuses.values()]
    apart = max(times) - min(times) if times else 0.0
    is_far = apart > CLOCK_SECONDS_MAX + overview.seconds
    wrong = f"the nodes' clocks are {apart:.1f} s apart" if is_far else ""
    return _judged("clocks", wrong, "synchronise them", "the nodes' clocks agree", "warning")


def versions(overview: Overview) -> CheckResult:
    found = sorted({status["version"] for status in overview.statuses.values()})
    wrong = f"nodes run {', '.join(found)}" if len(found) > 1 else ""
    fine = f"all nodes run {''.join(found) or 'the same'}"
    return _judged("versions", wrong, "upgrade the older ones", fine, "warning")


CHECKS: tuple[Callable[[Overview], CheckResult], ...] = (
    *(reachable, coordinator, live, owned, in_sync),
    *(load, coordination, churn, partitions),
    *(surprises, troubles, refused, damaged, keys, free_space, clocks, versions),
)


def examine(overview: Overview) -> list[CheckResult]:
    return [check(overview) for check in CHECKS]


def _said(overview: Overview, what: str) -> str:
    statuses = sorted(overview.statuses.items())
    return _some(f"{node}: {each}" for node, status in statuses for each in status[what])


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return ", ".join(listed[:NAMED_AT_MOST]) + more
