"""The imports with which a script begins, done once in its fork server, for all ranks and lives.

A forked process has no other threads, and shares connections, devices and open files with its parent. So each package
is imported by a child first. If that left nothing behind which a fork would break, the child takes the server's place;
otherwise the child ends, and the server goes on without this package and all that come after it in the script. So what
ranks find imported is always the beginning of what the script itself would have imported, in its order.

Only the standard library is needed here: the role's interpreter may be another one than dljob's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import mmap
import os
import select
import signal
import struct
import sys
import sysconfig
import time
from collections.abc import Generator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dljob.linux import descendants, device_drivers

STILL_S = 20.0
"""Seconds, asleep or of processor time, without a new module, after which an import counts as one that hangs."""
TOTAL_S = 240.0
"""Seconds for all imports together, on a machine however busy: the ranks wait for them."""
SAID_BYTES = 16_000
"""The most of what imports print that is kept for the ranks' logs."""
HANDED_ON = 75
"""Exit code of a server whose child has taken its place."""
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that keep a library from starting a thread when it is loaded, set only during the imports.

pyarrow, which `datasets` and so most fine-tuning scripts import, carries a jemalloc with a thread that gives memory
back to the kernel in the background; without it that is done in the threads that free memory.
"""
OF_A_RANK = ("DLJOB_", "GROUP_", "LOCAL_", "MASTER_", "RANK", "ROLE_", "TORCHELASTIC_", "WORLD_SIZE")
"""How the names of variables begin that only a rank has: a module that asks for one when it is imported has to wait."""
NOT_FORKED = ("jax", "ray", "tensorflow")
"""Packages whose makers advise against a fork once they are imported."""

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


def keep(imports: Imports, first: str, script: str, code_dir: str, succession: int) -> EarlyImports:
    """Do the imports of a script as `python script.py` would. Returns in a child if any was done.

    Each process that was replaced has written the pid of its successor to `succession`.
    """
    notes, until = EarlyImports(), time.monotonic() + TOTAL_S
    if not imports:
        return notes
    with contextlib.ExitStack() as stack:
        try:
            os.chdir(code_dir or "/")
        except OSError as error:
            notes.left = str(error)
            return notes
        stack.enter_context(_as_script(first, script))
        for package, group in itertools.groupby(imports, lambda each: each[0].partition(".")[0]):
            listed = list(group)
            if not all(_is_done(name, names) for name, names in listed):
                notes.left = _unfit(package) or _try(listed, notes, until, succession)
                if notes.left:
                    break
                notes.kept += [package] * (package not in notes.kept)
            notes.done += len(listed)
    return notes


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
        for path in [path for path in sys.path_importer_cache if not _installed(path)]:
            del sys.path_importer_cache[path]
        sys.modules["__main__"] = main


def _is_done(name: str, names: Sequence[str]) -> bool:
    there = sys.modules.get(name)
    return there is not None and all(each in vars(there) for each in names)


def _unfit(package: str) -> str:
    """Say why a package is left to the ranks without a try: only installed ones do not change between two lives."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        return f"{package} cannot be found ({error})"
    if spec is None:
        return f"there is no {package}"
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
    return "" if all(map(_installed, filter(None, places))) else f"{package} is not in site-packages, and may change"


def _installed(path: str) -> bool:
    """Whether a file belongs to a package that was installed, or to Python itself."""
    if {"site-packages", "dist-packages"}.intersection(Path(path).parts):
        return True
    return any(Path(path).is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _try(imports: Imports, notes: EarlyImports, until: float, succession: int) -> str:
    """Import in a child, which returns "" if it may take this process's place; here return why it may not."""
    package = imports[0][0].partition(".")[0]
    reader, writer = os.pipe()
    begun = mmap.mmap(-1, struct.calcsize("q"))
    me = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return f"{package} was not tried: {error}"
    if pid == 0:
        try:
            os.close(reader)
            _succeed(imports, notes, _Attempt(writer, begun), me)
        except BaseException:  # noqa: BLE001 - a second copy of the fork server must not run on
            os._exit(1)
        os.close(writer)
        return ""
    os.close(writer)
    # Children of the child, should it end before them, are this process's to end.
    descendants.prctl(descendants.PR_SET_CHILD_SUBREAPER, 1)
    said = _verdict(pid, reader, begun, until)
    if said == "+":
        os.write(succession, struct.pack("i", pid))
        os._exit(HANDED_ON)
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    descendants.kill_all()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    descendants.prctl(descendants.PR_SET_CHILD_SUBREAPER, 0)
    return f"{package}: {said or _ended(status)}"


def _succeed(imports: Imports, notes: EarlyImports, attempt: _Attempt, server: int) -> None:
    """In a child: import, and take the server's place. Ends this process where something is left behind."""
    descendants.prctl(descendants.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The server may have died before the line above took effect.
    if os.getppid() != server:
        os._exit(1)
    attempt.run(imports, notes)
    descendants.prctl(descendants.PR_SET_PDEATHSIG, 0)
    attempt.say("+")


def _ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"its import ended the process with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def _verdict(pid: int, reader: int, begun: mmap.mmap, until: float) -> str:
    """Return what a child says of its imports: "+", or why not; empty if it ended without a word."""
    poll, pace = select.poll(), _Pace(time.monotonic())
    poll.register(reader, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poll.poll(1000 * min(left, STILL_S / 10)):
            return os.read(reader, 4096).decode(errors="replace")
        if pace.hangs(time.monotonic(), struct.unpack("q", begun)[0], _processor_s(pid)):
            return f"its import hung for {STILL_S:g} s, and was ended"
    return f"it was not imported within {TOTAL_S:g} s"


def _processor_s(pid: int) -> float:
    """Return the seconds of processor time that a child has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Pace:
    """How an import gets on: one that hangs is told from one that is slow on a busy machine."""

    def __init__(self, now: float) -> None:
        self._moved = now
        self._seen = (0, 0.0)
        self._at_module = 0.0
        """The processor time at the last new module."""

    def hangs(self, now: float, modules: int, processor_s: float) -> bool:
        """Whether it has slept, or worked without a new module, for STILL_S."""
        if modules != self._seen[0]:
            self._at_module = processor_s
        if (modules, processor_s) != self._seen:
            self._seen, self._moved = (modules, processor_s), now
        return now - self._moved >= STILL_S or processor_s - self._at_module >= STILL_S


class _Attempt:
    """Imports in a child, which ends at once where they leave something behind."""

    def __init__(self, writer: int, begun: mmap.mmap) -> None:
        self._writer = writer
        self._begun = begun
        self._count = 0
        self._last = ""
        """The module whose import began last."""

    def run(self, imports: Imports, notes: EarlyImports) -> None:
        """Do the imports; return only if nothing is left behind."""
        with _noise(notes):
            before = _Traces()
            plain, os.environ.__class__ = os.environ.__class__, _watched(self)
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]
            try:
                for name, names in imports:
                    self._last = name
                    __import__(name, fromlist=tuple(names))
            except BaseException as error:  # noqa: BLE001 - the rank's own import raises it again, with its traceback
                self.end(f"{type(error).__name__}: {error}")
            finally:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
                os.environ.__class__ = plain
            self._look_for_threads()
            if left := before.left():
                self.end(f"its import {left}")

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Find no module: as the first finder this hears of each one that is about to be imported."""
        self._count += 1
        struct.pack_into("q", self._begun, 0, self._count)
        self._look_for_threads()
        self._last = name
        return None

    def _look_for_threads(self) -> None:
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - a thousand times: this is the fastest
            self.end(f"{self._last} starts a thread")

    def end(self, why: str) -> NoReturn:
        """End this child, with the reason why the server is not to have these imports."""
        with contextlib.suppress(OSError):
            self.say(why)
        os._exit(1)

    def say(self, word: str) -> None:
        """Send the parent what became of the imports."""
        os.write(self._writer, word.encode(errors="replace")[:1000])


def _watched(attempt: _Attempt) -> type:
    """Return a class for `os.environ` that ends the attempt when a variable is asked for that only ranks have."""

    class WatchedEnviron(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            try:
                return super().__getitem__(key)
            except KeyError:
                if key.startswith(OF_A_RANK):
                    attempt.end(f"its import asks for {key}, which each rank has of its own")
                raise

    return WatchedEnviron


class _Traces:
    """What an import may leave in a process, as it is now."""

    def __init__(self) -> None:
        self._files = _open_files()
        self._drivers = device_drivers.loaded()
        self._signals = _signals()
        self._folder = Path.cwd()
        self._modules = set(sys.modules)

    def left(self) -> str:
        """Say what has been left since; empty where it was nothing."""
        if not descendants.childless():
            return "starts a process"
        if opened := [what for number, what in _open_files().items() if self._files.get(number) != what]:
            return f"leaves {opened[0]} open"
        if device_drivers.loaded() != self._drivers:
            return "looks for accelerators"
        if _signals() != self._signals:
            return "handles a signal"
        if Path.cwd() != self._folder:
            return "changes the working directory"
        new = set(sys.modules) - self._modules
        if found := new.intersection(NOT_FORKED):
            return f"takes {min(found)}, which is not to be forked"
        for name in new:
            # Some modules are objects of another kind, which answer to any name.
            file = getattr(sys.modules[name], "__dict__", {}).get("__file__")
            if isinstance(file, str) and not _installed(file):
                return f"takes {file}, which may change"
        return ""


def _open_files() -> dict[str, str]:
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[each.name] = str(each.readlink())
    return found


def _signals() -> Mapping[str, Any]:
    """Return how this process treats signals, as Python and as the kernel knows it."""
    status = Path("/proc/self/status").read_text().splitlines()
    masks = dict(line.split(":") for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt")))
    return {**masks, **{str(number): signal.getsignal(number) for number in signal.valid_signals()}}


@contextlib.contextmanager
def _noise(notes: EarlyImports) -> Generator[None]:
    """Keep what is printed meanwhile."""
    with os.fdopen(os.memfd_create("dljob-said", os.MFD_CLOEXEC), "w+b") as file:
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
            notes.said = (notes.said + file.read())[:SAID_BYTES]
