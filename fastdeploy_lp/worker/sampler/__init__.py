"""Sampling of one token per row from the chain's logits, with log probabilities on request."""

from fastdeploy_lp.worker.sampler.sampler import SampledRows, Sampler

__all__ = ["SampledRows", "Sampler"]
