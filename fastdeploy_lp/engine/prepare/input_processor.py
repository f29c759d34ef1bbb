"""Turns a caller's request into worker input: tokens, and parameters with all defaults resolved."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fastdeploy_lp.config import DEFAULT_MAX_TRACE_TOKENS, ModelConfig
from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import REASON as NO_TOKENIZER
from fastdeploy_lp.engine.tokenizer import TOO_LONG, Cut, PromptText, Tokenizer, UnencodableTextError, require_unicode
from fastdeploy_lp.guided_decoding.grammar import Grammar, grammar_of
from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, Selection
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import MAX_BAD_WORD_LISTS, MAX_CARRIED_VALUES
from fastdeploy_lp.request.phase import NO_PARTS, Parts, PhaseError, phase_of
from fastdeploy_lp.request.pooling_params import TOKEN_EMBED, PoolingParams
from fastdeploy_lp.request.prompt_options import LEFT, PLAIN, RIGHT, WHOLE_CONTEXT, PromptOptions
from fastdeploy_lp.request.sampling_params import MAX_SEED, SamplingParams, SettledParams
from fastdeploy_lp.request.trace import TraceParams

# Request parameters that the worker receives in another form, or not at all.
SENT_APART = (
    "logits_processors_args",
    "extra_args",
    "logit_bias",
    "logits_processors",
    "logits_processors_shadow",
    "guided_decoding",
    "stream_interval",
)
SENT_FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name not in SENT_APART)
# A word is at least one list of tokens.
LISTS = ("bad_words", "bad_words_token_ids", "allowed_token_ids", "stop_token_ids", "stop", "prediction")
ARGUMENTS = ("logit_bias", "logits_processors_args", "extra_args", "logits_processors")


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt. text: None for one sent as token ids, or cut. is_chat: the output is a chat's message."""

    token_ids: list[int]
    text: str | None
    is_chat: bool = False


@dataclass(frozen=True)
class Settled:
    """Parameters with token limit and seed fixed, the validated selection of logits processors, and the grammar.

    The grammar is not compiled yet. `pooling` is set for a prompt that is pooled; its other fields are the defaults.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    selection: Selection = field(default_factory=Selection)
    grammar: Grammar | None = None
    pooling: PoolingParams | None = None

    @property
    def sampled_with(self) -> Selection | None:
        """The selection of logits processors; None for a pooled prompt, which mandatory processors do not concern."""
        return self.selection if self.pooling is None else None


@dataclass(frozen=True)
class EngineRequest:
    """A prompt to continue or pool, with settled parameters: `RequestPreparation.settle`, `inputs.settle_pooling`.

    client: the client's name, for fair scheduling. deadline: on the monotonic clock, None for none.
    """

    request_id: str
    prompt: Prompt
    settled: Settled
    client: str = ""
    deadline: float | None = None

    @property
    def num_sequences(self) -> int:
        """Number of completions of the prompt, 1 if it is pooled."""
        return self.settled.params.n


class InputProcessor:
    """Tokenizes prompts and validates parameters; every refusal is an InvalidRequestError that names the field."""

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        args_validator: RequestArgsValidator,
        *,
        whitespace: str = "bounded",
        max_trace_tokens: int = DEFAULT_MAX_TRACE_TOKENS,
        looks_up: bool = False,
        parts: Parts = NO_PARTS,
    ) -> None:
        self._config = config
        self._looks_up = looks_up
        self._max_trace_tokens = max_trace_tokens
        self._whitespace = whitespace
        self._tokenizer = tokenizer
        self._prompt_text = PromptText(tokenizer, config.max_model_len)
        self._args_validator = args_validator
        self._parts = parts

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: ChatOptions | None = None,
        tokens: PromptOptions = PLAIN,
        *,
        room_for_output: int = 1,
    ) -> Prompt:
        """Renders a conversation with the model's chat template, or with the template and variables of `options`.

        room_for_output: tokens of the context for the output, 0 for a prompt that is pooled.
        """
        self.require_text("messages")
        if not messages:
            raise InvalidRequestError("messages", "at least one message is needed")
        if isinstance(messages, str) or not all(isinstance(message, Mapping) for message in messages):
            raise InvalidRequestError("messages", "must be a list of messages, each an object with role and content")
        rendered = self._tokenizer.render_chat(for_template(messages), options)
        return self.rendered_prompt(rendered, tokens, room_for_output=room_for_output)

    def rendered_prompt(self, rendered: str, options: PromptOptions = PLAIN, *, room_for_output: int = 1) -> Prompt:
        """Tokenizes a rendered conversation."""
        found = self._of_text(rendered, "messages", options, room_for_output, add_special_tokens=False)
        return replace(found, is_chat=True)

    def prompt(
        self,
        prompt: str | Sequence[int],
        param: str = "prompt",
        options: PromptOptions = PLAIN,
        *,
        room_for_output: int = 1,
    ) -> Prompt:
        """Tokenizes a text prompt or checks a token-id prompt; `param`: its name in errors."""
        if not isinstance(prompt, str):
            return self._of_tokens(list(prompt), param, options, room_for_output)
        self.require_text(param)
        return self._of_text(prompt, param, options, room_for_output, add_special_tokens=True)

    def pooling_prompt(
        self, prompt: str | Sequence[int], param: str = "prompt", options: PromptOptions = PLAIN
    ) -> Prompt:
        """The same for a pooling prompt: it may fill the context; special tokens do not make an empty one valid."""
        if not prompt:
            raise InvalidRequestError(param, "the prompt is empty")
        return self.prompt(prompt, param, options, room_for_output=0)

    @property
    def handles_text(self) -> bool:
        """True if the server has a tokenizer."""
        return self._tokenizer.handles_text

    def require_text(self, param: str) -> None:
        """Raises InvalidRequestError for `param` if the server has no tokenizer."""
        if not self.handles_text:
            raise InvalidRequestError(param, f"{NO_TOKENIZER}; send token ids and read token ids")

    def settle_pooling(self, params: PoolingParams) -> Settled:
        """Returns fully resolved parameters for the worker; checks `dimensions` against the model."""
        hidden_size = int(self._config.hf_config["hidden_size"])
        if params.dimensions is not None and params.dimensions > hidden_size:
            raise InvalidRequestError(
                "dimensions", f"{params.dimensions} is too many; the model's hidden size allows 1 to {hidden_size}"
            )
        if params.task != TOKEN_EMBED:
            params = msgspec.structs.replace(params, pooling=params.pooling or self._config.pooling_type)
        return Settled(pooling=params)

    def require_few_values(self, params: SamplingParams, num_prompts: int) -> None:
        """Raises InvalidRequestError if lists and arguments are too large for all sequences of a request together.

        A quick check, called before prompts and words are tokenized.
        """
        require_few_values(params, num_prompts)

    def settle(self, params: SamplingParams, prompt: Prompt) -> Settled:
        """Returns fully resolved parameters for the worker; processors' own checks run in this thread."""
        return self.settle_each(params, [prompt])[0]

    def settle_each(self, params: SamplingParams, prompts: Sequence[Prompt]) -> list[Settled]:
        """The same for all prompts of a request; parameters are checked and tokenized once."""
        self.require_valid(params, prompts)
        return self.settle_chosen(params, prompts, self.chosen(params))

    def require_valid(self, params: SamplingParams, prompts: Sequence[Prompt]) -> None:
        """Raises InvalidRequestError for numbers and token ids that do not fit this model or a prompt."""
        require_few_values(params, len(prompts))
        for prompt in prompts:
            self._require_room(params, prompt)
        self._check_token_ids(params)
        self._require_text_for(params)
        if len(params.allowed_token_ids or ()) > self._config.vocab_size:
            reason = f"has {len(params.allowed_token_ids or ())} entries; there are {self._config.vocab_size} tokens"
            raise InvalidRequestError("allowed_token_ids", reason)

    def chosen(self, params: SamplingParams, imposed: Imposed = NOTHING_IMPOSED) -> Selection:
        """Returns the validated selection of logits processors, with the operator's part."""
        try:
            return self._args_validator.validate_imposed(params, imposed)
        except RequestArgsError as error:
            raise InvalidRequestError(error.path, error.reason) from None

    def settle_chosen(
        self, params: SamplingParams, prompts: Sequence[Prompt], selection: Selection, most_tokens: int | None = None
    ) -> list[Settled]:
        """Returns the result of `settle_each`, for parameters accepted by `require_valid` and a validated selection.

        most_tokens: the limit of a completion that sets none, None for the room that the prompt leaves.
        """
        shared = copy.copy(params)
        shared.bad_words, shared.bad_words_token_ids = None, self._bad_words_token_ids(params)
        shared.prediction = self._prediction(params)
        require_few_values(shared, len(prompts))
        self._require_something_allowed(params, shared.bad_words_token_ids or [])
        shared.guided_decoding = self._form(params.guided_decoding, prompts)
        grammar = self._grammar(shared.guided_decoding)
        return [Settled(self._for_prompt(shared, prompt, most_tokens), selection, grammar) for prompt in prompts]

    def _require_room(self, params: SamplingParams, prompt: Prompt) -> None:
        room = self._room(prompt)
        if params.max_tokens is not None and params.max_tokens > room:
            raise InvalidRequestError(
                "max_tokens",
                f"{params.max_tokens} is too many: the context holds {self._config.max_model_len} tokens, "
                f"the prompt has {len(prompt.token_ids)}, which leaves {room}",
                TOO_LONG,
            )
        if params.min_tokens > room:
            raise InvalidRequestError(
                "min_tokens", f"{params.min_tokens} is too many: the prompt leaves room for {room}"
            )

    def _room(self, prompt: Prompt) -> int:
        return self._config.max_model_len - len(prompt.token_ids)

    def _for_prompt(self, shared: SamplingParams, prompt: Prompt, most_tokens: int | None) -> SamplingParams:
        """Returns the parameters of one prompt, which share their lists with other prompts."""
        # A copy skips the checks that `structs.replace` repeats.
        settled, room = copy.copy(shared), self._room(prompt)
        settled.max_tokens = shared.max_tokens or min(room, most_tokens or room)
        settled.seed = shared.seed if shared.seed is not None else secrets.randbits(64)
        settled.logits_processors_trace = self._trace(shared, room)
        return settled

    def sequence_params(self, settled: Settled, index: int) -> SettledParams:
        """Returns the parameters of the `index`-th of `n` completions: one sequence with its own seed."""
        seed = ((settled.params.seed or 0) + index) & MAX_SEED
        fields = {name: getattr(settled.params, name) for name in SENT_FIELDS}
        # All completions share the prompt.
        fields["prompt_logprobs"] = settled.params.prompt_logprobs if index == 0 else None
        return SettledParams(**fields | {"n": 1, "stop": None, "seed": seed})

    def _trace(self, params: SamplingParams, room: int) -> TraceParams | None:
        """Returns the trace parameters with the number of traced tokens per completion."""
        asked, most = params.trace, self._max_trace_tokens
        if asked is None:
            return None
        field = "logits_processors_trace"
        if not most:
            raise InvalidRequestError(field, "this server traces nothing; it was started with --max-trace-tokens 0")
        # A request without a length limit is not refused for its possible length.
        open_ended = asked.max_tokens is None and params.max_tokens is None
        wanted = most // params.n if open_ended else asked.max_tokens or params.max_tokens or room
        wanted = min(wanted, params.max_tokens or room)
        if not 1 <= wanted * params.n <= most:
            raise self._too_much_to_trace(wanted * params.n)
        return msgspec.structs.replace(asked, max_tokens=wanted)

    def require_traceable(self, settled: Sequence[Settled]) -> None:
        """Raises InvalidRequestError if the prompts of one request together exceed the limit of traced tokens."""
        traced = [(each.params.trace, each.params.n) for each in settled]
        total = sum(trace.max_tokens * n for trace, n in traced if trace is not None and trace.max_tokens is not None)
        if total > self._max_trace_tokens:
            raise self._too_much_to_trace(total)

    def _too_much_to_trace(self, count: int) -> InvalidRequestError:
        most = self._max_trace_tokens
        reason = f"{count} tokens are too many to trace: this server traces {most} of a request (--max-trace-tokens)"
        hint = "lower max_tokens of the trace or of the request, or n"
        return InvalidRequestError("logits_processors_trace.max_tokens", f"{reason}; {hint}")

    def _form(self, form: GuidedDecodingParams | None, prompts: Sequence[Prompt]) -> GuidedDecodingParams | None:
        """Returns the form; in a chat, that of the answer after the reasoning unless it has its own phase."""
        if form is None or form.when is not None or "answer" not in self._parts or not any(p.is_chat for p in prompts):
            return form
        return msgspec.structs.replace(form, when={"in": "answer"})

    def _grammar(self, form: GuidedDecodingParams | None) -> Grammar | None:
        if form is None:
            return None
        try:
            grammar = grammar_of(form, whitespace=self._whitespace)
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            raise InvalidRequestError(field, reason) from None
        self.require_text(grammar.field)
        return grammar if form.when is None else self._within_phase(grammar, form.when)

    def _within_phase(self, grammar: Grammar, when: Mapping[str, Any]) -> Grammar:
        try:
            phase = phase_of(when, "guided_decoding.when", self._parts)
        except PhaseError as error:
            raise InvalidRequestError(error.path, error.reason) from None
        return grammar if phase.is_whole else grammar.within(phase)

    def _require_text_for(self, params: SamplingParams) -> None:
        if params.stop_strings:
            self.require_text("stop")
        if isinstance(params.prediction, str):
            self.require_text("prediction")
        for index, _ in enumerate(params.bad_words or []):
            self.require_text(f"bad_words.{index}")

    def _of_text(
        self, text: str, param: str, options: PromptOptions, room_for_output: int, *, add_special_tokens: bool
    ) -> Prompt:
        """Returns the prompt of a text; `add_special_tokens` is the default of the option."""
        special = add_special_tokens if options.add_special_tokens is None else options.add_special_tokens
        cut = self._cut(options, room_for_output)
        ids = self._encoded(text, param, add_special_tokens=special, cut=cut)
        return self._checked(ids, text if cut is None or len(ids) < cut.most else None, param, room_for_output)

    def _of_tokens(self, tokens: list[int], param: str, options: PromptOptions, room_for_output: int) -> Prompt:
        cut = self._cut(options, room_for_output)
        if cut is None:
            # A list that is too long is not checked token by token.
            self._require_fit(len(tokens), param, room_for_output)
        self.require_tokens(param, tokens)
        return self._checked(tokens if cut is None else cut.of(tokens), None, param, room_for_output)

    def _cut(self, options: PromptOptions, room_for_output: int) -> Cut | None:
        most, context = options.truncate_prompt_tokens, self._config.max_model_len
        if most is None:
            return None
        if most > context:
            reason = f"{most} is too many: the context holds {context} tokens"
            raise InvalidRequestError("truncate_prompt_tokens", reason)
        if most == WHOLE_CONTEXT:
            most = max(context - max(room_for_output, options.max_tokens or 0), 1)
        return Cut(most, options.truncation_side or (LEFT if room_for_output else RIGHT))

    def _encoded(self, text: str, param: str, *, add_special_tokens: bool = True, cut: Cut | None = None) -> list[int]:
        try:
            if cut is None:
                ids = self._prompt_text.tokens(text, param, add_special_tokens=add_special_tokens)
            else:
                ids = self._prompt_text.whole(text, param, add_special_tokens=add_special_tokens, cut=cut)
        except UnencodableTextError as error:
            raise InvalidRequestError(param, str(error)) from None
        # Some tokenizers have tokens that their model does not know.
        if ids and max(ids) >= self._config.vocab_size:
            self._check_token_id(param, max(ids))
        return ids

    def _checked(self, token_ids: list[int], text: str | None, param: str, room_for_output: int) -> Prompt:
        if not token_ids:
            raise InvalidRequestError(param, "the prompt is empty")
        self._require_fit(len(token_ids), param, room_for_output)
        return Prompt(token_ids, text)

    def _require_fit(self, num_tokens: int, param: str, room_for_output: int) -> None:
        limit = self._config.max_model_len
        if num_tokens + room_for_output > limit:
            reason = f"the prompt has {num_tokens} tokens; the context holds {limit}"
            for_output = ", at least one of them for output" if room_for_output else ""
            raise InvalidRequestError(param, reason + for_output, TOO_LONG)

    def _bad_words_token_ids(self, params: SamplingParams) -> list[list[int]] | None:
        """Returns the tokens of every bad word, at the beginning of a text and after a space."""
        found = [list(tokens) for tokens in params.bad_words_token_ids or []]
        for index, word in enumerate(params.bad_words or []):
            path = f"bad_words.{index}"
            word = require_unicode(word.lstrip(), path)
            plain, spaced = (self._encoded(text, path, add_special_tokens=False) for text in (word, f" {word}"))
            if not plain:
                raise InvalidRequestError(path, "a text without tokens")
            found.append(plain)
            # If the space is a separate token, the plain form is ruled out after it anyway.
            if spaced[-len(plain) :] != plain:
                found.append(spaced)
        if len(found) > MAX_BAD_WORD_LISTS:
            reason = (
                f"together with bad_words_token_ids there are {len(found)}; at most {MAX_BAD_WORD_LISTS} are allowed"
            )
            raise InvalidRequestError("bad_words", reason)
        return found or None

    def _prediction(self, params: SamplingParams) -> list[int] | None:
        """Returns the tokens of the predicted output; None where they would not be used."""
        if not self._looks_up or not params.speculative or isinstance(params.prediction, list | None):
            return params.prediction if self._looks_up and isinstance(params.prediction, list) else None
        return self._encoded(require_unicode(params.prediction, "prediction"), "prediction", add_special_tokens=False)

    def _require_something_allowed(self, params: SamplingParams, bad_words: list[list[int]]) -> None:
        """Requires at least one allowed token that bad words and the minimum length do not rule out."""
        if params.allowed_token_ids is None:
            return
        left = set(params.allowed_token_ids) - {tokens[0] for tokens in bad_words if len(tokens) == 1}
        ruled_out_by = "bad words rule"
        if left and params.min_tokens:
            left -= {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self._config.eos_token_ids)}
            ruled_out_by = f"min_tokens = {params.min_tokens} rules"
        if not left:
            raise InvalidRequestError(
                "allowed_token_ids", f"{ruled_out_by} out every one of them, which leaves nothing to generate"
            )

    def _check_token_ids(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            self.require_tokens(name, getattr(params, name) or [])
        if isinstance(params.prediction, list):
            self._require_fit(len(params.prediction), "prediction", 0)
            self.require_tokens("prediction", params.prediction)
        for index, tokens in enumerate(params.bad_words_token_ids or []):
            self.require_tokens(f"bad_words_token_ids.{index}", tokens)

    def require_tokens(self, param: str, tokens: list[int]) -> None:
        """Raises InvalidRequestError for the first value that is not a token id of the model."""
        # Fast path; the loop finds the first wrong value.
        if tokens and set(map(type, tokens)) == {int} and 0 <= min(tokens) <= max(tokens) < self._config.vocab_size:
            return
        for index, token in enumerate(tokens):
            self._check_token_id(f"{param}.{index}", token)

    def _check_token_id(self, param: str, token: object) -> None:
        size = self._config.vocab_size
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise InvalidRequestError(param, f"{token!r} is no token id; allowed are 0 to {size - 1}")


def require_few_values(params: SamplingParams, num_prompts: int) -> None:
    """Raises InvalidRequestError if lists and arguments, times prompts, times `n`, exceed the worker's limit."""
    sequences = num_prompts * params.n
    counts = {name: count for name in (*LISTS, *ARGUMENTS) if (count := num_values(getattr(params, name)))}
    each = sum(counts.values())
    # The limits of a request body bound the values of one sequence.
    if sequences <= 1 or each * sequences <= MAX_CARRIED_VALUES:
        return
    largest = max(counts, key=counts.__getitem__)
    fields = ", ".join(sorted(counts, key=counts.__getitem__, reverse=True))
    raise InvalidRequestError(
        largest,
        f"{fields} have {each} values, which {sequences} sequences ({num_prompts} prompts, n = {params.n}) carry each; "
        f"all of them together may carry {MAX_CARRIED_VALUES}",
    )


def num_values(value: Any) -> int:
    """Returns the number of entries of a list or object, nested ones included; 0 for anything else."""
    count, level = 0, [value]
    while level:
        inside = [each for each in level if isinstance(each, (list, dict))]
        count += sum(map(len, inside))
        level = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    return count
