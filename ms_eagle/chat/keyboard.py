"""A person at a terminal: whole messages, also pasted ones, and silence while an answer is written.

The standard library's readline is all that is needed: it edits lines and knows bracketed paste, where a
terminal marks what is pasted. Where one does not, lines that arrive together belong together.
"""

import contextlib
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator

try:
    import readline
except ImportError:  # Python built without it: no line editing
    readline = None

_PAUSE = 0.05  # seconds without a key: longer than between the lines of a paste, shorter than anybody types
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.?)", re.DOTALL)
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keyboard:
    """The terminal on standard input."""

    def __init__(self) -> None:
        self._typed = ""
        self._prompt: str | None = None  # of the line that is edited
        self._at_start = _attributes()
        self._editor = readline if sys.stdout.isatty() else None
        if self._editor is not None:
            with contextlib.suppress(Exception):  # libedit has other words for it
                self._editor.parse_and_bind("set enable-bracketed-paste on")

    def read(self, prompt: str) -> str | None:
        """The next message, or None at the end of the input; lines that come without a pause are one.

        What was typed during an answer stands behind the prompt, to be edited and sent.

        Raises:
            UserError: it is not UTF-8.
            KeyboardInterrupt: Ctrl-C.
        """
        typed, self._typed = self._typed, ""
        line = self._line(prompt, typed)
        if line is None:
            return None
        lines = [line]
        while line and _waiting():
            line = self._line("", "") or ""
            lines.append(line)
        return "".join(lines)

    def _line(self, prompt: str, typed: str) -> str | None:
        """A line with its end, or None at the end of the input."""
        editor = self._editor
        if editor is not None:
            editor.set_startup_hook(lambda: editor.insert_text(typed))
            self._prompt = prompt
            try:
                return input(prompt) + "\n"
            except EOFError:
                print(file=sys.stderr, flush=True)
                return None
            finally:
                self._prompt = None
                editor.set_startup_hook()
        print(prompt, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() or None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Show no key that is pressed inside, and keep them for the next prompt; Ctrl-C and Ctrl-Z work."""
        before = _attributes()
        if before is None:
            yield
            return
        silent = [*before]
        silent[3] &= ~(termios.ECHO | termios.ICANON)
        _set(silent)
        try:
            yield
        finally:
            keys = bytearray()
            with contextlib.suppress(OSError):
                while _waiting(0) and (some := os.read(sys.stdin.fileno(), 4096)):
                    keys += some
            if self._editor is not None:
                self._typed += typed_text(keys.decode(errors="ignore"))
            _set(before)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Leave the terminal as it was found, however the process ends or is suspended inside."""
        if self._at_start is None:
            yield
            return

        def end(number: int, frame: object) -> None:
            raise _Ended(number)

        def suspend(number: int, frame: object) -> None:
            now = _attributes()
            _set(self._at_start)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, suspend)
            _set(now)
            if self._prompt is not None and self._editor is not None:  # which does not know its line is gone
                print(self._prompt, self._editor.get_line_buffer(), sep="", end="", flush=True)

        handlers: dict[int, Callable[[int, object], None]] = dict.fromkeys(_ENDS, end)
        handlers[signal.SIGTSTP] = suspend
        with _handled(handlers):
            try:
                yield
            except _Ended as ended:
                _set(self._at_start)
                signal.signal(ended.number, signal.SIG_DFL)
                os.kill(os.getpid(), ended.number)
            finally:
                _set(self._at_start)


class _Ended(BaseException):
    """A signal ends the process, as soon as the terminal is as it was."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def typed_text(keys: str) -> str:
    """What is left of keys pressed blindly: erased characters, arrows and line ends at the end are gone."""
    text: list[str] = []
    for key in _ESCAPES.sub("", keys).replace("\r", "\n"):
        if key in "\b\x7f":
            del text[-1:]
        elif key in "\n\t" or key.isprintable():
            text.append(key)
    return "".join(text).strip("\n")


@contextlib.contextmanager
def _handled(handlers: dict[int, Callable[[int, object], None]]) -> Iterator[None]:
    """Handle signals, but those that this process ignores, as under nohup."""
    before = {each: signal.getsignal(each) for each in handlers}
    taken = {each: handler for each, handler in before.items() if handler is not signal.SIG_IGN}
    for each in taken:
        signal.signal(each, handlers[each])
    try:
        yield
    finally:
        for each, handler in taken.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _waiting(seconds: float = _PAUSE) -> bool:
    """Whether keys have been pressed that nobody has read, or are within so many seconds."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])
    except (OSError, ValueError):  # no real file
        return False


def _attributes() -> list | None:
    """The settings of the terminal; None where standard input is none."""
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        return None


def _set(attributes: list | None) -> None:
    """Give the terminal these settings; one that has gone away needs none."""
    with contextlib.suppress(OSError, termios.error):
        if attributes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, attributes)
