"""`from fastdeploy_lp.openai.logits_processor import LogitsProcessor`, as in FastDeploy's documents."""

from fastdeploy_lp.logits_processor import LogitsProcessor, TokenId

__all__ = ["LogitsProcessor", "TokenId"]
