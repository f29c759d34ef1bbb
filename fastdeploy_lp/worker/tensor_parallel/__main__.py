"""`python -m fastdeploy_lp.worker.tensor_parallel`: a following rank, started by the first rank."""

from fastdeploy_lp.platforms.quiet_paddle import import_paddle

if __name__ == "__main__":
    import_paddle()
    from fastdeploy_lp.worker.tensor_parallel.follower import main

    main()
