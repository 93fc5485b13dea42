"""Teacher-only decoding through the host loop, on tiny teachers; transformers is the oracle."""

import mindspore as ms
import numpy as np
import pytest
import torch
from support import tiny, tiny_engine

from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams

LENGTHS = (1, 2, 7, 8, 9, 16, 17, 25)  # around the chunk of 8: the last token is not prefilled


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama", seed=3)


@pytest.fixture(scope="module")
def engine(model):
    return tiny_engine.plain(model)


@pytest.fixture(scope="module")
def batched(model):
    return tiny_engine.plain(model, batch=3)


def greedy(count, **settings):
    return GenerationOptions(count, SamplingParams(), **settings)


def oracle(model, prompt, count):
    """Greedy continuation by transformers, end-of-sequence ignored."""
    if count == 0:
        return []  # which transformers refuses to be asked for
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        )
    return out[0, len(prompt) :].tolist()


def tokens(completions):
    return [list(completion.token_ids) for completion in completions]


def test_greedy_equals_transformers_for_prompts_of_every_length(engine, model):
    prompts = tiny_engine.prompts(*LENGTHS)
    got = tokens(engine.generate(prompts, greedy(20, ignore_eos=True)))
    assert got == [oracle(model, prompt, 20) for prompt in prompts]


def test_nothing_recompiles_after_warm_up(engine):
    engine.generate(tiny_engine.prompts(5), greedy(2))
    before = engine.compilations
    engine.generate(tiny_engine.prompts(*LENGTHS, seed=1), greedy(9))
    assert engine.compilations == before


def test_requests_do_not_see_each_other(engine):
    a, b = tiny_engine.prompts(12, 19, seed=2)
    first, _, third = tokens(engine.generate([a, b, a], greedy(15, ignore_eos=True)))
    assert first == third


def test_a_batch_of_unequal_prompts_equals_each_alone(engine, batched):
    prompts = tiny_engine.prompts(1, 9, 30, 4, 17, seed=3)
    options = greedy(18, ignore_eos=True)
    together = batched.generate(prompts, options)
    assert tokens(together) == tokens(engine.generate(prompts, options))
    assert [c.prompt_tokens for c in together] == [len(p) for p in prompts]


def test_rows_of_a_batch_end_on_their_own(engine, batched):
    prompts = tiny_engine.prompts(6, 40, 11, seed=4)
    limit = 60 - 11
    options = greedy(limit, ignore_eos=True)
    together = batched.generate(prompts, options)
    assert [c.new_tokens for c in together] == [limit, 64 - 40, limit]
    assert {c.finish_reason for c in together} == {"length"}
    assert tokens(together) == tokens(engine.generate(prompts, options))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_tokens(engine, model, count):
    (prompt,) = tiny_engine.prompts(6, seed=5)
    (completion,) = engine.generate([prompt], greedy(count, ignore_eos=True))
    assert list(completion.token_ids) == oracle(model, prompt, count)
    assert completion.finish_reason == "length"
    assert (completion.time_to_first_token is None) == (count == 0)
    assert completion.cycles == count


def test_eos_ends_and_is_kept_in_the_ids_only(engine, model):
    (prompt,) = tiny_engine.prompts(6, seed=6)
    plain = oracle(model, prompt, 20)
    tokenizer = engine.tokenizer
    own, tokenizer.eos_ids = tokenizer.eos_ids, (plain[9], plain[4])
    try:
        (completion,) = engine.generate([prompt], greedy(20))
        (ignored,) = engine.generate([prompt], greedy(20, ignore_eos=True))
    finally:
        tokenizer.eos_ids = own
    end = min(plain.index(plain[4]), plain.index(plain[9]))
    assert completion.finish_reason == "stop"
    assert list(completion.token_ids) == plain[: end + 1]
    assert completion.text == tokenizer.decode(plain[:end])
    assert list(ignored.token_ids) == plain


def test_stop_string_over_two_tokens_cuts_the_text(engine, model):
    (prompt,) = tiny_engine.prompts(6, seed=8)
    plain = oracle(model, prompt, 30)
    text = engine.tokenizer.decode(plain)
    stop = text[7:9]
    pieces = []
    (completion,) = engine.generate(
        [prompt], greedy(30, ignore_eos=True, stop=(stop, "zz")), lambda _, piece: pieces.append(piece)
    )
    assert completion.finish_reason == "stop"
    assert completion.text == text[: text.index(stop)] == "".join(pieces)
    assert list(completion.token_ids) == plain[: text.index(stop) + 2]


def test_streamed_pieces_join_to_the_text_and_carry_their_prompt(batched):
    prompts = tiny_engine.prompts(4, 9, 13, 21, seed=9)
    heard = {}
    completions = batched.generate(
        prompts, greedy(16), lambda index, piece: heard.update({index: heard.get(index, "") + piece})
    )
    assert [heard.get(i, "") for i in range(4)] == [c.text for c in completions]


def test_capacity_ends_an_answer_and_refuses_a_prompt(engine):
    (full,) = tiny_engine.prompts(63, seed=10)
    (completion,) = engine.generate([full], greedy(9, ignore_eos=True))
    assert (completion.new_tokens, completion.finish_reason) == (1, "length")
    with pytest.raises(UserError, match=r"the prompt has 64 tokens.*model.max_length=64"):
        engine.generate([*tiny_engine.prompts(64)], greedy(1))


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "prompt is empty"), ([5, 96], "token id 96"), ([-1, 5], "token id -1")]
)
def test_bad_prompts_are_refused(engine, prompt, message):
    with pytest.raises(UserError, match=message):
        engine.generate([prompt], greedy(1))


def test_a_reused_prefix_changes_nothing_but_the_work(model):
    engine = tiny_engine.plain(model)
    (prompt,) = tiny_engine.prompts(20, seed=11)
    options = greedy(6, ignore_eos=True)
    (first,) = engine.generate([prompt], options)
    longer = [*prompt, *first.token_ids, *tiny_engine.prompts(5, seed=12)[0]]
    (again,) = engine.generate([longer], options, reuse_prefix=True)
    (fresh,) = tiny_engine.plain(model).generate([longer], options)
    assert again.token_ids == fresh.token_ids
    # All but the newest token were in the cache, and one position is read again for a drafter's sake.
    assert again.reused_tokens == len(prompt) + len(first.token_ids) - 2
    assert fresh.reused_tokens == 0


def test_a_diverging_prefix_is_reused_up_to_the_difference(model):
    engine = tiny_engine.plain(model)
    (prompt,) = tiny_engine.prompts(20, seed=13)
    options = greedy(6, ignore_eos=True)
    engine.generate([prompt], options)
    other = [*prompt[:9], *tiny_engine.prompts(9, seed=14)[0]]
    (again,) = engine.generate([other], options, reuse_prefix=True)
    (fresh,) = tiny_engine.plain(model).generate([other], options)
    assert again.token_ids == fresh.token_ids
    assert again.reused_tokens == 8


def test_seeds(engine, batched):
    prompts = tiny_engine.prompts(5, 12, 8, seed=15)

    def sample(which, seed, **settings):
        params = SamplingParams(temperature=1.5, seed=seed, **settings)
        return tokens(which.generate(prompts, GenerationOptions(12, params, ignore_eos=True)))

    assert sample(engine, 1) == sample(engine, 1) == sample(batched, 1)
    assert sample(engine, 1) != sample(engine, 2)


def test_sampling_options_reach_the_choice(engine, model):
    (prompt,) = tiny_engine.prompts(10, seed=16)
    want = oracle(model, prompt, 12)
    for narrow in (dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0)):
        params = SamplingParams(temperature=2.0, seed=4, **narrow)
        (completion,) = engine.generate([prompt], GenerationOptions(12, params, ignore_eos=True))
        assert list(completion.token_ids) == want


def test_repetition_penalty_counts_prompt_and_answer(engine, model):
    (prompt,) = tiny_engine.prompts(10, seed=17)
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=25,
            do_sample=False,
            repetition_penalty=1.7,
            eos_token_id=None,
            pad_token_id=0,
            attention_mask=torch.ones(1, 10, dtype=torch.long),
        )
    options = GenerationOptions(25, SamplingParams(repetition_penalty=1.7), ignore_eos=True)
    for _ in range(2):  # the second call must not remember the first
        (completion,) = engine.generate([prompt], options)
        assert list(completion.token_ids) == out[0, 10:].tolist()


def test_ctrl_c_keeps_what_was_produced(model):
    engine = tiny_engine.plain(model)
    (prompt,) = tiny_engine.prompts(10, seed=18)
    want = oracle(model, prompt, 20)
    heard = []

    def stop_after_five(_, piece):
        heard.append(piece)
        if len(heard) == 5:
            raise KeyboardInterrupt

    options = greedy(20, ignore_eos=True)
    (completion,) = engine.generate([prompt], options, stop_after_five)
    assert completion.finish_reason == "interrupted"
    assert list(completion.token_ids) == want[: len(completion.token_ids)]
    assert completion.text == engine.tokenizer.decode(completion.token_ids)
    (again,) = engine.generate([prompt], options, reuse_prefix=True)
    assert list(again.token_ids) == want


def test_interrupted_batch_leaves_the_later_prompts_alone(model):
    engine = tiny_engine.plain(model)
    prompts = tiny_engine.prompts(4, 5, 6, seed=19)

    def interrupt(index, _):
        if index == 1:
            raise KeyboardInterrupt

    completions = engine.generate(prompts, greedy(5, ignore_eos=True), interrupt)
    assert [c.finish_reason for c in completions] == ["length", "interrupted"]


def test_logits_that_are_not_finite_end_the_run(model):
    broken = tiny.make("llama", seed=3)
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(
        UserError, match=r"model's logits are not finite.*after 6 tokens in model.dtype=float32"
    ):
        tiny_engine.plain(broken).generate(tiny_engine.prompts(6), greedy(3))


@pytest.mark.parametrize("backend", [tiny_engine.DEFAULT, tiny_engine.EAGER])
def test_a_fault_does_not_outlive_its_request(model, backend):
    """A NaN in a slot that no mask shows would still be multiplied by a weight of 0."""
    engine = tiny_engine.plain(model, backend=backend)
    options, prompt = greedy(6, ignore_eos=True), tiny_engine.prompts(6)
    want = tokens(engine.generate(prompt, options))
    buffer = engine.graphs.teacher.cache.values[0]
    buffer.set_data(ms.Tensor(np.full(buffer.shape, np.nan, np.float32)))
    with pytest.raises(UserError, match="not finite"):
        engine.generate([[*prompt[0], 5]], options, reuse_prefix=True)
    assert tokens(engine.generate(prompt, options)) == want


def test_seconds_are_plausible(engine):
    (completion,) = engine.generate(tiny_engine.prompts(30), greedy(10, ignore_eos=True))
    seconds = completion.seconds
    assert min(seconds.prefill, seconds.decode, seconds.compile) > 0
    assert completion.tokens_per_second == pytest.approx(10 / seconds.decode)
    assert seconds.prefill < completion.time_to_first_token < seconds.prefill + seconds.decode + 1e-9
    assert np.isfinite(completion.time_to_first_token)


def test_each_prompt_may_have_its_own_options(engine, batched):
    prompts = tiny_engine.prompts(5, 12, 8, seed=20)
    options = [
        GenerationOptions(4, SamplingParams(temperature=1.2, seed=1), ignore_eos=True),
        greedy(9, ignore_eos=True),
        GenerationOptions(6, SamplingParams(temperature=0.7, top_k=5, seed=2), ignore_eos=True),
    ]
    together = batched.generate(prompts, options)
    assert [c.new_tokens for c in together] == [4, 9, 6]
    alone = [engine.generate([p], o)[0] for p, o in zip(prompts, options, strict=True)]
    assert tokens(together) == tokens(alone)
