"""The life of `dljob run`: checks, an embedded Ray, the job, its end, and an orderly way out of each of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.api.handle import check_code_dir, check_wanted
from dljob.cli import chaos, output, watch
from dljob.cli.live import screen
from dljob.errors import ExitCode, UnreachableError
from dljob.plan.plan import plan
from dljob.plan.targets import load_faults

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from dljob.api.handle import JobHandle
    from dljob.cli.live import Screen
    from dljob.runtime.embedded import EmbeddedRay
    from dljob.runtime.inflict import Inflictor
    from dljob.spec.model import DLJobManifest

STOP_S = 20.0
"""How long a job may take to stop after Ctrl-C before its Ray is ended under it."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM reached `dljob run`."""


class RayDied(BaseException):
    """The embedded Ray ended under the job."""


class Runner:
    """One `dljob run`."""

    def __init__(
        self,
        manifest: DLJobManifest,
        code_dir: Path,
        *,
        faults: Path | None = None,
        pretend: tuple[str, ...] = (),
        form: output.DataFormat = "json",
    ) -> None:
        from dljob.runtime.backend import chosen, known
        from dljob.runtime.machine import devices_here, lay_out, oversubscribed, parse_pretend

        self._form: output.DataFormat = form
        self._manifest = manifest
        check_wanted(self._manifest)
        asked = self._manifest.spec.backend
        known(chosen(None, asked.name if asked else None))  # before any Ray is started
        self._plan = plan(self._manifest)
        self._faults = load_faults(faults, self._plan) if faults else None
        self._nodes = lay_out(tuple(self._plan.node_groups.values()), parse_pretend(pretend), devices_here())
        self._code_dir = code_dir
        check_code_dir(self._code_dir)
        self._deaths: list[str] = []
        self._handle: JobHandle | None = None
        note = oversubscribed(self._nodes, len(os.sched_getaffinity(0)))
        if note:
            output.say(note)

    def run(self) -> int:
        """Start, watch, and take down; the exit code."""
        from dljob.runtime.embedded import EmbeddedRay, send_signal_on_death

        registry.check_home()
        listen()
        try:
            with EmbeddedRay(self._nodes, on_death=send_signal_on_death(self._deaths)) as ray:
                try:
                    return self._job(ray)
                except Interrupted:
                    return self._stop()
        except Interrupted:
            return self._say_interrupted()
        except RayDied:
            raise UnreachableError(
                f"Ray ended under the job: {self._deaths[0]}", hint=f"journal and logs: {self._folder()}"
            ) from None

    def _job(self, ray: EmbeddedRay) -> int:
        from dljob.api.handle import submit

        handle = self._handle = submit(
            self._manifest,
            address=ray.address,
            code_dir=self._code_dir,
            environment=ray.environment(),
            runner=os.getpid(),
            record=self._registered,
        )
        inflictor = self._inflictor(handle)
        with self.screen(handle) as shown:
            look = None if inflictor is None else chaos.Looking(inflictor, shown.say)
            try:
                status = watch.watch(handle.connection, shown, look)
            finally:
                if inflictor is not None:
                    inflictor.close()
        extra = {} if inflictor is None else inflictor.finish(status)
        return self.finish(handle, status, extra) or chaos.verdict(extra)

    def screen(self, handle: JobHandle) -> AbstractContextManager[Screen]:
        """What shows the job."""
        return screen(handle.name)

    def finish(self, handle: JobHandle, status: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
        """The last words; the exit code."""
        return watch.finish(handle, status, self._form, extra)

    def _registered(self, record: registry.JobRecord) -> registry.JobRecord:
        listen()  # ray.init put a SIGTERM handler of its own in place of ours
        made = registry.register(record)
        count = len(self._nodes)
        raylets = f"{count} raylet{'s' if count > 1 else ''}"
        output.say(f"job {made.name} ({made.uid[:8]}) on {raylets}; folder: {made.dir}")
        return made

    def _inflictor(self, handle: JobHandle) -> Inflictor | None:
        if self._faults is None:
            return None
        from dljob.runtime.harm import raylets_here
        from dljob.runtime.inflict import Inflictor

        address = handle.record.address
        return Inflictor(self._faults, self._plan, handle.connection, raylets=lambda: raylets_here(address))

    # --- ways out

    def _stop(self) -> int:
        """Stop the job in order; a second signal, or STOP_S, ends its Ray under it."""
        handle = self._handle
        if handle is None:
            return self._say_interrupted()
        output.say(f"stopping {handle.name}; once more to kill it")
        try:
            handle.stop()
            end = time.monotonic() + STOP_S
            while not handle.record.over and time.monotonic() < end:
                handle.connection.status(2**53, 0.5)
        except (Interrupted, UnreachableError):
            pass
        return self._say_interrupted()

    def _say_interrupted(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # nothing is left to stop but the Ray, which takes 0.2 s
        if self._handle is not None:
            output.say(f"interrupted; the journal is in {self._folder() / 'journal'}")
            output.say(f"what the job saved (its checkpoints) is in {self._folder()}")
        return ExitCode.INTERRUPTED

    def _folder(self) -> Path:
        return self._handle.dir if self._handle is not None else registry.home()


def listen() -> None:
    """Let Ctrl-C, SIGTERM and the news of Ray's death be exceptions in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGUSR1, _ray_died)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _ray_died(_number: int, _frame: FrameType | None) -> None:
    raise RayDied
