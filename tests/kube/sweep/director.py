"""Runs lives in parallel: calm ones, which determine the operator's calls, and one for each point of death."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from life import Life
from operators import BrokenError, Operator
from plays import PLAYS
from stage import Nursery, Scene, World, nursery, scene

from dljob.kube.api import Json, Kube

TRIES = 3
"""Number of lives that try a point, because a life may go another way and not make the call."""
MISSED = "not met"


@dataclass(frozen=True)
class Point:
    """A point of death: the play, the call, and whether the operator dies `before` or `after` it."""

    play: str
    call: str
    when: str

    @property
    def weight(self) -> int:
        """Return the order of trying: points after a change first, since they can repeat most; reads repeat nothing."""
        return 2 * (" GET " in f" {self.call} ") + (self.when == "before")


@dataclass(frozen=True)
class Shape:
    """The number of parallel lives and of deaths in each."""

    lives: int
    deaths: int


@dataclass(frozen=True)
class Result:
    """The result of a life."""

    play: str
    call: str
    when: str
    how: str
    """`same`, `not met`, or the differences."""
    seconds: float


@dataclass(frozen=True)
class Calm:
    """The results of one play's lives without a death."""

    play: str
    expected: Json
    calls: list[str]
    """Calls that all of them made, each by one name."""
    chance: list[str]
    """Calls that only some of them made."""


class Results:
    """The results so far, kept in a file: the calm lives, and a line for each other life."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self._file = file
        self._found: dict[Point, Result] = {}
        self._tries: Counter[Point] = Counter()
        self.calm: dict[str, Calm] = {}
        lines = file.read_text().splitlines() if resume and file.exists() else []
        file.parent.mkdir(parents=True, exist_ok=True)
        if not lines:
            file.write_text("")
        for line in lines:
            self._read(json.loads(line))

    def _read(self, line: Json) -> None:
        if "expected" in line:
            self.calm[line["play"]] = Calm(**line)
        else:
            self._keep(Result(**line))

    def begin(self, calm: Calm) -> None:
        """Keep the calm lives' results of a play."""
        self.calm[calm.play] = calm
        self._write(asdict(calm))

    def add(self, result: Result) -> None:
        """Keep a result."""
        self._keep(result)
        self._write(asdict(result))

    def _keep(self, result: Result) -> None:
        point = Point(result.play, result.call, result.when)
        self._found[point] = result
        self._tries[point] += 1

    def _write(self, line: Json) -> None:
        with self._file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def points(self) -> list[Point]:
        """Return the points of death; each call belongs to the first play that has it."""
        return [point for play in PLAYS for point in self._of(play, self._first("calls"))]

    def chance(self) -> list[Point]:
        """Return the points of calls that only some calm lives made and no play always makes."""
        first = {call: play for call, play in self._first("chance").items() if call not in self._first("calls")}
        return [point for play in PLAYS for point in self._of(play, first)]

    def _first(self, which: Literal["calls", "chance"]) -> dict[str, str]:
        there = [play for play in reversed(PLAYS) if play in self.calm]
        return {call: play for play in there for call in getattr(self.calm[play], which)}

    def _of(self, play: str, first: dict[str, str]) -> Iterator[Point]:
        if play in self.calm:
            mine = [c for c in (*self.calm[play].calls, *self.calm[play].chance) if first.get(c) == play]
            yield from (Point(play, call, when) for call in mine for when in ("before", "after"))

    def has(self, point: Point) -> bool:
        """Return whether a point needs no more lives."""
        found = self._found.get(point)
        return found is not None and (found.how == "same" or (found.how == MISSED and self._tries[point] >= TRIES))

    def of(self, points: Sequence[Point]) -> list[Result]:
        """Return the existing results in the order of the points."""
        return [self._found[point] for point in points if point in self._found]


class Director:
    """The director of lives on one API server and one Ray."""

    def __init__(self, world: World, ray: Scene, operators: Nursery, kubeconfig: Path, folder: Path) -> None:
        self._world = world
        self._operators = operators
        self._ray = ray
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._numbers = itertools.count(1)

    @classmethod
    @asynccontextmanager
    async def on(cls, kubeconfig: Path, folder: Path, prefix: list[str]) -> AsyncIterator[Director]:
        """Yield a director with a Ray of its own."""
        async with (
            await Kube.connect(kubeconfig=str(kubeconfig)) as kube,
            scene(prefix, folder / "ray.log") as ray,
            nursery(folder / "nursery.log") as operators,
        ):
            world = World(kube)
            watching = asyncio.create_task(world.watch())
            try:
                yield cls(world, ray, operators, kubeconfig, folder)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def calm(self, play: str, count: int) -> Calm:
        """Run lives without a death; returns their end and their calls."""
        lives = [self.life(play) for _ in range(count)]
        digests = await asyncio.gather(*(life.live() for life in lives))
        for life, digest in zip(lives, digests, strict=True):
            wrong = [*life.laws(), *differences(digests[0], digest)]
            if wrong:
                raise BrokenError(f"two calm lives differ: {'; '.join(wrong)}")
        return Calm(play, digests[0], *shared([life.operator.made() for life in lives]))

    async def some(self, expected: Json, points: Sequence[Point]) -> list[Result]:
        """Run a life with a death at each of these points of one play."""
        began, life = time.monotonic(), self.life(points[0].play, *points)
        wrong = ""
        try:
            digest = await life.live()
        except BrokenError as error:
            wrong = f"no end: {error}"
        else:
            wrong = "; ".join([*life.laws(), *differences(expected, digest)])
        took, left = round(time.monotonic() - began, 1), life.operator.points
        return [
            Result(**asdict(point), how=wrong or (MISSED if (point.call, point.when) in left else "same"), seconds=took)
            for point in points
        ]

    async def all(self, points: Sequence[Point], shape: Shape, results: Results, end: float | None = None) -> None:
        """Run lives for all points without a result; none begins after `end` on the monotonic clock."""
        groups: list[list[Point]] = []
        for play in PLAYS:
            todo = [point for point in points if point.play == play and not results.has(point)]
            count = -(-len(todo) // shape.deaths)
            # Points of one life lie far apart; a death after a change can go wrong most.
            groups += [todo[n::count] for n in range(count)]
        waiting = iter(sorted(groups, key=lambda group: min(p.weight for p in group)))

        async def live() -> None:
            for group in waiting:
                if end is not None and time.monotonic() > end:
                    return
                for result in await self.some(results.calm[group[0].play].expected, group):
                    results.add(result)
                    print(
                        f"{result.seconds:6.1f} s  {result.play} {result.when:6} {result.call}: {result.how}",
                        flush=True,
                    )

        await asyncio.gather(*(live() for _ in range(shape.lives)))

    def life(self, play: str, *points: Point) -> Life:
        """Return a life whose operator dies at each of the points."""
        name = f"life-{next(self._numbers)}"
        at = [(point.call, point.when) for point in points]
        operator = Operator(self._operators, self._folder / name, self._kubeconfig, name, self._ray.door, at)
        return Life(self._world, self._ray, operator, PLAYS[play])


def differences(expected: Json, found: Json) -> list[str]:
    """Return the differences between the expected and the found end."""

    def told(value: Any) -> str:
        return json.dumps(value)

    return [
        f"{key}: {told(found.get(key))}, not {told(value)}"
        for key, value in expected.items()
        if found.get(key) != value
    ]


def shared(lives: Sequence[Sequence[Sequence[str]]]) -> tuple[list[str], list[str]]:
    """Return the calls worth a death that all these lives made, and those that only some made, by one name each.

    A status patch with several changes is one call: names that always come together count as one.
    """
    where: dict[str, list[int]] = {}
    for number, life in enumerate(lives):
        for at, name in ((at, name) for at, call in enumerate(life) for name in call if worth(name)):
            where.setdefault(name, [-1] * len(lives))[number] = at
    always: dict[tuple[int, ...], str] = {}
    for name, places in where.items():
        if -1 not in places:
            always.setdefault(tuple(places), name)
    return list(always.values()), [name for name, places in where.items() if -1 in places]


def worth(name: str) -> bool:
    """Return whether a call is worth a death: each that changes something, and the first of each kind of read."""
    writes = " GET " not in f" {name} "
    return name.endswith(" #1") or (writes and "/status the rest" not in name)
