"""The plugin's implementation."""

from pydantic import BaseModel


class MyParameters(BaseModel):
    """`token_id`: whose logit is multiplied."""

    token_id: int


class MyLogitsProcessor:
    """Multiplies the logit of `token_id` by 100."""

    def __init__(self, tokenizer, parameters: MyParameters):
        self.tokenizer = tokenizer
        self.parameters = parameters

    def __call__(self, token_ids, logits):
        new_logits = logits.clone()
        new_logits[self.parameters.token_id] *= 100
        return new_logits


LOGITS_PROCESSOR_PLUGIN = {"logits_processor_class": MyLogitsProcessor, "parameters_model": MyParameters}
