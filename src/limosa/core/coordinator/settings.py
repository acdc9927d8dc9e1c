"""How long does a coordinator wait for what, and how much does it keep? Read once, passed in."""

from msgspec import Struct


class CoordinatorSettings(Struct, frozen=True):
    look_seconds: float = 1.0
    """How often the coordinator asks all nodes for their status and looks at all partitions."""
    ask_again_seconds: float = 0.4
    promise_seconds: float = 3.0
    """How long an election waits for a live candidate that does not promise the new epoch."""
    requests_kept: int = 1_000
    """Answered requests; older ones are deleted."""
    reports_kept: int = 1_000
    """Of all partitions together; older reports are deleted."""
    reports_kept_each: int = 5
    """Of one partition."""
    rebuilds: bool = True
    """Rebuild replicas that can't catch up."""
    copy_silence_seconds: float = 300.0
    """Timeout of a copy that makes no progress; then the transition is given up."""
    compare_seconds: float = 30.0
    """How long to wait for the list of differing rows before a transition is given up."""
    hand_over_seconds: float = 0.02
    """Expected cost of a hand-over beyond the writes in flight, until one was measured."""
    pipeline_always: bool = False
    """Keep the pipeline running, also while nothing is to be copied."""
    pipeline_seconds_max: float = 60.0
    """How long a move waits until the pipeline is ready before it begins nevertheless."""
    moves_refused: str = ""
    """Why moves are refused here; empty: they are allowed."""
    moves_advice: str = ""
    load_source: bool = False
    """Automatic runs ask a load source for the load, instead of using the measured rates."""
    free_bytes_kept: int = 256 << 20
    """A replica is placed only where this much stays free."""
    runs_kept: int = 50
    """Ended runs; older ones are deleted with their moves."""
    run_moves_kept: int = 5_000
    """Of all ended runs together; the last run is always kept."""
    retry_seconds: float = 2.0
    """How long to wait before a failed move is retried."""
    resize_seconds: float = 10.0
    """How long to wait before a partition that gave up a new replica count tries it again."""
