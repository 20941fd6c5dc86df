"""Following a job on a cluster to its end: phases, events and the ranks' lines on stderr, then its fate."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.logs import Followed, Rank, saved, wanted
from dljob.api.kubernetes.timeline import Timeline
from dljob.cli import output
from dljob.cli.kubernetes import show
from dljob.cli.kubernetes.orders import give
from dljob.cli.kubernetes.submit import Given, send
from dljob.cli.progress import View, last_word
from dljob.cli.where import Where
from dljob.errors import ExitCode, UnreachableError
from dljob.telemetry import reasons

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]

MOST_RANKS = 16
"""Of larger jobs, rank 0 of each role is shown."""
UNSEEN_S = 10.0
"""An operator that is there has seen a new job long before."""
SECOND_THOUGHTS_S = 3.0
"""For so long after Ctrl-C another one stops the job."""


def run(what: Given, where: Where, form: output.DataFormat, *, stop_on_interrupt: bool) -> int:
    """Submit, follow, and tell how it ended; the exit code."""
    from dljob.api.kubernetes.connect import ask

    async def asked(kube: Kube) -> int:
        job = (await send(kube, what, where)).body
        return await Run(kube, job, where, form).follow(stop_on_interrupt=stop_on_interrupt)

    return ask(asked, where.context)


def shown_ranks(job: Json) -> tuple[list[Rank], str]:
    """Whose lines are shown, and a word about those who are not."""
    everyone = wanted(job, None, None)
    if len(everyone) <= MOST_RANKS:
        return everyone, ""
    first = [key for key in everyone if key[1] == 0]
    return first, f"of {len(everyone)} ranks, rank 0 of each role is shown; the others: dljob logs"


def exit_code(status: Json) -> ExitCode:
    """What a job's fate is worth: 0, 1, or 5 when a deadline of its own passed."""
    if status.get("phase") == "Succeeded":
        return ExitCode.OK
    late = status.get("reason") in (reasons.DEADLINE_EXCEEDED, reasons.PRE_RUNNING_DEADLINE)
    return ExitCode.TIMED_OUT if late else ExitCode.JOB_FAILED


def outcome(job: Json) -> Json:
    """The last line on stdout."""
    status, local = jobs.status_of(job), show.as_local(job)
    failed = status.get("phase") != "Succeeded"
    why = {"reason": local["reason"], "message": local["message"]} if failed else {}
    step = local["progress"]["step"]
    last = {"step": step, "metrics": local["progress"]["metrics"]} if step is not None else {}
    meta = job["metadata"]
    known = {"name": meta["name"], "namespace": meta["namespace"], "phase": jobs.phase_of(job)}
    return {**known, **why, **last, "seconds": local["seconds"], "restarts": jobs.part(status, "restarts")}


@dataclass(slots=True)
class Run:
    """One job, watched."""

    kube: Kube
    job: Json
    where: Where
    form: output.DataFormat

    async def follow(self, *, stop_on_interrupt: bool) -> int:
        """To the end of the job, or to Ctrl-C."""
        pressed = _presses()
        watching = asyncio.create_task(self._watch())
        interrupted = asyncio.create_task(pressed.get())
        await asyncio.wait({watching, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            interrupted.cancel()
            return self._finish() if watching.exception() is None else self._lost(watching)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if interrupted.result() == signal.SIGTERM and not stop_on_interrupt:
            output.say(f"job {self._name} goes on; to come back: {self._back()}")
            return ExitCode.INTERRUPTED
        return await self._leave(pressed, stop=stop_on_interrupt)

    async def _watch(self) -> None:
        view = View(self._name, begun=time.monotonic())
        ranks, note = shown_ranks(self.job)
        lines, timeline = Followed(ranks), Timeline(own=False)
        if note:
            output.say(note)
        unseen = asyncio.get_running_loop().call_later(UNSEEN_S, self._unseen)
        async with aclosing(jobs.each_second(self.kube, self.job)) as moments:
            async for self.job in moments:
                events = await timeline.news(self.kube, self.job)
                now = time.monotonic()
                if jobs.status_of(self.job):
                    unseen.cancel()
                for line in view.update(show.as_local(self.job), events, now):
                    output.say(line)
                for text in await lines.hear(self.kube, self.job):
                    output.say(str(text))
        for text in lines.finish(await saved(self.kube, self.job)):
            output.say(str(text))
        local = show.as_local(self.job)
        for line in view.last_step(time.monotonic()):
            output.say(line)
        output.say(view.say(last_word(local), time.monotonic()))

    def _unseen(self) -> None:
        output.say(f"no operator has seen job {self._name} yet; it is still waited for: see dljob doctor")

    def _finish(self) -> int:
        status = jobs.status_of(self.job)
        code = exit_code(status)
        if code is not ExitCode.OK:
            output.say(f"error: job {self._name} failed: {status.get('reason')}: {status.get('message')}")
        output.say(f"what was kept of its logs: dljob logs {self._name} {self._flags}")
        output.structured(outcome(self.job), self.form, indent=None)
        return code

    def _lost(self, watching: asyncio.Task[None]) -> int:
        error = watching.exception()
        if isinstance(error, UnreachableError):
            output.say(f"job {self._name} is out of sight, and goes on: {self._back()}")
        assert error is not None  # noqa: S101 - for the type checker
        raise error

    async def _leave(self, pressed: asyncio.Queue[int], *, stop: bool) -> int:
        """After Ctrl-C: the job goes on, unless a second one, or the flag, stops it."""
        if not stop:
            output.say(f"job {self._name} goes on; once more within {SECOND_THOUGHTS_S:g} s stops it")
            output.say(f"to come back: {self._back()}")
            try:
                stop = await asyncio.wait_for(pressed.get(), SECOND_THOUGHTS_S) == signal.SIGINT
            except TimeoutError:
                return ExitCode.INTERRUPTED
        if stop:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)
            output.say(f"stopping {self._name}")
            await give(self.kube, self.job, "stop")
            output.say(f"job {self._name} is being stopped: {self._back()}")
        return ExitCode.INTERRUPTED

    def _back(self) -> str:
        return f"dljob status {self._name} {self._flags}, dljob logs {self._name} --follow {self._flags}"

    @property
    def _name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def _flags(self) -> str:
        return self.where.flags(self.job["metadata"]["namespace"])


def _presses() -> asyncio.Queue[int]:
    """Ctrl-C and SIGTERM as they come."""
    pressed: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, pressed.put_nowait, number)
    return pressed
