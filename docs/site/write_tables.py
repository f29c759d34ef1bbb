"""Rewrites the generated tables of the pages in PAGES: `python docs/site/write_tables.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from fastdeploy_lp.config.option_values import without_none
from fastdeploy_lp.entrypoints.cli.processors import main
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.logits_processor import BUILTIN
from fastdeploy_lp.startup.engine_args import EngineArgs

DOCS = Path(__file__).parents[1]
MARK = "<!-- What follows is written by docs/site/write_tables.py. -->\n\n"
KINDS = {int: "integer", float: "number", str: "text", dict: "JSON object"}
# The pages that explain the options of a group.
EXPLAINED = {
    "Model": "[models.md](models.md), [engine.md](engine.md#precision) and [embeddings.md](embeddings.md)",
    "KV cache": "[engine.md](engine.md#memory)",
    "Plugins": "[plugins.md](plugins.md#io-processors)",
    "Reports": "[server.md](server.md#the-log)",
    "Logits processors": "[logits-processors.md](logits-processors.md) and [trace.md](trace.md)",
    "Scheduling": "[engine.md](engine.md#a-step), [reliability.md](reliability.md#too-many-requests) and "
    "[chat-and-completions.md](chat-and-completions.md#both)",
    "Chat": "[chat-and-completions.md](chat-and-completions.md#chat)",
    "Guided decoding": "[guided-decoding.md](guided-decoding.md#bounds)",
    "Processes": "[reliability.md](reliability.md#the-worker), [replicas.md](replicas.md) and "
    "[parallel.md](parallel.md)",
    "GPU": "[gpu.md](gpu.md#when-it-fails)",
    "HTTP server": "[server.md](server.md), [responses.md](responses.md#stored-responses), "
    "[reliability.md](reliability.md#clients) and "
    "[limits.md](limits.md#heads-bodies-and-connections)",
}


def parameters_of_builtins() -> str:
    """Returns a section for each builtin processor."""
    tables = io.StringIO()
    with contextlib.redirect_stdout(tables):
        main(["--markdown", *sorted(BUILTIN, key=str.lower)])
    return tables.getvalue().replace("## ", "### ")


def options() -> str:
    """Returns a section for each group of options, in the order of the help page."""
    rows: dict[str, list[str]] = {}
    for args in (EngineArgs, ServerArgs):
        hints = get_type_hints(args)
        for field in dataclasses.fields(args):
            title = field.metadata.get("group", "HTTP server")
            rows.setdefault(title, []).append(option_row(field, without_none(hints[field.name])))
    return "\n".join(_sections(rows))


def _sections(rows: dict[str, list[str]]) -> Iterator[str]:
    for title, lines in rows.items():
        yield f"## {title}\n\nExplained in {EXPLAINED[title]}.\n"
        yield "\n".join(["| option | value | default | meaning |", "|---|---|---|---|", *lines, ""])


def option_row(field: dataclasses.Field[Any], kind: Any) -> str:
    """Returns the row of an option; a default in the help text, in parentheses, is its default."""
    flag = field.name.replace("_", "-")
    meaning, told = re.fullmatch(r"(.*?)(?: \(default: (.*)\))?", field.metadata["help"]).groups()
    shown = f"`--{flag}`" if field.default is not True else f"`--{flag}`, `--no-{flag}`"
    return f"| {shown} | {_values(field, kind)} | {told or _default(field)} | {meaning} |"


def _values(field: dataclasses.Field[Any], kind: Any) -> str:
    if "choices" in field.metadata:
        return ", ".join(f"`{choice}`" for choice in field.metadata["choices"])
    if kind is bool:
        return ""
    return f"{field.metadata.get('metavar', 'SPEC')} …" if get_origin(kind) is list else KINDS[get_origin(kind) or kind]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "none" if field.default_factory is not dataclasses.MISSING else "needed"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return "none" if field.default in (None, "") else str(field.default)


PAGES: dict[str, Callable[[], str]] = {"builtin-processors.md": parameters_of_builtins, "options.md": options}


def current_page(name: str) -> str:
    """The expected page: the text above the mark, and the tables."""
    return (DOCS / name).read_text().partition(MARK)[0] + MARK + PAGES[name]()


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(current_page(name))
