"""The prompt forms that a program may pass, and their conversion to token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypedDict

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor, Prompt
from fastdeploy_lp.request.prompt_options import PLAIN, PromptOptions

# A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, as in upstream and vLLM.
PromptInput: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Conversation: TypeAlias = Sequence[Mapping[str, Any]]


class ChatKeywords(TypedDict, total=False):
    """Options for rendering a conversation as a prompt; `engine.chat_template.ChatOptions` documents each."""

    tools: Sequence[Mapping[str, Any]] | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any]
    add_generation_prompt: bool | None
    continue_final_message: bool


TEXT, TOKEN_IDS = "prompt", "prompt_token_ids"
FORMS = f'a text, a list of token ids, or a dict with "{TEXT}" or "{TOKEN_IDS}"'


def listed(prompts: PromptInput | Sequence[PromptInput]) -> list[tuple[str, PromptInput]]:
    """Returns one prompt or many as a list, each with its path for error messages."""
    if isinstance(prompts, (str, Mapping)):
        return [(TEXT, prompts)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise InvalidRequestError(TEXT, f"must be {FORMS}, or a list of those, not {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], int):
        return [(TEXT, prompts)]  # type: ignore[list-item]
    return [(f"{TEXT}.{index}", prompt) for index, prompt in enumerate(prompts)]  # type: ignore[misc]


def read_prompt(
    inputs: InputProcessor,
    prompt: PromptInput,
    path: str = TEXT,
    options: PromptOptions = PLAIN,
    *,
    pooled: bool = False,
) -> Prompt:
    """Returns the prompt with its token ids; raises InvalidRequestError (a ValueError) that names `path`.

    A dict may hold both: the model continues the token ids, and the output shows the text. A `pooled` prompt may fill
    the context.
    """
    read = partial(inputs.pooling_prompt if pooled else inputs.prompt, options=options)
    if not isinstance(prompt, Mapping):
        return _read_plain(read, prompt, path)
    given = {key: value for key, value in prompt.items() if value is not None}
    unknown = sorted(map(str, given.keys() - {TEXT, TOKEN_IDS}))
    if unknown or not given:
        reason = "is no part of a prompt" if unknown else "is empty"
        raise InvalidRequestError(f"{path}.{unknown[0]}" if unknown else path, f"{reason}; a prompt is {FORMS}")
    if TOKEN_IDS not in given:
        return _read_plain(read, given[TEXT], f"{path}.{TEXT}")
    tokens = _read_plain(read, given[TOKEN_IDS], f"{path}.{TOKEN_IDS}", texts=False)
    return Prompt(tokens.token_ids, given.get(TEXT))


def _read_plain(read: Callable[[Any, str], Prompt], prompt: Any, path: str, *, texts: bool = True) -> Prompt:
    plain = isinstance(prompt, str) if texts else False
    tokens = isinstance(prompt, Sequence) and not isinstance(prompt, (str, bytes, bytearray))
    if not plain and not tokens:
        wanted = FORMS if texts else "a list of token ids"
        raise InvalidRequestError(path, f"must be {wanted}, not {type(prompt).__name__}")
    return read(prompt, path)
