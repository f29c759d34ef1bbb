"""What follows the tokens of requests through steps and slots; the sampler and the builtin processors share it."""
