"""A loaded model together with what its configuration asks of every answer."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ms_eagle.chat.conversation import Conversation
from ms_eagle.chat.report import Asked, Report
from ms_eagle.config.sections import Config, changed, load_config
from ms_eagle.engine.engine import Engine
from ms_eagle.engine.requests import Completion, GenerationOptions, Request, TurnName
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress
from ms_eagle.text.plain import encode_prompt
from ms_eagle.text.template import ChatTemplate, Message, load_template
from ms_eagle.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Dialog:
    """User messages that are answered one after the other.

    Attributes:
        turns: the messages; at least one.
        where: names the dialog in errors, such as ``prompts.jsonl:3``.
        title: names it in reports; None where there is only one.
        question_id, category: as a file of prompts has them; None without one.
    """

    turns: tuple[str, ...]
    where: str
    title: str | None = None
    question_id: int | str | None = None
    category: str | None = None


def generation_options(config: Config, tokenizer: Tokenizer) -> GenerationOptions:
    """The options that the section ``generation`` stands for.

    Raises:
        UserError: a token that ``tokenizer`` does not have.
    """
    asked = config.generation
    stops = tokenizer.stop_ids(asked.stop_tokens)
    ends = () if asked.ignore_eos else tokenizer.eos_ids
    return GenerationOptions(
        max_new_tokens=asked.max_new_tokens,
        sampling=SamplingParams(
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            min_p=asked.min_p,
            repetition_penalty=asked.repetition_penalty,
            seed=asked.seed,
        ),
        stop=tuple(asked.stop),
        ignore_eos=asked.ignore_eos and not stops,
        eos_ids=tuple(dict.fromkeys((*ends, *stops))) if stops else None,
        stop_loops=asked.stop_loops is True,
    )


def endings(options: GenerationOptions, tokenizer: Tokenizer) -> str:
    """One line: the tokens that end an answer, and where each is said to."""
    ids = tokenizer.eos_ids if options.eos_ids is None else options.eos_ids
    told = [
        f"{token} {tokenizer.token_bytes(token).decode(errors='replace')!r} "
        f"({tokenizer.eos_origins.get(token, 'generation.stop_tokens')})"
        for token in (() if options.ignore_eos else ids)
    ]
    return f"tokens that end an answer: {', '.join(told) or 'none'}"


class Session:
    """An engine, a chat template unless prompts are raw, and generation options.

    Attributes:
        engine: the loaded model, compiled for the options.
        template: how messages become a prompt; None sends them as they are.
        options: the same for every answer.
    """

    def __init__(
        self, engine: Engine, template: ChatTemplate | None, config: Config, progress: Progress
    ) -> None:
        self.engine, self.template, self.config = engine, template, config
        self.options, self._progress = generation_options(config, engine.tokenizer), progress

    @classmethod
    def load(cls, config: Config, raw: bool, progress: Progress) -> "Session":
        """Load the model of ``config``; it is compiled when the first prompt has been checked.

        Raises:
            UserError: see ``load_engine`` and ``load_template``.
        """
        from ms_eagle.loading import load_engine  # the model code, which a deployed bundle does without

        engine = load_engine(config, progress)
        template = None if raw else load_template(engine.directory, config.model.chat_template)
        return cls(engine, template, config, progress)

    @classmethod
    def open(cls, path: Path | str, *overrides: str) -> "Session":
        """Load what a YAML file names, and show on standard error what takes long.

        ``overrides`` are as for ``--set``: ``section.key=value``.

        Raises:
            UserError: see ``load`` and ``config.sections.load_config``.
        """
        return cls.load(load_config(Path(path), list(overrides)), False, Progress())

    def ask(self, text: str) -> Completion:
        """The answer to one message.

        Raises:
            UserError: see ``Engine.generate``.
        """
        return self._answer_turn([Running(Dialog((text,), "the message"))], None, reuse_prefix=False)[0]

    def stream(self, text: str) -> Iterator[str]:
        """The answer to one message, piece by piece; leaving the loop early ends it.

        Raises:
            UserError: see ``Engine.generate``.
        """
        prompt = self._encode(Running(Dialog((text,), "the message")))
        number, finished = self.engine.submit(Request(prompt, self.options)), False
        try:
            while not finished:
                for news in self.engine.step():
                    if news.number == number:
                        finished = news.completion is not None
                        if news.text:
                            yield news.text
        finally:
            self.engine.cancel([number])

    def _compile(self, options: GenerationOptions | None = None) -> None:
        options = self.options if options is None else options
        if options.max_new_tokens > 0:
            with self._progress.steps("compiling"):
                self.engine.warm_up(options)

    def conversation(self) -> Conversation:
        """A new chat with the configured system message and thinking, ready to answer."""
        if self.template is None:
            raise UserError("a chat needs a chat template: leave out --raw")
        self._compile()
        return Conversation(
            self.engine,
            self.encode,
            system_prompt=self.config.model.system_prompt,
            note=self._progress.note,
        )

    @property
    def chat_options(self) -> GenerationOptions:
        """The options of a chat, which ends loops unless told otherwise."""
        return replace(self.options, stop_loops=self.config.generation.stop_loops is not False)

    def change(self, override: str, name: str) -> None:
        """Give a key of the section ``generation`` another value, from the next answer on.

        Args:
            override: ``generation.key=value``, the value in YAML.
            name: stands before it in messages.

        Raises:
            UserError: see ``config.sections.changed`` and ``generation_options``.
        """
        config = changed(self.config, override, name)
        options = generation_options(config, self.engine.tokenizer)
        self._compile(options)
        self.options, self.config = options, config

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Prompt ids of messages, as the configuration has them rendered and read.

        Raises:
            UserError: see ``ChatTemplate.encode``.
        """
        if self.template is None:
            raise UserError(
                "a model without a chat template reads no messages: give it one, or use raw prompts."
            )
        return self.template.encode(
            messages,
            self.engine.tokenizer,
            thinking=self.config.model.thinking,
            special_tokens=self.config.generation.special_tokens_in_text,
        )

    def answer(self, dialogs: Sequence[Dialog], report: Report) -> bool:
        """Answer every turn of every dialog, ``execution.batch_size`` dialogs at a time.

        Reports come in the order of the dialogs and their turns. A single dialog is reported while it is
        written; several together, when all of them are done.

        A prompt that cannot be answered, such as one that has grown too long, ends its dialog and no other.

        Returns:
            False if Ctrl-C ended an answer; the answers so far are reported and no other is begun.

        Raises:
            UserError: see ``Engine.generate``; the message starts with the dialogs' names. For dialogs that
                were ended, when all others have been answered.
        """
        running = [Running(dialog) for dialog in dialogs]
        ended: list[UserError] = []
        note = self._progress.note if len(dialogs) > 1 else lambda _: None  # else the error says it
        usable = self._askable(running, ended, note)
        if not usable:
            raise ended[0]
        self._compile()
        size = self.engine.graphs.facts.sizes.batch
        for first in range(0, len(usable), size):
            group = usable[first : first + size]
            live = report if len(group) == 1 else None
            finished = self._answer_group(group, live, ended, note)
            if live is None:
                for running in group:
                    running.tell(report)
            if not finished:
                return False
        if ended:
            more = f" (and {len(ended) - 1} more dialogs, see above)" if len(ended) > 1 else ""
            raise UserError(f"{ended[0]}{more}")
        return True

    def _askable(
        self, asked: Sequence["Running"], ended: list[UserError], note: Callable[[str], None]
    ) -> list["Running"]:
        """Those whose next prompt can be answered; why the others cannot is noted and added to ``ended``."""
        usable = []
        for running in asked:
            try:
                with _named([running], len(running.completions)):
                    self.engine.check_prompt(self._encode(running), self.options)
                usable.append(running)
            except UserError as error:
                note(f"this dialog ends here: {error}")
                ended.append(error)
        return usable

    def _answer_group(
        self,
        group: list["Running"],
        live: Report | None,
        ended: list[UserError],
        note: Callable[[str], None],
    ) -> bool:
        asked, turn = group, 0
        while asked:
            with _named(asked, turn):
                completions = self._answer_turn(asked, live, reuse_prefix=turn > 0)
            for running, completion in zip(asked, completions, strict=True):
                running.completions.append(completion)
            if any(completion.finish_reason == "interrupted" for completion in completions):
                return False
            turn += 1
            asked = self._askable([each for each in asked if turn < len(each.dialog.turns)], ended, note)
        return True

    def _answer_turn(
        self, asked: list["Running"], live: Report | None, reuse_prefix: bool
    ) -> list[Completion]:
        prompts = [self._encode(running) for running in asked]
        show: Callable[[int, str], None] | None = None
        if live is not None:
            asked[0].begin(live)
            show = lambda _, piece: live.text(piece)  # noqa: E731
        names = [TurnName(r.dialog.title or r.dialog.where, len(r.completions) + 1) for r in asked]
        completions = self.engine.generate(
            prompts, self.options, show, reuse_prefix=reuse_prefix, names=names
        )
        if live is not None:
            live.end(completions[0])
        return completions

    def _encode(self, running: "Running") -> list[int]:
        """Prompt ids of the next turn."""
        if self.template is not None:
            return self.encode(running.messages(self.config.model.system_prompt))
        text, tokenizer = running.dialog.turns[len(running.completions)], self.engine.tokenizer
        control = self.config.generation.special_tokens_in_text == "control"
        return tokenizer.encode(text) if control else encode_prompt(text, tokenizer)


@dataclass
class Running:
    """A dialog and the answers it has so far."""

    dialog: Dialog
    completions: list[Completion] = field(default_factory=list)

    def name(self, turn: int) -> str:
        """For errors."""
        several = len(self.dialog.turns) > 1
        return f"{self.dialog.where}, turn {turn + 1}" if several else self.dialog.where

    def title(self, turn: int | None = None) -> str | None:
        """For reports; of the next turn unless ``turn`` says which."""
        turn = len(self.completions) if turn is None else turn
        return None if self.dialog.title is None else f"{self.dialog.title}, turn {turn + 1}"

    def messages(self, system_prompt: str | None) -> list[dict[str, str]]:
        """Everything said so far and the next user message."""
        said = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        for turn, completion in zip(self.dialog.turns, self.completions, strict=False):
            said += [{"role": "user", "content": turn}, {"role": "assistant", "content": completion.text}]
        return [*said, {"role": "user", "content": self.dialog.turns[len(self.completions)]}]

    def begin(self, report: Report, turn: int | None = None) -> None:
        """Begin the report of an answer, the next one's unless ``turn`` says which."""
        turn = len(self.completions) if turn is None else turn
        asked = Asked(self.dialog.question_id, self.dialog.category, turn + 1)
        report.begin(self.title(turn), self.dialog.turns[turn], asked)

    def tell(self, report: Report) -> None:
        """Report all answers at once."""
        for turn, completion in enumerate(self.completions):
            self.begin(report, turn)
            report.text(completion.text)
            report.end(completion)


@contextlib.contextmanager
def _named(asked: Sequence[Running], turn: int) -> Iterator[None]:
    """Put the names of the dialogs in front of what a user is told."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{', '.join(running.name(turn) for running in asked)}: {error}") from error
