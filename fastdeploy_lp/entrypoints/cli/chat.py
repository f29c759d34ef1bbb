"""`fastdeploy-lp chat`: a conversation in the terminal, or from a file of lines."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.config import API_KEY_VARIABLE
from fastdeploy_lp.engine.errors import EngineStartError
from fastdeploy_lp.entrypoints.api_keys import key_of_environment
from fastdeploy_lp.entrypoints.chat.backends import LLMBackend, ServerBackend
from fastdeploy_lp.entrypoints.chat.session import ARGS, Backend, BackendError, ChatSession, Settings, parse_assignments
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.server_address import EXAMPLE
from fastdeploy_lp.startup.engine_args import EngineArgs

PROMPT = "> "
DESCRIPTION = """Chat with a model in the terminal: with a running server (--url), or with a model of its own (--model).
Type /help for the commands, with which sampling and logits processors are changed while the chat goes on."""


@dataclass
class ChatArgs:
    """Chat."""

    url: str | None = field(
        default=None,
        metadata={
            "help": "API of a running server; then --model names one of its models, and engine options do not apply"
        },
    )
    api_key: str | None = field(
        default=None, metadata={"help": f"the server's key (default: the first of {API_KEY_VARIABLE})", "secret": True}
    )
    system_prompt: str | None = field(default=None, metadata={"help": "what the conversation begins with"})
    sampling: list[str] = field(
        default_factory=list,
        metadata={
            "help": "sampling fields, as /set takes them: temperature=0.2 max_tokens=100",
            "metavar": "FIELD=VALUE",
        },
    )
    logits_processors_args: str | None = field(
        default=None, metadata={"help": "JSON object of arguments for all logits processors"}
    )
    use: list[str] = field(
        default_factory=list,
        metadata={"help": "logits processors to select, with parameters as a JSON object", "metavar": "NAME[={JSON}]"},
    )


@dataclass
class ServerModel:
    """Server."""

    model: str | None = field(default=None, metadata={"help": "model to ask for (default: the server's first one)"})


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0, 1 after a failure in a chat that does not read a terminal, or 2 for invalid options."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    remote = any(word == "--url" or word.startswith("--url=") for word in arguments)
    second: type[Any] = ServerModel if remote else EngineArgs
    parser = OptionsParser(ChatArgs, second, prog=prog, description=DESCRIPTION)
    given = parser.parse_args(arguments)
    if not remote and given.model is None and given.config is None:
        parser.error(f"needs a running server (--url {EXAMPLE}) or a model to load (--model smollm2-135m)")
    args, model = parser.parse_options(arguments)
    try:
        settings = _settings(args)
        if remote:
            key = args.api_key or key_of_environment()
            return _chat(ServerBackend(args.url, model.model, key), settings, args)
        with LLM(**vars(model)) as llm:
            return _chat(LLMBackend(llm), settings, args)
    except (ValueError, BackendError, EngineStartError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _settings(args: ChatArgs) -> Settings:
    settings = Settings()
    parse_assignments(args.sampling, "sampling", settings.set)
    parse_assignments(args.use, "use", settings.use)
    if args.logits_processors_args is not None:
        settings.set(ARGS, args.logits_processors_args)
    return settings


def _chat(backend: Backend, settings: Settings, args: ChatArgs) -> int:
    session = ChatSession(backend, settings, args.system_prompt, sys.stdout, sys.stderr)
    watched = sys.stdin.isatty()
    session.run(_typed() if watched else sys.stdin)
    return 0 if watched or not session.failures else 1


def _typed() -> Iterator[str]:
    """Yields lines from the terminal, with the usual editing keys."""
    import readline  # noqa: F401 - gives `input` its keys, and only a terminal needs it

    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
