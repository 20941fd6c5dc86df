"""The end of a rank whose peer still forms the group; no Ray is needed, but torch."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from gateway_kit import free_port

KITS = Path(__file__).parents[1] / "kits"
ALONE_S = 1.0
"""Seconds for which a rank is seen to stay; it would leave within milliseconds."""


def test_no_rank_leaves_before_its_peer_has_formed_the_group() -> None:
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join([str(KITS), *sys.path])}
    port = str(free_port())
    made = [
        subprocess.Popen(
            [sys.executable, str(KITS / "brief_rank.py"), str(rank), port],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    early, late = made
    try:
        assert early.stdout is not None
        assert late.stdin is not None
        assert late.stdout is not None
        assert late.stdout.readline() == "connecting\n"
        assert early.stdout.readline() == "leaving\n"
        assert select.select([early.stdout], [], [], ALONE_S)[0] == []
        late.stdin.write("\n")
        late.stdin.flush()
        assert early.stdout.readline() == "left\n"
    finally:
        for each in made:
            each.kill()
            each.communicate()
