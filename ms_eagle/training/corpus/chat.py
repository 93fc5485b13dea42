"""Conversations as token ids, and back: what the teacher reads before each of its answers."""

from collections.abc import Sequence

from ms_eagle.errors import UserError
from ms_eagle.text.plain import encode_rendered
from ms_eagle.text.template import ChatTemplate, Thinking
from ms_eagle.text.tokenizer import Tokenizer
from ms_eagle.training.corpus.storage import Row

_WORDS = "<<the user's words>>"  # stands in for a user turn while the template is taken apart


class CorpusChat:
    """A chat template with its tokenizer and the settings that corpora are made with."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        system_prompt: str | None = None,
        thinking: Thinking | None = None,
    ) -> None:
        """Take a template; system prompt and thinking as in the section ``model``.

        Raises:
            UserError: the template does not show a user's words as they are.
        """
        self._template, self._thinking, self.tokenizer = template, thinking, tokenizer
        self._opening = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        _, _, self._closing = self._around((), ())
        self.markers = self._markers()

    def prompt(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Ids that the teacher reads before it answers the last of ``turns``; one answer fewer than turns."""
        return self._template.encode(self._messages(turns, answers), self.tokenizer, thinking=self._thinking)

    def user_prefix(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Ids up to where the words of the next user turn begin; as many answers as turns."""
        before, _, _ = self._around(turns, answers)
        return encode_rendered(before, self.tokenizer)

    def answer_text(self, ids: Sequence[int]) -> str:
        """Text of an answer's tokens, as a conversation would repeat it."""
        return self.tokenizer.decode(ids)

    def row(
        self, key: str, source: str, turns: Sequence[str], answers: Sequence[Sequence[int]]
    ) -> Row | None:
        """A conversation's `Row`; None where the template would not repeat an answer as it was written.

        Args:
            key, source: as in `Row`.
            turns: the user's, as many as answers.
            answers: token ids, each with its end token if it has one.
        """
        ids: list[int] = []
        runs: list[tuple[int, int]] = []
        texts: list[str] = []
        for number, answer in enumerate(answers):
            prompt = self.prompt(turns[: number + 1], texts)
            if prompt[: len(ids)] != ids:
                return None
            ids = [*prompt, *answer]
            runs.append((len(prompt), len(ids)))
            texts.append(self.answer_text(answer))
        return Row(key, source, ids, tuple(runs))

    def user_turns(self, row: Row) -> tuple[str, ...] | None:
        """The user's words of a conversation, taken out of its tokens.

        Returns: None if these settings would not make exactly the row's tokens from those words.
        """
        turns: list[str] = []
        answers = [row.ids[start:end] for start, end in row.answers]
        texts = [self.answer_text(answer) for answer in answers]
        for number, (start, _) in enumerate(row.answers):
            before, between, _ = self._around(turns, texts[:number])
            text = self.tokenizer.decode(
                self._without_bos(row.ids[:start], before), skip_special_tokens=False
            )
            if len(text) < len(before + between) or not (text.startswith(before) and text.endswith(between)):
                return None
            turns.append(text[len(before) : len(text) - len(between)])
        again = self.row(row.key, row.source, turns, answers) if turns and all(turns) else None
        return tuple(turns) if again == row else None

    def _messages(self, turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
        messages = list(self._opening)
        for number, turn in enumerate(turns):
            messages.append({"role": "user", "content": turn})
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
        return messages

    def _around(self, turns: Sequence[str], answers: Sequence[str]) -> tuple[str, str, str]:
        """Text before the next user turn's words, from there to the answer, and to the end of the turn."""
        messages = self._messages((*turns, _WORDS), answers)
        whole = self._template.render(messages, thinking=self._thinking)
        turn = self._template.render(messages, thinking=self._thinking, add_generation_prompt=False)
        before, words, between = whole.rpartition(_WORDS)
        if not words or not turn.startswith(before + words):
            raise UserError(
                f"chat template {self._template.origin} does not show a user's words as they are: a corpus "
                "cannot be made with it"
            )
        return before, between, turn[len(before + words) :]

    def _without_bos(self, ids: Sequence[int], before: str) -> Sequence[int]:
        """``ids`` without a beginning-of-text token that the tokenizer added to the template's text."""
        bos = self.tokenizer.bos_id
        if bos is None or not ids or ids[0] != bos:
            return ids
        written = before.startswith(self.tokenizer.token_bytes(bos).decode(errors="replace"))
        return ids if written else ids[1:]

    def _markers(self) -> tuple[str, ...]:
        """Texts that belong to the template and to no user: special tokens, and the end of a turn."""
        names = (self.tokenizer.token_bytes(token) for token in sorted(self.tokenizer.special_ids))
        texts = [name.decode(errors="replace") for name in names]
        return tuple(text for text in (*texts, self._closing.strip()) if text)
