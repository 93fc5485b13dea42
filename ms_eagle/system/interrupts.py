"""Ctrl-C as Python's KeyboardInterrupt, although MindSpore takes the signal for itself.

Every run of a compiled graph replaces the handler of SIGINT by one that ends the process with SIGTERM, so
that an answer cut by Ctrl-C would be lost. Here SIGINT is blocked in every thread and waited for by one of
our own, which passes it on to the main thread under another number.
"""

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_FORWARDED = signal.SIGRTMIN


@dataclass
class Stop:
    """The signal that asked to stop, SIGINT or SIGTERM; None while there was none."""

    signal: int | None = None


@contextlib.contextmanager
def deferred() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM only be noted, for work that ends itself where it can; on the main thread.

    After ``start``, a second Ctrl-C still ends the process at once.
    """
    stop = Stop()

    def note(number: int, frame: object) -> None:
        stop.signal = signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT

    signals = (signal.SIGINT, signal.SIGTERM, _FORWARDED)
    handled = [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]  # as under nohup
    before = {each: signal.signal(each, note) for each in handled}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def start() -> None:
    """Take over Ctrl-C for the rest of the process; call it on the main thread, before numpy is imported.

    Threads inherit what they block from the one that starts them: those of a library loaded earlier would
    still run MindSpore's handler. Native code is not interrupted: KeyboardInterrupt is raised when it
    returns. A second Ctrl-C before that ends the process at once with status 130. A process that ignores
    SIGINT, as under nohup, goes on ignoring it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # MindSpore's handler would not ignore it
    if handler is not signal.default_int_handler:
        return
    pending = threading.Event()
    # A chat changes the terminal, and at an end without Python nobody else would put it right.
    terminal = termios.tcgetattr(0) if os.isatty(0) else None

    def interrupt(number: int, frame: object) -> None:
        pending.clear()
        raise KeyboardInterrupt

    def forward(main: int) -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            if pending.is_set():
                if terminal is not None:
                    termios.tcsetattr(0, termios.TCSANOW, terminal)
                os._exit(130)
            pending.set()
            signal.pthread_kill(main, _FORWARDED)

    signal.signal(_FORWARDED, interrupt)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=forward, args=(threading.get_ident(),), name="ctrl-c", daemon=True).start()
