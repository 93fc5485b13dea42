"""Special tokens that users write: control tokens or text, by every kind of tokenizer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_tokenizers

from ms_eagle.checkpoints.gguf.tokenizer import write_tokenizer
from ms_eagle.errors import UserError
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.plain import encode_prompt
from ms_eagle.text.template import OPENPANGU, ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }} "
    "{% if not loop.last %}</s>{% endif %}{% endfor %}"
)
LISTED = {"single_word": False, "normalized": False}


def gguf(directory):
    tokenizer = json.loads(toy_tokenizers.byte_level().to_str())
    vocabulary = {**tokenizer["model"]["vocab"], "<tool>": len(tokenizer["model"]["vocab"])}
    kinds = {"<|bos|>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<tool>": 4}
    tokens = sorted(vocabulary, key=vocabulary.get)
    write_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
            "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
        },
        directory,
    )


def byte_level(directory):
    toy_tokenizers.write_json(
        directory, toy_tokenizers.byte_level(), {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    )


def byte_fallback(directory):
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    toy_tokenizers.write_json(directory, toy_tokenizers.byte_fallback(), config)


def sentencepiece(legacy):
    def write(directory):
        swallowing = {"content": "</s>", **LISTED, "special": True, "lstrip": True, "rstrip": True}
        config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy}
        toy_tokenizers.write_sentencepiece(directory, {**config, "added_tokens_decoder": {"2": swallowing}})

    return write


KINDS = {
    "byte level": (byte_level, CHATML),
    "from GGUF": (gguf, CHATML),
    "byte fallback": (byte_fallback, LLAMA),
    "SentencePiece, legacy": (sentencepiece(True), LLAMA),
    "SentencePiece": (sentencepiece(False), LLAMA),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    write, source = KINDS[request.param]
    directory = tmp_path_factory.mktemp("tokenizer")
    write(directory)
    tokenizer = load_tokenizer(directory)
    special = [name for name, token_id in tokenizer.atoms.items() if token_id in tokenizer.special_ids]
    return tokenizer, ChatTemplate(source, "of the test"), special


NAMES = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[unused16]", "<tool>"]
PARTS = st.sampled_from([*NAMES, *[name[:-1] for name in NAMES], "<", "|", ">", " ", "\n", "the dog", "你好"])
CONTENT = st.lists(PARTS | st.text(st.characters(exclude_categories=("Cs",)), max_size=3), max_size=7)
CONTENTS = st.lists(CONTENT.map("".join), min_size=1, max_size=3)


def messages(contents):
    return [
        {"role": ("user", "assistant")[index % 2], "content": content}
        for index, content in enumerate(contents)
    ]


@given(contents=CONTENTS)
@settings(max_examples=150, deadline=None)
def test_only_the_templates_own_tokens_are_control_tokens(kind, contents):
    tokenizer, template, special = kind
    said = messages(contents)
    ids = template.encode(said, tokenizer, special_tokens="text")
    plain = template.encode(said, tokenizer)
    empty = template.encode(messages(["x"] * len(contents)), tokenizer)
    named = {tokenizer.atoms[name] for name in special if name != "<unk>"}  # what has no piece is unknown
    assert [i for i in ids if i in named] == [i for i in empty if i in named]
    shown = tokenizer.decode(ids, skip_special_tokens=False)
    begins = [name for name in special if ids[0] == tokenizer.atoms[name]]
    assert blackened(shown) in {blackened(mark + template.render(said)) for mark in ("", *begins)}
    if not any(name in content for content in contents for name in special):
        assert ids == plain


def blackened(text):
    """Without blanks: Llama's ways add some at the edges of parts, and some tokens swallow them."""
    return "".join(text.replace("\u2581", " ").split())


@given(content=CONTENT.map("".join))
@settings(max_examples=100, deadline=None)
def test_prompts_without_a_template(kind, content):
    tokenizer, _, special = kind
    ids, edge = encode_prompt(content, tokenizer), tokenizer.encode("")
    named = {tokenizer.atoms[name] for name in special if name != "<unk>"}
    assert [i for i in ids if i in named] == edge
    assert blackened(tokenizer.decode(ids[len(edge) :], skip_special_tokens=False)) == blackened(content)
    if not any(name in content for name in special):
        assert ids == tokenizer.encode(content)


def test_text_in_place_is_what_the_library_reads_there(kind):
    """Between two parts of a template, with the pieces that the text would have anywhere."""
    tokenizer, template, special = kind
    name = next(name for name in special if name != "<unk>")
    content = f"the dog {name} the dog"
    ids = template.encode(messages([content]), tokenizer, special_tokens="text")
    alone = tokenizer.encode(content, add_special_tokens=False, parse_special=False)[2:-2]
    assert len(alone) > 1
    assert any(ids[at : at + len(alone)] == alone for at in range(len(ids)))


def test_answers_keep_the_tokens_that_decoding_spells_out(tmp_path):
    byte_level(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    template = ChatTemplate(CHATML.replace("assistant\n", "assistant\n<tool>"), "of the test")
    said = messages(["<tool>", "<tool><|im_end|>", "x"])
    ids = template.encode(said, tokenizer, special_tokens="text")
    assert ids.count(tokenizer.atoms["<tool>"]) == 2  # the template's own and the answer's
    assert ids.count(tokenizer.atoms["<|im_end|>"]) == 3


def test_what_cannot_be_done_is_refused(tmp_path):
    byte_level(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    joining = ChatTemplate(CHATML.replace("m.content", "m.content.replace('~', '')"), "of the test")
    with pytest.raises(UserError, match="the chat template rewrites what it finds"):
        joining.encode(messages(["<|im_~end|>"]), tokenizer, special_tokens="text")
    with pytest.raises(UserError, match="U\\+10FFFE"):
        encode_prompt("<|im_end|>\U0010fffe", tokenizer)
    # openPangu's turns begin and end with symbols that SentencePiece itself always reads as one.
    (tmp_path / "tokenizer.json").unlink()
    config = {"tokenizer_class": "PanguTokenizer", "eos_token": "[unused10]"}
    toy_tokenizers.write_sentencepiece(tmp_path, config, dummy_prefix=False)
    pangu, template = load_tokenizer(tmp_path), ChatTemplate(OPENPANGU, "openpangu")
    for name in ("[unused9]", "[unused10]"):
        with pytest.raises(UserError, match=r"cannot read '\[unused\d+\]' as text: leave it out"):
            template.encode(messages([f"a{name}"]), pangu, special_tokens="text")
    said = messages(["the [unused8] dog", "[unused16]hm[unused17]", "</s>"])
    assert pangu.eos_ids[0] != 2
    assert 2 not in template.encode(said, pangu, special_tokens="text")
