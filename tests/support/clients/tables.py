"""All cases of chats and completions, each with its route."""

from __future__ import annotations

from typing import Any

from support.clients.case import CHAT, COMPLETIONS, Case, Route
from support.clients.chat_cases import CHAT_CASES, CHAT_REFUSED
from support.clients.completion_cases import COMPLETION_CASES, COMPLETION_REFUSED

CASES: list[tuple[Route, Case]] = [
    *((CHAT, case) for case in CHAT_CASES),
    *((COMPLETIONS, case) for case in COMPLETION_CASES),
]
# The field that the refusal names, and what it refuses.
REFUSED: list[tuple[Route, str, dict[str, Any]]] = [
    *((CHAT, *refused) for refused in CHAT_REFUSED),
    *((COMPLETIONS, *refused) for refused in COMPLETION_REFUSED),
]
