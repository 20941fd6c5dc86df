"""Start-up hook of each Python with this folder on PYTHONPATH: moves the folder after it behind all others.

So a script that a rank starts finds the job's folder where the rank does: no `queue.py` at the root of a repository
takes the place of the standard library's. Then it runs the user's own `sitecustomize`, which it hides.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes as long as all else here


def _move_next_folder() -> None:
    position = sys.path.index(_HERE)
    # Not before: what stands there may have run this hook, and would run again.
    following = sys.path[position + 1 :]
    sys.path[position:] = [*following[1:], *following[:1]]
    spec = PathFinder.find_spec("sitecustomize", following)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_move_next_folder()
