"""`python -m fastdeploy_lp serve …`: the command `fastdeploy-lp`, also where its script is not on PATH."""

from fastdeploy_lp.entrypoints.cli import main

if __name__ == "__main__":
    main()
