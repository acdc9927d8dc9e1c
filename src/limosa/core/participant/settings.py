"""How long does a node wait for what? Read once, passed in."""

from msgspec import Struct


class ParticipantSettings(Struct, frozen=True):
    lease_seconds: float = 3.0
    lease_margin: float = 0.1
    """Clock rates differ by less than this; the holder of a lease stops so much earlier."""
    heartbeat_seconds: float = 0.5
    resend_seconds: float = 0.3
    silence_seconds_max: float = 1.5
    """A replica that owes an answer for so long is reported as silent."""
    idle_seconds_max: float = 2.0
    """A replica that said nothing for so long is asked whether it is still the same run."""
    seal_seconds_max: float = 2.0
    """A sealed owner that hears nothing for so long asks to be unsealed, by a commit."""
    refresh_seconds: float = 1.0
    slowest_seconds: float = 2.0
    """For how long a slow commit is remembered, less and less."""
    status_seconds: float = 0.005
    """The coordinator is told of changes at most this often; of several ones together."""
    log_entries_kept: int = 16_000
    """By all replicas here together: to replay a log takes its time."""
    entries_kept: int = 10_000
    """How much of the log behind the watermark is kept for replicas that catch up."""
    log_bytes_kept: int = 256 << 20
    """... and of all logs of this node together, about how many bytes."""
    recent_bytes: int = 1 << 20
    """How much of the end of each log stays in memory: what is sent is seldom older."""
    shelved_bytes: int = 1 << 20
    """A copied slice of so many bytes goes to a file of its own; smaller ones share the log."""
    replicate_bytes: int = 8 << 20
    """No more than this in one message to another replica, but at least one entry."""
