"""Small tokenizers trained on the spot, in the formats that the package reads."""

import io
import json
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog looks up.",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)",
    "你好，世界！今天天气怎么样？系统：用户：助手：今天很好。",
    "Prices rose 3.75% in 2024; it's 12,345 more than I'd expected.  Two  spaces.",
    "naïve café — “quotes” … 🙂🙂 🦊",
] * 20

PANGU_USER_DEFINED = [f"[unused{index}]" for index in range(9, 11)]
PANGU_CONTROL = ["[unused16]", "[unused17]"]


def sentencepiece_model(
    *, dummy_prefix: bool = True, byte_fallback: bool = True, squeeze: bool = False
) -> bytes:
    """A BPE model with ``[unused9]``, ``[unused10]`` user-defined, ``[unused16]``, ``[unused17]`` control.

    With ``squeeze`` it removes spaces at the ends and repeated ones.
    """
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.split("\n")]),
        model_writer=out,
        model_type="bpe",
        vocab_size=480 if byte_fallback else 224,
        byte_fallback=byte_fallback,
        character_coverage=0.99 if byte_fallback else 1.0,
        user_defined_symbols=PANGU_USER_DEFINED,
        control_symbols=PANGU_CONTROL,
        normalization_rule_name="identity",
        remove_extra_whitespaces=squeeze,
        add_dummy_prefix=dummy_prefix,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return out.getvalue()


def write_sentencepiece(directory: Path, config: dict[str, object], **options: bool) -> Path:
    """``directory`` with tokenizer.model and tokenizer_config.json."""
    (directory / "tokenizer.model").write_bytes(sentencepiece_model(**options))
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE: three special tokens, one added token that is not special, a bos post-processor."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        special_tokens=["<|bos|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False, special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
    )
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """A converted Llama 2 tokenizer in miniature: spaces as U+2581, bytes as ``<0x..>``."""
    letters = sorted(
        {character for text in CORPUS for character in text if character.isascii()} - {" ", "\n"}
    )
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, "好"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("d", "o"), ("do", "g")]
    pieces += ["".join(pair) for pair in merges]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write_json(directory: Path, tokenizer: tokenizers.Tokenizer, config: dict[str, object]) -> Path:
    """``directory`` with tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
