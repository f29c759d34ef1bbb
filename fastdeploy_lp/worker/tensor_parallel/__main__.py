"""`python -m fastdeploy_lp.worker.tensor_parallel`: a following rank, started by the first rank."""

from fastdeploy_lp.platforms.imports import import_paddle, quick_imports

if __name__ == "__main__":
    with quick_imports():
        import_paddle()
        from fastdeploy_lp.worker.tensor_parallel.follower import main

    main()
