"""`from fastdeploy_lp.openai.logits_processor import LogitsProcessor`, as FastDeploy's documents print it."""

from fastdeploy_lp.logits_processor import LogitsProcessor, TokenId

__all__ = ["LogitsProcessor", "TokenId"]
