"""The worker process: scheduler, KV-cache blocks, share_inputs, model runner and sampler."""
