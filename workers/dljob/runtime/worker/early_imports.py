"""The imports with which a script begins, done once in its fork server, for all ranks and lives.

A forked process has no other threads, and shares connections, devices and open files with its parent. So only packages
of a list are imported here, and none behind the first that is not listed: a package may patch the next one. They import
others, which nobody listed. What leaves something behind that a fork would break, or reads a variable that only ranks
have, is noticed: then each rank begins in a fresh interpreter.

Only the standard library is needed here: the role's interpreter may be another one than dljob's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from dljob.linux import descendants, device_drivers
from dljob.plan.devices import DEVICES, OTHER_GPUS
from dljob.spec.variables import RankVariable, StoreVariable, TorchVariable

FORK_SAFE_PACKAGES = {
    *("PIL", "accelerate", "aiohttp", "datasets", "einops", "evaluate", "fsspec", "httpx", "huggingface_hub", "hydra"),
    *("jinja2", "matplotlib", "networkx", "numpy", "omegaconf", "packaging", "pandas", "peft", "psutil", "pyarrow"),
    *("pydantic", "regex", "requests", "rich", "safetensors", "scipy", "sentencepiece", "sklearn", "sympy"),
    *("tensorboard", "tensordict", "tiktoken", "tokenizers", "torch", "tqdm", "transformers", "trl", "yaml"),
}
"""Packages that may be imported before a fork: importing them starts no thread or process, opens no file or device,
handles no signal and asks for no variable of a rank. Lightning and torchmetrics, for example, ask for LOCAL_RANK."""
OUTPUT_BYTES = 16_000
"""The most of what imports print that is kept for the ranks' logs."""
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep a library from starting a thread when it is loaded, set only during the imports.

pyarrow, which `datasets` and so most fine-tuning scripts import, carries a jemalloc with a thread that gives memory
back to the kernel in the background; without it that is done in the threads that free memory.
"""
RANK_VARIABLES = frozenset(
    {
        *(*get_args(RankVariable), *get_args(TorchVariable), *get_args(StoreVariable)),
        *("ROLE_NAME", "TORCHELASTIC_RUN_ID"),
        *(device.visible_env for device in DEVICES.values() if device.visible_env),
        *OTHER_GPUS,
    }
)
"""Variables that a rank has and its fork server has not, or has otherwise."""
_THREADS = "/proc/self/task"


class EarlyImports:
    """The result of the imports."""

    def __init__(self, stop_reason: str = "") -> None:
        self.packages: list[str] = []
        """The packages that the script imports first, as far as they were imported."""
        self.import_count = 0
        """How many of the script's imports that were, from the first on."""
        self.stop_reason = stop_reason
        """Why the next one was not done; empty where all were."""
        self.output = b""
        """What the imports printed."""
        self.unfit = False
        """Whether no rank may go on in a fork of this process."""


def import_early(preload: Mapping[str, Any], announce: Callable[[str], None]) -> EarlyImports:
    """Import the modules of a `Preload`, and what the script begins with, up to what fails or may not be done here.

    `announce` gets the name of each module or package before it is imported.
    """
    early, drivers = EarlyImports(preload["failure"]), device_drivers.loaded()
    names: list[str] = []
    problem = ""

    def begin(name: str) -> None:
        names.extend([name] * (name not in names))
        announce(name)

    with _watch_environment() as reads:
        for module in preload["modules"]:
            begin(module)
            with contextlib.suppress(Exception):  # the rank's import of it raises the error again, with its traceback
                importlib.import_module(module)
        # A rank that is forked with a driver may find no device.
        if preload["imports"] and not reads and not device_drivers.loaded() - drivers:
            problem = _import_as_script(preload, early, begin)
    if loaded := device_drivers.loaded() - drivers:
        problem = f"loaded {min(loaded)}"
    elif reads:
        problem = f"read {reads[0]}"
    if problem:
        early.stop_reason = f"importing {', '.join(names)} has {problem}, which is not to be forked"
        early.packages, early.import_count, early.unfit = [], 0, True
    return early


def _import_as_script(preload: Mapping[str, Any], early: EarlyImports, begin: Callable[[str], None]) -> str:
    """Do the imports of a script as `python script.py` would; return what they left behind, empty for nothing."""
    try:
        os.chdir(preload["code_dir"] or "/")
    except OSError as error:
        early.stop_reason = str(error)
        return ""
    threads = len(os.listdir(_THREADS))  # noqa: PTH208 - only their number is wanted
    with _pose_as_script(preload["first"], preload["script"]), _capture_output(early):
        for name, names in preload["imports"]:
            package = name.partition(".")[0]
            if package not in FORK_SAFE_PACKAGES:
                early.stop_reason = f"{package} is not on the list of packages that may be imported before a fork"
                break
            begin(package)
            if not _is_installed(package):
                early.stop_reason = f"{package} is not in site-packages, and may change"
                break
            try:
                __import__(name, fromlist=tuple(names))
            except BaseException as error:  # noqa: BLE001 - the rank's import raises it again, with its traceback
                early.stop_reason = f"{package}: {type(error).__name__}: {error}"
                break
            early.packages += [package] * (package not in early.packages)
            early.import_count += 1
    _end_pools_of_threads()
    if len(os.listdir(_THREADS)) > threads:  # noqa: PTH208
        return "started a thread"
    return "" if descendants.childless() else "started a process"


@contextlib.contextmanager
def _watch_environment() -> Generator[list[str]]:
    """Yield a list that gets each read of a rank's variable, and by which module: "RANK (in lightning.fabric)".

    The host's own values of them are away meanwhile: a package that only copies the environment reads none. What C code
    reads by `getenv` is not noticed.
    """
    reads: list[str] = []
    environ: Any = type(os.environ)
    read_variable = environ.__getitem__
    host_values = {name: os.environ.pop(name) for name in RANK_VARIABLES.intersection(os.environ)}

    def note_read(self: Any, name: Any) -> Any:
        if isinstance(name, (str, bytes)) and os.fsdecode(name) in RANK_VARIABLES:
            reads.append(f"{os.fsdecode(name)} (in {_find_reader()})")
        return read_variable(self, name)

    environ.__getitem__ = note_read
    try:
        yield reads
    finally:
        environ.__getitem__ = read_variable
        for name, value in host_values.items():
            os.environ.setdefault(name, value)


def _find_reader() -> str:
    """Return the module that reads a variable, behind the functions of `os.environ`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "os", "collections.abc"):
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def _end_pools_of_threads() -> None:
    """Fork once: at a fork OpenBLAS, which numpy and torch bring, ends its threads, and starts them again when used."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@contextlib.contextmanager
def _pose_as_script(first: str, script: str) -> Generator[None]:
    """Have `__main__`, the import path and QUIET as an imported module is to find them."""
    main, quiet = sys.modules["__main__"], {name: value for name, value in QUIET.items() if name not in os.environ}
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["__main__"].__file__ = str(Path(first, Path(script).name))
    sys.path.insert(0, first)
    os.environ.update(quiet)
    try:
        yield
    finally:
        for name in quiet:
            os.environ.pop(name, None)
        with contextlib.suppress(ValueError):
            sys.path.remove(first)
        # What a finder has seen of the user's folders may be out of date when a rank looks there.
        for path in [path for path in list(sys.path_importer_cache) if not _is_of_package(path)]:
            del sys.path_importer_cache[path]
        sys.modules["__main__"] = main


def _is_installed(package: str) -> bool:
    """Whether all of a package is where packages are installed: only such files do not change between two lives."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
    return all(map(_is_of_package, filter(None, places)))


def _is_of_package(path: str) -> bool:
    """Whether a file belongs to a package that was installed, or to Python itself."""
    if {"site-packages", "dist-packages"}.intersection(Path(path).parts):
        return True
    return any(Path(path).is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


@contextlib.contextmanager
def _capture_output(early: EarlyImports) -> Generator[None]:
    """Collect what is printed meanwhile."""
    with os.fdopen(os.memfd_create("dljob-output", os.MFD_CLOEXEC), "w+b") as file:
        streams = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # closed by an import: then nothing of it waits there
                sys.stdout.flush()
                sys.stderr.flush()
                ctypes.CDLL(None).fflush(None)
            for number, stream in zip((1, 2), streams, strict=True):
                os.dup2(stream, number)
                os.close(stream)
            file.seek(0)
            early.output = file.read(OUTPUT_BYTES)
