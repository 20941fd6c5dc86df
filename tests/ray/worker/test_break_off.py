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


@pytest.mark.parametrize("elements", [64, 1_000_000])
def test_no_rank_stays_in_a_collective_that_all_break_off(elements: int) -> None:
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
    assert [json.loads(out.splitlines()[-1]) for out in said] == [{"hung": []}] * WORLD
