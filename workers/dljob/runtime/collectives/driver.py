"""Collective backends in a process that starts jobs: registered only once it imports Ray's collectives, as few do.

Registration imports torch and the backend's own library, and a machine that only starts jobs need not have either.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from dljob.errors import CollectiveError
from dljob.runtime.collectives.table import SPEC, Declared, registered

RAYS = "ray.util.collective"

log = logging.getLogger(__package__)


def register_when_used(backends: Mapping[str, str]) -> None:
    """Register backends, given as name -> dotted path, now or once `ray.util.collective` is imported here.

    A backend that cannot be used here is only logged: it may well be usable where the ranks are.
    """
    if not backends:
        return
    if RAYS in sys.modules:
        _register(backends)
    elif late := next((finder for finder in sys.meta_path if isinstance(finder, _Late)), None):
        late.tables.append(backends)
    else:
        # First, because Python takes the first finder that knows the module.
        sys.meta_path.insert(0, _Late(backends))


class _Late(importlib.abc.MetaPathFinder):
    """An import hook: it finds one module as Python would, and registers backends after the module's import."""

    def __init__(self, backends: Mapping[str, str]) -> None:
        self.tables = [backends]
        """The backends of each job that this process started."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec with a loader that registers as well; None for all other modules."""
        if fullname != RAYS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            exec_module = loader.exec_module

            def then(module: ModuleType) -> None:
                exec_module(module)
                # Once is enough, and hooks slow down every later import.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                for backends in self.tables:
                    _register(backends)

            loader.exec_module = then
        return spec


def _register(backends: Mapping[str, str]) -> None:
    for name, path in backends.items():
        try:
            registered(name.upper(), Declared(path, SPEC))
        except CollectiveError as error:
            log.warning("not registered in this process: %s", error)
