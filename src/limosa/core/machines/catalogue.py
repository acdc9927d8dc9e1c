"""Which machines are there? A table for each kind of transition, and states of other records.

A move has the stages that ScyllaDB's topology-over-raft describes, one more that its diagram lacks
(`write_both_read_old_fallback`: going straight from reading the new side to not writing it loses
reads), and the seals and openings of a hand-over, since one owner orders a partition's writes here.
"""

from limosa.core.machines.machine import END, REVERT, Life, Machine, Side, Stage, Work
from limosa.core.machines.rules import checked
from limosa.core.model.runs import MoveState

OLD, NEW, BOTH = Side.OLD, Side.NEW, Side.BOTH
_DUAL: MoveState = "DUAL_WRITE"
_COPY: MoveState = "COPYING"
_DONE: MoveState = "COMMITTED"

ALLOW = "allow_write_both_read_old"
WRITE_BOTH = "write_both_read_old"
REBUILD_REPAIR = "rebuild_repair"
STREAMING = "streaming"
READ_NEW = "write_both_read_new"
USE_NEW = "use_new"
CLEANUP = "cleanup"
FALLBACK = "write_both_read_old_fallback"
CLEANUP_TARGET = "cleanup_target"
REPAIR = "repair"

# fmt: off
_ALLOW     = Stage(ALLOW,      OLD, OLD,  OLD, False, _DUAL, (Work.PREPARE, Work.BARRIER),              WRITE_BOTH,     (CLEANUP_TARGET,),
                   "the transition is known; the new replicas may be made, and are not used")
_BOTH      = Stage(WRITE_BOTH, OLD, BOTH, OLD, True,  _DUAL, (Work.BARRIER,),                           STREAMING,      (CLEANUP_TARGET,),
                   "the new replicas are there, empty, and ready for writes")
_BOTH_MEND = Stage(WRITE_BOTH, OLD, BOTH, OLD, True,  _DUAL, (Work.BARRIER,),                           REBUILD_REPAIR, (CLEANUP_TARGET,),
                   "the new replicas are there, empty, and ready for writes")
_MEND      = Stage(REBUILD_REPAIR, OLD, BOTH, OLD, True, _DUAL, (Work.REPAIR, Work.BARRIER),           STREAMING,      (CLEANUP_TARGET,),
                   "every write that is acknowledged from now on is on both sides")
_STREAMING = Stage(STREAMING,  OLD, BOTH, OLD, True,  _COPY, (Work.COPY, Work.SEAL),                    READ_NEW,       (CLEANUP_TARGET,),
                   "every write that is acknowledged from now on is on both sides")
_READ_NEW  = Stage(READ_NEW,   NEW, BOTH, NEW, False, _COPY, (Work.OPEN, Work.BARRIER, Work.HOLD),      USE_NEW,        (FALLBACK, USE_NEW),
                   "the new replicas hold every acknowledged write")
_ONE_WAY   = Stage(READ_NEW,   NEW, BOTH, NEW, False, _COPY, (Work.OPEN, Work.BARRIER, Work.HOLD),      USE_NEW,        (),
                   "the new replicas hold every acknowledged write")
_USE_NEW   = Stage(USE_NEW,    NEW, NEW,  NEW, False, _DONE, (Work.BARRIER,),                           CLEANUP,        (),
                   "nobody reads the old replicas any more")
_CLEANUP   = Stage(CLEANUP,    NEW, NEW,  NEW, False, _DONE, (Work.DROP_OLD,),                          END,            (),
                   "no write reaches the old replicas any more")
_FALLBACK  = Stage(FALLBACK,   OLD, BOTH, OLD, False, _DUAL, (Work.OPEN, Work.BARRIER),                 CLEANUP_TARGET, (),
                   "the old replicas hold every acknowledged write and are read again")
_REVERT    = Stage(CLEANUP_TARGET, OLD, OLD, OLD, False, _DUAL, (Work.BARRIER, Work.DROP_NEW),          REVERT,         (),
                   "nobody reads the new replicas, and they are written no more")
_REPAIR    = Stage(REPAIR,     OLD, OLD,  OLD, True,  _DUAL, (Work.REPAIR,),                            END,            (END,),
                   "the replicas are being compared and mended; nothing else changes")

MOVE = checked(Machine("move", (
    _ALLOW, _BOTH, _STREAMING, _READ_NEW, _USE_NEW, _CLEANUP, _FALLBACK, _REVERT)))
REBUILD = checked(Machine("rebuild", (
    _ALLOW, _BOTH_MEND, _MEND, _STREAMING, _READ_NEW, _USE_NEW, _CLEANUP, _FALLBACK, _REVERT)))
VOLUME_MOVE = checked(Machine("volume_move", (
    _ALLOW, _BOTH, _STREAMING, _ONE_WAY, _USE_NEW, _CLEANUP, _REVERT)))
REPAIRING = checked(Machine("repair", (_REPAIR,)))
# fmt: on

MACHINES: dict[str, Machine] = {
    machine.name: machine for machine in (MOVE, REBUILD, VOLUME_MOVE, REPAIRING)
}

NODE = Life(
    "node",
    {
        "none": {"join": "bootstrapping", "replace": "replacing", "be rejected": "left"},
        "bootstrapping": {"succeed": "normal", "fail": "left"},
        "replacing": {"succeed": "normal", "fail": "left"},
        "normal": {"rebuild": "rebuilding", "leave": "decommissioning", "be removed": "removing"},
        "rebuilding": {"succeed": "normal"},
        "decommissioning": {"succeed": "left", "fail": "normal", "be removed": "removing"},
        "removing": {"succeed": "left", "fail": "normal"},
        "left": {},
    },
)

REBALANCE = Life(
    "rebalance",
    {
        "idle": {"start": "running"},
        "running": {"pause": "paused", "cancel": "cancelling", "end": "idle"},
        "paused": {"resume": "running", "cancel": "cancelling", "end": "idle"},
        "cancelling": {"end": "idle"},
    },
)

RUN_MOVE = Life(
    "move of a run",
    {
        "PENDING": {"start": "DUAL_WRITE", "be refused": "FAILED"},
        "DUAL_WRITE": {"copy": "COPYING", "fail": "FAILED"},
        "COPYING": {"commit": "COMMITTED", "fail": "FAILED"},
        "COMMITTED": {},
        "FAILED": {"try again": "PENDING"},
    },
)

LIVES: dict[str, Life] = {life.name: life for life in (NODE, REBALANCE, RUN_MOVE)}
