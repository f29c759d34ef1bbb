"""`python -m fastdeploy_lp.worker.tensor_parallel`: a rank that follows, started by the first one."""

from fastdeploy_lp.worker.quiet_paddle import import_paddle

if __name__ == "__main__":
    import_paddle()
    from fastdeploy_lp.worker.tensor_parallel.follower import main

    main()
