"""Parent side of the judge process: one question at a time, each with a deadline, and a new process after a death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass
from typing import Any

from dljob.reconcile.admission import Admission
from dljob.reconcile.state.model import Settings
from dljob_operator.webhook.judge import LENGTH, dumped

log = logging.getLogger(__package__)

SECONDS = 2.0
"""Time, in seconds, from a question's arrival to its answer; the API server waits for five."""
START_SECONDS = 30.0
"""Time, in seconds, for a new process to import its modules; questions are refused as busy meanwhile."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict of the judge process."""

    uid: str
    version: str
    namespace: str
    admission: Admission


class UnjudgedError(Exception):
    """A question got no valid answer in time; the text says why."""


class JudgeProcess:
    """Keeps a judge process ready, and starts another after its death."""

    def __init__(self, settings: Settings, seconds: float = SECONDS) -> None:
        self._argument = dumped(settings)
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._started: asyncio.Task[Process] | None = None

    def start(self) -> asyncio.Task[Process]:
        """Start the process unless it runs or is starting; its imports take about a second."""
        started = self._started
        # One that failed to start, or that has died, needs a successor.
        if started is None or (started.done() and (started.exception() or started.result().returncode is not None)):
            started = self._started = asyncio.create_task(self._launched(), name="judge")
        return started

    async def judge(self, body: bytes) -> Judged:
        """Return the verdict on the body of an AdmissionReview.

        Raises:
            UnjudgedError: there was none in time.
        """
        # One deadline for waiting, starting and judging: the API server's own clock runs all the while.
        until = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(until):
                # One at a time: the process is single-threaded, and has one limit of memory.
                await self._turn.acquire()
        except TimeoutError:
            raise UnjudgedError("the operator is busy with other requests") from None
        try:
            verdict = await self._ask(body, until)
        finally:
            self._turn.release()
        if "error" in verdict:
            log.error("a DLJob could not be judged: %s", verdict["error"])
            raise UnjudgedError("the operator could not read the request")
        admission_fields: dict[str, Any] = verdict["admission"]
        warnings = tuple(admission_fields["warnings"])
        admission = Admission(
            admission_fields["allowed"], admission_fields["message"], warnings, admission_fields["config_map"]
        )
        return Judged(verdict["uid"], verdict["version"], verdict["namespace"], admission)

    async def close(self) -> None:
        """End the process."""
        started, self._started = self._started, None
        if started is None:
            return
        started.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, EOFError, TimeoutError):  # it was never ready
            await _end(await started)

    async def _ask(self, body: bytes, until: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout_at(until):
                # Shielded: a question that gives up must not cancel the start, which serves the next one.
                process = await asyncio.shield(self.start())
        except (TimeoutError, OSError, EOFError):
            raise UnjudgedError("the process that checks it is being started") from None
        try:
            async with asyncio.timeout_at(until):
                return await _answer(process, body)
        except TimeoutError:
            reason = f"it takes longer than {self._seconds:g} s"
        except (OSError, EOFError) as error:
            log.warning("the process that judges DLJobs ended: %r", error)
            # The process died, usually by RLIMIT_DATA.
            reason = "it takes more memory than a check may"
        # Also after a timeout: its late answer would be taken for that to the next question.
        await _end(process)
        self.start()  # now, so that it is ready for the next question
        raise UnjudgedError(reason)

    async def _launched(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dljob_operator.webhook.judge", self._argument),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                await _read(process)
        except BaseException:
            # Also when cancelled: no process may be left behind.
            await _end(process)
            raise
        return process


async def _answer(process: Process, body: bytes) -> dict[str, Any]:
    if process.stdin is None:
        raise EOFError
    process.stdin.write(LENGTH.pack(len(body)) + body)
    await process.stdin.drain()
    return json.loads(await _read(process))


async def _read(process: Process) -> bytes:
    if process.stdout is None:
        raise EOFError
    (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    return await process.stdout.readexactly(size)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has already ended
        process.kill()
    await process.wait()
