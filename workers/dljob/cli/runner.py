"""Lifecycle of `dljob run`: checks, an embedded Ray, the job, its end, and an orderly way out of each of them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from dljob.api import registry
from dljob.api.handle import INTERRUPTED_START, announce_start, check_code_dir, refuse_suspended
from dljob.api.local.final_status import AbruptEnd, ray_end, write_end
from dljob.api.local.lost_nodes import LostNodes
from dljob.api.next_attempt import newest_step, next_attempt, offer, program_of
from dljob.cli import chaos, output, watch
from dljob.cli.live import screen
from dljob.cli.progress import outcome_line
from dljob.cli.rank_output import EVERYTHING, Shown
from dljob.errors import DLJobError, ExitCode, UnreachableError
from dljob.plan.plan import plan
from dljob.plan.targets import load_faults
from dljob.telemetry import reasons
from dljob.telemetry.process_ends import describe_end
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from dljob.api.handle import JobHandle
    from dljob.cli.live import Screen
    from dljob.runtime.backend.embedded import EmbeddedRay
    from dljob.runtime.faults.injector import FaultInjector
    from dljob.spec.model import DLJobManifest
    from dljob.telemetry.process_ends import ProcessEnd

STOP_S = 20.0
"""Time, in seconds, for a job to stop after Ctrl-C before its Ray is ended."""
ONCE_S = 1.0
"""Time, in seconds, within which signals count as one.

`timeout` sends SIGTERM to the process and to its group; a shell that ends sends SIGHUP in addition to the kernel's."""
SIGNALS = {
    "SIGINT": "Ctrl-C (SIGINT)",
    "SIGTERM": "SIGTERM, as kill, timeout and the end of a session send it",
    "SIGHUP": "SIGHUP, as a terminal sends it that is closed",
}
"""Signal that stops the job -> who that may have been."""


class Interrupted(BaseException):
    """A signal reached `dljob run`: its argument is SIGINT (Ctrl-C), SIGTERM or SIGHUP."""


class RayDied(BaseException):
    """The embedded Ray ended before the job."""


class Runner:
    """One `dljob run`."""

    _can_resume: ClassVar[bool] = True
    """Whether it goes on with an ended job: its command line takes `--resume`."""

    imports_code: ClassVar[bool] = True
    """Whether Ray's workers import user code."""

    def __init__(
        self,
        manifest: DLJobManifest,
        code_dir: Path,
        *,
        faults: Path | None = None,
        pretend: tuple[str, ...] = (),
        form: output.DataFormat = "json",
        shown: Shown = EVERYTHING,
        replace: bool | None = False,
        resume: str | None = None,
        is_numbered: bool = False,
    ) -> None:
        from dljob.runtime.backend.interface import chosen, entry_point_of
        from dljob.runtime.backend.machine import (
            cpus_here,
            devices_here,
            lay_out,
            machines_here,
            oversubscribed,
            parse_pretend,
            size_notes,
        )

        self._begun = time.monotonic()
        # Everything that can be wrong is found here, before a Ray starts, which takes about 3 s.
        self._form: output.DataFormat = form
        self._replace, self._is_numbered = replace, is_numbered
        self._resume = resume
        self._manifest = manifest
        shown.check(manifest)
        self._shown = shown
        refuse_suspended(self._manifest)
        asked = self._manifest.spec.backend
        entry_point_of(
            chosen(None, asked.name if asked else None)
        )  # an unknown backend fails before any Ray is started
        self._plan = plan(self._manifest)
        self._faults = load_faults(faults, self._plan) if faults else None
        declared, devices = parse_pretend(pretend), devices_here()
        machines = machines_here(self._plan, declared, devices)
        self._nodes = lay_out(machines, declared, devices)
        self._code_dir = code_dir
        check_code_dir(self._code_dir)
        # Filled by the thread that watches Ray's processes, before its signal.
        self._deaths: list[ProcessEnd] = []
        self._start: registry.RegistryEntry | None = None
        """By which other terminals see and stop the start; None: it is over."""
        self._record: registry.RegistryEntry | None = None
        self._handle: JobHandle | None = None
        """The job, once its PrimeMaster answers."""
        self._has_stopped = False
        """Whether the job was stopped in order, or that was tried."""
        self._end: AbruptEnd | None = None
        self._last_status: Mapping[str, Any] | None = None
        """What PrimeMaster answered last, as its job ended or was being stopped."""
        self._stopped_by = "its command"
        """How the job ended where PrimeMaster could not end it."""
        shared = oversubscribed(self._plan.node_groups.values(), cpus_here())
        for note in (*filter(None, [shared]), *size_notes(self._plan, machines)):
            output.say(note)

    def run(self) -> int:
        """Start the job, watch it, and take everything down; return the exit code."""
        # No Ray for a job whose folder could not be made.
        registry.check_home()
        # Before `listen`: Ctrl-C while a namesake is being stopped just ends the command.
        name = self._manifest.metadata.name
        with announce_start(name, replace=self._replace, is_numbered=self._is_numbered) as self._start:
            metadata = self._manifest.metadata.model_copy(update={"name": self._start.name})
            self._manifest = self._manifest.model_copy(update={"metadata": metadata})
            listen()
            try:
                self._say_where_it_begins()
                return self._run_started()
            except Interrupted:
                return self._say_interrupted()
            except RayDied:
                raise UnreachableError(
                    f"Ray ended before the job: {describe_end(self._deaths[0])}",
                    hint=f"see dljob why {self._name()}; journal and logs, also those of Ray: {self._folder()}",
                ) from None
            except Exception as error:
                self._end = AbruptEnd("Failed", reasons.RUNNER_FAILED, f"dljob run failed: {error}", at=time.time())
                raise
            finally:
                if self._record is not None:
                    # Nothing of the job is left. PrimeMaster may have died with its Ray before it could write a final
                    # status or remove its socket.
                    write_end(self._record, self._end or self._killed(), self._last_status)
                    registry.close_socket(self._record)

    def _run_started(self) -> int:
        """Run the job on a Ray of its own; return the exit code once nothing of that Ray is left."""
        from dljob.api.handle import submit
        from dljob.runtime.backend.embedded import EmbeddedRay, send_signal_on_death

        # These handlers run while the Ray lives, and can stop the job in order; those of the caller after its end.
        with self._started(EmbeddedRay(self._nodes, on_death=send_signal_on_death(self._deaths))) as ray:
            try:
                with self._telling("starting the job's PrimeMaster"):
                    try:
                        handle = self._handle = submit(
                            self._manifest,
                            address=ray.address,
                            code_dir=self._code_dir,
                            environment=ray.environment(),
                            runner=os.getpid(),
                            record=self._registered,
                            replace=self._replace,
                            imports_code=self.imports_code,
                            resume=self._resume,
                            uid=self._start.uid if self._start else "",
                        )
                    except DLJobError as error:
                        if not isinstance(error, UnreachableError):
                            self._record = None  # refused: its entry is gone, or is that of the attempt before it again
                        raise
                inflictor = self._inflictor(handle)
                with self.screen(handle) as shown, self._shown.beside(shown, handle.dir):
                    participants: list[watch.WatchParticipant] = [LostNodes(ray, shown.say)]
                    if inflictor is not None:
                        participants.append(chaos.Looking(inflictor, shown.say))
                    try:
                        status = self._watch(handle, shown, participants)
                    finally:
                        if inflictor is not None:
                            # A fault may have paused processes; they must not stay so after the command.
                            inflictor.close()
                extra = {} if inflictor is None else inflictor.finish(status)
                # A failed job counts first; a job that succeeded may still have reacted in another way than expected.
                return self.finish(handle, status, extra) or chaos.verdict(extra)
            except Interrupted as interruption:
                return self._stop(interruption)
            except RayDied:
                self._end = ray_end(self._deaths[0], ray.folder, self._folder(), time.time())
                raise
            except OSError:  # a pipe or terminal was closed, and our output has no reader any more
                # The job may have ended already: then only its outcome could not be printed.
                if self._record is None or not self._record.over:
                    self._stop()
                raise

    @contextmanager
    def _started(self, ray: EmbeddedRay) -> Generator[EmbeddedRay]:
        """Run the block with a started Ray, and say meanwhile that it starts."""
        with ExitStack() as stack:
            with self._telling(f"starting Ray: a head and {counted(len(self._nodes), 'raylet')}"):
                started_ray = stack.enter_context(ray)
            yield started_ray

    @contextmanager
    def _telling(self, activity: str) -> Generator[None]:
        """Say what the block does, here and to those who ask for the job from another terminal."""
        if self._start is not None:
            registry.write_activity(self._start, activity)
        with output.telling(activity):
            yield

    def _watch(
        self, handle: JobHandle, shown: Screen, participants: Sequence[watch.WatchParticipant]
    ) -> Mapping[str, Any]:
        """Watch the job to its end. A signal stops it while the display is open: ranks print in their handlers."""
        try:
            self._last_status = watch.watch(handle.connection, shown, participants)
        except Interrupted as interruption:
            self._stop_job(interruption)
            raise
        return self._last_status

    def screen(self, handle: JobHandle) -> AbstractContextManager[Screen]:
        """Return the screen for the job."""
        has_torch = any(role.comm_backend for role in self._plan.roles.values())
        return screen(handle.name, self._begun, uncompiled("torch") if has_torch else "")

    def finish(self, handle: JobHandle, status: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
        """Print the outcome and return the exit code."""
        return watch.finish(handle, status, self._form, extra)

    def _registered(self, record: registry.RegistryEntry) -> registry.RegistryEntry:
        listen()  # ray.init has replaced our SIGTERM handler by its own
        entry = self._register(record)
        raylets = counted(len(self._nodes), "raylet")
        output.say(f"job {entry.name} ({entry.uid[:8]}) on {raylets}; folder: {entry.dir}")
        return entry

    def _register(self, record: registry.RegistryEntry) -> registry.RegistryEntry:
        """Write the job's entry, which takes the place of that of its start."""
        begun_job = registry.register(record) if self._start is None else registry.register_begun(record, self._start)
        self._record, self._start = begun_job, None
        return begun_job

    def _say_where_it_begins(self) -> None:
        """Say from which checkpoint the job goes on, or could go on.

        Raises:
            DLJobError: it is to go on, and cannot.
        """
        name, program = self._manifest.metadata.name, program_of(self._manifest, self._code_dir)
        if self._resume is not None:
            after = next_attempt(name, self._resume, program=program)
            output.say(f"attempt {after.number} of job {name} ({after.record.uid[:8]}) goes on from step {after.step}")
        elif self._can_resume and (words := offer(name, program)):
            output.say(words)

    def _inflictor(self, handle: JobHandle) -> FaultInjector | None:
        if self._faults is None:
            return None
        from dljob.runtime.faults.injector import FaultInjector
        from dljob.runtime.faults.signals import raylets_here

        address = handle.record.address
        return FaultInjector(self._faults, self._plan, handle.connection, raylets=lambda: raylets_here(address))

    # --- ways out

    def _stop(self, interruption: Interrupted | None = None) -> int:
        """Stop the job in order unless that was tried already, and return the exit code."""
        if not self._has_stopped:
            self._stop_job(interruption)
        return self._say_interrupted()

    def _stop_job(self, interruption: Interrupted | None) -> None:
        """Stop the job in order; a second signal, or STOP_S, ends its Ray with it."""
        self._has_stopped, handle = True, self._handle
        self._stopped_by = SIGNALS.get(str(interruption), "its command, whose output nobody reads any more")
        if handle is None:
            return
        # Also where PrimeMaster does not answer, as while the journal's disk hangs.
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, STOP_S)
        output.say_if_open(f"stopping {handle.name}; once more to kill it")
        try:
            handle.connection.command("stop", "job", by=self._stopped_by)
            while not handle.record.over:
                # A version that never comes: wait half a second.
                self._last_status = handle.connection.status(2**53, 0.5)
        # A second signal, or a PrimeMaster that is gone: leaving the Ray's context ends all its processes.
        except (Interrupted, UnreachableError):
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if handle.record.over:
            output.say_if_open(f"job {handle.name} {outcome_line(handle.record.status())}")

    def _say_interrupted(self) -> int:
        for number in map(signal.Signals.__getitem__, SIGNALS):
            signal.signal(number, signal.SIG_IGN)  # only the Ray is left to stop, which takes 0.2 s
        if self._record is None:
            output.say_if_open(INTERRUPTED_START)
        elif self._handle is None:
            output.say_if_open(f"interrupted while the job started; its folder: {self._folder()}")
        else:
            output.say_if_open(f"interrupted; the journal is in {self._folder() / 'journal'}")
        if self._record is not None and self._can_resume and newest_step(self._folder()) is not None:
            output.say_if_open("to go on from its last checkpoint: the same command with --resume")
        # Also when the job stopped in order: the command did not watch it to its own end.
        return ExitCode.INTERRUPTED

    def _folder(self) -> Path:
        return self._record.folder if self._record is not None else registry.home()

    def _name(self) -> str:
        return self._manifest.metadata.name if self._record is None else self._record.uid[:8]

    def _killed(self) -> AbruptEnd:
        """Return the end of a job that was asked to stop, and killed before it had stopped."""
        kill = "its processes were killed, as it had not ended when it was to end"
        message = f"stopped by {self._stopped_by}{f'; {kill}' if self._handle else ' while it started'}"
        return AbruptEnd("Stopped", reasons.STOPPED, message, at=time.time(), is_failure=False)


def uncompiled(package: str) -> str:
    """Return a sentence about a package whose bytecode its first import is to make; empty: it is there."""
    spec = find_spec(package)
    if spec is None or spec.cached is None or Path(spec.cached).exists():
        return ""
    return f"{package} is compiled by its first import here: python -m compileall -q {Path(spec.cached).parents[1]}"


_signal_at = -ONCE_S
"""Time of the last signal."""


def listen() -> None:
    """Turn Ctrl-C, SIGTERM, SIGHUP and the death of Ray into exceptions in the main thread.

    SIGHUP stays ignored if it was (`nohup`).
    """
    global _signal_at  # noqa: PLW0603 - signals belong to the process
    # Begin anew: a signal of earlier handlers must not count as the first of two.
    _signal_at = -ONCE_S
    for number in map(signal.Signals.__getitem__, SIGNALS):
        # `nohup dljob run` must survive the end of its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    # Another thread notices the death of a raylet; only a signal interrupts the main thread, which waits.
    signal.signal(signal.SIGUSR1, _ray_died)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    global _signal_at
    before, _signal_at = _signal_at, time.monotonic()
    if _signal_at - before >= ONCE_S:
        raise Interrupted(signal.Signals(number).name)


def _ray_died(_number: int, _frame: FrameType | None) -> None:
    raise RayDied
