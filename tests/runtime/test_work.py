"""The thread for what takes a while."""

import os
import threading
import weakref
from functools import partial

from limosa.runtime.work import NICENESS, BackgroundWorker


class Rows:
    pass


def look_at(rows: Rows) -> None:
    pass


def test_work_is_done_in_its_order_and_what_fails_is_told() -> None:
    told: list[str] = []
    done: list[int] = []
    worker = BackgroundWorker(lambda what, **details: told.append(f"{what}: {details['error']}"))
    worker.do(lambda: done.append(1))
    worker.do(lambda: done.append(1 // 0))
    worker.do(lambda: done.append(2))
    worker.close()
    assert done == [1, 2]
    assert told == ["work failed: ZeroDivisionError('integer division or modulo by zero')"]


def test_what_is_done_is_let_go_of() -> None:
    """Rows and views that wait for the next thing to do would keep removed files in memory."""
    worker = BackgroundWorker(lambda what, **details: None)
    rows, passed = Rows(), threading.Event()
    gone = weakref.ref(rows)
    worker.do(partial(look_at, rows))
    worker.do(passed.set)
    del rows
    passed.wait(5.0)
    assert gone() is None
    worker.close()


def test_whoever_serves_comes_first() -> None:
    found: list[int] = []
    worker = BackgroundWorker(lambda what, **details: None)
    worker.do(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    worker.close()
    assert found == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)]
