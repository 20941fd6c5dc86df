"""Start-up hook of each Python with this folder on PYTHONPATH: redirects imports, by the environment.

DISTRIBUTED_BACKEND says what `import ray` means, DLJOB_COMPAT=dlrover that DLRover's paths are dljob's.

It runs before anything is unpickled or imported, in children by spawn and forkserver too. Then it runs the user's own
`sitecustomize`, which it hides.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib takes as long as all else here
_NAME = "dljob.compat.redirect"


def _redirect() -> None:
    spec = spec_from_file_location(_NAME, f"{_HERE}/../redirect.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{_NAME} is not beside {_HERE}")
    module = sys.modules[_NAME] = module_from_spec(spec)
    spec.loader.exec_module(module)
    backend = module.backend_of(os.environ)
    if backend != "ray":
        module.install(backend)


def _dlrover() -> None:
    """Redirect DLRover's paths where dljob is installed; a Python without it has no part in a job."""
    if os.environ.get("DLJOB_COMPAT") != "dlrover" or find_spec("dljob") is None:
        return
    import_module("dljob.compat.dlrover")


def _hidden() -> None:
    """Run the user's own `sitecustomize`, which this one hides, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", [part for part in sys.path if os.path.realpath(part) != _HERE])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_redirect()
_dlrover()
_hidden()
