"""Text of users whose special tokens stay text, inside prompts whose own ones are control tokens.

A chat template mixes both, so it renders three times: as it is, with nothing of the messages recognisable,
and with the special tokens of messages made unrecognisable. What is still a special token in the last is the
template's own, and only that is marked for the tokenizer.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from ms_eagle.errors import UserError
from ms_eagle.text.tokenizer import MARK, Tokenizer

SpecialTokens = Literal["control", "text"]
"""What the name of a special token becomes where a user wrote it."""
_STAND_INS = range(0xF0000, 0x10FFFE)  # private characters, which mean nothing to a template
_REFUSED = "leave it out, or set generation.special_tokens_in_text=control"


def encode_rendered(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a rendered template, or of its beginning, with one beginning-of-text token at most."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    starts_with_bos = bool(ids) and ids[0] == tokenizer.bos_id
    return ids if starts_with_bos else tokenizer.encode(text)


def encode_prompt(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a prompt without a template, in which the names of special tokens are text.

    Raises:
        UserError: the tokenizer cannot read one of them as text.
    """
    guarded = _guard(text, _special(tokenizer), _StandIns(text))
    return tokenizer.encode(text) if guarded == text else _encode(text, guarded, tokenizer)


def encode_messages(
    render: Callable[[Sequence[str]], str],
    contents: Sequence[str],
    roles: Sequence[str],
    tokenizer: Tokenizer,
) -> list[int]:
    """Ids of a rendered conversation, where control tokens are those that the template writes.

    In messages the names of special tokens are text, and so are those of all tokens that the template writes.
    Other added tokens of answers, such as ``<think>``, stay tokens: decoding has spelled them out.

    Args:
        render: the template's text for any contents of the messages.
        contents: text of the messages, and roles: who says each.

    Raises:
        UserError: the template or the tokenizer makes that impossible for these messages.
    """
    text = render(contents)
    stand_ins = _StandIns(text, *contents)
    hidden = render(["".join(c if c.isspace() else stand_ins.of(c) for c in each) for each in contents])
    special, names = _special(tokenizer), {**tokenizer.symbols, **tokenizer.atoms}
    own = [hidden[begin:end] for begin, end in _spans(hidden, names)]
    forbidden = {"assistant": special}
    guarded = render(
        [
            _guard(content, forbidden.get(role, special.union(own)), stand_ins)
            for content, role in zip(contents, roles, strict=True)
        ]
    )
    left = [guarded[begin:end] for begin, end in _spans(guarded, names)]
    rewritten = stand_ins.undone(guarded) != text
    if rewritten or [name for name in left if name in special] != [name for name in own if name in special]:
        raise UserError(
            "the chat template rewrites what it finds in messages, where the names of special tokens cannot "
            f"be told from its own then: {_REFUSED}"
        )
    return encode_rendered(text, tokenizer) if guarded == text else _encode(text, guarded, tokenizer)


class _StandIns:
    """Private characters that occur nowhere in some texts, each for one character of theirs."""

    def __init__(self, *texts: str) -> None:
        taken = {ord(character) for text in texts for character in text}
        self._free = (code for code in _STAND_INS if code not in taken)
        self._by_character: dict[str, str] = {}

    def of(self, character: str) -> str:
        """The one for ``character``."""
        if character not in self._by_character:
            self._by_character[character] = chr(next(self._free))
        return self._by_character[character]

    def undone(self, text: str) -> str:
        """``text`` with every character in its place again."""
        return text.translate({ord(stand_in): own for own, stand_in in self._by_character.items()})


def _special(tokenizer: Tokenizer) -> set[str]:
    return {name for name, token_id in tokenizer.atoms.items() if token_id in tokenizer.special_ids}


def _any_of(names: Collection[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def _spans(text: str, names: Collection[str]) -> list[tuple[int, int]]:
    """Where ``names`` stand in ``text``: leftmost and longest first, as tokenizers look for them."""
    return [match.span() for match in re.finditer(_any_of(names), text)]


def _guard(text: str, names: Collection[str], stand_ins: _StandIns) -> str:
    """``text`` with a stand-in wherever one of ``names`` begins, inside another one too."""
    begin = f"(?=(?:{_any_of(names)}))(?:{_any_of({name[0] for name in names})})"
    return re.sub(begin, lambda match: stand_ins.of(match[0]), text)


def _encode(text: str, guarded: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of ``text``, in which only names that ``guarded`` still shows are control tokens."""
    if MARK in text:
        raise UserError(f"the text holds U+{ord(MARK):X}, which is no character: leave it out")
    pieces, end = [], 0
    for begin, after in _spans(guarded, tokenizer.atoms):
        pieces += [text[end:begin], MARK, text[begin:after]]
        end = after
    ids = tokenizer.encode_marked("".join([*pieces, text[end:]]))
    names = {**tokenizer.symbols, **tokenizer.atoms}
    expected = [names[text[begin:after]] for begin, after in _spans(guarded, names)]
    watched = {token_id for name, token_id in names.items() if name in text}
    if [token for token in ids if token in watched] != expected:
        name = next(name for name in names if text.count(name) > guarded.count(name))
        raise UserError(f"this model's tokenizer cannot read {name!r} as text: {_REFUSED}")
    if ids[:1] == [tokenizer.bos_id]:
        return ids
    inner, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    before = next(at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
    return [*whole[:before], *ids, *whole[before + len(inner) :]]
