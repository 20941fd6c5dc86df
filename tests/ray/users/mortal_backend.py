"""Ray, under a master that dies: once at each point that it comes to, or at chosen ones.

A point is the moment before or after something that lasts: an append to the journal (by the kinds of its records, and
once in the middle), and whatever is asked of Ray (by the method and whom it is about). Options: `where`, a folder, in
which each point that somebody came to leaves a file in `points`; `at`, the points to die at, as patterns of file names;
`how`, a signal: SIGKILL, or SIGSTOP where two masters are to meet; `upgraded`: each master is of another version, as
far as its journal tells; `lost`: a file, while which is there each order to end a PrimeMaster is lost on its way.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ray

from dljob.runtime.backend.interface import ActorRef, ActorSpec
from dljob.runtime.backend.ray_backend import RayBackend
from dljob.runtime.controller import prime
from dljob.runtime.journal.stores import FileStore

ASKED = (
    "nodes",
    "reserve",
    "release",
    "reservations",
    "spawn",
    "lookup",
    "call",
    "kill",
    "actors",
    "clear_drivers",
    "asked_groups",
)
KEYS = ("put", "put_if_absent", "delete")
MASTER = r"/master(/2)?$"
KINDS = {"master": MASTER, "agent": r"/agent/", "saver": r"/saver", "spare": r"/spare-", "store": r"/store/"}


class MortalBackend(RayBackend):
    """Ray as it is; but a master in whose process it is made dies at points."""

    name = "ray-mortal"

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({})
        if options.get("lost"):
            self.kill = _lost(Path(options["lost"]), self.kill)
        me = ray.get_runtime_context()
        if me.get_actor_id() and re.search(MASTER, me.get_actor_name()):
            self._make_mortal(Deaths(Path(options["where"]), options["at"], signal.Signals[options["how"]]))
            if options.get("upgraded"):
                prime.code_version = lambda: f"of process {os.getpid()}"

    def _make_mortal(self, deaths: Deaths) -> None:
        for method in ASKED:
            setattr(self, method, _mortal(deaths, method, getattr(self, method)))
        for method in KEYS:
            setattr(self.kv, method, _mortal(deaths, f"kv.{method}", getattr(self.kv, method)))
        _watch_appends(deaths)


class Deaths:
    """Where this master dies, and how."""

    def __init__(self, folder: Path, at: Sequence[str], how: signal.Signals) -> None:
        self._folder = folder / "points"
        self._at = at
        self._how = how
        self._folder.mkdir(parents=True, exist_ok=True)

    def here(self, *points: str, first: Callable[[], None] = lambda: None) -> None:
        """Die, unless nobody is to die at these points, or somebody did before; do something first."""
        if sum(self._counts(point) for point in points):  # all of them, and not only up to the first
            first()
            os.kill(os.getpid(), self._how)

    def _counts(self, point: str) -> bool:
        try:
            os.close(os.open(self._folder / point, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return any(fnmatch(point, pattern) for pattern in self._at)


def _mortal(deaths: Deaths, method: str, real: Any) -> Any:
    async def call(*args: Any) -> Any:
        what = ".".join((method, *_about(args)))
        deaths.here(f"{what}-before")
        answer = await real(*args)
        deaths.here(f"{what}-after")
        return answer

    return call


def _lost(file: Path, real: Any) -> Any:
    def kill(ref: ActorRef) -> Awaitable[None]:
        return asyncio.sleep(0) if file.exists() and re.search(MASTER, ref.name) else real(ref)

    return kill


def _about(args: tuple[Any, ...]) -> Iterator[str]:
    """Whom a call is about, and which method of theirs is called."""
    if args and isinstance(args[0], (ActorRef, ActorSpec)):
        yield next((kind for kind, name in KINDS.items() if re.search(name, args[0].name)), "host")
        yield from map(str, args[1:2])


def _watch_appends(deaths: Deaths) -> None:
    real = FileStore._append

    def append(self: FileStore, epoch: int, data: bytes) -> None:
        kinds = sorted({_kind(json.loads(line)["r"]) for line in data.splitlines()})
        deaths.here(*(f"append.{kind}-before" for kind in kinds))
        torn = f"append.{kinds[0].partition('.')[0]}-torn"
        deaths.here(torn, first=lambda: real(self, epoch, data[: len(data) // 2]))
        real(self, epoch, data)
        deaths.here(*(f"append.{kind}-after" for kind in kinds))

    FileStore._append = append  # type: ignore[method-assign]


def _kind(record: Mapping[str, Any]) -> str:
    if record["k"] != "event":
        return record["k"]
    ok = record["e"].get("outcome", {}).get("ok")
    return ".".join(("event", record["e"]["t"], *([] if ok is None else ["well" if ok else "badly"])))
