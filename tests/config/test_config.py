"""Strict configuration: what is accepted, and the one line for what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ms_eagle.config import schema
from ms_eagle.config.sections import Config, load_config
from ms_eagle.errors import UserError
from ms_eagle.system import machine


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


def error_of(path, overrides=()):
    with pytest.raises(UserError) as caught:
        load_config(path, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


def test_defaults_and_values(write):
    config = load_config(write("model: {source: here}\ngeneration:\n  temperature: 1\n  stop: [a, b]\n"))
    assert config.model.source == "here"
    assert config.model.max_length == 2048
    assert config.execution.prefill_chunk == 64
    assert (config.execution.device, config.execution.kernels, config.execution.mode) == (
        "auto",
        "auto",
        "performance",
    )
    assert config.generation.temperature == 1.0  # a whole number is a number
    assert isinstance(config.generation.temperature, float)
    assert config.generation.stop == ["a", "b"]
    assert config.generation.max_new_tokens == 512


def test_thinking_off_is_a_word(write):
    assert load_config(write("model:\n  source: x\n  thinking: off\n")).model.thinking == "off"


def test_a_byte_order_mark_is_no_error(write):
    assert load_config(write(b"\xef\xbb\xbfmodel: {source: x}\n")).model.source == "x"


def test_is_immutable(write):
    config = load_config(write("model: {source: x}"))
    with pytest.raises(ValidationError):
        config.model.source = "y"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: the file is empty; expected at least model.source"),
        ("# only a comment\n", "c.yaml: the file is empty"),
        ("- a\n", "c.yaml: found a list; expected sections"),
        ("word", "c.yaml: found the text 'word'; expected sections"),
        ("model:\n\tsource: x\n", "c.yaml:2: not valid YAML: a tab"),
        ("model: {source: x\n", "c.yaml:2: not valid YAML"),
        (b"model:\n  source: \xe9t\xe9\n", "c.yaml:2: byte 0xe9 is not UTF-8"),
        (
            "model:\n  source: x\n  source: y\n",
            "c.yaml:3: the key model.source is given twice (first in line 2)",
        ),
        ("execution: {}\n", "c.yaml: the section model is missing; expected keys such as model.source"),
        ("model: {dtype: float32}\n", "c.yaml:1: model.source is missing; expected non-empty text"),
        ("model:\n", "c.yaml:1: model is null; expected keys below it, such as model.source"),
        ("model: 3\n", "c.yaml:1: model is 3; expected keys below it"),
        (
            "model:\n  source: x\ngeneration:\n  temprature: 1\n",
            "c.yaml:4: unknown key generation.temprature (nearest valid key: generation.temperature)",
        ),
        (
            "model: {sorce: x}\n",
            "c.yaml:1: unknown key model.sorce (nearest valid key: model.source) (and 1 more",
        ),
        ("modle: {source: x}\n", "c.yaml:1: unknown key modle (nearest valid key: model)"),
        (
            "model: {source: x}\ntemperature: 1\n",
            "c.yaml:2: unknown key temperature (nearest valid key: generation.temperature)",
        ),
        (
            "model: {source: x}\ngeneration: {seed: '1', top_k: 2.0, top_p: 0}\n",
            "c.yaml:2: generation.seed is the text '1'; expected a whole number from 0 to"
            " 18446744073709551615 (and 2 more errors)",
        ),
    ],
)
def test_bad_files(write, text, message):
    assert error_of(write(text)).startswith(message)


def test_missing_file_and_directory(tmp_path):
    assert "No such file" in error_of(tmp_path / "none.yaml")
    assert "Is a directory" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "generation.max_new_tokens=-1",
            "generation.max_new_tokens is -1; expected a whole number of at least 0",
        ),
        ("generation.temperature=-0.1", "generation.temperature is -0.1; expected a number of at least 0"),
        ("generation.temperature=.nan", "generation.temperature is nan; expected"),
        (
            "generation.temperature=.inf",
            "generation.temperature is inf; expected a finite number of at least 0",
        ),
        ("generation.temperature=1" + "0" * 400, "generation.temperature is 1000"),
        ("generation.top_p=0", "generation.top_p is 0; expected a number above 0 and at most 1"),
        ("generation.min_p=1.5", "generation.min_p is 1.5; expected a number from 0 to 1"),
        (
            "generation.repetition_penalty=0",
            "generation.repetition_penalty is 0; expected a number from 0.001 to 1000",
        ),
        ("generation.top_k=true", "generation.top_k is true; expected a whole number of at least 0"),
        ("generation.ignore_eos=1", "generation.ignore_eos is 1; expected true or false"),
        ("generation.stop=word", "generation.stop is the text 'word'; expected a list of non-empty texts"),
        ("generation.stop=[a, '']", "generation.stop, item 2, is an empty text; expected a list"),
        (
            "generation.seed=18446744073709551616",
            "generation.seed is 18446744073709551616; expected a whole number from 0 to",
        ),
        ("execution.threads=0", "execution.threads is 0; expected a whole number of at least 1, or null"),
        (
            "execution.kernels=flash",
            "execution.kernels is the text 'flash'; expected auto, fused, native or eager",
        ),
        (
            "execution.mode=fast",
            "execution.mode is the text 'fast'; expected performance or reference",
        ),
        ("model.source=12", "model.source is 12; expected non-empty text (put it in quotes)"),
        ("model.source=", "model.source is null; expected non-empty text"),
        ("model.thinking=true", "model.thinking is true; expected auto, on, off or null"),
    ],
)
def test_bad_values_are_named_with_what_was_expected(write, override, message):
    assert error_of(write("model: {source: x}"), [override]).startswith(f"--set: {message}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("generation.seed", "--set generation.seed: expected section.key=value"),
        ("generation.sed=1", "--set: unknown key generation.sed (nearest valid key: generation.seed)"),
        ("generatoin.seed=1", "--set: unknown key generatoin.seed (nearest valid key: generation.seed)"),
        ("seed=1", "--set: unknown key seed (nearest valid key: generation.seed)"),
        ("=1", "--set =1: the key is empty; expected section.key=value"),
        (
            "gen=1",
            "--set: unknown key gen; did you mean the section generation? Set one of its keys, such as",
        ),
        ("tre=1", "--set: unknown key tre; did you mean the section tree?"),
        ("modle=x", "--set: unknown key modle; did you mean the section model?"),
        ("mode=reference", "--set: unknown key mode (nearest valid key: execution.mode)"),
        ("model={source: x}", "--set model: is a section; set one of its keys, such as model.source"),
        ("generation.stop=[", "--set generation.stop:1: not valid YAML"),
    ],
)
def test_bad_overrides(write, override, message):
    assert error_of(write("model: {source: x}"), [override]).startswith(message)


def test_overrides(write):
    path = write("model:\n  source: x\ngeneration:\n")
    config = load_config(
        path,
        [
            "generation.seed=3",
            "generation.seed=4",
            "execution.threads=2",
            'generation.stop=["\\n", "a=b"]',
            "model.system_prompt=You are kind.",
            "model.thinking=on",
            "model.source=pypi:a==1",
        ],
    )
    assert config.generation.seed == 4
    assert config.execution.threads == 2
    assert config.generation.stop == ["\n", "a=b"]
    assert config.model.system_prompt == "You are kind."
    assert config.model.thinking == "on"
    assert config.model.source == "pypi:a==1"


def test_an_override_repairs_the_file(write):
    path = write("generation:\n  seed: -1\n")
    assert "model is missing" in error_of(path, ["generation.seed=1"])
    assert load_config(path, ["generation.seed=1", "model.source=x"]).generation.seed == 1


def test_an_override_below_a_plain_value_reports_the_value(write):
    assert error_of(write("model: 3\n"), ["model.source=x"]).startswith("c.yaml:1: model is 3; expected keys")


def test_every_option_is_described():
    for name, info in schema.options(Config).items():
        assert info.description, name
        assert info.description.endswith("."), name


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(schema.options(Config))), values, max_size=4))
def test_any_value_is_accepted_as_it_is_or_explained_in_one_line(given_values):
    data = {"model": {"source": "x"}}
    for name, value in given_values.items():
        section, key = name.split(".")
        data.setdefault(section, {})[key] = value
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        line = schema.explain(Config, error, {}, "c.yaml")
        assert line.startswith("c.yaml: ")
        assert any(name in line for name in given_values)
    else:
        for name, value in given_values.items():
            section, key = name.split(".")
            assert getattr(getattr(config, section), key) == value


@pytest.mark.parametrize(
    ("text", "npu", "shape"),
    [
        ("", False, (7, 3, 4)),
        ("", True, (16, 5, 8)),
        ("execution: {device: CPU}\n", True, (7, 3, 4)),
        ("execution: {device: Ascend}\n", False, (16, 5, 8)),
        ("tree: {budget: 9}\n", False, (9, 3, 4)),
    ],
)
def test_the_tree_suits_the_device(write, monkeypatch, text, npu, shape):
    monkeypatch.setattr(machine, "has_npu", lambda: npu)
    tree = load_config(write(f"model: {{source: here}}\n{text}")).tree
    assert (tree.budget, tree.depth, tree.branch) == shape


@pytest.mark.parametrize("section", ["tree: 5", "tree: null", "execution: []"])
def test_a_section_that_is_none_is_refused(write, section):
    assert section.partition(":")[0] in error_of(write(f"model: {{source: here}}\n{section}\n"))
