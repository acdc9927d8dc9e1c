"""What holds for every test: the same examples each time, and children that hear Ctrl-C."""

import signal

from hypothesis import settings

settings.register_profile("limosa", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("limosa")


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
