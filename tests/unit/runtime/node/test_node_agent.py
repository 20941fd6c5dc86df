"""The node agent's calls without Ray: what it hands out of its node."""

from __future__ import annotations

import os
from typing import Any

from dljob.runtime.node.node_agent import NodeAgent
from dljob.runtime.node.stacks import DumpTarget


def test_an_agent_shows_what_the_kernel_knows_of_processes_of_its_node():
    agent: Any = NodeAgent.__new__(NodeAgent)
    seen, gone = agent.look(
        [DumpTarget("w/0", os.getpid(), os.getpid()), DumpTarget("w/1", 2**30, 2**30)], with_stacks=False
    )
    assert (seen.sample.stopped, seen.stack) == ("", "")
    assert seen.sample.cpu_s > 0
    assert gone.sample.cpu_s == 0
