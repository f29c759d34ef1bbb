"""The worker process: scheduler, KV-cache blocks, share_inputs, model runner and sampler."""

if __name__ == "worker":  # through the link at the top of a checkout
    from fastdeploy_lp.linked_package import redirect

    redirect(__name__, "fastdeploy_lp.worker")
