import json
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_tokenizers
from tokenizers import decoders

from ms_eagle.errors import UserError
from ms_eagle.text.json_tokenizer import byte_alphabet
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.tokenizer import TURN_ENDS

SPECIAL = ["<s>", "</s>", "<unk>", "[unused9]", "[unused10]", "[unused16]", "[unused17]"]
FRAGMENTS = [
    *SPECIAL, "<|im_start|>", "<|im_end|>", "<|bos|>", "<tool>", " ", "  ", "\n", "\n\n", "\t", "the", " dog",
    "2024", "你好", "系统：", "🙂", "e\u0301", "▁", "[unused1", "<0x41>",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=8).map("".join)
PLAIN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁<["), max_size=40)

PANGU_CONFIG = {
    "tokenizer_class": "PanguTokenizer",
    "add_bos_token": True,
    "add_eos_token": False,
    "legacy": True,
    "bos_token": "<s>",
    "eos_token": "[unused10]",
    "unk_token": "<unk>",
    "pad_token": "<unk>",
}


def with_added_tokens(config: dict, directory) -> dict:
    """``config`` with added_tokens_decoder for every special token, as openPangu's files have it."""
    ids = {}
    tokenizer = load_tokenizer(directory)
    for token in SPECIAL:
        (ids[token],) = tokenizer.encode(token, add_special_tokens=False)[-1:]
    decoder = {str(index): {"content": token, "special": True} for token, index in ids.items()}
    return {**config, "added_tokens_decoder": decoder}


@pytest.fixture(scope="module")
def llama_directory(tmp_path_factory):
    return toy_tokenizers.write_sentencepiece(tmp_path_factory.mktemp("llama"), {})


@pytest.fixture(scope="module")
def pangu_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pangu")
    toy_tokenizers.write_sentencepiece(directory, PANGU_CONFIG, dummy_prefix=False)
    config = with_added_tokens(PANGU_CONFIG, directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def byte_level_directory(tmp_path_factory):
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    return toy_tokenizers.write_json(tmp_path_factory.mktemp("bpe"), toy_tokenizers.byte_level(), config)


@pytest.fixture(scope="module")
def byte_fallback_directory(tmp_path_factory):
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    return toy_tokenizers.write_json(tmp_path_factory.mktemp("spm"), toy_tokenizers.byte_fallback(), config)


@pytest.fixture(scope="module", params=["legacy", "not legacy", "unstated", "no prefix space"])
def llama_pair(request, tmp_path_factory, llama_directory):
    """Our tokenizer and transformers' slow Llama tokenizer for the same files."""
    from transformers import LlamaTokenizer

    directory = tmp_path_factory.mktemp("pair")
    config = with_added_tokens({"tokenizer_class": "LlamaTokenizer"}, llama_directory)
    config |= {
        "legacy": {"legacy": True},
        "not legacy": {"legacy": False},
        "unstated": {},
        "no prefix space": {"legacy": False, "add_prefix_space": False},
    }[request.param]
    (directory / "tokenizer.model").write_bytes((llama_directory / "tokenizer.model").read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(directory), LlamaTokenizer.from_pretrained(directory)


class TestSentencePiece:
    @given(text=TEXT)
    @settings(max_examples=300, deadline=None)
    def test_encodes_like_transformers(self, llama_pair, text):
        ours, theirs = llama_pair
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)

    @pytest.mark.parametrize(
        "text",
        [" leading", "  two", "\nline", "a\n\nb", "<s>dog", "<s> dog", "dog</s> dog", "[unused9]", "", " "],
    )
    def test_encodes_edge_cases_like_transformers(self, llama_pair, text):
        ours, theirs = llama_pair
        assert ours.encode(text) == theirs.encode(text)

    @given(text=PLAIN)
    @settings(max_examples=200, deadline=None)
    def test_decoding_undoes_encoding(self, llama_pair, text):
        ours, _ = llama_pair
        assert ours.decode(ours.encode(text)) == text

    def test_llama_decodes_like_transformers(self, llama_pair):
        ours, theirs = llama_pair
        for text in ("The quick brown fox", "你好，世界！🙂", "a  b\n\nc"):
            ids = ours.encode(text)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text

    @given(text=TEXT)
    @settings(max_examples=300, deadline=None)
    def test_openpangu_cuts_at_special_tokens_and_adds_no_space(self, pangu_directory, text):
        """openPangu's own class: SentencePiece on every stretch between special tokens, bos in front."""
        import re

        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(pangu_directory / "tokenizer.model"))
        expected = [1]
        for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            if part in SPECIAL:
                expected.append(processor.piece_to_id(part))
            else:
                expected.extend(processor.encode(part))
        assert load_tokenizer(pangu_directory).encode(text) == expected

    def test_openpangu_prompt(self, pangu_directory):
        tokenizer = load_tokenizer(pangu_directory)
        (nine, ten) = (
            tokenizer.encode(token, add_special_tokens=False) for token in ("[unused9]", "[unused10]")
        )
        assert len(nine) == len(ten) == 1
        ids = tokenizer.encode("[unused9]系统：[unused10][unused9]用户：你好[unused10][unused9]助手：")
        assert [ids.count(nine[0]), ids.count(ten[0])] == [3, 2]
        assert ids[:2] == [tokenizer.bos_id, nine[0]]
        assert tokenizer.eos_ids == (ten[0],)
        assert tokenizer.pad_id == 0
        assert tokenizer.decode(ids, skip_special_tokens=False).endswith("[unused9]助手：")

    def test_openpangu_thinking_stays_in_the_text(self, pangu_directory):
        tokenizer = load_tokenizer(pangu_directory)
        ids = tokenizer.encode("[unused16]the dog[unused17] 你好[unused10]")
        assert tokenizer.decode(ids) == "[unused16]the dog[unused17] 你好"
        assert tokenizer.decode(ids, skip_special_tokens=False).startswith("<s>[unused16]the dog[unused17]")

    def test_control_symbols_are_parsed_without_any_json_file(self, tmp_path):
        (tmp_path / "tokenizer.model").write_bytes(toy_tokenizers.sentencepiece_model())
        tokenizer = load_tokenizer(tmp_path)
        (control,) = tokenizer.encode("[unused16]", add_special_tokens=False)
        assert control in tokenizer.special_ids
        assert tokenizer.decode([control]) == ""
        assert tokenizer.decode([control], skip_special_tokens=False) == "[unused16]"
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (1, (2,), None)

    def test_special_text_can_stay_text(self, pangu_directory):
        tokenizer = load_tokenizer(pangu_directory)
        ids = tokenizer.encode("</s>[unused16]", add_special_tokens=False, parse_special=False)
        assert not tokenizer.special_ids.intersection(ids)
        assert len(ids) > 2
        assert tokenizer.decode(ids) == "</s>[unused16]"

    @pytest.mark.parametrize("legacy", [True, False])
    def test_a_model_that_removes_spaces(self, tmp_path, legacy):
        from transformers import LlamaTokenizer

        toy_tokenizers.write_sentencepiece(tmp_path, {}, squeeze=True)
        config = with_added_tokens({"legacy": legacy}, tmp_path)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        ours, theirs = load_tokenizer(tmp_path), LlamaTokenizer.from_pretrained(tmp_path)
        for text in (
            "the",
            " the",
            "  the dog ",
            "a  b",
            "<s> the</s> dog",
            "the</s>  dog",
            "▁the",
            " ",
            "你 好",
        ):
            assert ours.encode(text) == theirs.encode(text)

    def test_special_tokens_that_swallow_spaces(self, llama_directory, tmp_path):
        from transformers import LlamaTokenizer

        entry = {"single_word": False, "normalized": False, "special": True}
        config = {
            "added_tokens_decoder": {
                "0": {"content": "<unk>", **entry}, "1": {"content": "<s>", **entry, "rstrip": True},
                "2": {"content": "</s>", **entry, "lstrip": True},
            },
            "legacy": True, "bos_token": "<s>", "eos_token": "</s>",
        }  # fmt: skip
        (tmp_path / "tokenizer.model").write_bytes((llama_directory / "tokenizer.model").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        ours, theirs = load_tokenizer(tmp_path), LlamaTokenizer.from_pretrained(tmp_path)
        for text in ("a<s>  b  </s> c", "<s>   </s>", "  </s><s>  x"):
            assert ours.encode(text) == theirs.encode(text)

    def test_without_byte_fallback_unknown_text_becomes_unk(self, tmp_path):
        toy_tokenizers.write_sentencepiece(tmp_path, {}, byte_fallback=False)
        tokenizer = load_tokenizer(tmp_path)
        ids = tokenizer.encode("the Ω dog")
        assert 0 in ids
        assert tokenizer.decode(ids) == "the  dog"
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> the <unk> dog"


class TestJson:
    @given(text=TEXT)
    @settings(max_examples=200, deadline=None)
    def test_byte_level_like_transformers(self, byte_level_directory, text):
        ours, theirs = load_tokenizer(byte_level_directory), transformers_fast(byte_level_directory)
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == ids[1:]
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )

    @given(ids=st.lists(st.integers(0, 520), max_size=20))
    @settings(max_examples=300, deadline=None)
    def test_byte_level_decodes_any_ids_like_the_library(self, byte_level_directory, ids):
        library = tokenizers.Tokenizer.from_file(str(byte_level_directory / "tokenizer.json"))
        assert load_tokenizer(byte_level_directory).decode(ids) == library.decode(ids)

    @given(text=PLAIN)
    @settings(max_examples=200, deadline=None)
    def test_byte_fallback_like_the_library(self, byte_fallback_directory, text):
        library = tokenizers.Tokenizer.from_file(str(byte_fallback_directory / "tokenizer.json"))
        ours = load_tokenizer(byte_fallback_directory)
        ids = library.encode(text).ids
        assert ours.encode(text) == [1, *ids]
        assert ours.decode([1, *ids]) == library.decode([1, *ids]) == text

    def test_ill_formed_bytes(self, byte_fallback_directory):
        ours = load_tokenizer(byte_fallback_directory)
        byte = {value: 3 + value for value in range(256)}
        assert ours.decode([byte[0xE4], byte[0xBD], byte[0xA0], byte[0xFF], byte[0x41]]) == "你\ufffdA"
        assert ours.decode([byte[0xE4], byte[0xBD]]) == "\ufffd"
        assert (
            ours.decode([byte[0xE4], 2, byte[0xBD], byte[0xA0]]) == "你"
        )  # a skipped token is not in the text

    def test_tokenizer_config_decides_about_bos(self, byte_level_directory, tmp_path):
        config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
        for extra, expected in (
            ({}, [0]),
            ({"add_bos_token": True}, [0]),
            ({"add_bos_token": False}, []),
            ({"add_bos_token": True, "add_eos_token": True}, [0, 2]),
        ):
            toy_tokenizers.write_json(tmp_path, toy_tokenizers.byte_level(), config | extra)
            assert load_tokenizer(tmp_path).encode("") == expected

    def test_special_text_can_stay_text(self, byte_level_directory):
        tokenizer = load_tokenizer(byte_level_directory)
        ids = tokenizer.encode("<|im_end|>", add_special_tokens=False, parse_special=False)
        assert 2 not in ids
        assert tokenizer.decode(ids) == "<|im_end|>"
        assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [2]

    def test_token_known_to_tokenizer_config_alone(self, tmp_path):
        entry = {"content": "<|extra|>", "special": True}
        library = toy_tokenizers.byte_level()
        new = library.get_vocab_size(with_added_tokens=True)
        toy_tokenizers.write_json(tmp_path, library, {"added_tokens_decoder": {str(new): entry}})
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.encode("<|extra|>", add_special_tokens=False) == [new]
        assert tokenizer.vocab_size == new + 1
        toy_tokenizers.write_json(tmp_path, library, {"added_tokens_decoder": {str(new + 5): entry}})
        with pytest.raises(
            UserError, match=f"'<|extra|>' has id {new} here and {new + 5}".replace("|", r"\|")
        ):
            load_tokenizer(tmp_path)

    def test_ids_without_a_token_decode_to_nothing(self, byte_level_directory):
        tokenizer = load_tokenizer(byte_level_directory)
        assert tokenizer.decode([tokenizer.vocab_size, 10**6]) == ""
        with pytest.raises(ValueError, match="negative"):
            tokenizer.decode([-1])

    def test_padding_and_truncation_in_the_file_are_off(self, tmp_path):
        library = toy_tokenizers.byte_level()
        library.enable_padding(length=50)
        library.enable_truncation(3)
        toy_tokenizers.write_json(tmp_path, library, {})
        plain = toy_tokenizers.byte_level().encode("the quick brown fox").ids
        assert load_tokenizer(tmp_path).encode("the quick brown fox") == plain

    def test_unsupported_decoder(self, tmp_path):
        library = toy_tokenizers.byte_level()
        library.decoder = decoders.WordPiece()
        toy_tokenizers.write_json(tmp_path, library, {})
        with pytest.raises(UserError, match=r"decoder .'WordPiece'. is not supported"):
            load_tokenizer(tmp_path)


def transformers_fast(directory):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))


def test_byte_alphabet_is_the_library_s():
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    from tokenizers import pre_tokenizers

    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in map(chr, range(0x800)):  # covers every byte that UTF-8 uses up to two-byte sequences
        ((shown, _),) = splitter.pre_tokenize_str(character)
        assert bytes(alphabet[symbol] for symbol in shown) == character.encode()


@pytest.mark.parametrize(
    ("generation", "config", "model", "expected"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token": "<|bos|>"}, {"eos_token_id": 7}, (0, 5, 6, 7, 2)),
        ({"eos_token_id": 5}, {}, {}, (5, 2)),
        (None, {"eos_token": "<|im_end|>"}, {"eos_token_id": 7}, (2, 7)),
        ({}, {"eos_token": {"content": "<|im_end|>"}}, None, (2,)),
        ({"eos_token_id": None}, {"eos_token": None}, {"eos_token_id": [7, 8]}, (7, 8, 2)),
        (None, {}, {"eos_token_id": 7}, (7, 2)),
        (None, {}, None, (2,)),
    ],
)
def test_where_eos_comes_from(tmp_path, generation, config, model, expected):
    toy_tokenizers.write_json(tmp_path, toy_tokenizers.byte_level(), config)
    for name, content in (("generation_config.json", generation), ("config.json", model)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids == tuple(tokenizer.eos_origins) == expected


@pytest.mark.parametrize("name", TURN_ENDS)
@pytest.mark.parametrize("special", [True, False])
def test_known_ends_of_a_turn_end_generation(tmp_path, name, special):
    toy = toy_tokenizers.byte_level()
    toy.add_tokens([tokenizers.AddedToken(name, normalized=False, special=special)])
    toy_tokenizers.write_json(tmp_path, toy, {"eos_token": "<|bos|>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids[0] == 0
    assert toy.token_to_id(name) in tokenizer.eos_ids
    assert tokenizer.eos_origins[toy.token_to_id(name)] == "ends a turn"


def test_ordinary_text_ends_nothing(tmp_path):
    toy = toy_tokenizers.byte_fallback()  # no added token by any of those names
    toy_tokenizers.write_json(tmp_path, toy, {"eos_token": "</s>"})
    assert load_tokenizer(tmp_path).eos_ids == (2,)


def test_stop_tokens_by_id_and_name(tmp_path):
    toy_tokenizers.write_json(tmp_path, toy_tokenizers.byte_level(), {})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.stop_ids([7, "<|im_start|>"]) == (7, 1)
    for wrong in ("the", "", -1, 10**9):
        with pytest.raises(UserError, match=r"generation\.stop_tokens holds"):
            tokenizer.stop_ids([wrong])


def test_where_bos_and_pad_come_from(tmp_path):
    toy_tokenizers.write_json(tmp_path, toy_tokenizers.byte_level(), {"bos_token": None})
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<|im_end|>", "bos_token": "<|bos|>"}')
    (tmp_path / "config.json").write_text('{"bos_token_id": 9, "pad_token_id": 9}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (None, 2)  # a null is a statement too
    (tmp_path / "special_tokens_map.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (9, 9)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "not a readable tokenizer.json"),
        ("tokenizer.json", b"\xff", "not a readable tokenizer.json"),
        ("tokenizer.model", b"", "not a readable SentencePiece model"),
        ("tokenizer.model", b"\x0a\xff\xff", "not a readable SentencePiece model"),
        ("tokenizer_config.json", b"[]", "holds a JSON list, expected an object"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b'{"legacy": 1}', "legacy is 1; expected bool"),
        ("tokenizer_config.json", b'{"bos_token": 1}', "bos_token holds 1"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": "y"}}', "from token id to token"),
        ("tokenizer_config.json", b'{"bos_token": {"content": "x", "single_word": true}}', "single_word"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "eos_token_id is '2'; expected a token id"),
        ("added_tokens.json", b'{"x": "y"}', "from token text to token id"),
        ("special_tokens_map.json", b"null", "holds a JSON NoneType"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    if name != "tokenizer.model":
        toy_tokenizers.byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path / name) in str(error.value) or name == "special_tokens_map.json"
    assert "\n" not in str(error.value)


def test_truncated_sentencepiece_model(tmp_path):
    data = toy_tokenizers.sentencepiece_model()
    (tmp_path / "tokenizer.model").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="not a readable SentencePiece model"):
        load_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path):
    with pytest.raises(
        UserError, match=r"no tokenizer found; expected tokenizer\.json .* or tokenizer\.model"
    ):
        load_tokenizer(tmp_path)


def test_unknown_class_beside_tokenizer_model(tmp_path):
    toy_tokenizers.write_sentencepiece(tmp_path, {"tokenizer_class": "T5Tokenizer"})
    with pytest.raises(UserError, match=r"'T5Tokenizer' is not supported with tokenizer\.model"):
        load_tokenizer(tmp_path)


def test_lone_surrogates_are_refused(byte_level_directory, llama_directory):
    for directory in (byte_level_directory, llama_directory):
        with pytest.raises(UserError, match="not valid Unicode at character 2"):
            load_tokenizer(directory).encode("ab\udcff")


def test_loading_imports_neither_transformers_nor_mindspore(llama_directory, byte_level_directory):
    code = (
        "import sys; from pathlib import Path; from ms_eagle.text.loading import load_tokenizer\n"
        "import ms_eagle.text.template, ms_eagle.text.stream, ms_eagle.checkpoints.gguf.tokenizer\n"
        "for name in sys.argv[1:]: load_tokenizer(Path(name)).encode('x')\n"
        "print([name for name in ('transformers', 'mindspore', 'torch') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(llama_directory), str(byte_level_directory)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
