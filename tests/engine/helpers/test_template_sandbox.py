"""Templates of requests: rendered like others, in a process that is left nothing and does not outlast its time."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.chat import SLOW_TEMPLATE
from support.processes import children_of
from support.server import server_environment

from fastdeploy_lp.engine.chat_template import ChatOptions, ChatTemplate
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.helpers import template_sandbox
from fastdeploy_lp.engine.helpers.template_sandbox import TemplateSandbox
from fastdeploy_lp.request.limits import REQUEST_TEMPLATE_SECONDS

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Grüße \U0001f600"}]
TOKENS = {"bos_token": "<s>"}


def rendered(source: str, **options: Any) -> str:
    return asyncio.run(TemplateSandbox(TOKENS).render(MESSAGES, ChatOptions(chat_template=source, **options)))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", {}),
        ("{% if add_generation_prompt %}yes{% endif %}{{ a.b }}", {"chat_template_kwargs": {"a": {"b": 1}}}),
        ("{{ messages[0].content }} and more", {"continue_final_message": True}),
        ("{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}", {"tools": [{"type": "function"}]}),
        ("{{ lipsum(n=0) }}{{ '\\u00e9' }}{{ strftime_now('%Y')|length }}", {}),
    ],
)
def test_a_template_gives_what_it_gives_here(source: str, options: dict[str, Any]) -> None:
    here = ChatTemplate(source, TOKENS).render(MESSAGES, ChatOptions(chat_template=source, **options))
    assert rendered(source, **options) == here


def test_steps_of_the_worker_have_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    start_whole, found = template_sandbox.start_whole, list[int]()

    async def noted(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start_whole(*command, **options)
        found.append(os.getpriority(os.PRIO_PROCESS, process.pid))
        return process

    monkeypatch.setattr(template_sandbox, "start_whole", noted)
    assert rendered("{{ bos_token }}") == "<s>"
    assert found == [min(os.getpriority(os.PRIO_PROCESS, 0) + template_sandbox.NICENESS, 19)]


@pytest.mark.parametrize(
    ("source", "param", "reason"),
    [
        ("{% for %}", "chat_template", "does not compile: Expected an expression"),
        ("{{ raise_exception('not so') }}", "chat_template", "the chat template refuses them: not so"),
        ("{{ 'x' * 10 ** 10 }}", "chat_template", "more than 8000000 characters"),
        ("{{ messages[0].content.a.b }}", "chat_template", "has no attribute"),
        ("\ud800{{", "chat_template", "does not compile"),
    ],
)
def test_a_refusal_says_why(source: str, param: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(source)
    assert caught.value.param == param
    assert reason in caught.value.reason


def test_what_is_refused_of_the_options_names_them() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered("x", chat_template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs.messages"


def test_a_template_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "REQUEST_TEMPLATE_SECONDS", 0.5)
    with pytest.raises(InvalidRequestError, match=r"takes more than 0\.5 seconds"):
        rendered(SLOW_TEMPLATE)
    assert not renderers()


def test_a_request_that_is_given_up_takes_its_process_along() -> None:
    async def main() -> None:
        sandbox = TemplateSandbox(TOKENS)
        task = asyncio.create_task(sandbox.render(MESSAGES, ChatOptions(chat_template=SLOW_TEMPLATE)))
        while not renderers():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not renderers()

    asyncio.run(main())


def test_the_process_has_no_environment_no_files_and_bounded_memory() -> None:
    program = (
        "import os, resource, json\n"
        "from fastdeploy_lp.engine.helpers import template_process as t\n"
        "t._load_what_is_loaded_late(); t._give_up_resources(3.0)\n"
        "names = ('RLIMIT_AS', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_CPU')\n"
        "print(json.dumps([resource.getrlimit(getattr(resource, name)) for name in names]))\n"
        "try:\n    open('/etc/hostname')\nexcept OSError as error:\n    print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=server_environment(), check=True
    )
    limits, opened = done.stdout.splitlines()
    *others, (cpu, _) = json.loads(limits)
    assert others == [[512 << 20] * 2, [0, 0], [0, 0]]
    assert 3 < cpu < 3 + REQUEST_TEMPLATE_SECONDS
    assert int(opened) == 24
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_the_servers_environment_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_API_KEY", "secret-key-of-a-client")
    monkeypatch.setenv("FASTDEPLOY_LP_ADMIN_API_KEY", "secret-key-of-a-client")
    seen: list[bytes] = []

    async def main() -> None:
        task = asyncio.create_task(TemplateSandbox(TOKENS).render(MESSAGES, ChatOptions(chat_template=SLOW_TEMPLATE)))
        while not seen or not seen[-1]:
            await asyncio.sleep(0.01)
            seen.extend(Path(f"/proc/{pid}/environ").read_bytes() for pid in renderers())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert seen[-1].startswith(b"PYTHONPATH=")
    assert seen[-1].count(b"\0") == 1


def renderers() -> list[int]:
    """The processes of ours that render."""
    return children_of(program=template_sandbox.MODULE)
