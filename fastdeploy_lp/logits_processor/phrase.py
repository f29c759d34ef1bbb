"""The import path of arguments that are texts, for processors written before `token_arguments`."""

from fastdeploy_lp.logits_processor.token_arguments import Marker, Phrase, PhraseForms, SentenceEnds

__all__ = ["Marker", "Phrase", "PhraseForms", "SentenceEnds"]
