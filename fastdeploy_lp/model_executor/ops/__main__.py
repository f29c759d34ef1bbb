"""`python -m fastdeploy_lp.model_executor.ops`: reports in one line which operators a worker would use."""

from fastdeploy_lp.model_executor.ops.library import describe_library

if __name__ == "__main__":
    print(describe_library())  # noqa: T201 - what it is for
