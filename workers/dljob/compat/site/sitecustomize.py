"""Start-up hook of each Python with this folder on PYTHONPATH: redirects `import ray` by DISTRIBUTED_BACKEND.

It runs before anything is unpickled or imported, in children by spawn and forkserver too. Then it runs the user's own
`sitecustomize`, which it hides.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib takes as long as all else here
_NAME = "dljob.compat.redirect"


def _redirect() -> None:
    spec = spec_from_file_location(_NAME, f"{_HERE}/../redirect.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{_NAME} is not beside {_HERE}")
    module = sys.modules[_NAME] = module_from_spec(spec)
    spec.loader.exec_module(module)
    backend = module.wanted(os.environ)
    if backend != "ray":
        module.install(backend)


def _hidden() -> None:
    """Run the user's own `sitecustomize`, which this one hides, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", [part for part in sys.path if os.path.realpath(part) != _HERE])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_redirect()
_hidden()
