"""A tiny model with a tokenizer on disk, its configuration, and a report that keeps what it hears."""

from pathlib import Path

from support import tiny, toy_tokenizers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_model(directory: Path, **settings) -> Path:
    """A tiny Llama with a byte-level tokenizer and a chat template."""
    directory.mkdir()
    tokenizer = toy_tokenizers.byte_level()
    tiny.save("llama", directory, vocab_size=tokenizer.get_vocab_size(), **settings)
    toy_tokenizers.write_json(
        directory,
        tokenizer,
        {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE},
    )
    return directory


def write_config(path: Path, model: Path, **generation) -> Path:
    options = "".join(f"  {key}: {value}\n" for key, value in generation.items())
    path.write_text(
        f"model:\n  source: {model}\n  max_length: 128\n"
        f"execution:\n  device: CPU\n  prefill_chunk: 16\ngeneration:\n{options}"
    )
    return path


class Recorder:
    """A report that keeps what it hears."""

    def __init__(self):
        self.begun, self.asked, self.pieces, self.completions = [], [], [], []

    def begin(self, title, prompt, asked):
        self.begun.append((title, prompt))
        self.asked.append(asked)
        self.pieces.append("")

    def text(self, piece):
        self.pieces[len(self.pieces) - 1] += piece

    def end(self, completion):
        self.completions.append(completion)
