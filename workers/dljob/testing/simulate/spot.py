"""A fleet of engines on spot machines, through days of preemptions, and the streams that it serves.

The core of PrimeMaster decides what becomes of the engines, in a simulated world whose machines come and go at the
rates of a published trace. What the engines then serve is counted from the times at which each of them was ready:
streams of tokens that resume elsewhere, or begin anew.

The rates are counted from preemption traces of "Can't Be Late" (Wu et al., NSDI 24), of p3.2xlarge machines of AWS.
github.com/skypilot-org/spot-traces has the data, without a licence: it is not copied, and anybody can count anew.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from random import Random
from typing import Any, NamedTuple

from dljob.calls.resumption import StreamProgress, WireItem
from dljob.master.start.assign import would_be_nodes
from dljob.master.state.events import RankEnded, RankReady, RankServes, WeightsLoaded
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world.fault_schedule import chance
from dljob.testing.world.model import Carry, Drained, FaultMove, Item, Process, Running, SetUp, Silence, Up
from dljob.testing.world.state import EPOCH_S
from dljob.testing.world.world import World

HOUR_S = 3600.0
ZONES = {"us-east-2a": (75, 1250 * HOUR_S, 460 * HOUR_S), "us-west-2b": (44, 141 * HOUR_S, 37 * HOUR_S)}
"""Preemptions in a trace, and the seconds of machines that were there, and that were away.

Of four machines from 3 August 2023 on, counted every 300 s for 17.8 days; of one from 22 April 2023 on, asked for every
32 s for 7.4 days.
"""
PER_MACHINE = 8
DAY_S = 86400.0
ROLE = "engine"


@dataclass(frozen=True, slots=True)
class Spot:
    """A fleet and its machines, each of which holds `PER_MACHINE` engines."""

    machines: int = 125
    days: float = 7.0
    notice_s: float = 120.0
    """Seconds from the announcement of a preemption to the end of the machine: 120 on AWS, 30 on Google Cloud."""
    zone: str = "us-east-2a"
    preempted: bool = True
    load_s: float = 90.0
    """Seconds in which an engine loads its weights."""
    seed: int = 0

    @property
    def engines(self) -> int:
        """The engines for which there is room while no machine is away."""
        return self.machines * PER_MACHINE

    @property
    def end(self) -> float:
        """The end of the days, in seconds."""
        return self.days * DAY_S


@dataclass(frozen=True, slots=True)
class Streams:
    """The work: each engine serves `width` streams at a time, and there are always further prompts."""

    width: int = 1
    """Streams of an engine at one time; more of them multiply all counts, and the time that counting takes."""
    longest_s: float = 2400.0
    """The longest stream, undisturbed; the lengths are spread evenly up to it."""
    tokens_per_s: float = 50.0
    prefill_per_s: float = 5000.0
    """Tokens of prompt and prefix that an engine takes in per second, before a stream goes on there."""
    prompt: int = 1000
    window: int = 16
    """Tokens of a stream that are under way when its engine is killed."""


class Served(NamedTuple):
    """The time in which one process of an engine served."""

    begin: float
    end: float
    drained: bool
    """Whether it was drained at its end; otherwise it died at work, or the time was over."""


class SpotWorld(World):
    """A world that records when each engine served."""

    since: dict[Running, float]
    served: list[Served]

    def report(self, process: Process, event: RankReady | RankEnded | RankServes | WeightsLoaded) -> Process:
        """Note the beginning: the engine is ready."""
        if isinstance(event, RankReady) and event.role == ROLE:
            running = next(r for r in process.ranks if (r.rank, r.incarnation) == (event.rank, event.incarnation))
            self.since[running] = self.now
        return super().report(process, event)

    def stop_running(self, actor: str, running: Running) -> None:
        """Note the end: the engine was drained, or it died."""
        begin = self.since.pop(running, None)
        if begin is not None:
            self.served.append(Served(begin, self.now, running in self.draining))
        super().stop_running(actor, running)


def manifest(spot: Spot) -> dict[str, Any]:
    """Return a job with a trainer on a machine of its own, and the engines on spot machines."""
    probe = {"tcpSocket": {"port": "http"}}
    engine: dict[str, Any] = {
        "name": ROLE,
        "driver": False,
        "replicas": spot.engines,
        "replicasPerGroup": PER_MACHINE,
        "minReplicas": PER_MACHINE,
        "maxReplicas": spot.engines,
        "entrypoint": {"module": "engine"},
        "resources": {"cpu": "1"},
        "nodeGroup": "spot",
        "ports": [{"name": "http"}],
        "readinessProbe": probe,
        "drain": {"signal": "SIGUSR1", "timeoutSeconds": 30},
        "restartPolicy": {"maxRestarts": 100_000},
    }
    trainer = {"name": "trainer", "entrypoint": {"class": "pkg.Class"}, "resources": {"cpu": "8"}, "nodeGroup": "fixed"}
    groups = [{"name": "fixed", "replicas": 1, "cpu": "8"}, {"name": "spot", "replicas": spot.machines, "cpu": "8"}]
    policy = {"maxRestarts": 100_000}
    return {
        "metadata": {"name": "spot"},
        "spec": {"roles": [trainer, engine], "nodeGroups": groups, "faultTolerance": policy},
    }


def machine_spans(spot: Spot) -> list[tuple[float, float]]:
    """Return when each machine is there: it goes and comes by itself. Its end is announced `notice_s` before."""
    rng, spans = chance(f"spot {spot.seed}"), list[tuple[float, float]]()
    preemptions, up_s, away_s = ZONES[spot.zone]
    for _ in range(spot.machines):
        begin = 0.0
        while begin < spot.end:
            until = begin + rng.expovariate(preemptions / up_s) if spot.preempted else spot.end
            spans.append((begin, min(until + spot.notice_s, spot.end)))
            begin = until + spot.notice_s + rng.expovariate(preemptions / away_s)
    return spans


def fixed(spot: Spot) -> list[Served]:
    """Return when engines served that stay on their machines, and are back as soon as these are."""
    loaded = ((begin + spot.load_s, until) for begin, until in machine_spans(spot) for _ in range(PER_MACHINE))
    return sorted(Served(begin, until, drained=False) for begin, until in loaded if begin < until)


class SpotDriver(Driver):
    """Drives the fleet through its days."""

    def __init__(self, spot: Spot) -> None:
        far = spot.end * 2
        super().__init__(Case(spot.seed, manifest(spot), ()), pace=Durations(work=(far, far)))
        job_plan = self.world.job.plan
        self.spot = spot
        # Machines are made for the job, so that it waits for them.
        self.fleet = SpotWorld(job_plan, self.world.job.spec, would_be_nodes(job_plan), own_nodes=True)
        self.fleet.since, self.fleet.served = {}, []
        self.world = self.fleet
        self.most = 10**9
        self.machines = chance(f"machines {spot.seed}")

    def play(self) -> list[Served]:
        """Return when each engine served, in seconds from the beginning."""
        w = self.fleet
        self._schedule()
        end = EPOCH_S + self.spot.end
        for at, comes in self._turns():
            self._until(EPOCH_S + at)
            if w.problems or w.finished:
                break
            self._make(FaultMove("join", 1) if comes else self._announced())
        self._until(end)
        still = [Served(begin, end, drained=False) for begin in w.since.values()]
        return sorted(Served(a - EPOCH_S, b - EPOCH_S, drained) for a, b, drained in (*w.served, *still))

    def _turns(self) -> list[tuple[float, bool]]:
        """Return when machines come (True), and when one is announced to go."""
        turns: list[tuple[float, bool]] = []
        for begin, until in machine_spans(self.spot):
            turns += [(begin, True)] if begin else []
            turns += [(until - self.spot.notice_s, False)] if until < self.spot.end else []
        return sorted(turn for turn in turns if turn[0] < self.spot.end)

    def _announced(self) -> FaultMove:
        """Announce the end of one of the spot machines; forget those that are gone."""
        w = self.fleet
        used = {process.node for process in w.processes.values()} | set(w.groups.values())
        for name in [n for n, node in w.nodes.items() if not node.listed and n not in used]:
            del w.nodes[name]
        able = [
            name
            for name, node in w.nodes.items()
            if node.silence is Silence.NONE
            and node.view.leaving is None
            and ("dljob.io/node-group", "spot") in node.view.labels
        ]
        return FaultMove("drain", value=self.spot.notice_s, text=self.machines.choice(able))

    def _delay(self, item: Item) -> float:
        match item:
            case SetUp():
                return self.spot.load_s
            case Up():
                return 1.0
            case Drained():
                # Streams go on elsewhere at their next token.
                return 0.1
            case Carry():
                return 0.02
            case _:
                return super()._delay(item)


class _Kind(IntEnum):
    END = 0
    BEGIN = 1
    DONE = 2


@dataclass(slots=True)
class _Stream:
    length: int
    made_tokens: int = 0


@dataclass(slots=True)
class Tokens:
    """What the streams came to."""

    useful: int = 0
    """Tokens that are part of a stream that ended, or still is going on."""
    lost: int = 0
    """Tokens that callers had received, and that were made anew."""
    again: int = 0
    """Tokens that were under way, which callers had not received, and that were made again."""
    ended: int = 0
    moved: int = 0
    """Times that a stream lost its engine."""
    wrong: int = 0
    """Times that a token was doubled or missing, by the caller's own account of positions."""


@dataclass(slots=True)
class _Pool:
    """Streams on engines, in the order of time."""

    work: Streams
    resume: bool
    rng: Random
    waiting: deque[_Stream] = field(default_factory=deque["_Stream"])
    totals: Tokens = field(default_factory=Tokens)

    def next(self) -> _Stream:
        """Return a stream that lost its engine, else a new one."""
        if self.waiting:
            return self.waiting.popleft()
        return _Stream(max(1, int(self.rng.random() * self.work.longest_s * self.work.tokens_per_s)))

    def new(self, stream: _Stream, first: float, now: float) -> int:
        """Return the tokens that an engine has made of a stream whose first one came, or was due, at `first`."""
        return min(stream.length - stream.made_tokens, max(0, int((now - first) * self.work.tokens_per_s)))

    def cut(self, stream: _Stream, first: float, now: float, *, drained: bool) -> None:
        """Take a stream from an engine that ends now."""
        new = self.new(stream, first, now)
        self.totals.moved += 1
        if self.resume:
            under_way = 0 if drained else min(new, self.work.window)
            self._check(stream.made_tokens + new, under_way)
            stream.made_tokens += new - under_way
            self.totals.again += under_way
        else:
            self.totals.lost += stream.made_tokens + new
            stream.made_tokens = 0
        self.waiting.append(stream)

    def _check(self, made_tokens: int, under_way: int) -> None:
        """Let the code of the caller take the last tokens, of both engines, with those under way sent twice."""
        got = StreamProgress(received=[b""] * max(0, made_tokens - under_way - 2))
        first = len(got.received)
        for engine in ("one", "other"):
            got.begin_segment(engine, 1)
            last = made_tokens - under_way if engine == "one" else made_tokens
            got.add_items([WireItem(position, {}, b"") for position in range(first, last)])
        self.totals.wrong += len(got.received) != made_tokens


def serve(served: Sequence[Served], work: Streams, end: float, *, resume: bool, seed: int = 0) -> Tokens:
    """Return what streams come to on engines that served at these times."""
    pool = _Pool(work, resume, chance(f"streams {seed}"))
    # (time, kind, number of the engine, its place): at one time ends come before beginnings.
    agenda: list[tuple[float, _Kind, int, int]] = []
    for number, span in enumerate(served):
        agenda += [(span.begin, _Kind.BEGIN, number, 0), (span.end, _Kind.END, number, 0)]
    heapq.heapify(agenda)
    places: dict[tuple[int, int], tuple[_Stream, float]] = {}
    while agenda and agenda[0][0] < end:
        now, kind, number, place = heapq.heappop(agenda)
        every = (place,) if kind is _Kind.DONE else range(work.width)
        for at in every:
            stream, first = places.pop((number, at), (None, 0.0))
            # A stream that is done by now ended with its engine.
            if stream is not None and kind is _Kind.END:
                pool.cut(stream, first, now, drained=served[number].drained)
            elif stream is not None:
                pool.totals.ended += 1
                pool.totals.useful += stream.length
            if kind is _Kind.BEGIN or (kind is _Kind.DONE and stream is not None):
                following = pool.next()
                first = now + (work.prompt + following.made_tokens) / work.prefill_per_s
                places[number, at] = (following, first)
                done = first + (following.length - following.made_tokens) / work.tokens_per_s
                heapq.heappush(agenda, (done, _Kind.DONE, number, at))
    for stream, first in places.values():
        pool.totals.useful += stream.made_tokens + pool.new(stream, first, end)
    pool.totals.useful += sum(stream.made_tokens for stream in pool.waiting)
    return pool.totals


def compared(spot: Spot, work: Streams) -> Iterator[dict[str, Any]]:
    """Yield a row for each: no preemptions, fixed engines that begin anew, and the fleet that breathes and resumes."""
    calm = serve(fixed(replace(spot, preempted=False)), work, spot.end, resume=True).useful
    yield {"fleet": "no preemptions", "tokens": calm, "goodput": 1.0}
    spans = fixed(spot)
    yield {"fleet": "fixed, anew", **_row(spot, spans, serve(spans, work, spot.end, resume=False), calm)}
    began = time.process_time()
    driver = SpotDriver(spot)
    spans = driver.play()
    seconds = round(time.process_time() - began, 1)
    known = driver.fleet.known
    yield {
        "fleet": "breathes, resumes",
        **_row(spot, spans, serve(spans, work, spot.end, resume=True), calm),
        "problems": driver.fleet.problems,
        "phase": known.phase.value,
        "events": driver.fleet.events,
        "seconds": seconds,
    }


def _row(spot: Spot, spans: Sequence[Served], totals: Tokens, calm: int) -> dict[str, Any]:
    serving = sum(span.end - span.begin for span in spans) / spot.end / spot.engines
    return {
        "noticeSeconds": spot.notice_s,
        "enginesEnded": sum(span.end < spot.end for span in spans),
        "drained": sum(span.drained for span in spans),
        "serving": round(serving, 4),
        "streamsEnded": totals.ended,
        "streamsMoved": totals.moved,
        "tokens": totals.useful,
        "tokensLost": totals.lost,
        "tokensAgain": totals.again,
        "wrong": totals.wrong,
        "goodput": round(totals.useful / calm, 4),
    }
