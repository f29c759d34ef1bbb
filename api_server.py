"""`python -m api_server MODEL …` from a checkout: `fastdeploy-lp serve MODEL …`."""

import sys

from fastdeploy_lp.entrypoints.cli import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
