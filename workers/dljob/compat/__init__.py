"""Adapters for user code that was written for others: Ray on another backend, and DLRover's API.

    DISTRIBUTED_BACKEND=yr python -m dljob.compat train.py --lr 1e-4
    DISTRIBUTED_BACKEND=yr python -m dljob.compat -m trainer.main config=small
    python -m dljob.compat --dlrover train.py

`ray` and each of its submodules become the modules of the backend's own adapter: the same objects, not second copies.
The paths of `dlrover` become dljob's. Importing this package changes nothing. In reading order: `redirect` (Ray),
`dlrover` (installs DLRover's paths), `dlrover_api` (what is behind them), `dlrover_run` (its command line).
"""
