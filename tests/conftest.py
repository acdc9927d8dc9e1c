"""What holds for every test: the same examples each time, children that hear Ctrl-C, no processes
unless the test is marked, and, with `--quick`, no long calculations."""

import multiprocessing.util
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("limosa", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("quick", parent=settings.get_profile("limosa"), max_examples=20)
settings.load_profile("limosa")

MARKS = ("slow", "thorough", "processes")
QUICK_CPU_SECONDS = 5.0
"""Of one test. Processor time hardly depends on what else the machine does."""


def restore_signals_in_children() -> None:
    """Children start with the default signals, even if those of the tests are ignored.

    A shell starts a job in the background of a script with SIGINT and SIGQUIT ignored, and nohup
    ignores SIGHUP. Ignored signals are inherited; a handler is not: a child that is executed has
    the default again. The tests themselves go on to ignore these signals, as they were asked to.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


restore_signals_in_children()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out the tests marked slow, thorough or processes",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_quick = config.getoption("--quick")
    config.pluginmanager.register(Unmarked(is_quick))
    if is_quick:
        config.option.markexpr = " and ".join(f"not {mark}" for mark in MARKS)
        settings.load_profile("quick")


@pytest.fixture(scope="session")
def processes() -> None:
    """Used by fixtures that start processes: it marks all tests that use them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "processes" in item.fixturenames:
            item.add_marker("processes")


class Unmarked:
    """Fails a test that is not marked and yet starts a process or, in a quick run, calculates for
    long."""

    def __init__(self, is_quick: bool) -> None:
        self._is_quick = is_quick
        self._started: list[str] = []

    def _refuse(self, what: object, *more: object, **_: object) -> None:
        self._started.append(str(more[0] if more else what))
        raise RuntimeError(f"a test that is not marked `processes` starts one: {self._started[-1]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._started.clear()
        if any(item.get_closest_marker(mark) for mark in MARKS):
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            # No audit hook: it would run while other threads start to be traced for coverage.
            patch.setattr(subprocess.Popen, "_execute_child", self._refuse)
            patch.setattr(multiprocessing.util, "spawnv_passfds", self._refuse)
            patch.setattr(os, "fork", self._refuse)
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        began = time.process_time()
        result = yield
        seconds = time.process_time() - began
        if self._started:
            pytest.fail(f"mark this test `processes`: it started {self._started[0]}")
        if self._is_quick and seconds > QUICK_CPU_SECONDS:
            pytest.fail(
                f"mark this test `thorough`, or make it faster: it took {seconds:.1f} s of CPU"
            )
        return result
