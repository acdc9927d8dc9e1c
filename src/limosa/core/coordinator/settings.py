"""How long does a coordinator wait for what, and how much does it keep? Read once, passed in."""

from msgspec import Struct


class CoordinatorSettings(Struct, frozen=True):
    look_seconds: float = 1.0
    """How often nodes are asked, though they also speak by themselves, and all is looked at."""
    ask_again_seconds: float = 0.4
    requests_kept: int = 1_000
    """Answered requests; older ones are forgotten."""
    reports_kept: int = 1_000
    """Of all partitions together; older ones are forgotten."""
    reports_kept_each: int = 5
    """Of one partition."""
    rebuilds: bool = True
    """Ask for the rebuild of replicas that can't come back by themselves."""
    copy_silence_seconds: float = 300.0
    """A copy of which nothing arrives for so long is given up."""
    compare_seconds: float = 30.0
    """How long to wait for the rows that differ, before a transition is given up for them."""
    hand_over_seconds: float = 0.02
    """What a hand-over is thought to cost, besides what is in flight, until one was measured."""
    moves_refused: str = ""
    """Why nobody may ask for a move here; empty: one may."""
    moves_advice: str = ""
    free_bytes_kept: int = 256 << 20
    """A replica is put only where so much stays free."""
    runs_kept: int = 50
    """Ended runs; older ones are forgotten, with their moves."""
    run_moves_kept: int = 5_000
    """Of all ended runs together; the last run is kept whatever it has."""
    retry_seconds: float = 2.0
    """How long to wait before a move that failed is tried again."""
