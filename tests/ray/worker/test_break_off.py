"""Breaking off real gloo groups, which in-process restarts stand on; no Ray is needed, but torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_kit import free_port

KITS = Path(__file__).parents[1] / "kits"
WORLD, ROUNDS = 4, 40


@pytest.mark.parametrize(("elements", "most"), [(64, 0), (1_000_000, 1)])
def test_no_rank_stays_in_a_collective_that_all_break_off(elements: int, most: int) -> None:
    """A rank may stay whose connection was shut in the middle of a message.

    Gloo tells that to nobody (see `group_sockets`): 3 of 12,800 ranks with megabytes, none of 12,800 with one packet.
    PrimeMaster's deadline for leaving ends such a rank (tests/unit/master/failure/test_in_process.py).
    """
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [str(word) for word in (WORLD, free_port(), ROUNDS, elements)]
    made = [
        subprocess.Popen(
            [sys.executable, str(KITS / "break_off.py"), str(rank), *words],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [each.communicate(timeout=270)[0] for each in reversed(made)]
    finally:
        for each in made:
            each.kill()
            each.communicate()
    hung = [json.loads(out.splitlines()[-1])["hung"] for out in said]
    assert len(hung) == WORLD
    assert sum(map(len, hung)) <= most, hung
