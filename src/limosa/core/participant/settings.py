"""How long does a node wait, and how much does it keep?"""

from msgspec import Struct


class ParticipantSettings(Struct, frozen=True):
    lease_seconds: float = 3.0
    lease_margin: float = 0.1
    """Clock rates differ by less than this share; the holder of a lease stops that much earlier."""
    heartbeat_seconds: float = 0.5
    resend_seconds: float = 0.3
    """Entries that a replica does not acknowledge are sent again after this pause; each further
    pause is twice as long, whatever the reason is that they do not arrive."""
    resend_seconds_max: float = 2.0
    silence_seconds_max: float = 1.5
    """A replica that has not answered for so long is reported as silent."""
    stuck_seconds_max: float = 6.0
    """A replica that makes no progress for so long is silent although others on its volume do."""
    tick_seconds_max: float = 0.25
    """If more time passes between two ticks, the node is behind with its own work: silence of other
    nodes counts only up to this time."""
    idle_seconds_max: float = 2.0
    """A node that has answered nothing for so long is asked whether it is still the same run."""
    seal_seconds_max: float = 2.0
    """A sealed owner that hears nothing for so long lifts its seal by a commit."""
    sync_seconds_max: float = 10.0
    """A volume whose sync takes longer than this has failed."""
    refresh_seconds: float = 1.0
    slowest_seconds: float = 2.0
    """A slow commit counts less and less, and no longer after so many seconds."""
    slow_write_seconds: float = 0.025
    """Copies are slowed while writes take longer than this, and than twice the usual time; 0:
    never."""
    copy_rate_min: float = 4 << 20
    """Bytes per second that are always left to the copies of a node together."""
    status_seconds: float = 0.005
    """The least time between two reports of changes to the coordinator."""
    log_entries_kept: int = 16_000
    """By all replicas of the node together, because replaying a log takes time."""
    entries_kept: int = 10_000
    """How many committed entries of a log are kept for replicas that catch up."""
    log_bytes_kept: int = 256 << 20
    """About how many bytes all logs of the node keep together."""
    recent_bytes: int = 1 << 20
    """How much of the end of each log stays in memory: older entries are seldom sent."""
    shelved_bytes: int = 1 << 20
    """A copied slice of at least so many bytes gets its own file; smaller ones use the log."""
    free_bytes_min: int = 256 << 20
    """An owner refuses clients' writes if its disk has less free space than this."""
    replicate_bytes: int = 8 << 20
    """The most that one message to another replica holds, but at least one entry."""
