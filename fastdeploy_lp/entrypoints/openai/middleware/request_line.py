"""What the log says of a request."""

from __future__ import annotations

from collections.abc import Sequence

from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestRecord

Fields = dict[str, object]
ABORTED = "abort"


def fields_of(record: RequestRecord, route: str, status: int, seconds: float, *, with_prompts: bool) -> Fields:
    """The fields of a request's line; what only generating requests have is left out for others.

    Times are seconds: `ttft` until the first completion had a token, `queue` until the first one had a slot.
    """
    fields: Fields = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "route": route,
        "status": status,
        "seconds": round(seconds, 6),
    }
    if record.generations:
        fields |= _generated(record.generations)
        fields["response_id"] = record.response_id
    if with_prompts and record.generations:
        fields["prompts"] = [_prompt(generation) for generation in record.generations]
    return fields


def _generated(generations: Sequence[Generation]) -> Fields:
    completions = [completion for generation in generations for completion in generation.completions]
    times = [each for generation in generations for each in generation.times]
    first_tokens = [each.time_to_first_token for each in times if each.time_to_first_token is not None]
    queues = [each.queue for each in times if each.queue is not None]
    return {
        "prompt_tokens": sum(len(generation.prompt.token_ids) for generation in generations),
        "output_tokens": sum(completion.num_tokens for completion in completions),
        "cached_tokens": sum(generation.num_cached_tokens for generation in generations),
        "ttft": round(min(first_tokens), 6) if first_tokens else None,
        "queue": round(min(queues), 6) if queues else None,
        "processors": list(dict.fromkeys(name for generation in generations for name in generation.processors)),
        "finish_reasons": [completion.finish_reason or ABORTED for completion in completions],
    }


def _prompt(generation: Generation) -> str:
    """The text, or the token ids of a prompt that came as such."""
    prompt = generation.prompt
    return prompt.text if prompt.text is not None else " ".join(map(str, prompt.token_ids))
