"""The imports with which a script begins, done once in its fork server, for all ranks and lives.

A forked process has no other threads, and shares connections, devices and open files with its parent. So only packages
of a list are imported here, and none behind the first that is not listed: a package may patch the next one. A version
that leaves behind what a fork would break is noticed afterwards: then each rank begins in a fresh interpreter.

Only the standard library is needed here: the role's interpreter may be another one than dljob's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType

from dljob.linux import descendants, device_drivers

FORKED = {
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
_THREADS = "/proc/self/task"

Imports = Sequence[tuple[str, Sequence[str]]]


class EarlyImports:
    """What became of the imports."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        """The packages that were imported."""
        self.done = 0
        """How many of the script's imports that were, from the first on."""
        self.left = ""
        """Why the next one was not; empty where all were done."""
        self.said = b""
        """What they printed."""
        self.unfit = ""
        """What they left behind that a fork would break; empty where it is nothing."""


def keep(imports: Imports, first: str, script: str, code_dir: str) -> EarlyImports:
    """Do the imports of a script as `python script.py` would, up to the first that fails or may not be done here."""
    notes = EarlyImports()
    if not imports:
        return notes
    try:
        os.chdir(code_dir or "/")
    except OSError as error:
        notes.left = str(error)
        return notes
    drivers, threads = device_drivers.loaded(), len(os.listdir(_THREADS))  # noqa: PTH208 - only their number is wanted
    with _as_script(first, script), _capture_output(notes):
        for name, names in imports:
            package = name.partition(".")[0]
            if package not in FORKED:
                notes.left = f"{package} is not on the list of packages that may be imported before a fork"
                break
            if not _is_installed(package):
                notes.left = f"{package} is not in site-packages, and may change"
                break
            try:
                __import__(name, fromlist=tuple(names))
            except BaseException as error:  # noqa: BLE001 - the rank's own import raises it again, with its traceback
                notes.left = f"{package}: {type(error).__name__}: {error}"
                break
            notes.kept += [package] * (package not in notes.kept)
            notes.done += 1
    _end_pools_of_threads()
    if len(os.listdir(_THREADS)) > threads:  # noqa: PTH208
        notes.unfit = "started a thread"
    elif not descendants.childless():
        notes.unfit = "started a process"
    elif loaded := device_drivers.loaded() - drivers:
        notes.unfit = f"loaded {min(loaded)}"
    return notes


def _end_pools_of_threads() -> None:
    """Fork once: at a fork OpenBLAS, which numpy and torch bring, ends its threads, and starts them again when used."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@contextlib.contextmanager
def _as_script(first: str, script: str) -> Generator[None]:
    """Have `__main__`, the import path and QUIET as an imported module is to find them."""
    main, missing = sys.modules["__main__"], {name: value for name, value in QUIET.items() if name not in os.environ}
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["__main__"].__file__ = str(Path(first, Path(script).name))
    sys.path.insert(0, first)
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
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
def _capture_output(notes: EarlyImports) -> Generator[None]:
    """Keep what is printed meanwhile."""
    with os.fdopen(os.memfd_create("dljob-output", os.MFD_CLOEXEC), "w+b") as file:
        before = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # closed by an import: then nothing of it waits there
                sys.stdout.flush()
                sys.stderr.flush()
                ctypes.CDLL(None).fflush(None)
            for number, kept in zip((1, 2), before, strict=True):
                os.dup2(kept, number)
                os.close(kept)
            file.seek(0)
            notes.said = file.read(OUTPUT_BYTES)
