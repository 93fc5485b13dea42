"""A tiny teacher that writes printable texts of different lengths and ends them, as a user would."""

import json
from pathlib import Path

import tokenizers
import torch
from support import tiny
from tokenizers import decoders, models, pre_tokenizers

from ms_eagle.text.json_tokenizer import byte_alphabet

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?\n"
END = 2


def save(directory: Path, *, seed: int = 1) -> Path:
    """A model directory: one token a character."""
    directory.mkdir()
    names = {byte: character for character, byte in byte_alphabet().items()}
    pieces = [*SPECIAL, *(names[ord(letter)] for letter in LETTERS)]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    model = tiny.save("llama", directory, seed=seed, vocab_size=len(pieces), max_position_embeddings=512)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(4.0)  # what was read last matters most: fewer loops
        # One constant feature through all blocks makes the first column of the output layer a bias.
        model.model.embed_tokens.weight[:, 0] = 3.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[:END, 0] = -20.0
        model.lm_head.weight[END, 0] = 0.6
    model.save_pretrained(directory)
    return directory


def config(path: Path, model: Path, *, batch: int = 4) -> Path:
    """A configuration of the model."""
    path.write_text(
        f"model: {{source: {model}, max_length: 256}}\n"
        f"execution: {{device: CPU, prefill_chunk: 16, batch_size: {batch}}}\n"
    )
    return path
