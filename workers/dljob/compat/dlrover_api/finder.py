"""Finder of DLRover's modules: those of the table are dljob's, all others stay those of an installed dlrover."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from dljob.compat.dlrover_api.names import HERE, MODULES, Name
from dljob.compat.redirect import RedirectError

ROOT = "dlrover"
_PARENTS = {name.rsplit(".", cut)[0] for name in MODULES for cut in range(1, name.count(".") + 1)}


class _Served:
    """Loader of a module whose names are resolved in dljob when they are first used."""

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002 - the name is the protocol's
        """Leave the making of the module to the import system."""
        return

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the names of the table, to be imported at their first use."""
        names = MODULES.get(module.__name__, {})
        module.__doc__ = f"{module.__name__}, as dljob.compat serves it."
        module.__dict__["__all__"] = sorted(name for name, one in names.items() if one.home)

        def __getattr__(name: str) -> object:  # noqa: N807 - PEP 562
            if name not in names:
                raise AttributeError(f"dljob.compat has no {module.__name__}.{name}; {_has(module.__name__)}")
            value = module.__dict__[name] = _resolved(module.__name__, name, names[name])
            return value

        module.__dict__["__getattr__"] = __getattr__


def _has(module: str) -> str:
    there = sorted(MODULES.get(module, {}))
    return f"it has {', '.join(there)}" if there else "the module is a package without names of its own"


def _resolved(module: str, name: str, one: Name) -> object:
    if not one.home:
        # An ImportError, because `from ... import name` would replace the message of an AttributeError by its own.
        raise ImportError(f"{module}.{name} of DLRover is not carried over: {one.told}", name=module)
    return getattr(import_module(one.home), name)


class DlroverFinder:
    """Finder for `dlrover` and all below it.

    Args:
        home: the folder of an installed dlrover; None without one.
    """

    def __init__(self, home: Path | None) -> None:
        self.home = home

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the name is the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`. Raises ModuleNotFoundError for modules that nobody here has."""
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        served = fullname in MODULES
        if not served and self.home is not None:
            return None  # the installed dlrover's own
        if not served and fullname not in _PARENTS:
            raise ModuleNotFoundError(
                f"import {fullname}: dlrover is not installed, and dljob.compat has no such module of it; "
                f"docs/reference/dlrover.md lists those that it has",
                name=fullname,
            )
        spec = ModuleSpec(fullname, _Served(), origin=HERE)  # pyright: ignore[reportArgumentType] - no ABC
        if fullname in _PARENTS or self._beside(fullname):
            spec.submodule_search_locations = self._beside(fullname)
        return spec

    def _beside(self, fullname: str) -> list[str]:
        """Return the folder of the installed package that a served one stands for, so that its submodules are found."""
        if self.home is None:
            return []
        folder = self.home.joinpath(*fullname.split(".")[1:])
        return [str(folder)] if folder.is_dir() else []


def installed() -> Path | None:
    """Return the folder of the dlrover that `import dlrover` would find; None without one."""
    spec = PathFinder.find_spec(ROOT)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def install() -> DlroverFinder | None:
    """Redirect DLRover's paths in this process; None if they are already.

    Raises:
        RedirectError: modules of an installed dlrover that are served here are loaded already.
    """
    if any(isinstance(finder, DlroverFinder) for finder in sys.meta_path):
        return None
    if loaded := sorted(name for name in MODULES if name in sys.modules):
        where = getattr(sys.modules[loaded[0]], "__file__", None) or "an unknown place"
        raise RedirectError(
            f"{loaded[0]} is loaded in this process already, from {where}: redirected now, there would be two of it. "
            "Start the program by `python -m dljob.compat --dlrover`, or import dljob.compat.dlrover first"
        )
    finder = DlroverFinder(installed())
    sys.meta_path.insert(0, finder)
    return finder
