"""Finder of DLRover's modules: those of the table are dljob's, all others stay those of an installed dlrover.

Of a module of the table an installed dlrover's own code is loaded, too, once somebody asks for a name that the table
does not have, or DLRover's own code for one that dljob refuses: else that code could not be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from inspect import currentframe
from pathlib import Path
from types import FrameType, ModuleType

from dljob.compat.dlrover_api.names import CONSTANTS, HERE, MODULES, Name
from dljob.compat.redirect import RedirectError

ROOT = "dlrover"
_PARENTS = {name.rsplit(".", cut)[0] for name in MODULES for cut in range(1, name.count(".") + 1)}


class _ServedModule(ModuleType):
    """A module of the table. Whoever replaces a name in it, as tests do, replaces it in dljob's module."""

    def __setattr__(self, name: str, value: object) -> None:
        if (home := _home_of(self.__name__, name)) is not None:
            setattr(home, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if (home := _home_of(self.__name__, name)) is not None:
            delattr(home, name)
        else:
            super().__delattr__(name)


class _Served:
    """Loader of a module whose names are resolved in dljob when they are used.

    Args:
        file: the source of the installed dlrover's module of this name; None without one.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._original: ModuleType | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, still without names."""
        return _ServedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the names of the table, to be imported at their use."""
        names = MODULES.get(module.__name__, {})
        module.__doc__ = f"{module.__name__}, as dljob.compat serves it."
        module.__dict__["__all__"] = sorted(name for name, entry in names.items() if entry.home)

        def __getattr__(name: str) -> object:  # noqa: N807 - PEP 562
            row = names.get(name)
            is_theirs = row is None or (not row.home and _is_asked_by_dlrover(currentframe()))
            if is_theirs and self._file is not None and not name.startswith("__"):
                return getattr(self._load_original(module), name)
            if row is None:
                raise AttributeError(f"dljob.compat has no {module.__name__}.{name}; {_has(module.__name__)}")
            return _resolved(module.__name__, name, row)

        module.__dict__["__getattr__"] = __getattr__

    def _load_original(self, served: ModuleType) -> ModuleType:
        """Return the installed dlrover's module, which is not in `sys.modules`: the served one has its name there."""
        if self._original is None:
            search = served.__spec__.submodule_search_locations if served.__spec__ else None
            spec = spec_from_file_location(served.__name__, self._file, submodule_search_locations=search)
            if spec is None or spec.loader is None:
                raise ImportError(f"{self._file} is no source of a module", name=served.__name__)
            self._original = module_from_spec(spec)
            try:
                spec.loader.exec_module(self._original)
            except BaseException:
                self._original = None
                raise
        return self._original


def _home_of(module: str, name: str) -> ModuleType | None:
    """Return dljob's module that has a name of the table; None where the name is not in the table, or is refused."""
    row = MODULES.get(module, {}).get(name)
    return import_module(row.home) if row is not None and row.home else None


def _is_asked_by_dlrover(frame: FrameType | None) -> bool:
    """Whether the code that imports a name is dlrover's own; frames of this module and of importlib are passed over."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith((__name__, "importlib.")):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(f"{ROOT}.")


def _has(module: str) -> str:
    names_here = sorted(MODULES.get(module, {}))
    return f"it has {', '.join(names_here)}" if names_here else "the module is a package without names of its own"


def _resolved(module: str, name: str, entry: Name) -> object:
    if not entry.home:
        # An ImportError, because `from ... import name` would replace the message of an AttributeError by its own.
        raise ImportError(f"{module}.{name} of DLRover is not carried over: {entry.reason}", name=module)
    return getattr(import_module(entry.home), name)


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
        file = self._file(fullname)
        served = fullname in MODULES and not (file and fullname in CONSTANTS)
        if not served and self.home is not None:
            return None  # the installed dlrover's own
        if not served and fullname not in _PARENTS:
            raise ModuleNotFoundError(
                f"import {fullname}: dlrover is not installed, and dljob.compat has no such module of it; "
                f"docs/reference/dlrover.md lists those that it has",
                name=fullname,
            )
        spec = ModuleSpec(fullname, _Served(file), origin=HERE)  # pyright: ignore[reportArgumentType] - no ABC
        if fullname in _PARENTS or self._beside(fullname):
            spec.submodule_search_locations = self._beside(fullname)
        return spec

    def _file(self, fullname: str) -> Path | None:
        """Return the source of the installed dlrover's module of a name; None where it has none."""
        if self.home is None:
            return None
        stem = self.home.joinpath(*fullname.split(".")[1:])
        return next((file for file in (stem / "__init__.py", stem.with_suffix(".py")) if file.is_file()), None)

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
    if loaded := sorted(name for name in MODULES.keys() - CONSTANTS if name in sys.modules):
        loaded_from = getattr(sys.modules[loaded[0]], "__file__", None) or "an unknown place"
        raise RedirectError(
            f"{loaded[0]} is loaded in this process already, from {loaded_from}: redirected now, there would be two "
            "of it. Start the program by `python -m dljob.compat --dlrover`, or import dljob.compat.dlrover first"
        )
    finder = DlroverFinder(installed())
    sys.meta_path.insert(0, finder)
    return finder
