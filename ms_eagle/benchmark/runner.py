"""Answers the turns of a plan, one after the other, and keeps each of them at once."""

import time
from collections.abc import Callable, Sequence

from ms_eagle.benchmark import records
from ms_eagle.benchmark.pair import EnginePair
from ms_eagle.benchmark.plan import Question
from ms_eagle.benchmark.turn_log import Record, TurnLog
from ms_eagle.chat.session import generation_options
from ms_eagle.config.sections import Config
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress

# What a turn can raise without saying anything about the others: our own refusals, a broken invariant, and
# whatever MindSpore raises when an operator fails.
FAILURES = (
    UserError,
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_NOTE_SECONDS = 60.0  # between two lines where no progress bar is shown


class Runner:
    """Runs the turns that a log does not have yet.

    Attributes:
        pair: the engines; None until they are needed, and again after a failure that may have harmed them.
    """

    def __init__(
        self, config: Config, log: TurnLog, load: Callable[[], EnginePair], progress: Progress
    ) -> None:
        self.pair: EnginePair | None = None
        """``load`` gives engines that are compiled and warm; it is called again after such a failure."""
        self._config, self._log, self._load, self._progress = config, log, load, progress
        self._begin = self._noted = time.monotonic()

    @property
    def _options(self) -> GenerationOptions:
        return generation_options(self._config, self.ready().teacher.tokenizer)

    def ready(self) -> EnginePair:
        """The engines."""
        if self.pair is None:
            self.pair = self._load()
        return self.pair

    def run(self, questions: Sequence[Question]) -> None:
        """Answer every turn that is missing; a turn that fails is recorded, and the run goes on.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was finished is kept.
            UserError: the engines cannot be loaded.
        """
        total = sum(len(q.turns) for q in questions)
        left = [q.name(t) for q in questions for t in range(len(q.turns)) if not self._done(q, t)]
        if not left:
            return
        self.ready()
        self._begin = self._noted = time.monotonic()
        size = self._config.execution.batch_size
        done = 0
        with self._progress.steps(f"answering {total} turns, each twice", len(left)) as step:
            for start in range(0, len(questions), size):
                group = questions[start : start + size]
                for turn in range(max(len(question.turns) for question in group)):
                    missing = [q for q in group if turn < len(q.turns) and not self._done(q, turn)]
                    if missing:
                        self._log.add(self._answer(missing, turn))
                        step.advance(len(missing))
                        done += len(missing)
                        self._note(done, len(left))

    def _done(self, question: Question, turn: int) -> bool:
        return self._log.measured(question.name(turn))

    def _note(self, done: int, all_: int) -> None:
        """Tell a log how far it is, once in a while."""
        now = time.monotonic()
        if self._progress.visible or now - self._noted < _NOTE_SECONDS or done == all_:
            return
        self._noted = now
        minutes = (now - self._begin) / done * (all_ - done) / 60
        self._progress.note(f"{done} of {all_} turns, about {minutes:.0f} minutes left")

    def _answer(self, questions: Sequence[Question], turn: int) -> list[Record]:
        """The records of a turn of each question, measured together."""
        answerable, prompts = [], []
        failed: list[Record] = []
        for question in questions:
            try:
                prompts.append(self._prompts(question, turn))
                answerable.append(question)
            except FAILURES as error:
                failed.append(records.failed(question, turn, error))
        if not answerable:
            return failed
        try:
            return failed + self._measure(answerable, turn, prompts)
        except FAILURES as error:
            if not isinstance(error, UserError):
                self.pair = None  # an operator that raised leaves its compiled graph unusable
            return failed + [records.failed(question, turn, error) for question in answerable]

    def _prompts(self, question: Question, turn: int) -> tuple[list[int], list[int]]:
        """Prompt ids for both engines: each goes on from its own answers.

        Raises:
            UserError: an earlier turn failed, or the prompt cannot be answered.
        """
        pair, own = self.ready(), []
        earlier = [self._log.known.get(question.name(t)) for t in range(turn)]
        if any(record is None or "error" in record for record in earlier):
            raise UserError("an earlier turn of the conversation failed: there is no history to go on from")
        for engine in ("answer", "speculative_answer"):
            answers = [record.get(engine, record["answer"]) for record in earlier]
            messages = self._messages(question.turns[: turn + 1], answers)
            thinking = self._config.model.thinking
            own.append(pair.template.encode(messages, pair.teacher.tokenizer, thinking=thinking))
            pair.check(own[-1], self._options)
        return own[0], own[1]

    def _messages(self, turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
        system = self._config.model.system_prompt
        messages = [] if system is None else [{"role": "system", "content": system}]
        for number, text in enumerate(turns):
            messages.append({"role": "user", "content": text})
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
        return messages

    def _measure(
        self, questions: Sequence[Question], turn: int, prompts: Sequence[tuple[list[int], list[int]]]
    ) -> list[Record]:
        pair = self.ready()
        mine, theirs = ([each[side] for each in prompts] for side in (0, 1))
        first, group = "teacher" if questions[0].teacher_first(turn) else "speculative", questions[0].number
        if first == "teacher":
            alone = pair.alone(mine, self._options)
            speculative = pair.speculate(theirs, self._options, alone if mine == theirs else None)
        else:
            speculative = pair.speculate(theirs, self._options, None)
            alone = pair.alone(mine, self._options)
        return [
            records.measured(question, turn, both, one, other, first, group, pair.margin)
            for question, both, one, other in zip(questions, prompts, alone, speculative, strict=True)
        ]
