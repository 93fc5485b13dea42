"""An interactive chat on a terminal, or line by line from a pipe."""

import contextlib
import sys
from collections.abc import Callable

from ms_eagle.chat.conversation import Conversation
from ms_eagle.chat.report import Asked, Report
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError

HELP = "/reset forgets the conversation, /exit leaves (or Ctrl-D), Ctrl-C stops an answer"
_PROMPT = ">>> "


class ChatShell:
    """Reads messages, answers each, and obeys ``/reset``, ``/exit`` and ``/help``.

    On a terminal a mistake is told and the chat goes on, and an answer can be stopped with Ctrl-C; twice
    Ctrl-C at the prompt leaves. From a pipe a mistake ends the run.
    """

    def __init__(self, conversation: Conversation, options: GenerationOptions, report: Report) -> None:
        self._conversation, self._options, self._report = conversation, options, report
        self._interactive = sys.stdin.isatty()

    def run(self) -> bool:
        """Chat until the end of the input; False if Ctrl-C ended it in the middle of a piped answer.

        Raises:
            UserError: from a pipe, for a message that cannot be answered.
        """
        if self._interactive:
            with contextlib.suppress(ImportError):  # Python built without it: no line editing
                import readline  # noqa: F401
            _tell(HELP)
        read = self._reader()
        leaving = False
        while True:
            try:
                line = read()
            except KeyboardInterrupt:
                if leaving or not self._interactive:
                    _tell("")
                    return self._interactive
                leaving = True
                _tell("\nCtrl-C again, /exit or Ctrl-D leaves")
                continue
            leaving = False
            if line is None or line == "/exit":
                return True
            if not self._handle(line):
                return False

    def _handle(self, line: str) -> bool:
        """Obey a command or answer a message; False if Ctrl-C cut the answer of a pipe."""
        if line == "/reset":
            self._conversation.reset()
            _tell("the conversation is forgotten")
        elif line.startswith("/") and line[1:].isalpha():
            _tell(HELP if line == "/help" else f"unknown command {line}; {HELP}")
        elif line:
            return self._answer(line)
        return True

    def _answer(self, message: str) -> bool:
        self._report.begin(None, message, Asked(turn=self._conversation.turns + 1))
        try:
            completion = self._conversation.say(message, self._options, self._report.text)
        except UserError as error:
            said = UserError(f"{error} (/reset starts anew)")
            if not self._interactive:
                raise said from error
            _tell(f"error: {said}")
            return True
        self._report.end(completion)
        return self._interactive or completion.finish_reason != "interrupted"

    def _reader(self) -> Callable[[], str | None]:
        """A function that returns the next line without blanks around it, or None at the end of the input."""
        if self._interactive and sys.stdout.isatty():

            def read() -> str | None:
                try:
                    return input(_PROMPT).strip()
                except EOFError:
                    _tell("")
                    return None

        else:

            def read() -> str | None:
                if self._interactive:
                    print(_PROMPT, end="", file=sys.stderr, flush=True)
                try:
                    line = sys.stdin.readline()
                except UnicodeDecodeError as error:
                    raise UserError("standard input: a message is not UTF-8") from error
                # A byte order mark stands where a text begins, or where one was put behind another.
                return line.removeprefix("\ufeff").strip() if line else None

        return read


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
