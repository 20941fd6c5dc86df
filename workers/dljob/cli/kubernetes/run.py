"""Watching a job on a cluster to its end: phases, events and ranks' lines on stderr, then the outcome."""

from __future__ import annotations

import asyncio
import io
import signal
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.handle import KubernetesJob
from dljob.api.kubernetes.logs import Followed, Rank, saved, selected_ranks
from dljob.api.kubernetes.orders import order
from dljob.api.kubernetes.submit import GivenJob, send
from dljob.api.kubernetes.timeline import EventFeed
from dljob.api.kubernetes.views import as_local
from dljob.cli import failure, output
from dljob.cli.progress import View, outcome_line
from dljob.cli.rank_output import EVERYTHING, Shown, few
from dljob.cli.target import JobTarget
from dljob.errors import ExitCode, UnreachableError, exit_code
from dljob.telemetry import reasons

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]

MOST_RANKS = 16
"""Largest job of which all ranks are shown; of larger ones only rank 0 of each role."""
UNSEEN_S = 10.0
"""Time, in seconds, after which an unseen job is reported: a running operator sees a new job much earlier."""
SECOND_THOUGHTS_S = 3.0
"""Time, in seconds, after Ctrl-C in which a second one stops the job."""
SAME_S = 0.5
"""Longest time, in seconds, from the death of a pipe's reader by Ctrl-C to the same Ctrl-C in this process."""


def run(
    given_job: GivenJob,
    place: JobTarget,
    form: output.DataFormat,
    *,
    stop_on_interrupt: bool,
    shown: Shown = EVERYTHING,
) -> int:
    """Submit a job, watch it and print the outcome; return the exit code."""
    from dljob.api.kubernetes.connect import ask

    # A wrong --roles is found before the job exists.
    shown.check(given_job.manifest)

    async def asked(kube: Kube) -> int:
        job = await send(kube, given_job, place.namespace, output.say)
        flags = KubernetesJob(job, place.context).flags
        return await WatchedJob(kube, job, flags, form, shown).follow(stop_on_interrupt=stop_on_interrupt)

    return ask(asked, place.context)


def shown_ranks(job: Json, shown: Shown = EVERYTHING) -> tuple[list[Rank], str]:
    """Return the ranks whose lines are shown, and a note about the others."""
    if shown.quiet:
        return [], ""
    everyone = [key for key in selected_ranks(job, None, None) if not shown.roles or key[0] in shown.roles]
    if len(everyone) <= MOST_RANKS:
        return everyone, ""
    first = [key for key in everyone if key[1] == 0]
    return first, f"of {len(everyone)} ranks, rank 0 of each role is shown; the others: dljob logs"


def code_of(status: Json) -> ExitCode:
    """Return the exit code of an ended job: 0, 1, 6 when it was stopped, or 5 when one of its own deadlines passed."""
    # The job's own deadlines are timeouts to a script, not failures of its code.
    late = status.get("reason") in (reasons.DEADLINE_EXCEEDED, reasons.PRE_RUNNING_DEADLINE)
    return ExitCode.TIMED_OUT if late else exit_code(status["phase"])


def outcome(job: Json) -> Json:
    """Return the outcome, the last line on stdout."""
    status, local = jobs.status_of(job), as_local(job)
    failed = status.get("phase") != "Succeeded"
    failure = {"reason": local["reason"], "message": local["message"]} if failed else {}
    step = local["progress"]["step"]
    last = {"step": step, "metrics": local["progress"]["metrics"]} if step is not None else {}
    meta = job["metadata"]
    known = {"name": meta["name"], "namespace": meta["namespace"], "phase": jobs.phase_of(job)}
    cuts = {"cuts": cut_counts} if (cut_counts := jobs.nested(status, "cuts")) else {}
    return {
        **known,
        **failure,
        **last,
        **cuts,
        "seconds": local["seconds"],
        "restarts": jobs.nested(status, "restarts"),
    }


@dataclass(slots=True)
class WatchedJob:
    """One job on a cluster, watched."""

    kube: Kube
    job: Json
    flags: str
    """Flags by which a later command finds the job, after a blank."""
    form: output.DataFormat
    shown: Shown = EVERYTHING
    kept_logs: Mapping[Rank, str] = field(default_factory=dict[Rank, str])
    """Ends of the ranks' logs, once the job is over."""

    async def follow(self, *, stop_on_interrupt: bool) -> int:
        """Watch to the end of the job, or to Ctrl-C."""
        pressed = _presses()
        # Tasks of their own: a signal must not break off a request of the watching one.
        watching = asyncio.create_task(self._watch())
        interrupted = asyncio.create_task(pressed.get())
        await asyncio.wait({watching, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        # The end of the job may come together with Ctrl-C, and then counts.
        if watching.done() and not await _pipe_closed_by(interrupted, watching):
            interrupted.cancel()
            return self._finish() if watching.exception() is None else self._report_loss(watching)
        watching.cancel()
        # Its generators close their connections before the loop goes on to anything else.
        # return_exceptions: the cancellation is no error here.
        await asyncio.gather(watching, return_exceptions=True)
        # SIGTERM comes from a script or a scheduler, which sends no second one: the job goes on at once.
        if interrupted.result() == signal.SIGTERM and not stop_on_interrupt:
            output.say_if_open(f"job {self._name} goes on; to come back: {self._reattach_hint()}")
            return ExitCode.INTERRUPTED
        return await self._leave(pressed, stop=stop_on_interrupt)

    async def _watch(self) -> None:
        view = View(self._name, begun=time.monotonic())
        ranks, note = shown_ranks(self.job, self.shown)
        # Events need no token: `run` works for users who may not read the RayCluster's Secret.
        lines, timeline = Followed(ranks), EventFeed(has_master_notes=False)
        if note:
            output.say(note)
        # The job is valid and stays: without an operator it would look as if it hung.
        unseen = asyncio.get_running_loop().call_later(UNSEEN_S, self._unseen)
        async with aclosing(jobs.each_second(self.kube, self.job)) as moments:
            async for self.job in moments:
                events = await timeline.new_entries(self.kube, self.job)
                now = time.monotonic()
                # A status means that an operator is at work.
                if jobs.status_of(self.job):
                    unseen.cancel()
                for line in view.update(as_local(self.job), events, now):
                    output.say(line)
                for text in few(await lines.hear(self.kube, self.job)):
                    output.say(text)
        # The last lines may have been written after the last poll; the pods are gone, the kept logs have them.
        self.kept_logs = await saved(self.kube, self.job) or {}
        for text in few(lines.finish(self.kept_logs)):
            output.say(text)
        local = as_local(self.job)
        for line in view.last_step(time.monotonic()):
            output.say(line)
        output.say(view.say(outcome_line(local), time.monotonic()))

    def _unseen(self) -> None:
        output.say(f"no operator has seen job {self._name} yet; it is still waited for: see dljob doctor")

    def _finish(self) -> int:
        status = jobs.status_of(self.job)
        code = code_of(status)
        for line in failure.report_lines(
            self._name, {**status, "phase": jobs.phase_of(self.job)}, self._log, self.flags
        ):
            output.say(line)
        output.say(f"its kept logs: dljob logs {self._name}{self.flags}")
        output.structured(outcome(self.job), self.form, indent=None)
        return code

    def _log(self, role: str, rank: int) -> BinaryIO:
        text = self.kept_logs.get((role, rank))
        if text is None:
            # `failure.told` expects an OSError where there is no log.
            raise FileNotFoundError(f"no log of {role}/{rank} was kept")
        return io.BytesIO(text.encode())

    def _report_loss(self, watching: asyncio.Task[None]) -> int:
        error = watching.exception()
        # The job goes on without this command; say so before the error.
        if isinstance(error, UnreachableError):
            output.say(f"job {self._name} cannot be watched any more, and goes on: {self._reattach_hint()}")
        assert error is not None  # noqa: S101 - for the type checker
        raise error

    async def _leave(self, pressed: asyncio.Queue[int], *, stop: bool) -> int:
        """Leave after Ctrl-C: the job goes on, unless a second one, or the flag, stops it."""
        if not stop:
            output.say_if_open(f"job {self._name} goes on; once more within {SECOND_THOUGHTS_S:g} s stops it")
            output.say_if_open(f"to come back: {self._reattach_hint()}")
            try:
                # A SIGTERM here is no second Ctrl-C, and lets the job go on.
                stop = await asyncio.wait_for(pressed.get(), SECOND_THOUGHTS_S) == signal.SIGINT
            except TimeoutError:
                return ExitCode.INTERRUPTED
        if stop:
            # From here on Ctrl-C ends the command itself: the order may wait a minute for the operator.
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)
            output.say_if_open(f"stopping {self._name}")
            await order(self.kube, self.job, "stop", say=output.say_if_open)
            output.say_if_open(f"job {self._name} is being stopped: {self._reattach_hint()}")
        return ExitCode.INTERRUPTED

    def _reattach_hint(self) -> str:
        return f"dljob status {self._name}{self.flags}, dljob logs {self._name} --follow{self.flags}"

    @property
    def _name(self) -> str:
        return str(self.job["metadata"]["name"])


async def _pipe_closed_by(interrupted: asyncio.Task[int], watching: asyncio.Task[None]) -> bool:
    """Whether the watching ended because Ctrl-C also ended the program that reads our output, as in `| tee log`."""
    if not isinstance(watching.exception(), OSError):
        return False
    # A write may fail before this process hears the signal that its reader died of.
    await asyncio.wait({interrupted}, timeout=SAME_S)
    return interrupted.done()


def _presses() -> asyncio.Queue[int]:
    """Queue Ctrl-C and SIGTERM as they come."""
    pressed: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        # In place of KeyboardInterrupt, which would break off a request at any point.
        asyncio.get_running_loop().add_signal_handler(number, pressed.put_nowait, number)
    return pressed
