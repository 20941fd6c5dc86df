"""What Ray raises of a call is told as one of the two errors that callers know: none of its own gets through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions as rx

from dljob.runtime.backend import ray_backend
from dljob.runtime.backend.interface import ActorLostError, ActorRef
from dljob.runtime.backend.ray_backend import RayBackend


class Broken:
    """A handle whose calls raise."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.hello = SimpleNamespace(remote=self._call)

    async def _call(self) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "certain"),
    [
        (rx.OutOfMemoryError("killed by the memory monitor"), True),
        (rx.ActorPlacementGroupRemoved(), True),
        (rx.ActorUnschedulableError("no node has the label"), True),
        (rx.RuntimeEnvSetupError("no such variable"), True),
        (rx.RaySystemError(OSError("the connection is closed")), False),
        (rx.LocalRayletDiedError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_of_rays_is_an_actor_that_is_lost(error, certain):
    with pytest.raises(ActorLostError) as lost:
        await RayBackend().call(ActorRef("w/0/1", Broken(error)), "hello")
    assert (lost.value.certain, lost.value.node_lost) == (certain, False)
    assert str(lost.value)


def test_the_error_of_a_dead_actor_is_its_fact_without_ids_and_guesses():
    words = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: Host\n\tactor_id: 01ab\n\tpid: 7\n"
        "The actor is dead because its worker process has died. Worker exit detail: End of file. Some common causes "
        "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop was called"
    )
    error = rx.ActorDiedError()
    error.error_msg = words
    fact = "The actor is dead because its worker process has died. Worker exit detail: End of file."
    assert ray_backend._first_lines(error) == fact
    assert ray_backend._first_lines(rx.ActorDiedError()) == rx.ActorDiedError.BASE_ERROR_MSG
    error.error_msg = words.replace(
        "End of file.", "Worker unexpectedly exits with a connection error code 2. End of file."
    )
    assert len(ray_backend._first_lines(error)) < 60, "it says nothing of how the process ended"


async def test_a_reservation_that_a_silent_gcs_did_not_give_back_is_given_back_by_the_next_call(monkeypatch):
    backend, removed, silent = RayBackend(), list[Any](), [True]
    group: Any = object()
    backend._groups["w/0/1"] = group

    def remove(given: Any) -> None:
        if silent:
            silent.pop()
            raise rx.GetTimeoutError("There was timeout in removing the placement group")
        removed.append(given)

    monkeypatch.setattr(ray_backend, "remove_placement_group", remove)
    with pytest.raises(rx.GetTimeoutError):
        await backend.release("w/0/1")
    await backend.release("w/0/1")
    assert (removed, backend._groups) == ([group], {})
