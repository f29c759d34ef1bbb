"""`python -m fastdeploy_lp.worker`: the worker process; the API process starts it and sends WorkerStart on stdin."""

from fastdeploy_lp.platforms.imports import import_paddle, quick_imports

if __name__ == "__main__":
    with quick_imports():
        import_paddle()
        from fastdeploy_lp.worker.process import main

    main()
