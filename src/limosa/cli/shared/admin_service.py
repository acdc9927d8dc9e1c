"""Where are the admin service's files, and is it installed?"""

import os
from importlib.util import find_spec
from pathlib import Path

from limosa.client.discovery import DEFAULT_DIRECTORY, VARIABLE, check_owner, find_local
from limosa.errors import BadInput, Refused

INSTALL_ADMIN = "pip install '.[admin]'"


def directory_of(given: str | None) -> str:
    """The given directory, else that of LIMOSA_CLUSTER, ./limosa-data or the last cluster."""
    if given is not None:
        if not Path(given).is_dir():
            raise BadInput(
                f"there is no directory {given}", "name an existing one with --directory"
            )
        return given
    named = os.environ.get(VARIABLE, "")
    if named and Path(named).is_dir():
        return named
    if Path(DEFAULT_DIRECTORY).is_dir():
        check_owner(Path(DEFAULT_DIRECTORY), "--directory")
        return DEFAULT_DIRECTORY
    return find_local().directory


def is_admin_installed() -> bool:
    return find_spec("fastapi") is not None and find_spec("uvicorn") is not None


def check_admin_installed() -> None:
    if not is_admin_installed():
        raise Refused(
            "the admin service needs FastAPI and uvicorn", f"install them: {INSTALL_ADMIN}"
        )
