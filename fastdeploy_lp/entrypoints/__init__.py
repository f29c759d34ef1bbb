"""Entry points for users: offline `LLM`, the command line and the OpenAI-compatible server."""

if __name__ == "entrypoints":  # through the link at the top of a checkout
    from fastdeploy_lp.linked_package import redirect

    redirect(__name__, "fastdeploy_lp.entrypoints")
