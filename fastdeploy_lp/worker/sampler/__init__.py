"""From the chain's logits to one token a row, with its log probabilities where they are asked for."""

from fastdeploy_lp.worker.sampler.sampler import SampledRows, Sampler

__all__ = ["SampledRows", "Sampler"]
