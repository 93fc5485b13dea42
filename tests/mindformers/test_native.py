"""MindFormers' real Qwen3 and Qwen2 inference models as teachers of our cycle, and as a yardstick of ours.

Eager mode takes milliseconds an operator: their answers are short here.
"""

import os
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from support import mindformers_on_cpu, tiny_eagle

from ms_eagle import loading
from ms_eagle.errors import UserError
from ms_eagle.mindformers import EagleConfig, EagleForCausalLM, native
from ms_eagle.mindformers.options import unpadded
from ms_eagle.mindformers.paged_cache import PagedReorder, hidden_keys
from ms_eagle.system.progress import Progress

# isort: split
from mindformers import build_context

LENGTH = 64
EXECUTION = {"device": "CPU", "prefill_chunk": 8, "batch_size": 2}
WANTED = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
TREE = {"budget": 5, "depth": 3, "branch": 2}
SYNTHETIC = {"drafter": {"kind": "synthetic", "taps": [0, 1], "acceptance": 0.8}, "tree": TREE}
PROMPTS = [[5, 77, 20, 9, 130, 44, 61, 8, 90, 12], [33, 61, 7]]
OPTIONS = [
    {"max_new_tokens": 5},
    {"max_new_tokens": 5, "repetition_penalty": 1.6},
    {"max_new_tokens": 6, "min_new_tokens": 3, "eos_token_id": list(range(40, 47))},
]


@pytest.fixture(scope="module")
def kernels():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPU_AFFINITY", "False")
        affinity, before = os.sched_getaffinity(0), dict(os.environ)
        with mindformers_on_cpu.eager() as kernels:
            context = {"mode": 1, "device_target": "CPU"}
            build_context(
                {
                    "use_legacy": False,
                    "run_mode": "predict",
                    "use_parallel": False,
                    "postprocess_use_numpy": True,
                    "context": context,
                    "parallel": {},
                }
            )
            yield kernels
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, affinity)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    parent, sizes = tmp_path_factory.mktemp("native"), {"max_position_embeddings": 256}
    return {name: tiny_eagle.model_dir(name, parent, **sizes) for name in ("qwen3", "qwen2")}


@pytest.fixture(scope="module")
def qwen3(directories):
    return directories["qwen3"]


def configured(directory, implementation, **eagle):
    return EagleConfig(
        str(directory),
        LENGTH,
        eagle={"execution": EXECUTION, **eagle},
        implementation=implementation,
        block_size=16,
        bos_token_id=1,
        pad_token_id=0,
        eos_token_id=2,
    )


@pytest.fixture(scope="module")
def theirs(kernels, directories):
    """What MindFormers' own generate() says to both prompts at once, by model and options."""
    asked = {"qwen3": OPTIONS, "qwen2": OPTIONS[:1]}
    return {name: _theirs(directory, asked[name]) for name, directory in directories.items()}


def built(directory, slots=LENGTH, **changes):
    """MindFormers' own model."""
    config = configured(directory, "mindformers")
    ours = config.engine_config()
    model = loading.open_model(ours, Progress(quiet=True))
    return native._network(
        config, ours, replace(model, decoder=replace(model.decoder, **changes)), slots
    ), ours


def _theirs(directory, asked):
    network, _ = built(directory)
    found = []
    for options in asked:
        shared = {"do_sample": False, "pad_token_id": 0, "eos_token_id": [2], **options}
        padded = [PROMPTS[0], PROMPTS[1] + [0] * (len(PROMPTS[0]) - len(PROMPTS[1]))]
        if "min_new_tokens" in options:  # of shorter prompts MindFormers counts them in two ways
            padded[1] = PROMPTS[0][1:] + [7]
        found.append((padded, shared, network.generate(padded, **shared, **WANTED)))
    return found


def mask_of(padded) -> np.ndarray:
    """1 for each token of a prompt; none of them is the padding token."""
    return (np.array(padded) != 0).astype(np.int32)


def tokens_of(rows) -> list[list[int]]:
    return [row.tolist() for row in rows]


def test_a_native_teacher_speculates_losslessly(kernels, qwen3, theirs):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    kernels.lowest = 0
    model = EagleForCausalLM(configured(qwen3, "mindformers", **SYNTHETIC))
    assert model.engine.graphs.facts.kernels == "mindformers"
    padded, options, expected = theirs["qwen3"][0]
    found = model.generate(padded, attention_mask=mask_of(padded), **options)
    assert tokens_of(found) == tokens_of(expected.sequences)
    accepted = [count for completion in model.completions for count in completion.accept_L]
    assert max(accepted) > 1
    assert min(accepted) < TREE["depth"]
    assert kernels.lowest == 0  # no negative slot or block ever


def test_a_native_teacher_feeds_a_head(kernels, directories, theirs, tmp_path):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    directory = directories["qwen2"]
    head = tiny_eagle.head_dir(directory, tmp_path, taps=(0, 1))
    drafting = {
        "drafter": {"kind": "eagle3", "source": str(head)},
        "tree": {"budget": 3, "depth": 2, "branch": 2},
    }
    model = EagleForCausalLM(configured(directory, "mindformers", **drafting))
    padded, options, expected = theirs["qwen2"][0]
    found = model.generate(padded, attention_mask=mask_of(padded), **options | {"max_new_tokens": 2})
    assert {completion.drafter for completion in model.completions} == {"eagle3"}
    for prompt, row, whole in zip(PROMPTS, found, expected.sequences, strict=True):
        assert row.tolist() == whole[: len(prompt) + 2].tolist()

    eager = {**EXECUTION, "kernels": "eager"}
    stock = EagleForCausalLM(configured(directory, "ms_eagle", **{**drafting, "execution": eager}))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    tokens = Tensor(np.array([PROMPTS[0][:8], [*PROMPTS[1], 0, 0, 0, 0, 0]], np.int32))
    start, count = Tensor(np.zeros(2, np.int32)), Tensor(np.array([8, 3], np.int32))
    taps = []
    for teacher in (model.engine.graphs.teacher, stock.engine.graphs.teacher):
        taps.append(teacher(tokens, *teacher.steps.chunk_rows(tokens, start, count))[1].asnumpy())
    assert taps[0].shape == taps[1].shape
    np.testing.assert_allclose(taps[0][0], taps[1][0], atol=1e-4)
    np.testing.assert_allclose(taps[0][1, :3], taps[1][1, :3], atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_our_own_teacher_equals_mindformers(directories, theirs, name):
    """Greedy answers of graph mode with native kernels are those of MindFormers' generate()."""
    model = EagleForCausalLM(configured(directories[name], "ms_eagle"))
    for padded, options, expected in theirs[name]:
        mask = mask_of(padded)
        found = model.generate(padded, attention_mask=mask, **options, **WANTED)
        prompts = unpadded(np.array(padded), mask, 0)
        assert tokens_of(found.sequences) == tokens_of(expected.sequences)
        for kind in ("logits", "scores"):
            for row, (prompt, sequence) in enumerate(zip(prompts, found.sequences, strict=True)):
                for step in range(len(sequence) - len(prompt)):
                    ours, other = found[kind][step][row], expected[kind][step][row]
                    np.testing.assert_allclose(ours, other, atol=2e-4, err_msg=f"{kind} {step} {row}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"execution": {"mode": "reference"}}, "execution.mode is reference"),
        ({"execution": {"commit": "full"}}, "execution.commit is full"),
        ({"execution": {"kernels": "native"}}, "execution.kernels is native"),
    ],
)
def test_what_a_native_teacher_lacks_is_refused(qwen3, change, message):
    with pytest.raises(UserError, match=message):
        EagleForCausalLM(configured(qwen3, "mindformers", **change))


def test_a_small_pool_is_refused(kernels, qwen3):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with pytest.raises(UserError, match="num_blocks is 4 of 16 tokens, but 2 sequences of 66 slots take 10"):
        native.native_engine(*built(qwen3, 32))


def test_biases_that_were_not_loaded_are_seen(kernels, directories):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with pytest.raises(UserError, match="built without biases on q, k and v"):
        native.native_engine(*built(directories["qwen2"], 128, qkv_bias=False))


def test_paged_rows_move_and_masks_become_theirs(kernels, qwen3):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    model = EagleForCausalLM(configured(qwen3, "mindformers"))
    cache = model.engine.graphs.teacher.cache
    rng = np.random.default_rng(3)
    before = [rng.normal(size=cache.keys[0].shape).astype(np.float32) for _ in cache.keys]
    for buffer, values in zip(cache.keys, before, strict=True):
        buffer.set_data(Tensor(values))
    path = Tensor(np.array([[0, 3, 5], [0, 2, 0]], np.int32))
    count, n = Tensor(np.array([3, 2], np.int32)), Tensor(np.array([14, 30], np.int32))
    PagedReorder(cache)(path, count, n)
    slots = cache.shape[2]
    for buffer, values in zip(cache.keys, before, strict=True):
        expected = values.reshape(2, cache.width, *values.shape[2:]).copy()
        expected[0, [15, 16]] = expected[0, [17, 19]]
        expected[1, 31] = expected[1, 32]
        found = buffer.asnumpy().reshape(expected.shape)
        np.testing.assert_array_equal(found[:, : slots - 1], expected[:, : slots - 1])

    seen = np.ones((1, 1, 2, 5), bool)
    seen[0, 0, 0, [0, 2]], seen[0, 0, 1, 4] = False, False  # the second row is padding
    mask = hidden_keys(Tensor(seen), Tensor(np.array([[2, 4]], np.int32)), 4, 8, ms.float32).asnumpy()
    assert (mask == 0).tolist() == [
        [True, False, True, *[False] * 5],
        [True, *[False] * 3, True, *[False] * 3],
    ]
    assert set(np.unique(mask)) == {0.0, -10000.0}
