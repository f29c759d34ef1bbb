from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

from fastdeploy_lp.engine.chat_template import ChatOptions, ChatTemplate
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, ChatOptions(**options))


def refusal(source: str, messages: list[dict[str, Any]] = HELLO) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        render(source, messages)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_default_models_prompts_are_those_of_the_reference(
    tokenizer: Tokenizer, golden_cases: list[dict[str, Any]]
) -> None:
    for case in golden_cases:
        prompt = tokenizer.render_chat(case["messages"])
        assert prompt == case["rendered"]
        assert tokenizer.encode(prompt, add_special_tokens=False) == case["prompt_ids"]


@pytest.mark.parametrize(("add", "ending"), [(True, "<assistant>"), (False, "")])
def test_the_generation_prompt_is_added_on_request(add: bool, ending: str) -> None:
    source = "{{ messages[0].content }}{% if add_generation_prompt %}<assistant>{% endif %}"
    assert render(source, add_generation_prompt=add) == f"Hello{ending}"


def test_special_tokens_are_variables() -> None:
    assert render("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}{{ pad_token }}") == "<s>Hello</s>"


def test_lines_that_hold_only_a_block_leave_no_whitespace() -> None:
    source = "{% for message in messages %}\n    {% if true %}\n{{ message.role }}\n    {% endif %}\n{% endfor %}"
    assert render(source, HELLO * 2) == "user\nuser\n"


def test_loops_can_be_left_early() -> None:
    source = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert render(source, HELLO * 3) == "Hello"


def test_json_is_written_as_it_is_and_not_for_html() -> None:
    value = {"text": "<b>é🙂 & 'quotes'</b>", "list": [1, None, True]}
    messages = [{"role": "user", "content": value}]
    assert render("{{ messages[0].content | tojson }}", messages) == json.dumps(value, ensure_ascii=False)
    assert render("{{ messages[0].content | tojson(indent=2) }}", messages) == json.dumps(
        value, ensure_ascii=False, indent=2
    )


def test_text_is_not_escaped() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "<a> & {{ b }}"}]) == "<a> & {{ b }}"


def test_the_date_can_be_asked_for() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_a_template_may_refuse_messages() -> None:
    error = refusal("{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in str(error)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__code__.co_code }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ messages.append('x') }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox_or_change_what_it_was_given(source: str) -> None:
    messages = [dict(message) for message in HELLO]
    refusal(source, messages)
    assert messages == HELLO


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ '<' + messages[0].content + '>' }}", {"role": "user"}),
        ("{{ '<' + messages[0].content + '>' }}", {"role": "user", "content": None}),
        ("{{ '<' + messages[0].content + '>' }}", {"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
        ("{{ messages[0].content.missing.deeper }}", {"role": "user", "content": "Hello"}),
    ],
)
def test_messages_that_a_template_cannot_work_with_are_refused(source: str, message: dict[str, Any]) -> None:
    refusal(source, [message])


def test_a_template_that_does_not_compile_says_so() -> None:
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate("{% for message in messages %}", {})


# Where the template comes from


def model_with(tmp_path: Path, model_directory: Path, *, jinja: str | None = None, config: Any = None) -> Tokenizer:
    (tmp_path / "tokenizer.json").symlink_to(model_directory / "tokenizer.json")
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(tmp_path)


def test_a_jinja_file_wins_over_the_tokenizers_config(tmp_path: Path, model_directory: Path) -> None:
    tokenizer = model_with(tmp_path, model_directory, jinja="file", config={"chat_template": "config"})
    assert tokenizer.render_chat(HELLO) == "file"


def test_of_several_templates_the_default_is_taken(tmp_path: Path, model_directory: Path) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    assert model_with(tmp_path, model_directory, config={"chat_template": templates}).render_chat(HELLO) == "default"


def test_special_tokens_may_be_written_as_objects(tmp_path: Path, model_directory: Path) -> None:
    config = {"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": {"content": "<B>"}, "eos_token": "<E>"}
    assert model_with(tmp_path, model_directory, config=config).render_chat(HELLO) == "<B><E>"


@pytest.mark.parametrize("config", [None, {}, {"chat_template": None}, {"chat_template": []}])
def test_a_model_without_a_template_refuses_chats(tmp_path: Path, model_directory: Path, config: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        model_with(tmp_path, model_directory, config=config).render_chat(HELLO)


# Tools, variables and continuing

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}" + (
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STARTED = [*HELLO, {"role": "assistant", "content": "Hello, my "}]


def test_tools_are_shown_by_a_template_that_knows_them() -> None:
    assert render(WITH_TOOLS, tools=TOOLS) == json.dumps(TOOLS) + "Hello"
    assert render(WITH_TOOLS) == render(WITH_TOOLS, tools=[]) == "Hello"


def test_tools_are_refused_by_a_template_that_does_not_show_them() -> None:
    with pytest.raises(InvalidRequestError, match="does not show tools") as caught:
        render("{% if tools %}{% endif %}{{ messages[0].content }}", tools=TOOLS)
    assert caught.value.param == "tools"


def test_further_variables_reach_the_template() -> None:
    source = "{{ enable_thinking }}{{ nested.deep }}"
    assert render(source, chat_template_kwargs={"enable_thinking": False, "nested": {"deep": 1}}) == "False1"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "continue_final_message", "__steps"])
def test_the_servers_own_variables_are_not_for_others(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render("{{ messages }}", chat_template_kwargs={name: []})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_the_final_message_is_gone_on_with() -> None:
    assert render(TURNS, STARTED, continue_final_message=True) == "<user>Hello</><assistant>Hello, my "
    assert render(TURNS, STARTED).endswith("my </><assistant>")
    assert render(TURNS, STARTED, add_generation_prompt=False).endswith("my </>")


def test_a_template_that_strips_what_it_shows_is_gone_on_with_all_the_same() -> None:
    assert render(TURNS.replace("m.content", "m.content | trim"), STARTED, continue_final_message=True).endswith("my")


@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (TURNS, STARTED, {"add_generation_prompt": True}),
        (TURNS, [*HELLO, {"role": "assistant", "content": ""}], {}),
        ("{{ messages[0].content }}", STARTED, {}),
    ],
)
def test_a_final_message_that_cannot_be_gone_on_with_is_refused(
    source: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(source, messages, continue_final_message=True, **options)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{{ 'x' * 10 ** 15 }}",
        "{{ 10 ** (10 ** 30) }}",
        "{{ 2 ** 32 ** 32 ** 32 }}",
        "{% set ns = namespace(x=10) %}{% for _ in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 9 ** 99999 % 7 }}",
        "{{ 1 / 0 }}",
        "{{ [1, 2][5] + 1 }}",
        "{{ {}.items(1) }}",
    ],
)
def test_a_template_without_end_or_with_a_mistake_is_refused(source: str) -> None:
    refusal(source)


def test_products_and_powers_of_a_usual_size_are_computed() -> None:
    source = "{{ '-' * 3 }}{{ 2 * [1] }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 0.5 * 4 }}"
    assert render(source) == "---[1, 1]10240.52.0"


def test_a_loop_has_all_its_variables() -> None:
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}"
    assert render(source, HELLO * 2) == "1/2False 2/2True "
    assert render(source.replace("messages", "[]")) == "none"


def test_a_requests_own_template_is_what_errors_name(tokenizer: Tokenizer) -> None:
    assert tokenizer.render_chat(HELLO, ChatOptions(chat_template="<{{ messages[0].content }}>")) == "<Hello>"
    for broken in ("{% for %}", "{{ raise_exception('no') }}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"):
        with pytest.raises(InvalidRequestError) as caught:
            tokenizer.render_chat(HELLO, ChatOptions(chat_template=broken))
        assert caught.value.param == "chat_template"


def test_a_given_template_replaces_the_models_own(model_directory: Path) -> None:
    assert Tokenizer(model_directory, chat_template="{{ messages[0].content }}").render_chat(HELLO) == "Hello"
    with pytest.raises(ValueError, match="chat_template: the template does not compile"):
        Tokenizer(model_directory, chat_template="{% for %}")
