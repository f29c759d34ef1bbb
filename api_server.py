"""`python -m api_server --model … --logits-processors …` from a checkout: the server of `fastdeploy_lp`."""

from fastdeploy_lp.entrypoints.openai.api_server import main

if __name__ == "__main__":
    main()
