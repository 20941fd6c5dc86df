"""Making sure of a gateway, and the actor's own word on where it serves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from dljob import ray_private
from dljob.errors import DeadlineError, UnreachableError, UsageError
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec
from dljob.runtime.job import gateway, gateway_app, gateway_jobs
from dljob.runtime.job.gateway import GATEWAY_CLASS, NAME, ON_HEAD, Gateway, _ensure


class Backend:
    """One name, which an actor may have; `answers` of its `address`, the last one again and again."""

    def __init__(self, *answers: Any, there: bool = False, taken: bool = False) -> None:
        self.there = there
        self.taken = taken
        self.answers = list(answers)
        self.spawned: list[ActorSpec] = []

    async def lookup(self, name: str) -> ActorRef | None:
        assert name == NAME
        return ActorRef(name, None) if self.there else None

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        self.there = True
        if self.taken:
            raise UsageError("an actor of that name exists already")
        self.spawned.append(spec)
        return ActorRef(spec.name, None)

    async def call(self, _ref: ActorRef, method: str) -> str:
        assert method == "address"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return answer


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "UP_S", 0.3)
    monkeypatch.setattr(gateway, "RETRY_S", 0.01)
    monkeypatch.setattr(gateway, "raylet_pidfd", lambda: None)
    monkeypatch.setattr(gateway, "raise_priority", lambda: None)


async def test_a_gateway_is_made_once_on_the_head_for_good():
    backend = Backend("h:1")
    assert await _ensure(backend, "10.0.0.1", 8266, "/home") == "h:1"  # type: ignore[arg-type]
    assert await _ensure(backend, "10.0.0.1", 8266, "/home") == "h:1"  # type: ignore[arg-type]
    (spec,) = backend.spawned
    assert (spec.cls, spec.args, spec.immortal) == (GATEWAY_CLASS, ("10.0.0.1", 8266, "/home"), True)
    assert spec.resources == ON_HEAD


async def test_another_launchers_gateway_will_do_and_a_dying_one_is_waited_for():
    backend = Backend(ActorLostError("died"), "h:1", taken=True)
    assert await _ensure(backend, "h", 1, "/home") == "h:1"  # type: ignore[arg-type]
    assert backend.spawned == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, DeadlineError),
        (ActorLostError("died"), ActorLostError),
        (ActorCallError("the port is taken", error_type="X", remote_traceback=""), UnreachableError),
    ],
)
async def test_a_gateway_that_cannot_be_had_is_an_error_in_time(answer, error):
    with pytest.raises(error):
        await _ensure(Backend(answer), "h", 1, "/home")  # type: ignore[arg-type]


class Served:
    def __init__(self, address: str) -> None:
        self.address = address


async def test_a_taken_port_is_told_and_tried_again_until_it_is_free(monkeypatch):
    free = asyncio.Event()

    async def serve(*args: Any) -> Served:
        if not free.is_set():
            raise OSError(98, "Address already in use")
        return Served(f"{args[3]}:{args[4]}")

    monkeypatch.setattr(gateway_app, "serve", serve)
    monkeypatch.setattr(ray_private, "auth_token", lambda: None)
    monkeypatch.setattr(gateway_jobs, "about", dict)
    monkeypatch.setattr(gateway, "factory", lambda _: lambda _options: None)
    made = Gateway("10.0.0.1", 8266, "/home")
    with pytest.raises(UnreachableError, match=r"cannot listen at 10.0.0.1:8266: Address already in use"):
        await made.address()
    free.set()
    await made._serving
    assert await made.address() == "10.0.0.1:8266"


async def test_other_errors_of_the_gateway_are_told_to_the_caller(monkeypatch):
    def token() -> str:
        raise LookupError("no token file")

    monkeypatch.setattr(ray_private, "auth_token", token)
    monkeypatch.setattr(gateway, "factory", lambda _: lambda _options: None)
    made = Gateway("10.0.0.1", 8266, "/home")
    with pytest.raises(LookupError, match="no token file"):
        await made.address()


def test_the_module_of_the_gateway_actor_imports_no_server():
    code = "import sys, dljob.runtime.job.gateway; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"ray", "aiohttp", "pydantic", "dljob.runtime.controller.prime"} & set(loaded)
