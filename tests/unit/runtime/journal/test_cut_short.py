"""A master that cannot go on once the verdict stands: the job ends by its verdict."""

from __future__ import annotations

import json

import pytest
from master_shell_kit import end_all, running, until

from dljob.master.state import events as ev


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("", ("Succeeded", "Completed")),
        ("stop", ("Stopped", "StoppedByUser")),
        ("suspend", ("Suspended", "JobSuspended")),
    ],
)
@pytest.mark.parametrize("again", [True, False])
async def test_a_verdict_stands_whatever_befalls_the_master_that_clears_up(world, monkeypatch, command, end, again):
    """The GCS may be away while a job is swept, for a moment or for long; how its ranks ended stays true."""
    shell = world.master()
    await until(running(shell))
    swept: list[int] = []

    async def away() -> None:
        swept.append(len(swept))
        if again or len(swept) == 1:
            raise ConnectionError("the GCS does not answer")

    monkeypatch.setattr(shell.executor, "sweep", away)
    if command:
        await shell.offer(ev.Commanded("1", command, "job", "me", 0))
    end_all(world)
    await until(world.masters[-1][1].done)
    assert shell.state.verdict is not None
    status = json.loads((world.folder / "status.json").read_text())
    uncleared = "; not all of the job could be cleared: ConnectionError: the GCS does not answer" if again else ""
    assert (status["phase"], status["reason"]) == end
    assert status["message"] == f"{shell.state.verdict.message}{uncleared}"
    told = json.loads((world.folder / "events.jsonl").read_text().splitlines()[-1])
    assert (told["reason"], told["message"].endswith("the GCS does not answer")) == ("MasterFailed", True)
    assert swept == [0, 1]
