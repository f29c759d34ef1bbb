"""A model that fastdeploy_lp does not include: `register` is called in every process of the engine."""

from fastdeploy_lp import ModelRegistry


def register() -> None:
    """May be called any number of times; the model's module is imported when a checkpoint needs it."""
    ModelRegistry.register_model("BigramForCausalLM", "example_model.bigram:BigramForCausalLM")
