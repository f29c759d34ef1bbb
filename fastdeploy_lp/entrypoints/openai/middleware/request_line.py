"""Log fields of a request."""

from __future__ import annotations

from collections.abc import Sequence

from fastdeploy_lp.entrypoints.openai.middleware.request_record import EngineWork, RequestRecord

Fields = dict[str, object]
ABORTED = "abort"


def fields_of(record: RequestRecord, route: str, status: int, seconds: float, *, with_prompts: bool) -> Fields:
    """Returns the fields of a request's log line; engine fields only for requests that reached the engine.

    Times are in seconds: `ttft` until the first token of any completion, `queue` until the first sequence got a slot.
    """
    fields: Fields = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "route": route,
        "status": status,
        "seconds": round(seconds, 6),
    }
    if record.work:
        fields |= _of_work(record.work)
        fields["response_id"] = record.response_id
    if with_prompts and record.work:
        fields["prompts"] = [_prompt(each) for each in record.work]
    return fields


def _of_work(work: Sequence[EngineWork]) -> Fields:
    times = [sequence for each in work for sequence in each.times]
    first_tokens = [each.time_to_first_token for each in times if each.time_to_first_token is not None]
    queues = [each.queue for each in times if each.queue is not None]
    return {
        "prompt_tokens": sum(len(each.prompt.token_ids) for each in work),
        "output_tokens": sum(each.num_output_tokens for each in work),
        "cached_tokens": sum(each.num_cached_tokens for each in work),
        "ttft": round(min(first_tokens), 6) if first_tokens else None,
        "queue": round(min(queues), 6) if queues else None,
        "processors": list(dict.fromkeys(name for each in work for name in each.processors)),
        "finish_reasons": [reason or ABORTED for each in work for reason in each.finish_reasons],
    }


def _prompt(work: EngineWork) -> str:
    """Returns the prompt's text, or its token ids if it has no text."""
    prompt = work.prompt
    return prompt.text if prompt.text is not None else " ".join(map(str, prompt.token_ids))
