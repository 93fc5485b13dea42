"""User turns into tokens and out of them again, for templates of different habits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_tokenizers
from support.sessions import TEMPLATE

from ms_eagle.errors import UserError
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.template import OPENPANGU, ChatTemplate
from ms_eagle.training.corpus.chat import CorpusChat
from ms_eagle.training.corpus.storage import Row

WITH_BOS = "<|bos|>" + TEMPLATE
TRIMS = TEMPLATE.replace("m.content", "m.content | trim")
FORGETS = "{% for m in messages[messages | length - 1:] %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
WORDS = st.text(st.sampled_from("abc X?\n好🦊é"), min_size=1).map(str.strip).filter(bool)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    toy_tokenizers.write_json(
        directory, toy_tokenizers.byte_level(), {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    )
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def pangu(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pangu")
    return load_tokenizer(toy_tokenizers.write_sentencepiece(directory, {}))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([TEMPLATE, WITH_BOS, TRIMS]),
    st.sampled_from([None, "Be brief."]),
    st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=3),
)
def test_turns_come_back(tokenizer, source, system, said):
    chat = CorpusChat(ChatTemplate(source, "here"), tokenizer, system)
    end = list(tokenizer.eos_ids)
    texts = [tokenizer.encode(answer, add_special_tokens=False) for _, answer, _ in said]
    answers = [text + (end if ended else []) for text, (*_, ended) in zip(texts, said, strict=True)]
    turns = tuple(turn for turn, _, _ in said)
    row = chat.row("k", "s", turns, answers)
    if row is None:  # an answer that does not end and reads on otherwise when the template follows
        assert not all(ended for *_, ended in said)
        return
    assert [list(row.ids[start:end]) for start, end in row.answers] == answers
    assert row.ids[0] == tokenizer.bos_id
    assert chat.user_turns(row) == turns
    other = CorpusChat(ChatTemplate(source, "here"), tokenizer, "Be long.")
    assert other.user_turns(row) is None


def test_the_prefix_ends_where_the_words_begin(tokenizer):
    chat = CorpusChat(ChatTemplate(TEMPLATE, "here"), tokenizer, "S")
    text = tokenizer.decode(chat.user_prefix(("one",), ("two",)), skip_special_tokens=False)
    assert text == (
        "<|bos|><|im_start|>system\nS<|im_end|><|im_start|>user\none<|im_end|>"
        "<|im_start|>assistant\ntwo<|im_end|><|im_start|>user\n"
    )
    assert {"<|im_start|>", "<|im_end|>"} <= set(chat.markers)


def test_openpangu_and_its_thinking_switch(pangu):
    chat = CorpusChat(ChatTemplate(OPENPANGU, "here"), pangu, thinking="off")
    assert pangu.decode(chat.user_prefix((), ()), skip_special_tokens=False).endswith("用户：")
    answer = pangu.encode("今天很好。[unused10]", add_special_tokens=False)
    row = chat.row("k", "s", ("你好",), [answer])
    assert chat.user_turns(row) == ("你好",)
    assert "/no_think" in pangu.decode(row.ids)
    assert CorpusChat(ChatTemplate(OPENPANGU, "here"), pangu).user_turns(row) != ("你好",)


def test_rows_of_another_making(tokenizer):
    chat = CorpusChat(ChatTemplate(TEMPLATE, "here"), tokenizer)
    good = chat.row("k", "s", ("The dog",), [[9, 2]])
    for ids in ([*good.ids[:3], 9, *good.ids[3:]], good.ids[1:], [9, *good.ids]):
        shift = len(ids) - len(good.ids)
        runs = tuple((start + shift, end + shift) for start, end in good.answers)
        assert chat.user_turns(Row("k", "s", ids, runs)) is None
    # The same words, cut into tokens as the tokenizer would not.
    whole = tokenizer.encode("The dog", add_special_tokens=False)
    split = [token for letter in "The dog" for token in tokenizer.encode(letter, add_special_tokens=False)]
    assert len(split) > len(whole)
    place = next(n for n in range(len(good.ids)) if good.ids[n : n + len(whole)] == whole)
    ids = [*good.ids[:place], *split, *good.ids[place + len(whole) :]]
    assert chat.user_turns(Row("k", "s", ids, ((len(ids) - 2, len(ids)),))) is None


def test_templates_that_cannot_be_used(tokenizer):
    for source in ("{{ messages[0].content | upper }}", "{{ messages | length }}"):
        with pytest.raises(UserError, match="does not show a user's words as they are"):
            CorpusChat(ChatTemplate(source, "here"), tokenizer)
    chat = CorpusChat(ChatTemplate(FORGETS, "here"), tokenizer)
    assert chat.row("k", "s", ("a", "b"), [[9, 2], [9, 2]]) is None
