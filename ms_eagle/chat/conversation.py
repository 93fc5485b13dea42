"""A chat: messages in turn, each answer read on from what the caches already hold."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, GenerationOptions, TurnName
from ms_eagle.errors import UserError
from ms_eagle.system import files, json_file
from ms_eagle.text.template import Message

_ROOM = 0.25  # share of the capacity that is kept for an answer, as long as there are turns to leave out


class Conversation:
    """Turns of one user with the model.

    The whole conversation is rendered anew for every turn, and the part of it that the caches already
    hold is not read again.

    Attributes:
        messages: what was said and is still known, the system message first if there is one.
        turns: how many turns have been answered.
    """

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[Sequence[Message]], list[int]],
        *,
        system_prompt: str | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start with no turns.

        Args:
            engine: must serve nobody else in the middle of a turn; others between turns only cost time.
            encode: how messages become a prompt.
            system_prompt: text of the system message; None leaves it to the template.
            note: hears of turns that are left out.
        """
        self._engine, self._encode, self._note = engine, encode, note
        self._opening = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.reset()

    def say(
        self, text: str, options: GenerationOptions, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """Add a user turn and answer it; ``on_text`` gets the answer piece by piece.

        Where the context is full, the oldest turns are left out from now on, question and answer together.
        A turn that fails or is interrupted before its first token leaves the conversation as it was.

        Raises:
            UserError: see ``Engine.generate`` and ``encode``.
        """
        messages, prompt = self._fitting([*self.messages, {"role": "user", "content": text}], options)
        show = None if on_text is None else (lambda _, piece: on_text(piece))
        name = TurnName("chat", self.turns + 1)
        (completion,) = self._engine.generate([prompt], options, show, reuse_prefix=True, names=[name])
        if completion.token_ids or completion.finish_reason != "interrupted":
            self.messages = [*messages, {"role": "assistant", "content": completion.text}]
            self.turns += 1
        return completion

    def retry(self, options: GenerationOptions, on_text: Callable[[str], None] | None = None) -> Completion:
        """Answer the last message again, in the place of its answer; see ``say``.

        Raises:
            UserError: nothing has been answered yet; see ``say``.
        """
        before, turns = self.messages, self.turns
        message = self.last_message
        self.messages, self.turns = before[:-2], max(0, turns - 1)
        shortened = self.messages
        try:
            return self.say(message, options, on_text)
        finally:
            if self.messages is shortened:
                self.messages, self.turns = before, turns

    @property
    def last_message(self) -> str:
        """What was answered last.

        Raises:
            UserError: nothing was.
        """
        if len(self.messages) - len(_opening(self.messages)) < 2:
            raise UserError("nothing has been answered yet")
        return self.messages[-2]["content"]

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages: list[dict[str, str]] = list(self._opening)
        self.turns = 0

    def save(self, path: Path) -> None:
        """Write the messages to a JSON file, atomically: ``{"messages": [{"role": ..., "content": ...}]}``.

        Raises:
            UserError: it cannot be written, or is there and holds something else.
        """
        files.check_output(path, "/save")
        if path.exists():
            try:
                _read(path)
            except UserError as error:
                raise UserError(f"/save: {path} is there and no conversation: name another file") from error
        try:
            json_file.write_object(path, {"messages": self.messages})
        except OSError as error:
            raise UserError(f"/save: cannot write {path}: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Go on with the messages of a file that `save` wrote, in the place of these.

        Raises:
            UserError: it cannot be read or holds something else.
        """
        messages = _read(path)
        self.messages, self.turns = messages, sum(each["role"] == "assistant" for each in messages)

    def _fitting(
        self, messages: list[dict[str, str]], options: GenerationOptions
    ) -> tuple[list[dict[str, str]], list[int]]:
        """The messages without the oldest turns that leave no room for an answer, and their prompt."""
        capacity = self._engine.graphs.facts.sizes.capacity
        room = min(options.max_new_tokens, int(capacity * _ROOM))
        opening, turns = _opening(messages), messages[len(_opening(messages)) :]
        prompt, before = self._encode(messages), len(turns)
        while len(prompt) + room > capacity and len(turns) > 1:
            turns = turns[2:]
            prompt = self._encode([*opening, *turns])
        self._engine.check_prompt(prompt, options)
        if left_out := (before - len(turns)) // 2:
            many = f"the {left_out} oldest turns are" if left_out > 1 else "the oldest turn is"
            self._note(f"the context of {capacity} tokens is full: {many} left out from here on")
        return [*opening, *turns], prompt


def _opening(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The system message, if there is one."""
    return [message for message in messages[:1] if message["role"] == "system"]


def _read(path: Path) -> list[dict[str, str]]:
    """The messages of a file: a system message or none, then questions and answers in turn."""
    held = json_file.read_object(path).get("messages")
    messages: list[dict[str, str]] = []
    for message in held if isinstance(held, list) else [None]:
        whole = isinstance(message, dict) and set(message) == {"role", "content"}
        texts = isinstance(message, dict) and all(isinstance(value, str) for value in message.values())
        messages.append(message if isinstance(message, dict) and whole and texts else {"role": ""})
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if len(turns) % 2 or turns != ["user", "assistant"] * (len(turns) // 2):
        example = json.dumps({"messages": [{"role": "user", "content": "..."}]})
        raise UserError(f"{path}: no conversation; expected {example}, users' and assistant's in turn")
    return messages
