"""`python -m fastdeploy_lp.worker`: the worker process; the API process starts it and sends WorkerStart on stdin."""

from fastdeploy_lp.platforms.quiet_paddle import import_paddle

if __name__ == "__main__":
    import_paddle()
    from fastdeploy_lp.worker.process import main

    main()
