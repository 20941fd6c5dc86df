"""Adapter for user code that imports Ray, on a backend other than Ray.

    DISTRIBUTED_BACKEND=yr python -m dljob.compat train.py --lr 1e-4
    DISTRIBUTED_BACKEND=yr python -m dljob.compat -m trainer.main config=small

`ray` and each of its submodules become the modules of the backend's own adapter: the same objects, not second copies.
Importing this package changes nothing; `redirect.install` does.
"""
