"""Session host: the process that holds the embedded Ray of a Python program and runs the program's jobs.

`python -m dljob.api.local.host` reads commands from stdin, one JSON object per line, and answers each on stdout:

    {"do": "submit", "manifest": {...}, "code_dir": "/x", "pretend": {}, "keep": false,
     "replace": false, "resume": null}
    {"do": "close"}

It is a separate process so that the program imports no Ray, may fork, and keeps its signal handlers. It ends when its
work is done: after `close`, after the program's end, or, when it serves one job (`--once`), after that job. Jobs that
still run then are stopped in order, with a last checkpoint, unless they were submitted with `keep`.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.api import registry
from dljob.api.local.lost_nodes import LostNodes
from dljob.errors import DLJobError, JobStoppedError, UnreachableError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.api.local.final_status import AbruptEnd
    from dljob.runtime.backend.embedded import EmbeddedRay
    from dljob.runtime.backend.machine import EmbeddedNode
    from dljob.spec.model import DLJobManifest
    from dljob.telemetry.process_ends import ProcessEnd

log = logging.getLogger(__package__)

STOP_S = 20.0
"""Longest time, in seconds, for jobs to stop before their Ray ends, the same as after Ctrl-C of `dljob run`."""
LOOK_S = 0.2
"""Poll interval for jobs that have ended, in seconds."""


@dataclass(slots=True)
class LocalJob:
    """A job of this host, and the machines started for it."""

    handle: JobHandle
    nodes: list[EmbeddedNode]
    keep: bool


@dataclass(slots=True)
class LocalJobs:
    """One embedded Ray and its jobs."""

    once: bool
    ray: EmbeddedRay | None = None
    idle: list[EmbeddedNode] = field(default_factory=list["EmbeddedNode"])
    """Machines of ended jobs; a later job that plans machines of the same shape reuses them."""
    jobs: list[LocalJob] = field(default_factory=list[LocalJob])
    served: bool = False
    deaths: list[ProcessEnd] = field(default_factory=list["ProcessEnd"])
    """How the GCS or the head's raylet ended, with which all of its Ray ends."""
    ends: list[tuple[LocalJob, AbruptEnd]] = field(default_factory=list[tuple[LocalJob, "AbruptEnd"]])
    """How the jobs ended that ran when their Ray ended."""
    lost_nodes: LostNodes | None = None

    def submit(self, order: Mapping[str, Any], stack: ExitStack) -> dict[str, Any]:
        """Start a job and return its uid and number of machines.

        Raises:
            DLJobError: the job cannot run here.
        """
        from dljob.api.handle import START_ACTIVITY, announce_start, submit
        from dljob.spec.loading.load import parse

        self.look()  # machines of jobs that have ended meanwhile are free for this one
        manifest = parse(order["manifest"])
        with announce_start(manifest.metadata.name, replace=bool(order["replace"])) as start, _interruptible():
            registry.write_activity(start, START_ACTIVITY)
            ray, nodes = self._machines(manifest, dict(order["pretend"]), stack)

            def register(record: registry.RegistryEntry) -> registry.RegistryEntry:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on the job is stopped by an order
                return registry.register_begun(record, start)

            try:
                handle = submit(
                    manifest,
                    address=ray.address,
                    code_dir=Path(order["code_dir"]),
                    record=register,
                    environment=ray.environment(),
                    runner=os.getpid(),
                    resume=order.get("resume"),
                    uid=start.uid,
                )
            except BaseException:
                self.idle += nodes  # they are started by now, and the next job may use them
                raise
        self.served = True
        self.jobs.append(LocalJob(handle, nodes, bool(order["keep"])))
        return {"uid": handle.uid, "nodes": len(nodes)}

    def _machines(
        self, manifest: DLJobManifest, pretend: dict[str, int], stack: ExitStack
    ) -> tuple[EmbeddedRay, list[EmbeddedNode]]:
        """Return a Ray with the machines of the job's plan: idle ones of the same shape, and new ones for the rest."""
        from dljob.plan.plan import plan
        from dljob.runtime.backend.embedded import EmbeddedRay
        from dljob.runtime.backend.machine import devices_here, lay_out_beside, machines_here

        devices = devices_here()
        groups = machines_here(plan(manifest), pretend, devices)
        # The devices of other jobs' machines are taken: `lay_out_beside` refuses a plan that needs them.
        used_nodes = [node for job in self.jobs for node in job.nodes]
        idle_nodes, missing = lay_out_beside(groups, pretend, devices, idle=self.idle, busy=used_nodes)
        # By identity: machines of one shape are equal, and each is taken once.
        self.idle = [node for node in self.idle if not any(node is idle_node for idle_node in idle_nodes)]
        if self.ray is None:
            self.ray = stack.enter_context(EmbeddedRay(missing, on_death=self.deaths.append))
            self.lost_nodes = LostNodes(self.ray, log.warning)
        elif missing:
            self.ray.add(missing)
        return self.ray, idle_nodes + missing

    def look(self) -> None:
        """Drop ended jobs and make their machines idle."""
        records = ((job, job.handle.record) for job in self.jobs)
        # A list of its own, since the loop changes `self.jobs`. A deleted folder counts as an end: a user may remove it
        # right after the job's end, and its status with it.
        for job in [job for job, record in records if record.over or not record.folder.is_dir()]:
            self.jobs.remove(job)
            self.idle += job.nodes
        if self.lost_nodes is not None:
            self.lost_nodes.look(job.handle.record.status() for job in self.jobs)

    def write_ends(self) -> None:
        """Write the final status of jobs whose Ray has ended. Call it when nothing of that Ray is left."""
        from dljob.api.local.final_status import write_end

        for job, end in self.ends:
            write_end(job.handle.record, end)

    def keep_ends(self) -> None:
        """Keep how the Ray of the running jobs ended, with its logs, before its folder is removed."""
        if self.deaths and self.ray is not None:
            from dljob.api.local.final_status import ray_end

            self.look()
            now = time.time()
            self.ends = [(job, ray_end(self.deaths[0], self.ray.folder, job.handle.dir, now)) for job in self.jobs]

    @property
    def done(self) -> bool:
        """Whether the only job of this host has ended."""
        return self.once and self.served and not self.jobs

    def stop(self) -> None:
        """Stop the jobs that are not kept, concurrently, each with its last checkpoint."""
        self.look()
        stopping = [job for job in self.jobs if not job.keep]
        for job in stopping:
            with suppress(DLJobError):  # no answer: it ends with its Ray below
                job.handle.stop()
        # All were asked first, so that their last checkpoints overlap.
        end = time.monotonic() + STOP_S
        # After the death of Ray no job writes a final status any more.
        while time.monotonic() < end and not self.deaths and not all(job.handle.record.over for job in stopping):
            time.sleep(LOOK_S / 4)
        self.jobs = [job for job in self.jobs if job.keep]


@contextmanager
def _interruptible() -> Generator[None]:
    """Let SIGINT, which `dljob stop` sends during a start, raise KeyboardInterrupt in the block."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Orders:
    """Commands of the program: lines of stdin, until stdin closes or the program ends (by its pidfd)."""

    def __init__(self) -> None:
        # The parent's pid alone could be another process by the time of its end.
        self._program = os.pidfd_open(os.getppid())
        self._rest = b""
        self._lines: list[bytes] = []
        self.closed = False

    def wait(self, seconds: float) -> bytes | None:
        """Return the next command; None when none came in time, or none can come any more."""
        if self._lines:
            return self._lines.pop(0)
        if self.closed:
            time.sleep(seconds)  # stdin is at its end and always readable: select would spin
            return None
        ready, _, _ = select.select([0, self._program], [], [], seconds)
        if 0 in ready:
            # Not by a buffered reader: `select` does not see lines that wait in a buffer.
            data = os.read(0, 1 << 20)
            self.closed = not data
            *self._lines, self._rest = (self._rest + data).split(b"\n")
        elif ready:  # the program ended, though a child of it may hold our stdin open
            self.closed = True
        return self._lines.pop(0) if self._lines else None


def serve(host: LocalJobs, orders: Orders, stack: ExitStack) -> None:
    """Carry out commands until the work is done."""
    is_stopping = False
    while not host.done and not host.deaths:
        line = orders.wait(LOOK_S)
        # In every turn, also without a command: `done` depends on it.
        host.look()
        if line is not None and json.loads(line)["do"] == "submit":
            answer = _submitted(host, json.loads(line), stack)
            try:
                _answer(answer)
            except OSError:  # the program is gone, or was interrupted: nobody knows of the job that it wanted kept
                if "uid" in answer:
                    host.jobs[-1].keep = False
        elif line is not None:  # "close" is the only other command
            orders.closed = True
        # Once: further rounds only wait for the kept jobs.
        if orders.closed and not is_stopping:
            is_stopping = True
            host.stop()
        if is_stopping and not host.jobs:
            return


def _submitted(host: LocalJobs, order: Mapping[str, Any], stack: ExitStack) -> dict[str, Any]:
    try:
        return host.submit(order, stack)
    except DLJobError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    except KeyboardInterrupt:
        from dljob.api.handle import INTERRUPTED_START

        return {"error": JobStoppedError.__name__, "message": INTERRUPTED_START, "hint": ""}
    except Exception as error:  # noqa: BLE001 - the program raises it
        return {"error": UnreachableError.__name__, "message": f"{type(error).__name__}: {error}", "hint": ""}


def _answer(reply: Mapping[str, Any]) -> None:
    os.write(_ANSWERS, json.dumps(reply).encode() + b"\n")


_ANSWERS = 3
"""File descriptor of the answers; stdout is redirected to stderr, so that no print can mix with them."""


class _SignalReceived(BaseException):
    """SIGTERM or SIGHUP reached the host."""


def _raise(_number: int, _frame: object) -> None:
    raise _SignalReceived


def main() -> int:
    """Run the host and return its exit code."""
    # Answers keep the real stdout; Ray and user code at import print to descriptor 1, which is stderr from now on.
    os.dup2(1, _ANSWERS, inheritable=False)
    os.dup2(2, 1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes this host
    host = LocalJobs(once="--once" in sys.argv)
    with ExitStack() as stack:
        try:
            serve(host, Orders(), stack)
        except _SignalReceived:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the last checkpoints
            host.stop()
        host.keep_ends()
    host.write_ends()
    return 0


if __name__ == "__main__":
    sys.exit(main())
