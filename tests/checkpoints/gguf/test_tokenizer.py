import json
import unicodedata
from itertools import pairwise

import pytest
import regex
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import toy_tokenizers

from ms_eagle.checkpoints.gguf.tokenizer import _ALIASES, _SPLITS, write_tokenizer
from ms_eagle.errors import UserError
from ms_eagle.text.loading import load_tokenizer

# The word patterns as the models' authors document them, written out once more.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
FRAGMENTS = [
    "it's", "I'LL", " the", "dog", "zebra", "  ", "\n", "\r\n", "\t ", "2024", " 12345", "$+<",
    "你好", "，", "🙂", "½",
]  # fmt: skip
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
TEXT = st.lists(st.sampled_from(FRAGMENTS) | ANY, max_size=8).map("".join)


def words(text: str, patterns: list[str]) -> list[str]:
    """``text`` cut by each pattern in turn: every match is a word of its own, and so is what lies between."""
    parts = [text]
    for pattern in patterns:
        cut = []
        for part in parts:
            end = 0
            for match in regex.finditer(pattern, part):
                cut += [part[end : match.start()], match[0]]
                end = match.end()
            cut.append(part[end:])
        parts = [part for part in cut if part]
    return parts


def slow_encode(
    text: str, patterns: list[str], vocabulary: dict[str, int], ranks: dict[tuple[str, str], int]
) -> list[int]:
    """Byte-pair encoding by definition: merge the pair of lowest rank, leftmost first, while there is one.

    A byte that has no token (SmolLM2 lacks a few control characters) vanishes before anything is merged: that
    is what the library of the original tokenizer does without an unknown token.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    letters = [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]
    ids = []
    for word in words(text, patterns):
        symbols = [letter for byte in word.encode() if (letter := letters[byte]) in vocabulary]
        while pairs := [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]:
            _, at = min(pairs)
            symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
        ids += [vocabulary[symbol] for symbol in symbols]
    return ids


def byte_level_metadata(**extra) -> dict[str, object]:
    """A GGUF vocabulary made of a trained toy tokenizer, with merges that tell the patterns apart."""
    model = json.loads(toy_tokenizers.byte_level().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) for pair in model["merges"]]
    digits = ["2 0", "20 2", "202 4", "1 2", "12 3", "Ġ 1", "$ +", "$+ <"]
    merges = [*digits, *(pair for pair in merges if pair not in digits)]
    tokens += [token for pair in digits if (token := pair.replace(" ", "")) not in tokens]
    tokens.append("zebra")  # no merges lead to it
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


@pytest.fixture(scope="module", params=PATTERNS)
def byte_level_case(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gguf")
    metadata = byte_level_metadata(pre=request.param, add_bos_token=False)
    write_tokenizer(metadata, directory)
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    return request.param, load_tokenizer(directory), vocabulary, ranks


class TestByteLevel:
    @given(text=TEXT)
    @settings(max_examples=200, deadline=None)
    def test_encodes_as_defined(self, byte_level_case, text):
        pre, tokenizer, vocabulary, ranks = byte_level_case
        if pre == "qwen2":
            text = unicodedata.normalize("NFC", text)
        expected = slow_encode(text, PATTERNS[pre], vocabulary, ranks)
        if pre == "llama-bpe":  # a word that is a token is that token, merges or not
            expected = [
                token_id
                for word in words(text, PATTERNS[pre])
                for token_id in (
                    [vocabulary[word]] if word.isascii() and word in vocabulary
                    else slow_encode(word, ["(?s).+"], vocabulary, ranks)
                )
            ]  # fmt: skip
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected) == text

    def test_digits(self, byte_level_case):
        pre, tokenizer, _, _ = byte_level_case
        pieces = [tokenizer.decode([token_id]) for token_id in tokenizer.encode("2024")]
        expected = {"gpt-2": ["2024"], "smollm": [*"2024"], "qwen2": [*"2024"], "llama-bpe": ["202", "4"]}
        assert pieces == expected.get(pre, ["202", "4"])

    def test_qwen_composes_characters(self, byte_level_case):
        pre, tokenizer, _, _ = byte_level_case
        decoded = tokenizer.decode(tokenizer.encode("e\u0301"))
        assert decoded == ("é" if pre == "qwen2" else "e\u0301")

    def test_special_tokens_and_roles(self, tmp_path):
        metadata = byte_level_metadata(pre="smollm", padding_token_id=2)
        metadata["tokenizer.ggml.token_type"][3] = 4
        metadata["tokenizer.ggml.tokens"][3] = "<user defined>"
        metadata["tokenizer.chat_template"] = "{{ bos_token }}hello"
        write_tokenizer(metadata, tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (0, (2,), 2)
        assert tokenizer.special_ids == {0, 1, 2}
        assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])
        assert tokenizer.encode("<|im_start|><user defined>") == [1, 3]
        assert tokenizer.decode([1, 3, 2]) == "<user defined>"
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert config["chat_template"] == "{{ bos_token }}hello"
        assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
            "<|bos|>",
            "<|im_end|>",
            "<|im_end|>",
        )

    @pytest.mark.parametrize(("add", "expected"), [(True, [0]), (False, []), (None, [])])
    def test_add_bos(self, tmp_path, add, expected):
        extra = {} if add is None else {"add_bos_token": add}
        write_tokenizer(byte_level_metadata(pre="gpt-2", **extra), tmp_path)
        assert load_tokenizer(tmp_path).encode("") == expected

    # llama.cpp's defaults (src/llama-vocab.cpp) for every accepted name of a pre-tokenizer.
    @pytest.mark.parametrize(
        ("pre", "adds"),
        [
            (None, False),
            ("default", False),
            ("gpt-2", False),
            ("smollm", False),
            ("qwen2", False),
            ("llama-bpe", True),
            ("llama3", True),
            ("llama-v3", True),
        ],
    )
    def test_bos_where_the_file_does_not_say(self, tmp_path, pre, adds):
        metadata = byte_level_metadata() if pre is None else byte_level_metadata(pre=pre)
        write_tokenizer(metadata, tmp_path)
        assert load_tokenizer(tmp_path).encode("") == ([0] if adds else [])
        del metadata["tokenizer.ggml.bos_token_id"]
        write_tokenizer(metadata, tmp_path)
        assert load_tokenizer(tmp_path).encode("") == []

    def test_every_pre_tokenizer_has_its_default_tested(self):
        (mark,) = TestByteLevel.test_bos_where_the_file_does_not_say.pytestmark
        assert {pre for pre, _ in mark.args[1]} == {None, *_SPLITS, *_ALIASES}

    def test_transformers_reads_the_result_alike(self, tmp_path):
        from transformers import PreTrainedTokenizerFast

        write_tokenizer(byte_level_metadata(pre="smollm"), tmp_path)
        theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        text = "<|im_start|>user\nIt's 2024: 你好 🙂<|im_end|>\n"
        assert load_tokenizer(tmp_path).encode(text) == theirs.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def llama_case(tmp_path_factory):
    """A SentencePiece model, taken apart into GGUF keys and put together again."""
    original = sentencepiece.SentencePieceProcessor(model_proto=toy_tokenizers.sentencepiece_model())
    ids = range(original.get_piece_size())
    user_defined = [original.piece_to_id(token) for token in toy_tokenizers.PANGU_USER_DEFINED]
    kinds = [
        2 if original.is_unknown(index) else 3 if original.is_control(index) else 6 if original.is_byte(index)
        else 4 if index in user_defined else 1
        for index in ids
    ]  # fmt: skip
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [original.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    directory = tmp_path_factory.mktemp("llama")
    write_tokenizer(metadata, directory)
    return metadata, original, directory


class TestSentencePiece:
    @given(text=TEXT)
    @settings(max_examples=300, deadline=None)
    def test_encodes_like_the_original_model(self, llama_case, text):
        _, original, directory = llama_case
        rebuilt = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
        assert rebuilt.encode(text) == original.encode(text)
        assert rebuilt.decode(rebuilt.encode(text)) == original.decode(original.encode(text))

    def test_everything_but_the_training_settings_is_the_same(self, llama_case):
        _, original, directory = llama_case
        rebuilt = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
        assert rebuilt.get_piece_size() == original.get_piece_size()
        for index in range(original.get_piece_size()):
            for name in ("id_to_piece", "get_score", "is_control", "is_unknown", "is_byte", "is_unused"):
                assert getattr(rebuilt, name)(index) == getattr(original, name)(index)
        for name in ("unk_id", "bos_id", "eos_id", "pad_id"):
            assert getattr(rebuilt, name)() == getattr(original, name)()

    def test_loads(self, llama_case):
        metadata, original, directory = llama_case
        tokenizer = load_tokenizer(directory)
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (1, (2,), None)
        control, user = (original.piece_to_id(token) for token in ("[unused16]", "[unused9]"))
        ids = tokenizer.encode("[unused16][unused9]the dog")
        assert ids == [1, control, user, *original.encode("the dog")]
        assert tokenizer.decode(ids) == "[unused9] the dog"
        assert metadata["tokenizer.ggml.tokens"][user] == "[unused9]"

    @pytest.mark.parametrize("prefix", [True, False])
    def test_leading_space(self, llama_case, tmp_path, prefix):
        metadata, _, _ = llama_case
        write_tokenizer({**metadata, "tokenizer.ggml.add_space_prefix": prefix}, tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        ids = tokenizer.encode("the dog", add_special_tokens=False)
        assert tokenizer.token_bytes(ids[0]).startswith(b" ") == prefix
        assert tokenizer.decode(ids) == "the dog"

    @pytest.mark.parametrize(("add", "expected"), [(True, [1]), (False, []), (None, [1])])
    def test_add_bos(self, llama_case, tmp_path, add, expected):
        extra = {} if add is None else {"tokenizer.ggml.add_bos_token": add}
        write_tokenizer({**llama_case[0], **extra}, tmp_path)
        assert load_tokenizer(tmp_path).encode("") == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "no tokenizer.ggml.model"),
        ({"model": "bert"}, "tokenizer.ggml.model 'bert' is not supported; expected 'gpt2' or 'llama'"),
        (
            {"pre": "tekken"},
            "tokenizer.ggml.pre 'tekken' is not supported; expected one of default, gpt-2, llama-bpe",
        ),
        ({"pre": 3}, "tokenizer.ggml.pre has type int; expected str"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "holds 'a' more than once"),
        ({"tokens": ["a", 1], "token_type": [1, 1]}, "tokenizer.ggml.tokens must be a list of str"),
        ({"token_type": [1]}, "token_type entries"),
        ({"merges": ["ab"]}, "merges holds 'ab', not a pair of tokens"),
        ({"merges": ["zq qz"]}, "merges holds 'zq qz', not a pair of tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000; the vocabulary has"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"model": "llama"}, "no tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.5]}, "but 1 scores"),
    ],
)
def test_refusals(tmp_path, change, message):
    metadata = byte_level_metadata(pre="gpt-2")
    for key, value in change.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(UserError, match=message):
        write_tokenizer(metadata, tmp_path / "out")


def test_chat_template_of_a_wrong_type(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.chat_template has type int; expected text"):
        write_tokenizer({**byte_level_metadata(pre="gpt-2"), "tokenizer.chat_template": 3}, tmp_path)


# Checked by hand against the vocabulary: each digit is a token of its own (32 + digit), a space before digits
# is token 216, and Chinese and emoji fall apart into the bytes that the vocabulary merges.
SMOLLM2 = {
    "Explain 2024 in 3 words.": [36971, 216, 34, 32, 34, 36, 281, 216, 35, 1924, 30],
    "你好，世界！今天天气怎么样？": [
        18645, 250, 48392, 138, 12831, 7906, 240, 178, 239, 230, 8083, 219, 15076, 228, 18614, 119, 18614,
        119, 177, 125, 238, 37911, 232, 27948, 226, 26519, 132, 8083, 249,
    ],
    "I ❤️ 🦊🏳️‍🌈 2 much": [
        57, 4636, 247, 114, 31752, 15107, 116, 228, 10813, 233, 128, 31752, 321, 231, 10813, 230, 226, 216,
        34, 1083,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def smollm2_case(smollm2):
    model = json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    return load_tokenizer(smollm2), model["vocab"], ranks


@pytest.mark.real_model
class TestSmolLM2:
    @pytest.mark.parametrize("text", SMOLLM2)
    def test_pinned(self, smollm2_case, text):
        tokenizer, vocabulary, ranks = smollm2_case
        assert (
            tokenizer.encode(text)
            == SMOLLM2[text]
            == slow_encode(text, PATTERNS["smollm"], vocabulary, ranks)
        )
        assert tokenizer.decode(SMOLLM2[text]) == text

    @given(text=TEXT)
    @settings(max_examples=200, deadline=None)
    @example(text='"\x06>')
    def test_encodes_as_defined(self, smollm2_case, text):
        tokenizer, vocabulary, ranks = smollm2_case
        assert tokenizer.encode(text) == slow_encode(text, PATTERNS["smollm"], vocabulary, ranks)

    def test_short_chat_prompt(self, smollm2_case, smollm2):
        """41 tokens; a Llama tokenizer with the same vocabulary, as some importers build, makes 42 of it."""
        from ms_eagle.text.template import load_template

        tokenizer, _, _ = smollm2_case
        ids = load_template(smollm2).encode(
            [{"role": "user", "content": "Explain 2024 in 3 words."}], tokenizer
        )
        assert len(ids) == 41
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id, tokenizer.vocab_size) == (
            1,
            (2,),
            2,
            49152,
        )
        assert ids[0] == 1
        assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
