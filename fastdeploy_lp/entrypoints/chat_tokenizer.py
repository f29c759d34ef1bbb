"""The model's tokenizer with its chat template, for programs that write their own prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.tokenizer import REASON
from fastdeploy_lp.model_tokenizer import ModelTokenizer

# Keywords of transformers that are no variables of the template.
REFUSED = ("padding", "truncation", "max_length", "return_tensors", "return_assistant_tokens_mask")


class ChatTokenizer(ModelTokenizer):
    """The tokenizer of an engine's model, and its chat template or the one that replaces it.

    chat_template: the template's source; None without one. Raises ValueError for an engine without a tokenizer.
    """

    def __init__(self, engine: Engine) -> None:
        if not engine.tokenizer.handles_text:
            raise ValueError(REASON)
        config = engine.fd_config.model_config
        super().__init__(config.directory, config.eos_token_ids)
        self.chat_template = engine.tokenizer.chat_template_source
        self._of_engine = engine.tokenizer

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """Returns the prompt of a conversation: token ids, an `Encoding` with `return_dict`, or text if not `tokenize`.

        Defaults are as in transformers 4; with `add_generation_prompt`, it is the prompt that `LLM.chat` renders.
        variables: further variables of the template. Raises InvalidRequestError (a ValueError) if the model has no
        template, or its template refuses; ValueError for transformers' options of padding and tensors.
        """
        if refused := [name for name in REFUSED if name in variables]:
            raise ValueError(f"{refused[0]}: is not known here; the prompt is one list of token ids, or a text")
        options = ChatOptions(tools, chat_template, variables, add_generation_prompt, continue_final_message)
        text = self._of_engine.render_chat(for_template(conversation), options)
        if not tokenize:
            return text
        found = self(text, add_special_tokens=False)
        return found if return_dict else found.input_ids
