"""TensorFlow's parameter servers: each process of examples/tf-ps is killed, and the loss goes on.

A worker restarts alone, and what it had under way may be applied twice, which the run tells; the chief restarts alone
from its checkpoint; a parameter server takes the chief along.
"""

from __future__ import annotations

from pathlib import Path

import parameter_servers
import pytest
from environment import NotToBeHadError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1600)]

EPOCHS, IN_FLIGHT = 4, 2


def test_the_loss_goes_on_after_each_process_was_killed(tmp_path: Path) -> None:
    try:
        run = parameter_servers.run(tmp_path)
    except NotToBeHadError as error:
        pytest.skip(str(error))
    faults = run.result["faults"]
    assert [fault["target"] for fault in faults] == ["worker/0", "chief/0", "ps/0"], run.said[-6000:]
    assert all(fault["met"] for fault in faults), faults
    assert run.result["restarts"]["process"] == 3
    assert "restartPolicy.with of ps names chief" in run.said
    assert run.said.count("goes on after step") == 2, "from a checkpoint: after the chief, and after the server"
    assert set(run.goes_on) == {"worker/0", "chief/0", "ps/0"}
    (applied,) = [line for line in run.said.splitlines() if "each range was applied" in line]
    least, most = _times(applied)
    assert EPOCHS <= least <= most <= EPOCHS + IN_FLIGHT


def _times(line: str) -> tuple[int, int]:
    """Return the fewest and the most times that a range was applied."""
    words = line.partition("applied ")[2].split()
    return int(words[0]), int(words[2])
