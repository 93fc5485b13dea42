import json

import pytest
from support import toy_tokenizers

from ms_eagle.errors import UserError
from ms_eagle.text import template as template_module
from ms_eagle.text.loading import load_tokenizer
from ms_eagle.text.template import OPENPANGU, ChatTemplate, load_template

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The features that Llama 3's own template uses, in text of our own.
LLAMA_LIKE = """\
{{- bos_token }}
{%- if not date is defined %}
    {%- set date = strftime_now("%Y") %}
{%- endif %}
{%- set first = 0 %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<H>system</H>\\n\\nYear: " + date + "\\n" + system + eos_token }}
{%- if tools is not none %}
    {{- tools | tojson(indent=2) }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant"] %}
        {{- raise_exception("Role " + message.role + " is not for this model") }}
    {%- endif %}
    {{- "<H>" + message.role + "</H>\\n\\n" + message.content | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<H>assistant</H>\\n\\n" }}
{%- endif %}
"""
# Qwen 3's: a namespace, a reversed search, loop controls, thinking dropped from history, enable_thinking.
QWEN_LIKE = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == "user" %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and "</think>" in content and loop.index0 < ns.last %}
        {%- set content = content.split("</think>")[-1].lstrip("\\n") %}
    {%- endif %}
    {{- "<|im_start|>" ~ message.role }}
    {% generation %}{{ content }}<|im_end|>{% endgeneration %}

{% endfor %}
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- "<think>\\n\\n</think>\\n\\n" }}
    {%- endif %}
{%- endif %}
"""

USER = {"role": "user", "content": "Hi there"}
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": "  Répondez en français. "}, USER],
    [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
        {"role": "user", "content": "\n你好 "},
    ],
    [USER, {"role": "assistant", "content": "<think>a</think>b"}],
]


def directory_with(tmp_path, template, **config):
    toy_tokenizers.write_json(
        tmp_path,
        toy_tokenizers.byte_level(),
        {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": template, **config},
    )
    return tmp_path


def theirs(directory):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.mark.parametrize("template", [CHATML, LLAMA_LIKE, QWEN_LIKE], ids=["chatml", "llama", "qwen"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_like_transformers(tmp_path, template, messages, add_generation_prompt):
    directory = directory_with(tmp_path, template)
    expected = theirs(directory).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert load_template(directory).render(messages, add_generation_prompt=add_generation_prompt) == expected


def test_renders_by_hand(tmp_path):
    template = load_template(directory_with(tmp_path, CHATML))
    assert template.render([USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(("thinking", "value"), [("on", True), ("off", False)])
def test_enable_thinking(tmp_path, thinking, value):
    directory = directory_with(tmp_path, QWEN_LIKE)
    expected = theirs(directory).apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True, enable_thinking=value
    )
    assert load_template(directory).render([USER], thinking=thinking) == expected
    with pytest.raises(UserError, match="has no thinking 'auto'; expected 'on' or 'off'"):
        load_template(directory).render([USER], thinking="auto")


def test_template_without_a_switch(tmp_path):
    template = load_template(directory_with(tmp_path, CHATML))
    for thinking in ("on", "off", "auto"):
        with pytest.raises(UserError, match="has no thinking switch"):
            template.render([USER], thinking=thinking)


class TestOpenPangu:
    @pytest.mark.parametrize(
        ("messages", "thinking", "expected"),
        [
            ([USER], None, "[unused9]系统：[unused10][unused9]用户：Hi there[unused10][unused9]助手："),
            ([USER], "on", "[unused9]系统：[unused10][unused9]用户：Hi there[unused10][unused9]助手："),
            (
                [USER],
                "off",
                "[unused9]系统：[unused10][unused9]用户：Hi there /no_think[unused10][unused9]助手：",
            ),
            (
                [USER],
                "auto",
                "[unused9]系统：[unused10][unused9]用户：Hi there /auto_think[unused10][unused9]助手：",
            ),
            (
                [{"role": "system", "content": "简短。"}, USER],
                None,
                "[unused9]系统：简短。[unused10][unused9]用户：Hi there[unused10][unused9]助手：",
            ),
            (
                [{"role": "user", "content": "Hi /auto_think"}],
                "off",
                "[unused9]系统：[unused10][unused9]用户：Hi /auto_think[unused10][unused9]助手：",
            ),
            (
                [{"role": "tool", "content": "1"}, {"role": "function", "content": "2"}],
                None,
                "[unused9]系统：[unused10][unused9]工具：1[unused10][unused9]方法：2[unused10][unused9]助手：",
            ),
        ],
    )
    def test_prompt(self, tmp_path, messages, thinking, expected):
        assert load_template(tmp_path, "openpangu").render(messages, thinking=thinking) == expected

    @pytest.mark.parametrize("thinking", [None, "on", "off", "auto"])
    def test_a_prompt_and_its_answer_begin_the_next_prompt(self, tmp_path, thinking):
        template = load_template(tmp_path, "openpangu")
        answer = "[unused16]hm[unused17]Hello"
        first = template.render([USER], thinking=thinking)
        history = [USER, {"role": "assistant", "content": answer}, {"role": "user", "content": "More"}]
        assert template.render(history, thinking=thinking).startswith(first + answer + "[unused10]")

    def test_without_generation_prompt(self, tmp_path):
        text = load_template(tmp_path, "openpangu").render([USER], add_generation_prompt=False)
        assert text == "[unused9]系统：[unused10][unused9]用户：Hi there[unused10]"

    def test_unknown_role(self, tmp_path):
        with pytest.raises(
            UserError, match="role 'robot' is unknown; expected one of system, user, assistant"
        ):
            load_template(tmp_path, "openpangu").render([{"role": "robot", "content": ""}])

    def test_the_switch_works_on_the_model_s_own_template_too(self, tmp_path):
        own = "{% for m in messages %}{{ '[unused9]' + m.role + m.content + '[unused10]' }}{% endfor %}"
        template = load_template(directory_with(tmp_path, own))
        assert template.render([USER], thinking="off") == "[unused9]userHi there /no_think[unused10]"

    def test_is_the_default_of_its_tokenizer(self, tmp_path):
        toy_tokenizers.write_sentencepiece(
            tmp_path, {"tokenizer_class": "PanguTokenizer"}, dummy_prefix=False
        )
        template = load_template(tmp_path)
        assert template.source == OPENPANGU
        tokenizer = load_tokenizer(tmp_path)
        ids = template.encode([USER], tokenizer)
        assert ids[0] == tokenizer.bos_id == 1  # the template writes none, the tokenizer adds it
        assert ids.count(1) == 1
        assert tokenizer.decode(ids[1:], skip_special_tokens=False) == template.render([USER])


class TestEncode:
    def test_special_tokens_of_the_template_become_ids(self, tmp_path):
        directory = directory_with(tmp_path, CHATML, add_bos_token=False)
        tokenizer = load_tokenizer(directory)
        ids = load_template(directory).encode([USER], tokenizer)
        assert ids == theirs(directory).apply_chat_template([USER], add_generation_prompt=True)
        assert (ids.count(1), ids.count(2)) == (3, 2)

    def test_bos_comes_once(self, tmp_path):
        for template in (CHATML, "{{ bos_token }}" + CHATML):
            directory = directory_with(tmp_path, template)
            ids = load_template(directory).encode([USER], load_tokenizer(directory))
            assert ids[:2] == [0, 1]


class TestSources:
    def test_order(self, tmp_path):
        directory = directory_with(tmp_path, "config")
        assert load_template(directory).render([USER]) == "config"
        (directory / "chat_template.jinja").write_text("file")
        assert load_template(directory).render([USER]) == "file"
        (tmp_path / "mine.jinja").write_text("mine 你好")
        assert load_template(directory, str(tmp_path / "mine.jinja")).render([USER]) == "mine 你好"

    def test_marks_and_line_ends_of_windows_are_no_part_of_it(self, tmp_path):
        (tmp_path / "mine.jinja").write_bytes(b"\xef\xbb\xbfa\r\nb")
        assert load_template(tmp_path, str(tmp_path / "mine.jinja")).render([USER]) == "a\nb"
        assert load_template(directory_with(tmp_path, "\ufeffa\r\nb")).render([USER]) == "a\nb"

    def test_named_templates(self, tmp_path):
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        directory = directory_with(tmp_path, named)
        (directory / "additional_chat_templates").mkdir()
        (directory / "additional_chat_templates" / "rag.jinja").write_text("rag")
        assert load_template(directory).render([USER]) == "plain"
        assert load_template(directory, "tool_use").render([USER]) == "tools"
        assert load_template(directory, "rag").render([USER]) == "rag"
        with pytest.raises(
            UserError, match="'other': no such file, and not one of openpangu, default, rag, tool_use"
        ):
            load_template(directory, "other")

    def test_no_template(self, tmp_path):
        with pytest.raises(
            UserError, match=r"no default chat template; set model\.chat_template .* raw completion"
        ):
            load_template(tmp_path)
        directory = directory_with(tmp_path, [{"name": "tool_use", "template": "tools"}])
        with pytest.raises(UserError, match="it has the named ones tool_use"):
            load_template(directory)

    @pytest.mark.parametrize("value", [1, ["text"], [{"name": "x"}], {"default": "x"}])
    def test_malformed(self, tmp_path, value):
        with pytest.raises(UserError, match="chat_template"):
            load_template(directory_with(tmp_path, value))

    def test_file_that_is_not_text(self, tmp_path):
        (tmp_path / "bad.jinja").write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match="not readable as UTF-8"):
            load_template(tmp_path, str(tmp_path / "bad.jinja"))

    def test_special_tokens_from_the_map(self, tmp_path):
        (tmp_path / "special_tokens_map.json").write_text(
            json.dumps({"bos_token": {"content": "<B>"}, "additional_special_tokens": ["<X>"]})
        )
        (tmp_path / "chat_template.jinja").write_text(
            "{{ bos_token }}{{ additional_special_tokens[0] }}{{ pad_token }}"
        )
        assert load_template(tmp_path).render([USER]) == "<B><X>"


class TestFaults:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("{% for %}", "line 1"),
            ("\n{{ 'x' ", "line 2"),
            ("{% include 'x' %}{% nonsense %}", "unknown tag 'nonsense'"),
        ],
    )
    def test_syntax(self, source, message):
        with pytest.raises(UserError, match=f"chat template t: .*{message}|chat template t: {message}"):
            ChatTemplate(source, "t")

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("{{ raise_exception('only\nusers here') }}", "only users here"),
            ("{{ nothing.at.all }}", "'nothing' is undefined"),
            ("{{ 'a' + 1 }}", "can only concatenate str"),
            ("{{ 1 / 0 }}", "division by zero"),
            ("{{ ().__class__.__bases__[0].__subclasses__() }}", "unsafe"),
            ("{{ messages.append(1) }}", "unsafe"),
            ("{% include 'x' %}", "no loader"),
        ],
    )
    def test_rendering(self, source, message):
        with pytest.raises(UserError, match=message) as error:
            ChatTemplate(source, "t").render([USER])
        assert str(error.value).startswith("chat template t: ")
        assert "\n" not in str(error.value)

    def test_messages(self):
        template = ChatTemplate(CHATML, "t")
        with pytest.raises(UserError, match="no messages"):
            template.render([])
        with pytest.raises(UserError, match="message 1 has content None; expected text"):
            template.render([USER, {"role": "user"}])
        with pytest.raises(UserError, match="message 0 has role 3; expected text"):
            template.render([{"role": 3, "content": ""}])
        with pytest.raises(UserError, match="thinking is 'maybe'; expected 'auto', 'on' or 'off'"):
            template.render([USER], thinking="maybe")

    def test_the_caller_s_messages_are_not_changed(self, tmp_path):
        message = {"role": "user", "content": "Hi"}
        load_template(tmp_path, "openpangu").render([message], thinking="off")
        assert message == {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [messages] * 10 ** 9 }}",
        "{% set n = namespace(x=9) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_much_is_ended(source, monkeypatch):
    monkeypatch.setattr(template_module, "_SECONDS", 0.1)
    with pytest.raises(UserError, match=r"takes more than 0\.1 s|too large"):
        ChatTemplate(source, "here").render([{"role": "user", "content": "a"}])
