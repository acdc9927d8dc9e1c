"""Who tells automatic runs the load of partitions? A user's function, asked on a thread."""

import threading
from collections.abc import Callable
from importlib import import_module

from limosa.core.effects import AskForLoad
from limosa.core.model.keys import PartitionId
from limosa.core.planning.load import check_load
from limosa.errors import BadInput
from limosa.ports import LoadSource
from limosa.runtime.metastore import Log

Told = Callable[[dict[PartitionId, float]], None]


def load_source(path: str) -> LoadSource:
    """The function that a path `module:function` names, or an error that says what is wrong."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise BadInput(f"{path!r} is not a load source", "write MODULE:FUNCTION")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise BadInput(
            f"the load source {path} can't be imported: {type(error).__name__}: {error}",
            "check its name, and that its directory is in PYTHONPATH",
        ) from error
    if not callable(found):
        raise BadInput(f"the load source {path} is not a function", "name a function")
    source: LoadSource = found
    return source


class LoadAsking:
    """Asks a load source, one question at a time. An error or a hanging source only costs runs."""

    def __init__(self, source: LoadSource, told: Told, log: Log) -> None:
        self._source = source
        self._told = told
        self._log = log
        self._asking: threading.Thread | None = None

    def ask(self, question: AskForLoad) -> None:
        if self._asking is not None and self._asking.is_alive():
            self._log("the load source has not answered yet; nothing is balanced meanwhile")
            return
        self._asking = threading.Thread(
            target=self._ask, args=(question,), name="load-source", daemon=True
        )
        self._asking.start()

    def _ask(self, question: AskForLoad) -> None:
        try:
            told = check_load(self._source(question.measured))
        except Exception as error:
            self._log("the load source failed; nothing is balanced", error=error)
        else:
            self._told(told)
