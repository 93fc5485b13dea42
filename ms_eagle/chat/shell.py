"""An interactive chat on a terminal, or line by line from a pipe."""

import contextlib
import difflib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ms_eagle.chat.conversation import Conversation
from ms_eagle.chat.keyboard import Keyboard
from ms_eagle.chat.report import Asked, Report
from ms_eagle.engine.requests import Completion, GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.system import home

HELP = "/reset forgets the conversation, /exit leaves (or Ctrl-D), Ctrl-C stops an answer, /help tells more"
COMMANDS = {
    "/help": "lists the commands",
    "/reset": "forgets the conversation",
    "/retry": "answers the last message again, with the next seed where tokens are sampled",
    "/set KEY=VALUE": "changes a key of the configuration's section generation, such as"
    " generation.temperature=0.7",
    "/save FILE": "writes the conversation to a JSON file",
    "/load FILE": "goes on with a conversation that /save wrote",
    "/exit": "leaves, as Ctrl-D does; Ctrl-C stops an answer",
}
_PROMPT = ">>> "
_LOOP = "note: the answer went round in circles, so it ends here (/set generation.stop_loops=false)"


class Settings(Protocol):
    """What the answers of a chat are made with, as a session has it."""

    chat_options: GenerationOptions

    def change(self, override: str, name: str) -> None:
        """See ``session.Session.change``."""


class ChatShell:
    """Reads messages, answers each, and obeys the commands.

    On a terminal a mistake is told and the chat goes on, and an answer can be stopped with Ctrl-C; twice
    Ctrl-C at the prompt leaves. From a pipe a mistake ends the run.
    """

    def __init__(self, conversation: Conversation, settings: Settings, report: Report) -> None:
        self._conversation, self._settings, self._report = conversation, settings, report
        self._interactive = sys.stdin.isatty()
        self._keyboard = Keyboard() if self._interactive else None
        self._retries = 0

    def run(self) -> bool:
        """Chat until the end of the input; False if Ctrl-C ended it in the middle of a piped answer.

        Raises:
            UserError: from a pipe, for a message that cannot be answered.
        """
        keyboard = self._keyboard
        if keyboard is None:
            return self._run(_piped_line)
        _tell(HELP)
        with keyboard.guarded():
            return self._run(lambda: keyboard.read(_PROMPT))

    def _run(self, read: Callable[[], str | None]) -> bool:
        leaving = False
        while True:
            try:
                message = _read(read)
            except KeyboardInterrupt:
                if leaving or not self._interactive:
                    _tell("")
                    return self._interactive
                leaving = True
                _tell("\nCtrl-C again, /exit or Ctrl-D leaves")
                continue
            except UserError as error:
                self._refuse(error)
                continue
            leaving = False
            if message is None or message == "/exit":
                return True
            try:
                if not self._handle(message):
                    return False
            except UserError as error:
                self._refuse(error)

    def _refuse(self, error: UserError) -> None:
        """Tell a mistake; a pipe's ends the run."""
        if not self._interactive:
            raise error
        _tell(f"error: {error}")

    def _handle(self, message: str) -> bool:
        """Obey a command or answer a message; False if Ctrl-C cut the answer of a pipe."""
        name, _, rest = message.partition(" ")
        usage = {usage.partition(" ")[0]: usage for usage in COMMANDS}
        if "\n" in message or not (message.startswith("/") and name[1:].isalpha()):
            return self._answer(message) if message else True
        if name not in usage:
            if rest and not difflib.get_close_matches(name, usage, 1):
                return self._answer(message)  # "/tmp is full"
            _tell(f"unknown command {name}; {HELP}")
        elif bool(rest.strip()) != (" " in usage[name]):
            raise UserError(f"{message:.60}: expected {usage[name]}, which {COMMANDS[usage[name]]}")
        else:
            return self._obey(name, rest.strip())
        return True

    def _obey(self, name: str, rest: str) -> bool:
        """Obey a known command; False if Ctrl-C cut the answer of a pipe."""
        if name == "/help":
            _tell("\n".join(f"  {usage:<16}{what}" for usage, what in COMMANDS.items()))
        elif name == "/reset":
            self._conversation.reset()
            _tell("the conversation is forgotten")
        elif name == "/retry":
            return self._retry()
        elif name == "/set":
            self._settings.change(rest, "/set")
            _tell(f"{rest} from the next answer on")
        elif name == "/save":
            self._conversation.save(home.expanded(rest))
            _tell(f"the conversation is in {rest}")
        elif name == "/load":
            self._conversation.load(home.expanded(rest))
            _tell(f"{self._conversation.turns} answered messages are known again")
        return True

    def _retry(self) -> bool:
        message, options = self._conversation.last_message, self._settings.chat_options
        if options.sampling.greedy:
            _tell("note: generation.temperature is 0, so the answer will be the same; /set another")
        self._retries += 1
        seed = (options.sampling.seed + self._retries) % 2**64
        options = replace(options, sampling=replace(options.sampling, seed=seed))
        turn = self._conversation.turns
        return self._told(message, turn, lambda: self._conversation.retry(options, self._report.text))

    def _answer(self, message: str) -> bool:
        self._retries = 0
        options = self._settings.chat_options
        return self._told(
            message,
            self._conversation.turns + 1,
            lambda: self._conversation.say(message, options, self._report.text),
        )

    def _told(self, message: str, turn: int, answer: Callable[[], Completion]) -> bool:
        """Report an answer; False if Ctrl-C cut that of a pipe."""
        self._report.begin(None, message, Asked(turn=turn))
        with contextlib.nullcontext() if self._keyboard is None else self._keyboard.held():
            try:
                completion = answer()
            except UserError as error:
                raise UserError(f"{error} (/reset starts anew)") from error
            self._report.end(completion)
        if completion.finish_reason == "loop":
            _tell(_LOOP)
        return self._interactive or completion.finish_reason != "interrupted"


def _read(read: Callable[[], str | None]) -> str | None:
    """The next message without blanks around it, or None at the end of the input."""
    try:
        message = read()
    except UnicodeDecodeError as error:
        raise UserError("standard input: a message is not UTF-8") from error
    # A byte order mark stands where a text begins, or where one was put behind another.
    return message.removeprefix("\ufeff").strip() if message else None


def _piped_line() -> str | None:
    return sys.stdin.readline() or None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
