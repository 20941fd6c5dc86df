"""TensorFlow's parameter servers: each process of examples/tf-ps is killed, and the loss goes on.

A worker restarts alone, and what it had under way may be applied twice, which the run tells; the chief restarts alone
from its checkpoint; a parameter server takes the chief along.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import parameter_servers
import pytest
from environment import NotToBeHadError
from scenes import SCRIPTS

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


@pytest.mark.parametrize(("wrote", "read"), [(1, 2), (3, 2)])
def test_another_number_of_servers_reads_variables_unless_the_script_makes_some_for_each(
    tmp_path: Path, wrote: int, read: int
) -> None:
    """What the warning of `dljob.plan.tensorflow.resharded` says of such a checkpoint."""
    try:
        python = parameter_servers.make("tensorflow")
    except NotToBeHadError as error:
        pytest.skip(str(error))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command, path = [python, SCRIPTS / "reread_variables.py"], tmp_path / "variables"
    for words in ([str(wrote), path], [str(read), path, "read"]):
        done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["placed [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] 7.0", "refused"]


def _times(line: str) -> tuple[int, int]:
    """Return the fewest and the most times that a range was applied."""
    words = line.partition("applied ")[2].split()
    return int(words[0]), int(words[2])
