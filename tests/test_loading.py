"""From a configuration to an engine: heads of every layout, and what is refused."""

import io
import json
import os
import subprocess
import sys

import pytest
import tokenizers
from rich.console import Console
from support import head_files, tiny_eagle

from ms_eagle import loading
from ms_eagle.config.sections import load_config
from ms_eagle.cycle.sizes import Sizes
from ms_eagle.engine.requests import GenerationOptions
from ms_eagle.errors import UserError
from ms_eagle.models.commit import FastReorder, FullReorder
from ms_eagle.paths import CONFIGS, ROOT
from ms_eagle.system import quiet
from ms_eagle.system.progress import Progress
from ms_eagle.tree.shape import TreeShape

TAPS = (2, 4, 5)  # the default triple of a teacher of eight layers
TOOL = ROOT / "tools" / "infer.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Eight layers, so that heads need not name their taps."""
    return tiny_eagle.model_dir("llama", tmp_path_factory.mktemp("loading"), num_hidden_layers=8)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny_eagle.model_dir("qwen3", tmp_path_factory.mktemp("small"))


def published(model, layout, directory):
    """A head of the given layout for ``model``, as its trainer writes it."""
    teacher = tiny_eagle.decoder(model)
    base = {
        **head_files.CONFIG,
        "hidden_size": teacher.hidden_size,
        "vocab_size": teacher.vocab_size,
        "draft_vocab_size": 32,
    }
    layer, extra, pickled = "midlayer.", (), False
    if layout == "SafeAILab":
        config = {**base, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
        extra, pickled = ("embed_tokens",), True
    elif layout == "SpecForge":
        config = {**base, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    elif layout == "AngelSlim":
        config = {**base, "architectures": ["Eagle3LlamaForCausalLM"]}
    elif layout == "speculators":
        layer = "layers.0."
        config = head_files.speculators_config(base, eagle_aux_hidden_state_layer_ids=list(TAPS))
    else:
        layer = "layers.0."
        eagle = {**head_files.MODELOPT_KEYS, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
        config = {**base, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": eagle}
    weights = {**head_files.tensors(base, layer=layer, extra=extra), **head_files.vocabulary(base)}
    return head_files.write(directory, config, weights, pickled=pickled)


@pytest.mark.parametrize("layout", ["SafeAILab", "SpecForge", "AngelSlim", "speculators", "Model-Optimizer"])
def test_heads_of_every_layout(model, layout, tmp_path):
    engine = tiny_eagle.engine(model, published(model, layout, tmp_path / "head"))
    graphs = engine.graphs
    assert graphs.facts.drafter == "eagle3"
    assert graphs.teacher.taps == TAPS
    drafter = graphs.drafter.head
    assert drafter.draft_vocab_size == 32
    assert (drafter.vocabulary is graphs.teacher.vocabulary) == (layout != "SafeAILab")
    # Caches and tables as ``cycle.sizes`` has them: capacity 96, M = 6, D = 3, k = 3.
    assert graphs.teacher.cache.shape[2] == 96 + 7 + 1
    assert drafter.cache.shape[2] == 96 + 2 * 3 + 1
    assert drafter.positions >= 96 + 3


def test_heads_of_two_layouts_answer_alike(model, tmp_path):
    """The same weights, named by two trainers, draft the same tokens; and the teacher decides."""
    prompt, options = [[5, 6, 7, 8]], GenerationOptions(12, ignore_eos=True)
    engines = [
        tiny_eagle.engine(model, published(model, layout, tmp_path / layout))
        for layout in ("SpecForge", "speculators")
    ]
    (one,), (two,) = (engine.generate(prompt, options) for engine in engines)
    (alone,) = tiny_eagle.engine(model, None).generate(prompt, options)
    assert one.token_ids == two.token_ids == alone.token_ids
    assert one.accept_L == two.accept_L
    assert (one.drafter, alone.drafter, alone.accept_L) == ("eagle3", "none", None)


def test_options_reach_the_graphs(small):
    head = tiny_eagle.head_dir(small, small.parent, name="options")
    chosen = [
        "execution.batch_size=2",
        "execution.commit=full",
        "tree.confidence=0.25",
        "tree.budget=2",
        "drafter.rope_theta=77",
    ]
    graphs = tiny_eagle.engine(small, head, chosen).graphs
    assert graphs.facts.sizes == Sizes(2, 8, 96, (TreeShape(2, 3, 3),))
    cycle = graphs.cycle(TreeShape(2, 3, 3), False)
    assert isinstance(cycle.reorder, FullReorder)
    assert float(cycle.tensorize.log_confidence) == pytest.approx(-1.3863, abs=1e-4)
    assert graphs.teacher.cache.shape[2] == 96 + 3 + 1
    second = graphs.drafter.head.rows.sin.asnumpy()[1, 1]  # position 1, second of four frequencies
    assert second == pytest.approx(77 ** (-1 / 4), abs=0.05)
    stock = tiny_eagle.engine(small, head, ["execution.kernels=eager"]).graphs
    assert isinstance(stock.cycle(stock.facts.sizes.tiers[0], False).reorder, FastReorder)


def test_kinds_of_drafters(small):
    head = tiny_eagle.head_dir(small, small.parent, name="kinds")
    assert tiny_eagle.engine(small, head, ["drafter.kind=none"]).graphs.facts.drafter == "none"
    engine = tiny_eagle.engine(small, None, ["drafter.kind=synthetic", "drafter.taps=[0,1]"])
    assert (engine.graphs.facts.drafter, engine.graphs.facts.scripted) == ("synthetic", True)


def refused(model, head, overrides=()):
    with pytest.raises(UserError) as caught:
        tiny_eagle.engine(model, head, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refused_before_the_model_is_looked_for(tmp_path):
    missing = tmp_path / "none"
    assert "set tree.branch=1" in refused(missing, None, ["execution.commit=length"])
    assert refused(missing, None, ["drafter.kind=eagle3"]).startswith(
        "drafter.kind is eagle3, but drafter.source is missing: set it to"
    )
    assert "tree.budget is 22, but depth 3 and branch 3 make only 21" in refused(
        missing, None, ["tree.budget=22"]
    )
    assert "does not exist" in refused(missing, None)
    assert refused(missing, None, ["drafter.kind=eagel3"]) == (
        "drafter.kind is 'eagel3'; expected none, eagle3, ngram, synthetic."
    )


def test_refused_heads(small, model, tmp_path, monkeypatch):
    def not_reached(*arguments, **named):
        raise AssertionError("weights are loaded before everything is checked")

    monkeypatch.setattr(loading, "load_teacher", not_reached)
    head = tiny_eagle.head_dir(small, tmp_path)
    assert refused(small, tmp_path / "none").startswith("drafter.source: the head ")
    assert "is a head for another model" in refused(
        small, tiny_eagle.head_dir(small, tmp_path, name="wide", hidden_size=40, target_hidden_size=40)
    )
    assert "another model" in refused(
        small, tiny_eagle.head_dir(small, tmp_path, name="words", vocab_size=900)
    )
    assert "one is repeated" in refused(small, head, ["drafter.taps=[1,1]"])
    assert "blocks 0 to 1" in refused(small, head, ["drafter.taps=[0,2]"])
    assert "takes 2 hidden states" in refused(small, head, ["drafter.taps=[0]"])
    assert "draft vocabulary has only 64 tokens" in refused(
        small, head, ["tree.branch=65", "tree.depth=1", "tree.budget=6"]
    )
    assert "leaves room for paths of at most 95 tokens" in refused(small, head, ["tree.depth=96"])
    unnamed = tiny_eagle.head_dir(small, tmp_path, name="unnamed", eagle_aux_hidden_state_layer_ids=[])
    assert "name the taps" in refused(small, unnamed)
    assert "EAGLE-3 head" in refused(small, small)
    assert "drafter.taps: the teacher has 2 layers" in refused(small, None, ["drafter.kind=synthetic"])


def test_refused_teachers(small, tmp_path):
    assert "model.max_length is 129, but the model was made for 128" in refused(
        small, None, ["model.max_length=129"]
    )
    other = tiny_eagle.model_dir("llama", tmp_path, vocab_size=96)
    assert "they do not belong together" in refused(other, None)
    assert "model.dtype is bfloat16" in refused(small, None, ["model.dtype=bfloat16"])
    assert "execution.kernels is fused" in refused(small, None, ["execution.kernels=fused"])
    (small.parent / "broken").mkdir()
    for file in small.iterdir():
        if file.name != "model.safetensors":
            (small.parent / "broken" / file.name).write_bytes(file.read_bytes())
    assert "\n" not in refused(small.parent / "broken", None)


def test_a_tokenizer_may_have_a_few_tokens_more(small, tmp_path):
    """Such as a padding token for training, which no prompt holds."""
    other = tiny_eagle.model_dir("llama", tmp_path)
    path = other / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    rows = json.loads((other / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<more {n}>" for n in range(tokenizer.get_vocab_size(), rows)])
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(path))
    model = loading.open_model(tiny_eagle.config(other, None), Progress(quiet=True))
    assert (model.tokenizer.vocab_size, model.decoder.vocab_size) == (rows + 1, rows)
    (prompt,) = model.tokenizer.encode("<pad>", add_special_tokens=False)
    assert prompt == rows


def test_progress_counts_every_tensor(small):
    class Counting(Progress):
        def __init__(self):
            super().__init__(quiet=True)
            self.totals = []

        def steps(self, description, total=None):
            self.totals.append((description, total))
            return super().steps(description, total)

    progress = Counting()
    loading.load_engine(tiny_eagle.config(small, None), progress)
    assert ("loading weights", len(tiny_eagle.decoder(small).tensor_shapes())) in progress.totals


def test_building_kernels_shows(monkeypatch):
    terminal = io.StringIO()
    progress = Progress(console=Console(file=terminal, force_terminal=True, width=100))
    monkeypatch.setattr(loading.device, "start", lambda *options: "CPU")
    monkeypatch.setattr(loading.device, "backend", lambda *_, notice, **options: notice("building"))
    loading.start_device(load_config(CONFIGS / "smollm2_135m.yaml"), progress, 1)
    assert "preparing kernels" in terminal.getvalue()
    assert "note: building" in terminal.getvalue()


def test_the_command_line(small, tmp_path):
    """--drafter takes a kind or a head; a mistake in either is one line and exit status 2."""
    head = tiny_eagle.head_dir(small, tmp_path)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"model: {{source: {small}, max_length: 96}}\nexecution: {{device: CPU, prefill_chunk: 8}}\n"
        "tree: {budget: 6, depth: 3, branch: 3}\ndrafter: {kind: synthetic, taps: [0, 1]}\n"
        "generation: {max_new_tokens: 4, ignore_eos: true}\n"
    )
    kept = {*quiet._PLACES, "GLOG_v"}
    environment = {name: value for name, value in os.environ.items() if name not in kept}

    def infer(*arguments):
        done = subprocess.run(
            [sys.executable, TOOL, "--config", config, "--prompt", "The fox", "--json", *arguments],
            cwd=tmp_path,
            capture_output=True,
            timeout=240,
            env=environment,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    status, out, err = infer("--drafter", "eagle3")
    assert (status, out) == (2, "")
    assert err == (
        "error: drafter.kind is eagle3, but drafter.source is missing: set it to the directory of a head or "
        "to hf:org/name.\n"
    )
    status, out, err = infer("--drafter", str(head), "--set", "tree.budget=22")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: tree.budget is 22")
    found = {}
    for drafter in (["--drafter", str(head)], []):
        status, out, err = infer(*drafter)
        assert status == 0
        record = json.loads(out)
        found[record["drafter"]] = record["token_ids"]
        assert err.startswith("[synthetic drafter | ") == (record["drafter"] == "synthetic")
    assert sorted(found) == ["eagle3", "synthetic"]
    assert found["eagle3"] == found["synthetic"]
