"""Formats of weights from the file to the text."""

from types import SimpleNamespace

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from support import tiny, tiny_eagle, tiny_gguf

from ms_eagle import loading
from ms_eagle.checkpoints.safetensors_file import read_header
from ms_eagle.config.sections import load_config
from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.export import export_bundle
from ms_eagle.deployment.loading import load_deployment
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.sampling.options import SamplingParams
from ms_eagle.system.progress import Progress

QUIET = Progress(quiet=True)
WIDE = dict(hidden_size=64, intermediate_size=96, head_dim=16, num_attention_heads=6)
NATIVE, EAGER, FUSED = (
    SimpleNamespace(name=name, codes=name == "native") for name in ("native", "eager", "fused")
)


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A teacher and a head whose matrices are whole groups."""
    root = tmp_path_factory.mktemp("weights")
    model = tiny_eagle.model_dir("qwen3", root, **WIDE)
    head = tiny_eagle.head_dir(model, root, intermediate_size=96)

    def make(*overrides):
        return tiny_eagle.config(model, head, overrides)

    return make


def answers(engine):
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 90, length).tolist() for length in (1, 23, 9, 40)]
    drawn = SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.2, seed=4)
    both = (GenerationOptions(20, each, ignore_eos=True) for each in (SamplingParams(), drawn))
    return [completion.token_ids for options in both for completion in engine.generate(prompts, options)]


def test_speculation_and_a_bundle_write_the_teachers_own_tokens(configured, tmp_path):
    shared = ["model.weights=int4", "execution.batch_size=3"]
    plain = answers(loading.load_engine(configured(*shared, "drafter.kind=none")))
    config = configured(*shared)
    assert answers(loading.load_engine(config)) == plain
    bundle = tmp_path / "bundle"
    export_bundle(config, "cpu", bundle, QUIET)
    opened = Bundle.open(bundle)
    assert answers(load_deployment(opened, opened.config([]), QUIET).engine()) == plain
    stored = {entry.dtype for entry in read_header(bundle / WEIGHTS).values() if len(entry.shape) == 3}
    assert stored == {"U8"}


@pytest.mark.parametrize(
    ("kind", "asked"), [(Kind.F16, "stored"), (Kind.Q4_1, "stored"), (Kind.Q5_0, "compact")]
)
def test_auto_is_what_the_file_holds_and_the_kernels_know(tmp_path, kind, asked):
    path = tiny_gguf.save(tmp_path / "m.gguf", tiny.make("llama", **WIDE), kind=kind)
    (tmp_path / "c.yaml").write_text(f"model: {{source: {path}, cache_dir: {tmp_path}, max_length: 64}}")

    def opened(*overrides):
        config = load_config(tmp_path / "c.yaml", list(overrides))
        return config, loading.open_model(config, QUIET)

    config, model = opened()
    assert model.asked(NATIVE) == asked
    assert model.asked(EAGER) == model.asked(FUSED) == "float32"
    head = "float32" if kind == Kind.F16 else "int8"
    assert loading.settled(config, model).drafter.weights == head
    for overrides, expected in (
        (["execution.mode=reference"], "float32"),
        (["model.weights=float32"], "float32"),
        (["model.weights=int4"], "int8"),
        (["drafter.weights=int4", "model.weights=float32"], "int4"),
    ):
        assert loading.settled(*opened(*overrides)).drafter.weights == expected
    _, model = opened("model.weights=int8")
    assert model.asked(NATIVE) == model.asked(EAGER) == "int8"
    with pytest.raises(UserError, match=r"model\.weights is int8, for which there are no kernels on NPUs"):
        model.asked(FUSED)


def test_values_that_codes_cannot_hold_are_named(configured):
    config = configured("model.weights=int8")
    model = loading.open_model(config, QUIET)

    def huge(name):
        weight = read(name)
        return weight if len(weight.shape) < 2 else type(weight).of(weight.dense() * 1e6)

    read, model.checkpoint.weight = model.checkpoint.weight, huge
    sizes, backend = loading.sizes_of(config, None), loading.start_device(config, QUIET, 1)
    with pytest.raises(UserError, match=r"embed_tokens\.weight: .*magnitude .*set model\.weights=float32"):
        loading.load_teacher(model, backend, QUIET, sizes=sizes, taps=())
