from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_tokenizers

from ms_eagle.errors import UserError
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.stream import TextStream
from ms_eagle.text.tokenizer import Tokenizer

TEXT = st.text(
    st.sampled_from("ab \n") | st.characters(exclude_categories=("Cs",), exclude_characters="▁<["),
    max_size=30,
)


class LetterTokenizer(Tokenizer):
    """Tokens written out by the test: token ``i`` is ``tokens[i]``, and the last one is special."""

    def __init__(self, *tokens: bytes) -> None:
        self._tokens = tokens
        self.special_ids = frozenset({len(tokens) - 1})
        self.strips_leading_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]

    def _encode(self, text, add_special_tokens, parse_special):
        raise NotImplementedError


@pytest.fixture(
    scope="module", params=["byte level", "byte fallback", "sentencepiece", "sentencepiece, no prefix"]
)
def tokenizer(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    if request.param == "byte level":
        toy_tokenizers.write_json(directory, toy_tokenizers.byte_level(), {})
    elif request.param == "byte fallback":
        toy_tokenizers.write_json(directory, toy_tokenizers.byte_fallback(), {"unk_token": "<unk>"})
    else:
        toy_tokenizers.write_sentencepiece(directory, {}, dummy_prefix=request.param == "sentencepiece")
    return load_tokenizer(directory)


def run(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(tokenizer, stops)
    pieces = [stream.push(token_id) for token_id in ids]
    return [*pieces, stream.finish()], stream


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The rule, slowly: the shortest beginning of the text that ends with a stop string, less the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def common_beginning(one: str, other: str) -> str:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(character for character, _ in pairs)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_pieces_join_to_the_decoded_text(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=25))
    pieces, stream = run(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not stream.stopped


@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_valid_text_streams_whole_characters(tokenizer, text):
    ids = tokenizer.encode(text)
    pieces, _ = run(tokenizer, ids)
    assert "".join(pieces) == text
    assert pieces[len(ids)] == ""  # without stop strings, valid text leaves nothing for the end
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_stop_strings_cut_any_token_sequence(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25))
    text = tokenizer.decode(ids)
    inside = st.integers(0, max(0, len(text) - 1)).flatmap(
        lambda start: st.integers(1, 6).map(lambda length: text[start : start + length])
    )
    stops = tuple(data.draw(st.lists(inside.filter(bool) if text else st.just("x"), min_size=1, max_size=3)))
    pieces, stream = run(tokenizer, ids, stops)
    expected, stopped = cut(text, stops)
    assert "".join(pieces) == expected
    assert stream.stopped == stopped


@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_every_piece_is_as_early_as_it_is_safe(data):
    """After each token: all text that no continuation can change or turn into a stop string, and no more."""
    tokens = (b"a", b"b", b"ab", b"aab", b"bab", b"abaab", "é".encode(), b"\xc3")
    tokenizer = LetterTokenizer(*tokens, b"<eos>")
    ids = data.draw(st.lists(st.integers(0, len(tokens)), max_size=30))
    stops = tuple(data.draw(st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=3)))
    stream = TextStream(tokenizer, stops)
    given_text, raw = "", b""
    for token_id in ids:
        given_text += stream.push(token_id)
        raw += tokens[token_id] if token_id < len(tokens) else b""
        # A continuation byte that may follow: what it changes was not certain.
        one, other = raw.decode(errors="replace"), (raw + b"\xa9").decode(errors="replace")
        certain, stopped = cut(common_beginning(one, other), stops)
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
        held = 0 if stopped else max([len(text) for text in beginnings if certain.endswith(text)], default=0)
        assert given_text == certain[: len(certain) - held]
        assert stream.stopped == stopped
    given_text += stream.finish()
    assert given_text == cut(tokenizer.decode(ids), stops)[0]


@pytest.mark.parametrize(
    ("tokens", "stops", "pieces", "stopped"),
    [
        ([b"Hel", b"lo", b" wor", b"ld"], (), ["Hel", "lo", " wor", "ld", ""], False),
        # A stop string over three tokens, beginning inside the first.
        ([b"one\n", b"\nHu", b"man:", b"more"], ("\n\nHuman:",), ["one", "", "", "", ""], True),
        # It does not come true: the held text follows.
        ([b"one\n", b"\nHu", b"mid", b"more"], ("\n\nHuman:",), ["one", "", "\n\nHumid", "more", ""], False),
        # Held at the end: finish gives it back.
        ([b"one", b"\n", b"\n"], ("\n\n\n",), ["one", "", "", "\n\n"], False),
        # A stop string in the middle of one token.
        ([b"a STOP b", b"c"], ("STOP",), ["a ", "", ""], True),
        # The one complete first wins, though the other began earlier; at a tie the longer wins.
        ([b"xabcd"], ("abcd", "bc"), ["xa", ""], True),
        ([b"xabc"], ("bc", "abc"), ["x", ""], True),
        # Falling back to a shorter beginning of the same stop string.
        ([b"a", b"a", b"b"], ("ab",), ["", "a", "", ""], True),
        # Four bytes of one character, one at a time.
        ([b"\xf0", b"\x9f", b"\x99", b"\x82", b"!"], (), ["", "", "", "🙂", "!", ""], False),
        # A character that never ends, and bytes that are none.
        ([b"a\xf0\x9f"], (), ["a", "\ufffd"], False),
        ([b"\xf0\x9f", b"b", b"\xff"], (), ["", "\ufffdb", "\ufffd", ""], False),
        # A stop string of two characters, met in the middle of the second's bytes.
        (["é".encode() + b"\xc3", b"\xa9z"], ("éé",), ["", "", ""], True),
    ],
)
def test_by_hand(tokens, stops, pieces, stopped):
    tokenizer = LetterTokenizer(*tokens, b"<eos>")
    given_pieces, stream = run(tokenizer, list(range(len(tokens))), stops)
    assert given_pieces == pieces
    assert stream.stopped == stopped


def test_special_tokens_are_not_text():
    tokenizer = LetterTokenizer(b"\xc3", b"\xa9", b"<eos>")
    assert run(tokenizer, [0, 2, 1, 2])[0] == ["", "", "é", "", ""]
    assert run(tokenizer, [0, 1, 2], ("<eos>",))[1].stopped is False


def test_a_leading_space_put_by_the_tokenizer_is_taken_away_once(tmp_path):
    tokenizer = load_tokenizer(toy_tokenizers.write_sentencepiece(tmp_path, {}))
    ids = tokenizer.encode("the dog the", add_special_tokens=False)
    pieces, _ = run(tokenizer, ids)
    assert "".join(pieces) == "the dog the"
    assert not pieces[0].startswith(" ")


def test_after_the_end():
    stream = TextStream(LetterTokenizer(b"a", b"<eos>"), ("b",))
    assert stream.push(0) == "a"
    assert stream.finish() == ""
    assert stream.finish() == ""
    with pytest.raises(ValueError, match="push after finish"):
        stream.push(0)


def test_bad_stop_strings():
    tokenizer = LetterTokenizer(b"a", b"<eos>")
    with pytest.raises(UserError, match="a stop string is empty"):
        TextStream(tokenizer, ("x", ""))
    with pytest.raises(TypeError, match="not one string"):
        TextStream(tokenizer, "stop")
