"""Every shipped configuration runs with a tiny random checkpoint of its architecture."""

from pathlib import Path

import pytest
from support import tiny, toy_tokenizers

from ms_eagle.chat.session import Dialog, Session, generation_options
from ms_eagle.config.sections import load_config
from ms_eagle.loading import load_engine
from ms_eagle.paths import CONFIGS
from ms_eagle.system.progress import Progress

# What a machine without the model and without an NPU has to change.
HERE = [
    "model.dtype=float32",
    "model.max_length=96",
    "execution.device=CPU",
    "execution.compile_cache=false",
    "execution.kernels=eager",
    "execution.prefill_chunk=16",
    "drafter.kind=none",
    "generation.max_new_tokens=3",
    "generation.ignore_eos=true",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"
)
ARCHITECTURES = {
    "smollm2_135m": "llama_tied",
    "llama3_8b": "llama_llama3",
    "openpangu_embedded_1b": "openpangu_tied",
    "openpangu_embedded_7b": "openpangu",
    "qwen2.5_7b": "qwen2",
    "qwen3_8b": "qwen3",
}


def write_model(name: str, directory: Path) -> Path:
    directory.mkdir()
    if name.startswith("openpangu"):
        vocabulary = 480
        toy_tokenizers.write_sentencepiece(
            directory, {"tokenizer_class": "PanguTokenizer", "eos_token": "[unused10]", "bos_token": "<s>"}
        )
    else:
        tokenizer = toy_tokenizers.byte_level()
        vocabulary = tokenizer.get_vocab_size()
        toy_tokenizers.write_json(directory, tokenizer, {"eos_token": "<|im_end|>", "chat_template": CHATML})
    tiny.save(name, directory, vocab_size=vocabulary)
    return directory


def test_every_config_is_covered():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_config_answers(name, tmp_path):
    source = write_model(ARCHITECTURES[name], tmp_path / "model")
    config = load_config(CONFIGS / f"{name}.yaml", [*HERE, f"model.source={source}"])
    session = Session.load(config, raw=False, progress=Progress(quiet=True))
    heard = []

    class Report:
        def begin(self, title, prompt, asked):
            heard.append(prompt)

        def text(self, piece):
            heard.append(piece)

        def end(self, completion):
            heard.append(completion)

    assert session.answer([Dialog(("The quick fox 你好",), "test")], Report())
    completion = heard[len(heard) - 1]
    assert completion.new_tokens == 3
    assert completion.kernels == "eager"
    assert "".join(heard[1 : len(heard) - 1]) == completion.text


def test_two_engines_in_one_process(tmp_path):
    source = write_model("llama_tied", tmp_path / "model")
    overrides = [*HERE, f"model.source={source}", "execution.threads=2"]
    config = load_config(CONFIGS / "smollm2_135m.yaml", overrides)
    first, second = load_engine(config), load_engine(config)
    options = generation_options(config, first.tokenizer)
    answers = [engine.generate([[5, 6, 7]], options)[0].token_ids for engine in (first, second, first)]
    assert answers[0] == answers[1] == answers[2]
