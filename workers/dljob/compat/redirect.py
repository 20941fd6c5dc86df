"""Redirection of `import ray` to the adapter of another backend: one module object under two names.

A second copy of a submodule is how redirection by `sys.modules["ray"] = adapter` goes wrong: its classes fail every
`isinstance` of the adapter, and their pickles name a module that another process takes for Ray's. Here a finder, before
all others, answers for `ray` and all below it with the adapter's module itself, made when it is first imported.

`site/sitecustomize.py` loads this file by its path, in a Python that may have no dljob: the standard library alone,
and of that neither pathlib nor importlib.abc, which would double the time in which a Python starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would take longer to load than all of this
    from typing import Any

ENVIRONMENT = "DISTRIBUTED_BACKEND"
ADAPTERS = {"yr": "ray_adapter", "yuanrong": "ray_adapter"}
"""Backend -> the package that offers Ray's interface on it. Source: openYuanrong's ray-adapter, March 2026."""
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")  # noqa: PTH100, PTH118, PTH120
_MARK = "dljob_redirects_ray_to"


class RedirectError(RuntimeError):
    """`import ray` cannot be redirected in this process; the message says why."""


class _Same:
    """Loader that returns the adapter's module as Ray's, and leaves the module's own spec unchanged."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the name is the protocol's
        """Return the adapter's module, which is imported here under its own name if it was not before."""
        module = import_module(self._target)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec. Its code ran in `create_module`; then the import system replaced the spec."""
        module.__spec__ = self._own
        if "__getattr__" not in vars(module):
            module.__dict__["__getattr__"] = _refuser(module.__name__)
        _mend(self._target.partition(".")[0])


class RayFinder:
    """Finder that resolves `ray` and its submodules in the adapter, and no other module; an installed Ray is ignored.

    Args:
        backend: the user's name of the backend, for messages.
        adapter: the package that stands in for Ray; where it is empty, `import ray` is refused.
    """

    def __init__(self, backend: str, adapter: str) -> None:
        self.backend = backend
        setattr(self, _MARK, adapter)
        self._adapter = adapter

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the name is the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`. Raises ModuleNotFoundError for modules that the adapter lacks."""
        if fullname != "ray" and not fullname.startswith("ray."):
            return None
        if not self._adapter:
            raise ModuleNotFoundError(f"import {fullname}: {unknown(self.backend)}", name=fullname)
        adapter_module = self._adapter + fullname.removeprefix("ray")
        adapter_spec = find_spec(adapter_module)
        if adapter_spec is None:
            raise ModuleNotFoundError(self._missing(fullname, adapter_module), name=fullname)
        loader = _Same(adapter_module)
        spec = ModuleSpec(fullname, loader, origin=adapter_spec.origin)  # pyright: ignore[reportArgumentType] - no ABC
        spec.submodule_search_locations = adapter_spec.submodule_search_locations
        return spec

    def _missing(self, fullname: str, adapter_module: str) -> str:
        sentence = (
            f"{ENVIRONMENT}={self.backend}, so that `import {fullname}` means {adapter_module}, which is not there."
        )
        if adapter_module == self._adapter:
            return f"{sentence} Install {adapter_module} in {sys.prefix}, or unset {ENVIRONMENT} to use Ray"
        return f"{sentence} {self._adapter} has no such part of Ray: do without it, or unset {ENVIRONMENT} to use Ray"


def _mend(adapter: str) -> None:
    """Patch two silent differences between the adapter and Ray, in all modules of the adapter that hold the objects.

    `.options()` writes into the shared class and returns it, so that of two sets of options the later one applies to
    both. And `placement_group` rewrites the caller's bundles, so that a second group of the same list requests a
    thousand times the CPUs. Source: ray-adapter, `actor.py` and `util/placement_group.py`, March 2026.
    """
    for cls in list(_names(adapter + ".actor").values()):
        options = vars(cls).get("options") if isinstance(cls, type) and cls.__module__ == adapter + ".actor" else None
        if options is not None and not hasattr(options, _MARK):
            setattr(cls, "options", _apart(options))  # noqa: B010 - any class that has some
    make = _names(adapter + ".util.placement_group").get("placement_group")
    if make is None or hasattr(make, _MARK):
        return
    keeping = _keeping(make)
    for name, module in list(sys.modules.items()):
        if name.startswith(adapter) and vars(module).get("placement_group") is make:
            setattr(module, "placement_group", keeping)  # noqa: B010 - a module's global


def _names(module: str) -> dict[str, Any]:
    return vars(sys.modules[module]) if module in sys.modules else {}


def _apart(options: Any) -> Any:
    """Wrap `options` so that it works on a copy of its object, with a copy of the options."""

    def apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        attributes: dict[str, Any] = self.__dict__
        own_attributes = {name: _own_options(value) for name, value in attributes.items()}
        return options(_rebuild(type(self), own_attributes), *args, **kwargs)

    setattr(apart, _MARK, True)
    return apart


def _own_options(value: Any) -> Any:
    """Copy a creator of instances together with its options, which `options` writes into; return others unchanged."""
    attributes = getattr(value, "__dict__", {})
    if "__invoke_options__" not in attributes:
        return value
    from copy import deepcopy  # seldom needed, and every Python of the job loads this file

    return _rebuild(type(value), {**attributes, "__invoke_options__": deepcopy(attributes["__invoke_options__"])})


def _rebuild(kind: Any, attributes: dict[str, Any]) -> Any:
    rebuilt: Any = kind.__new__(kind)
    rebuilt.__dict__.update(attributes)
    return rebuilt


def _keeping(make: Any) -> Any:
    """Wrap `placement_group` so that it rewrites a copy of the caller's bundles."""

    def placement_group(bundles: Any, *args: Any, **kwargs: Any) -> Any:
        from copy import deepcopy  # the same

        return make(deepcopy(bundles), *args, **kwargs)

    setattr(placement_group, _MARK, True)
    return placement_group


def _refuser(module: str) -> object:
    """Return a `__getattr__` for a module, whose error names the adapter that lacks the name."""

    def __getattr__(name: str) -> object:  # noqa: N807 - PEP 562
        shown = "ray" + module.partition(".")[1] + module.partition(".")[2]
        raise AttributeError(f"{shown}.{name} is not provided: here `{shown}` means {module}, which has no {name!r}")

    return __getattr__


def unknown(backend: str) -> str:
    """Return the message for an unknown backend."""
    backend_names = ", ".join(["ray", *sorted(ADAPTERS)])
    return f"{ENVIRONMENT}={backend} is no backend for code that imports Ray; there are: {backend_names}"


def backend_of(environ: Mapping[str, str]) -> str:
    """Return the backend that the environment names, in lower case; `ray` when it names none."""
    return environ.get(ENVIRONMENT, "").strip().lower() or "ray"


def install(backend: str) -> None:
    """Redirect `import ray` in this process, from now on; doing it again changes nothing.

    Raises:
        RedirectError: Ray itself, or another adapter, is in use here already.
    """
    adapter = ADAPTERS.get(backend, "")
    for finder in sys.meta_path:
        before = getattr(finder, _MARK, None)
        if before == adapter:
            return
        if before is not None:
            raise RedirectError(f"`import ray` means {before} in this process: it cannot mean {adapter} as well")
    loaded = sorted(name for name in sys.modules if name == "ray" or name.startswith("ray."))
    if foreign := [name for name in loaded if not _of(adapter, sys.modules[name])]:
        more = f" and {len(foreign) - 1} of its submodules" if len(foreign) > 1 else ""
        raise RedirectError(
            f"{foreign[0]!r}{more} is loaded in this process already, from {_home(foreign[0])}: redirected now, there "
            f"would be two of it. Start the program by `python -m dljob.compat`, before anything imports Ray"
        )
    sys.meta_path.insert(0, RayFinder(backend, adapter))


def _of(adapter: str, module: ModuleType) -> bool:
    """Return whether a module is the adapter's under its own name: older adapters replace Ray in `sys.modules`."""
    return bool(adapter) and (module.__name__ == adapter or module.__name__.startswith(adapter + "."))


def _home(name: str) -> str:
    return str(getattr(sys.modules[name], "__file__", None) or "an unknown place")


def environment(backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make a Python process redirect `import ray` before its first import.

    Children of this process inherit them (spawn, forkserver, subprocess); pass them to processes elsewhere.
    """
    path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != SITE]
    return {ENVIRONMENT: backend, "PYTHONPATH": os.pathsep.join([SITE, *path])}


def install_everywhere(backend: str, environ: MutableMapping[str, str]) -> None:
    """Redirect as `install` does, and also in every process that inherits this environment."""
    install(backend)
    environ.update(environment(backend, environ))
