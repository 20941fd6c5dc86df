"""Readings of outside witnesses on this node: one thread with a loop of its own reads each once a second.

What a witness answers is nobody's word but its own: only the loopback address is asked, no redirect is followed, an
answer has one second and one MiB, and only lines of the metric are parsed. A reading that fails says nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dljob.master.state.sightings import Row, Sample, Sighting

if TYPE_CHECKING:
    import aiohttp

    from dljob.plan.witnesses import DumpPlan, WitnessPlan

EVERY_S, WITHIN_S = 1.0, 1.0
MOST_BYTES = 1 << 20
"""Bytes of an answer that are read: one that is longer is no answer."""
DUMP_S, DUMP_BYTES = 10.0, 32 << 20
"""Seconds for a dump, which the hang's report does not wait for, and the most bytes of one that are kept."""


class NoReadingError(Exception):
    """A witness gave no answer that can be read; the message says why."""


class WitnessReader:
    """Reads the witnesses of one node in a thread of its own."""

    def __init__(self, plans: Sequence[WitnessPlan], folder: Path) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._folder = folder
        """Where a monitor may put a dump: `{dir}` in its body."""
        self._rows = {name: Row() for name in self._plans}
        self._why: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dljob-witnesses", daemon=True)
        if plans:
            self._thread.start()

    def sightings(self) -> tuple[Sighting, ...]:
        """Return what witnesses have said for long enough, as of the last reading."""
        now = time.monotonic()
        return tuple(
            sighting
            for name, row in tuple(self._rows.items())
            for sighting in row.lasting_sightings(self._plans[name], now)
        )

    def troubles(self) -> tuple[tuple[str, str], ...]:
        """Return (witness, why) of each witness whose last reading failed."""
        return tuple(sorted((name, problem) for name, problem in tuple(self._why.items()) if problem))

    def dump(self, name: str) -> bytes:
        """Ask for the dump of a witness, and return the answer.

        Raises:
            NoReadingError: There is no answer; the message says why.
        """
        plan = self._plans[name].dump
        self._begun.wait()
        if plan is None or self._loop is None:
            raise NoReadingError("it has no dump")
        answer: Future[bytes] = asyncio.run_coroutine_threadsafe(self._dumped(plan), self._loop)
        return answer.result()

    def close(self) -> None:
        """Stop reading."""
        if self._thread.is_alive():
            self._begun.wait()
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None:
                loop.call_soon_threadsafe(stop.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._read_all())

    async def _read_all(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        # Before a hang, not at it: a lone rank is killed once its stacks are read, and its recorder dies with it.
        with suppress(ImportError):  # each reading says so
            importlib.import_module("aiohttp")
        read = [self._follow(plan, self._stop) for plan in self._plans.values() if plan.metric]
        # Dumps are asked for in this loop, so it runs where there is nothing to read, too.
        await asyncio.gather(self._stop.wait(), *read)

    async def _follow(self, plan: WitnessPlan, stop: asyncio.Event) -> None:
        while not stop.is_set():
            samples: tuple[Sample, ...] = ()
            try:
                samples = parsed(plan.metric, await fetched(plan.port, plan.path))
                self._why[plan.name] = "" if samples else f"it has no metric {plan.metric}"
            except NoReadingError as error:
                self._why[plan.name] = str(error)
            except Exception as error:  # noqa: BLE001 - one witness's answer must not end the reading of the others
                self._why[plan.name] = f"{type(error).__name__}: {str(error)[:200]}"
            self._rows[plan.name] = self._rows[plan.name].after(plan, samples, time.monotonic())
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), EVERY_S)

    async def _dumped(self, plan: DumpPlan) -> bytes:
        self._folder.mkdir(parents=True, exist_ok=True)
        body = plan.body.replace("{dir}", str(self._folder)).replace("{now}", str(int(time.time())))
        return await fetched(plan.port, plan.path, body, within_s=DUMP_S, most=DUMP_BYTES)


async def fetched(port: int, path: str, body: str = "", *, within_s: float = WITHIN_S, most: int = MOST_BYTES) -> bytes:
    """Return the answer of a server on the loopback address.

    Raises:
        NoReadingError: There is none, it is late, too long, or no 200; the message says which.
    """
    import aiohttp  # here: agents of jobs without witnesses do without

    url_path = f"127.0.0.1:{port}{path}"
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession(auto_decompress=False) as client:
            return await _answer(client, url_path, body, most)
    except TimeoutError:
        raise NoReadingError(f"{url_path}: no answer within {within_s:g} s") from None
    except OSError as error:
        raise NoReadingError(f"{url_path}: {os.strerror(error.errno) if error.errno else error}") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise NoReadingError(f"{url_path}: no HTTP answer: {str(error)[:200]}") from None


async def _answer(client: aiohttp.ClientSession, url_path: str, body: str, most: int) -> bytes:
    headers = {"Accept-Encoding": "identity"} | ({"Content-Type": "application/json"} if body else {})
    method = "POST" if body else "GET"
    async with client.request(
        method, f"http://{url_path}", data=body.encode() or None, headers=headers, allow_redirects=False
    ) as answer:
        if answer.status != 200:
            raise NoReadingError(f"{url_path}: status {answer.status}, not 200")
        body_so_far = bytearray()
        while part := await answer.content.read(1 << 16):
            body_so_far += part
            if len(body_so_far) > most:
                raise NoReadingError(f"{url_path}: an answer of more than {most >> 20} MiB")
        return bytes(body_so_far)


def parsed(metric: str, answer: bytes) -> tuple[Sample, ...]:
    """Return the samples of a metric in a text of Prometheus' format; other lines are not looked at.

    Raises:
        NoReadingError: A line of the metric cannot be read.
    """
    from prometheus_client.parser import text_string_to_metric_families

    text = answer.decode(errors="replace")
    end = len(metric)
    metric_lines = [line for line in text.splitlines() if line.startswith(metric) and line[end : end + 1] in " {"]
    try:
        families = list(text_string_to_metric_families("\n".join(metric_lines) + "\n"))
    except (ValueError, IndexError, KeyError) as error:
        raise NoReadingError(f"a line of {metric} cannot be read: {str(error)[:200]}") from None
    return tuple(
        (tuple(sorted(sample.labels.items())), float(sample.value)) for family in families for sample in family.samples
    )
