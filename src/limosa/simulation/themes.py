"""What is a simulated run about? A mix of workloads, operators and faults, written as data.

Three in ten seeds use all workloads and faults; the others concentrate on one kind of trouble,
because some interleavings need three unlikely events in a row.
"""

from random import Random

from msgspec import Struct

from limosa.core.machines.catalogue import FALLBACK, READ_NEW, REPAIR
from limosa.core.machines.machine import Work
from limosa.simulation.faults import FAULTS
from limosa.simulation.network import Weather
from limosa.simulation.service import WorkSeconds


class Theme(Struct, frozen=True):
    """Weights of faults, requests and operations; those that are not named do not happen."""

    name: str
    faults: dict[str, float]
    operator: dict[str, float]
    """An operator's requests: a request's kind, `version` or `collect`."""
    clients: dict[str, float]
    """The operations of register clients."""
    aimed: tuple[float, ...] = (0.1, 0.3, 0.6)
    """How often a fault hits a stage that was just entered."""
    stages: tuple[str, ...] = ()
    """Which stages faults are aimed at; empty: all."""
    delays: tuple[float, ...] = (0.0, 0.003, 0.02, 0.1)
    """How long after the stage was entered."""
    waits: float = 0.12
    """The factor by which faults are rarer when the coordinator starts to wait."""
    at_waits: dict[Work, str] = {}
    """Faults for the moments at which the coordinator starts to wait, by what it waits for."""
    owner_moves: float = 0.6
    operator_seconds: float = 1.2
    fault_seconds: tuple[float, ...] = (1.5, 4.0)
    seconds: tuple[float, ...] = (6.0, 10.0, 14.0)
    """How long the trouble lasts."""
    latency_seconds: float = 0.002
    loaded: bool = False
    """Whether everything must be in sync again while the load goes on."""
    crowded: bool = False
    """Whether clients insert as many rows as they can."""
    paces: tuple[float, ...] = (0.03, 0.06, 0.12)
    """Half the seconds between two operations of a client, on average."""
    dropped: tuple[float, ...] = (0.0, 0.0, 0.01, 0.05)
    slow: tuple[float, ...] = (0.0, 0.02, 0.1)
    stuck: tuple[float, ...] = (0.0, 0.0, 0.004, 0.02)
    """Shares of messages that the network loses, delays a little, or delays for seconds."""
    hold_seconds: tuple[float, ...] = (0.0, 0.0, 1.0)
    replicas: tuple[int, ...] = (1, 2, 2, 3, 3, 3)
    partitions: tuple[int, ...] = (1, 1, 2)
    nodes: tuple[int, ...] = (4,)
    """How many nodes there are, unless there is just one more than replicas."""
    client_counts: tuple[int, ...] = (3, 4)
    entries_kept: tuple[int, ...] = (4, 12, 1000)
    """How many entries a log keeps: a replica that lacks more must be rebuilt."""
    run_seconds: float = 0.0
    """Seconds between two requests about runs; 0: no requests."""
    member_seconds: float = 0.0
    """Seconds between two requests about nodes, zones and tables; 0: no requests."""
    bank: bool = False
    """Whether all clients also transfer money, and read the accounts from any replica."""
    at_turns: float = 0.0
    """How often the coordinator is replaced when a run changes its state."""
    services: tuple[WorkSeconds, ...] = ()
    """How long work takes; empty: no time. See `overload`."""


OPERATOR = {
    "move": 45.0, "volume_move": 7.0, "repair": 6.0, "rebuild": 6.0, "cancel": 8.0, "reverse": 4.0,
    "complete": 4.0, "version": 6.0, "collect": 14.0,
}  # fmt: skip
CLIENTS = {
    "read": 35.0, "eventual": 5.0, "write": 22.0, "batch": 8.0, "delete": 12.0, "compare": 16.0,
    "scan": 2.0,
}  # fmt: skip

EVERYTHING = Theme("everything", dict.fromkeys(FAULTS, 1.0), OPERATOR, CLIENTS)

THEMES: tuple[Theme, ...] = (
    EVERYTHING,
    EVERYTHING,
    EVERYTHING,
    Theme(
        "returns",
        {"cut_owner_from_peers": 6, "crash_target": 2, "isolate_target": 3},
        {"move": 1, "collect": 1},
        {"read": 3, "write": 6, "compare": 1},
        aimed=(0.6, 0.9),
        delays=(0.0, 0.0, 0.001),
        waits=0.5,
        fault_seconds=(3.0,),
        stuck=(0.0,),
        replicas=(2,),
    ),
    Theme(
        "hand-over",
        {"cut_target_from_metastore": 6, "replace_coordinator": 3, "pause_owner": 1},
        {"move": 10, "reverse": 1},
        {"read": 6, "write": 4},
        aimed=(0.6, 0.9),
        stages=(READ_NEW, FALLBACK),
        delays=(0.0, 0.0, 0.001),
        waits=0.05,
        at_waits={Work.SEAL: "replace_coordinator"},
        owner_moves=1.0,
        operator_seconds=0.7,
        fault_seconds=(20.0,),
        hold_seconds=(0.0, 2.0),
        replicas=(1, 2, 2, 3),
    ),
    Theme(
        "failover",
        {"crash_owner": 4, "isolate_owner": 2, "cut_owner_from_metastore": 3, "cut_one_way": 3,
         "pause_owner": 2, "cut_owner_from_peers": 3, "crash_target": 2},
        {"move": 3, "collect": 1},
        {"read": 4, "write": 5, "compare": 3, "batch": 2},
        aimed=(0.3, 0.6),
        fault_seconds=(0.8, 2.0),
        replicas=(2, 3, 3),
    ),
    Theme(
        "deletes",
        {"kill_mover": 3, "crash_target": 2, "pause_target": 2, "isolate_target": 1,
         "cut_target_from_metastore": 1},
        {"move": 10, "cancel": 4, "collect": 14, "repair": 2},
        {"read": 4, "write": 4, "delete": 6, "compare": 1},
        aimed=(0.2, 0.5),
        operator_seconds=0.5,
        stuck=(0.0, 0.02, 0.05),
        replicas=(1, 2),
    ),
    Theme(
        "give and take",
        {"crash_target": 3, "isolate_target": 3, "pause_target": 3, "crash_owner": 1,
         "wipe_replica": 2},
        {"move": 10, "rebuild": 3, "cancel": 2, "reverse": 4},
        {"read": 4, "write": 5, "delete": 1, "compare": 2},
        aimed=(0.3, 0.6),
        hold_seconds=(0.0, 1.0, 3.0),
        replicas=(2, 3),
    ),
    Theme(
        "leases",
        {"silence_to_metastore": 6, "pause_owner": 4, "cut_owner_from_metastore": 1},
        {"move": 2, "collect": 1},
        {"read": 4, "write": 5},
        aimed=(0.05,),
        fault_seconds=(3.0, 4.5),
        stuck=(0.05, 0.1, 0.2),
        replicas=(2, 3),
    ),
    Theme(
        "restarts",
        {"crash_owner": 3, "crash_target": 4, "cut_target_from_metastore": 1, "pause_target": 1},
        {"move": 8, "cancel": 2},
        {"read": 3, "write": 5, "delete": 1},
        aimed=(0.2, 0.5),
        operator_seconds=0.7,
        fault_seconds=(0.7, 1.5),
        stuck=(0.05, 0.1, 0.2),
        replicas=(1, 2, 3),
    ),
)  # fmt: skip


REPAIRS = Theme(
    "repairs",
    {"cut_one_way": 6, "kill_mover": 2, "crash_target": 1, "crash_owner": 1, "pause_target": 1,
     "wipe_replica": 2},
    {"repair": 12, "rebuild": 3, "cancel": 5, "collect": 10, "move": 2},
    {"read": 4, "write": 3, "batch": 4, "delete": 6},
    aimed=(0.1, 0.3),
    operator_seconds=0.3,
    fault_seconds=(1.0, 2.5),
    stuck=(0.0, 0.02, 0.05),
    replicas=(2, 3),
    partitions=(1,),
    bank=True,
)  # fmt: skip

SEALS = Theme(
    "seals",
    {"cut_old_owner_from_peers": 1},
    {"move": 1},
    {"read": 8, "write": 6, "compare": 1},
    aimed=(0.9,),
    stages=(READ_NEW,),
    delays=(0.0,),
    waits=0.0,
    paces=(0.12, 0.3),
    owner_moves=1.0,
    operator_seconds=0.7,
    fault_seconds=(20.0,),
    stuck=(0.0,),
    replicas=(1, 2, 2, 3),
    partitions=(1,),
)
"""A sealed owner hears nothing of the hand-over that follows, while clients still reach it."""

FALLBACKS = Theme(
    "fallbacks",
    {
        "hang_disk": 4,
        "stall_disk": 1,
        "fill_disk": 1,
        "silence_to_metastore": 1,
        "isolate_owner": 1,
    },
    {"move": 10, "cancel": 8, "reverse": 8},
    {"read": 6, "write": 4},
    aimed=(0.9,),
    stages=(FALLBACK,),
    delays=(0.0, 0.0, 0.001),
    waits=0.05,
    owner_moves=1.0,
    operator_seconds=0.4,
    fault_seconds=(3.0,),
    replicas=(1, 2, 3),
)
"""Moves go back after reads have switched, and disks fail meanwhile."""

COLLECTIONS = Theme(
    "collections",
    {"slow_copies": 1},
    {"move": 2, "collect": 12},
    {"read": 4, "write": 3, "delete": 4},
    aimed=(0.0,),
    waits=0.0,
    owner_moves=1.0,
    operator_seconds=0.1,
    fault_seconds=(1.5,),
    seconds=(12.0,),
    paces=(0.03, 0.06),
    dropped=(0.0,),
    slow=(0.0,),
    stuck=(0.0,),
    replicas=(1, 2),
    partitions=(1,),
)
"""Rows are deleted, and tombstones collected, while older rows are on their way to a replica."""

STORIES: tuple[Theme, ...] = (
    # The owner must count its lease from the sending of a renewal: its answer comes seconds late.
    Theme(
        "late answers",
        {"answer_late_then_lose_renewals": 1},
        {"collect": 1},
        {"read": 4, "write": 6},
        aimed=(0.0,),
        operator_seconds=4.0,
        fault_seconds=(20.0,),
        seconds=(14.0,),
        dropped=(0.0,),
        slow=(0.0,),
        stuck=(0.0,),
        replicas=(3,),
        partitions=(1,),
    ),
    # A replica must return though its owner is never idle: entries are always under way.
    Theme(
        "return under load",
        {"isolate_target": 1, "crash_target": 1},
        {"collect": 1},
        {"read": 1},
        aimed=(0.0,),
        operator_seconds=4.0,
        fault_seconds=(0.7,),
        seconds=(3.0,),
        latency_seconds=0.04,
        loaded=True,
        crowded=True,
        paces=(0.07,),
        stuck=(0.0,),
        replicas=(3,),
        partitions=(1,),
        client_counts=(26,),
        entries_kept=(10_000,),
    ),
    # A repair must not show half of a transfer on a replica that was filled a moment ago.
    Theme(
        "repair of a new replica",
        {"slow_replication": 1},
        {"move": 2, "repair": 3},
        {"read": 1},
        aimed=(0.9,),
        stages=(REPAIR,),
        delays=(0.0,),
        waits=0.0,
        owner_moves=0.0,
        operator_seconds=0.15,
        fault_seconds=(1.0,),
        seconds=(10.0,),
        paces=(0.004,),
        dropped=(0.0,),
        slow=(0.0,),
        stuck=(0.0,),
        replicas=(2, 3),
        partitions=(1,),
        bank=True,
    ),
)
"""Each makes one sequence of events likely that other seeds almost never reach."""

OUTAGES: tuple[Theme, ...] = (
    Theme(
        "power",
        {"power_failure": 4, "crash_owner": 1, "stall_disk": 2, "crash_client": 1},
        {"move": 2, "collect": 1},
        {"read": 3, "write": 6, "compare": 2, "batch": 1},
        aimed=(0.05, 0.2),
        delays=(0.0, 0.003, 0.02),
        fault_seconds=(2.5, 5.0),
        operator_seconds=2.0,
        stuck=(0.0,),
        seconds=(6.0, 10.0),
        loaded=True,
    ),
    Theme(
        "disks",
        {"stall_disk": 8, "hang_disk": 3, "fill_disk": 3, "lose_volume": 2, "rot_replica": 4,
         "crash_owner": 2, "crash_target": 2, "power_failure": 1},
        {"move": 2},
        {"read": 3, "write": 6, "compare": 2},
        aimed=(0.2, 0.5),
        fault_seconds=(0.5, 1.0),
        operator_seconds=1.5,
        replicas=(2, 3, 3),
    ),
    Theme(
        "crowd",
        {"crash_target": 2, "isolate_target": 4, "stall_disk": 1, "slow_link": 2},
        {"move": 1},
        {"read": 1, "write": 6},
        aimed=(0.05,),
        fault_seconds=(1.0,),
        operator_seconds=4.0,
        stuck=(0.0,),
        crowded=True,
        paces=(0.003, 0.006),
        seconds=(4.0,),
        latency_seconds=0.02,
        replicas=(2, 3, 3),
        partitions=(1,),
        loaded=True,
    ),
    Theme(
        "far away",
        {"slow_link": 5, "lose_metastore": 3, "crash_client": 3, "replace_coordinator": 1},
        OPERATOR,
        CLIENTS,
        aimed=(0.1, 0.3),
        fault_seconds=(1.0, 2.0),
        loaded=True,
    ),
)  # fmt: skip
"""Power failures, slow disks, saturating load and long distances."""

MEMBERS = Theme(
    "members",
    dict.fromkeys(FAULTS, 1.0),
    {"move": 4, "cancel": 2, "rebuild": 1, "collect": 1},
    CLIENTS,
    aimed=(0.02, 0.1),
    waits=0.02,
    operator_seconds=2.0,
    fault_seconds=(2.0, 5.0),
    replicas=(1, 2, 3),
    nodes=(4,),
    member_seconds=0.5,
)

OVERLOAD = Theme(
    "overload",
    {},
    {},
    {},
    dropped=(0.0,),
    slow=(0.0,),
    stuck=(0.0,),
    replicas=(3,),
    partitions=(30, 40, 120),
    nodes=(4,),
    client_counts=(8, 16, 30),
    entries_kept=(10_000,),
    loaded=True,
    services=(WorkSeconds(), WorkSeconds(transaction=0.1, operation=0.001)),
)
"""Clients write more than the nodes can take."""

RUNS: tuple[Theme, ...] = (
    Theme(
        "runs",
        dict.fromkeys(FAULTS, 1.0),
        {"move": 6, "volume_move": 1, "rebuild": 1, "cancel": 8, "reverse": 4, "complete": 1},
        CLIENTS,
        aimed=(0.02, 0.05, 0.15),
        waits=0.02,
        operator_seconds=2.5,
        fault_seconds=(2.0, 5.0),
        replicas=(1, 2, 2, 3),
        partitions=(2, 3, 4),
        nodes=(4, 5, 5),
        run_seconds=0.7,
        at_turns=0.15,
    ),
    Theme(
        "runs of several coordinators",
        {"replace_coordinator": 8, "kill_mover": 1, "crash_target": 2, "crash_owner": 1},
        {"move": 3, "cancel": 4, "reverse": 1},
        CLIENTS,
        aimed=(0.05, 0.15),
        waits=0.02,
        operator_seconds=3.0,
        fault_seconds=(1.5, 4.0),
        replicas=(1, 2, 2),
        partitions=(3, 4, 5),
        nodes=(4, 5),
        run_seconds=0.5,
        at_turns=0.4,
    ),
)


def weather_of(theme: Theme, dice: Random) -> Weather:
    return Weather(
        latency_seconds=theme.latency_seconds,
        dropped=dice.choice(theme.dropped),
        doubled=dice.choice((0.0, 0.02, 0.1)),
        slow=dice.choice(theme.slow),
        stuck=dice.choice(theme.stuck),
    )
