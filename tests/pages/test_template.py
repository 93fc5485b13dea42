"""Templates escape what they are given, and miss nothing in silence."""

import jinja2
import pytest

from ms_eagle.pages.markup import element, escape
from ms_eagle.pages.parts import Bar, Card, Figure, Section
from ms_eagle.pages.template import render

EVIL = "</script><script>alert(1)</script>\"'&\x00\ud800"
VALUES = {
    "kicker": EVIL,
    "title": EVIL,
    "lead": EVIL,
    "notices": [EVIL],
    "facts": {EVIL: EVIL, "left out": None},
    "manifest": {EVIL: [EVIL]},
    "cards": [Card(EVIL, EVIL, EVIL, EVIL)],
    "sections": [
        Section(EVIL, EVIL, (EVIL, EVIL), [(EVIL, EVIL)], terms={EVIL: EVIL}, kind=EVIL),
        Section("bars", figures=[Figure(EVIL, EVIL, bars=[Bar(EVIL, 1.0, EVIL, EVIL, EVIL)])]),
    ],
}


def test_every_value_is_escaped():
    text = render("report.html", **VALUES)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)") == 28  # each of VALUES, the title twice
    assert "\x00" not in text
    text.encode()
    assert "left out" not in text


def test_a_value_that_is_missing_is_an_error():
    values = {key: value for key, value in VALUES.items() if key != "notices"}
    with pytest.raises(jinja2.UndefinedError, match="notices"):
        render("report.html", **values)


def test_an_element_escapes_text_and_keeps_markup():
    inner = element("b", "<i>", title='"')
    assert inner == '<b title="&#34;">&lt;i&gt;</b>'
    assert element("p", inner, " & ", text_anchor="end", class_="a", x=1.25, y=2.0) == (
        '<p text-anchor="end" class="a" x="1.2" y="2"><b title="&#34;">&lt;i&gt;</b> &amp; </p>'
    )
    assert element("br") == "<br/>"
    assert escape("a\r\nb") == "a�\nb"
