"""A chat: messages in turn, each answer read on from what the caches already hold."""

from collections.abc import Callable, Sequence

from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, GenerationOptions, TurnName
from ms_eagle.text.template import Message


class Conversation:
    """Turns of one user with the model.

    The whole conversation is rendered anew for every turn, and the part of it that the caches already
    hold is not read again.
    """

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[Sequence[Message]], list[int]],
        *,
        system_prompt: str | None = None,
    ) -> None:
        """Start with no turns.

        Args:
            engine: must serve nobody else in the middle of a turn; others between turns only cost time.
            encode: how messages become a prompt.
            system_prompt: text of the system message; None leaves it to the template.
        """
        self._engine, self._encode = engine, encode
        self._opening = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.messages: list[dict[str, str]] = list(self._opening)

    def say(
        self, text: str, options: GenerationOptions, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """Add a user turn and answer it; ``on_text`` gets the answer piece by piece.

        A turn that fails or is interrupted before its first token leaves the conversation as it was.

        Raises:
            UserError: see ``Engine.generate`` and ``encode``.
        """
        turns = [*self.messages, {"role": "user", "content": text}]
        prompt = self._encode(turns)
        show = None if on_text is None else (lambda _, piece: on_text(piece))
        name = TurnName("chat", self.turns + 1)
        (completion,) = self._engine.generate([prompt], options, show, reuse_prefix=True, names=[name])
        if completion.token_ids or completion.finish_reason != "interrupted":
            self.messages = [*turns, {"role": "assistant", "content": completion.text}]
        return completion

    @property
    def turns(self) -> int:
        """How many turns have been answered."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages = list(self._opening)
