"""Loads a module at the first use of what it holds, for the modules of this folder's names.

Each of Ray's processes imports requests and jsonschema when it starts, for cloud machines and runtime environments that
these tests do not have: half of the processor time of a worker's start, and the tests start a thousand of them
(ray 2.60.0, ray/_private/accelerators/tpu.py, ray/_private/runtime_env/plugin_schema_manager.py).

`importlib.util.LazyLoader` does the same, but loads twice where two threads come first at once (until Python 3.11.8).
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is imported by no worker otherwise
LOCK = RLock()
"""One for all modules: two threads that each load one which needs the other's would wait for each other."""


class Late(ModuleType):
    """A module that is loaded when an attribute of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        with LOCK:  # A thread that comes second waits; the one that loads gets what is there already.
            if type(self) is Late and "_loading" not in vars(self):
                self._loading = True
                try:
                    vars(self)["__spec__"].loader.exec_module(self)
                    self.__class__ = ModuleType
                finally:
                    del self._loading
            return ModuleType.__getattribute__(self, name)


def defer(name: str) -> None:
    """Put a late module in the place of the stand-in that is being imported."""
    spec = PathFinder.find_spec(name, [folder for folder in sys.path if os.path.abspath(folder) != HERE])  # noqa: PTH100
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.modules[name] = late(spec)


def late(spec: ModuleSpec) -> ModuleType:
    """Return the module of a spec, with its path but without its contents."""
    module = module_from_spec(spec)
    module.__class__ = Late
    return module
