"""Templates escape what they are given, and miss nothing in silence."""

import jinja2
import pytest

from ms_eagle.pages.markup import element, escape
from ms_eagle.pages.parts import Bar, Card, Figure, Section
from ms_eagle.pages.template import render

EVIL = "</script><script>alert(1)</script>\"'&\x00\ud800"


def test_every_value_is_escaped():
    bars = [Figure(EVIL, EVIL, bars=[Bar(EVIL, 1.0, EVIL, EVIL, EVIL)])]
    section = Section(EVIL, EVIL, (EVIL, EVIL), [(EVIL, EVIL)], bars, {EVIL: EVIL}, EVIL)
    values = {
        "kicker": EVIL,
        "title": EVIL,
        "lead": EVIL,
        "notices": [EVIL],
        "facts": {EVIL: EVIL, "no": None},
    }
    values |= {"manifest": {EVIL: [EVIL]}, "cards": [Card(EVIL, EVIL, EVIL, EVIL)], "sections": [section]}
    text = render("report.html", **values)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)") == 28  # each of them, the title twice
    assert "\x00" not in text
    text.encode()


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="title"):
        render("report.html", kicker="k", manifest={}, sections=[])


def test_an_element_escapes_text_and_keeps_markup():
    inner = element("b", "<i>", title='"')
    assert inner == '<b title="&#34;">&lt;i&gt;</b>'
    assert element("p", inner, " & ", text_anchor="end", class_="a", x=1.25, y=2.0) == (
        '<p text-anchor="end" class="a" x="1.2" y="2"><b title="&#34;">&lt;i&gt;</b> &amp; </p>'
    )
    assert element("br") == "<br/>"
    assert escape("a\r\nb") == "a�\nb"
