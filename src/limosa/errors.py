"""What can go wrong?

Every error says what happened and what to do, and whether the operation certainly did not happen
(`definite`), so that a caller knows when a retry needs its producer sequence.

    LimosaError
    ├── BadInput                definite; the caller can correct it
    │   ├── InvalidLayout       ranges with a gap or an overlap, or no ranges
    │   ├── InvalidKey          null, NaN, or a type that has no token
    │   ├── InvalidSchema       columns that no table can have, or that this table lacks
    │   │   └── UnknownSchema   a version of a table that this process does not know
    │   ├── TooManyBytes        a row, a write, an answer or a scan above its limit of bytes
    │   ├── UnknownTable        no table of that name
    │   ├── UnknownStage        a stage that the machine does not have
    │   ├── UnsafeMachine       a stage table that breaks a rule; it can't be imported
    │   ├── IllegalTransition   an edge that the machine does not have
    │   ├── IllegalRequest      a request that contradicts the agreed state
    │   └── UnusableFile        a path that can't be used, a damaged file, or another program's
    │       ├── VolumeInUse     another process has locked the directory
    │       └── DamagedFile     a part of a file does not match its checksum
    ├── Refused                 definite; a valid request, but not here or not now
    │   ├── Redirected          another owner or another layout version: refresh and route again
    │   ├── Fenced              an outdated epoch, generation, session or incarnation
    │   ├── SessionClosed       the transition that this work belongs to is over
    │   ├── NotEnoughReplicas   fewer replicas in sync than the zone requires
    │   ├── DiskFull            too little space is left; all is well again when there is space
    │   ├── Unauthenticated     the token or certificate is missing or invalid
    │   ├── Forbidden           the caller's role or name does not allow it
    │   ├── HistoryTrimmed      the metastore no longer keeps these changes: read again
    │   └── MetastoreUnavailable  the metastore is busy, full, failing or closed: retry
    ├── StaleGuard              definite; the agreed state changed since it was read
    ├── LeaseLost               definite; the holder must register again
    ├── VolumeFailed            not definite; a disk failed: the node must be restarted
    └── OutcomeUnknown          not definite; it may have happened: retry with the same sequence
"""

from typing import ClassVar


class LimosaError(Exception):
    """The root: a message, and advice on what to do about it."""

    definite: ClassVar[bool] = True

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message} ({advice})" if advice else message)
        self.message = message
        self.advice = advice


class BadInput(LimosaError):
    """The caller's input is wrong; nothing changed."""


class InvalidLayout(BadInput):
    """Partitions that do not cover the token space exactly."""


class InvalidKey(BadInput):
    """A key that has no token."""


class InvalidSchema(BadInput):
    """Columns that no table can have, or that this table does not have."""


class UnknownSchema(InvalidSchema):
    """A version of a table that this process does not know, or not yet."""

    def __init__(self, message: str, advice: str = "", fingerprint: int = 0) -> None:
        super().__init__(message, advice)
        self.fingerprint = fingerprint


class TooManyBytes(BadInput):
    """More bytes than one row, write, answer or scan may have."""


class UnknownTable(BadInput):
    """There is no table of that name."""


class UnknownStage(BadInput):
    """A stage that the machine does not have."""


class UnsafeMachine(BadInput):
    """A stage table that could lose or show wrong rows."""


class IllegalTransition(BadInput):
    """An edge that the machine does not have."""


class IllegalRequest(BadInput):
    """A request that contradicts the agreed state."""


class UnusableFile(BadInput):
    """A path that can't be used, a damaged file, or one of another program or version."""


class VolumeInUse(UnusableFile):
    """Another process has locked the directory."""


class DamagedFile(UnusableFile):
    """A part of a file does not match its checksum, or is missing; `path` names the file."""

    def __init__(self, message: str, advice: str = "", path: str = "") -> None:
        super().__init__(message, advice)
        self.path = path


class Refused(LimosaError):
    """A valid request that can't be served here or now; nothing changed."""


class Redirected(Refused):
    """The owner or the layout version has changed."""


class Fenced(Refused):
    """Work of an outdated epoch, generation, session or incarnation."""


class SessionClosed(Refused):
    """The transition that this work belongs to is over."""


class NotEnoughReplicas(Refused):
    """Fewer replicas are in sync than the zone requires."""


class DiskFull(Refused):
    """Too little space is left on a disk; nothing changed, and nothing is lost."""


class Unauthenticated(Refused):
    """The token or the certificate is missing or invalid."""


class Forbidden(Refused):
    """The caller's role or name does not allow this."""


class HistoryTrimmed(Refused):
    """The metastore no longer keeps the requested changes; read, then watch again."""


class MetastoreUnavailable(Refused):
    """The metastore does not answer now; nothing changed."""


class StaleGuard(LimosaError):
    """The agreed state has changed since the commit was computed; `keys` says where."""

    def __init__(self, message: str, advice: str = "", keys: tuple[str, ...] = ()) -> None:
        super().__init__(message, advice)
        self.keys = keys


class LeaseLost(LimosaError):
    """The lease has ended; its holder must register again."""


class OutcomeUnknown(LimosaError):
    """No answer: the operation may have happened."""

    definite = False


class VolumeFailed(LimosaError):
    """A write or sync of a disk failed; changes in flight may or may not be stored."""

    definite: ClassVar[bool] = False
