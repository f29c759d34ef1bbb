"""Leaves only `decoder_token` in rows that ask for it."""

from fastdeploy_lp.logits_processor.vllm_v1 import LogitsProcessor, MoveDirectionality


class TargetTokenProcessor(LogitsProcessor):
    """Leaves only `decoder_token` in rows whose `extra_args` have it."""

    @classmethod
    def validate_params(cls, sampling_params):
        token = (sampling_params.extra_args or {}).get("decoder_token")
        if token is not None and not isinstance(token, int):
            raise ValueError(f"decoder_token value {token!r} is not int")

    def __init__(self, vllm_config, device, is_pin_memory):
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        self.tokens = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if not batch_update:
            return
        for row in batch_update.removed:
            self.tokens.pop(row, None)
        for row, params, _, _ in batch_update.added:
            self.tokens.pop(row, None)
            token = (params.extra_args or {}).get("decoder_token")
            if token is not None:
                self.tokens[row] = token
        for source, target, direction in batch_update.moved:
            moved, other = self.tokens.pop(source, None), self.tokens.pop(target, None)
            if moved is not None:
                self.tokens[target] = moved
            if direction is MoveDirectionality.SWAP and other is not None:
                self.tokens[source] = other

    def apply(self, logits):
        for row, token in self.tokens.items():
            kept = logits[row, token].clone()
            logits[row] = float("-inf")
            logits[row, token] = kept
        return logits
