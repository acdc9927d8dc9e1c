"""How does Java start sooner? With an archive of the classes that Spark loads, made once.

The archive lies in the user's cache, and all clusters of the user share it. It is made in the
background, by a Java that starts and ends for that purpose, and gets its name when it is complete.
Java itself refuses an archive of other programs or of another Java, and starts without it.

    spark-….jsa           the archive, for this Java, this Spark and these options
    spark-….jsa.PID.new   it is being made
    spark-….jsa.starting  Java starts with it. If that lasts too long, Java has crashed, or was
                          killed: the archive is not used meanwhile, and is deleted after a while
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from limosa.pipeline.java import JavaIdentity

AOT_VERSION_MIN = 25
"""From this version of Java on, the archive also holds profiles, and is called AOT cache."""
STARTING_SECONDS_MAX = 300.0


class ClassArchive:
    """The archive for one Java, with which Spark is started with some options."""

    def __init__(self, java: JavaIdentity, options: str) -> None:
        self._version = java.version
        self.path = _cache() / f"spark-{_fingerprint(java.words, options)}.jsa"

    def is_there(self) -> bool:
        """It exists, and no other user could have made or changed it."""
        with suppress(OSError):
            known = self.path.lstat()
            private = not known.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            return stat.S_ISREG(known.st_mode) and private and known.st_uid == os.geteuid()
        return False

    def use(self) -> str:
        """Java's options to start with the archive; empty: it can't be used now."""
        if not self.is_there():
            return ""
        try:
            self._mark.touch(exist_ok=False)
        except OSError:  # another start uses it, or one has failed
            self._forget_if_bad()
            return ""
        if self._version >= AOT_VERSION_MIN:
            return f'-XX:AOTCache="{self.path}"'
        return f'-XX:SharedArchiveFile="{self.path}" -XX:+VerifySharedSpaces -Xshare:auto'

    def started(self) -> None:
        """Java started with it."""
        self._mark.unlink(missing_ok=True)

    def failed(self) -> None:
        """Java did not start with it: perhaps it is damaged."""
        self.path.unlink(missing_ok=True)
        self._mark.unlink(missing_ok=True)

    def making(self) -> str:
        """Java's options to make it, when that Java ends."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.path.parent.glob("*.new"):  # by processes that were killed
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > STARTING_SECONDS_MAX:
                    left.unlink()
        kind = "AOTCacheOutput" if self._version >= AOT_VERSION_MIN else "ArchiveClassesAtExit"
        return f'-XX:{kind}="{self._new}"'

    def made(self) -> bool:
        """That Java has ended; was the archive made?"""
        try:
            self._new.chmod(0o600)
            self._new.replace(self.path)
        except OSError:
            return False
        return True

    @property
    def _new(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{os.getpid()}.new")

    @property
    def _mark(self) -> Path:
        return self.path.with_name(self.path.name + ".starting")

    def _forget_if_bad(self) -> None:
        with suppress(OSError):
            if time.time() - self._mark.stat().st_mtime > STARTING_SECONDS_MAX:
                self.failed()


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    parent = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return parent / "limosa"


def _fingerprint(*facts: object) -> str:
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "unknown"
    return hashlib.sha256(repr((spark, *facts)).encode()).hexdigest()[:16]
