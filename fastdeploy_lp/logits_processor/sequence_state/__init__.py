"""State of requests' tokens through steps and slots, shared by the sampler and the builtin processors."""
