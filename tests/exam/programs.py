"""User programs that several causes share."""

from __future__ import annotations

import textwrap

HEAD = """\
import os, sys, time
rank = int(os.environ["RANK"])
"""
LOOP = """\
{head}for step in range({steps}):
    print("step", step, flush=True)
    time.sleep({pause})
    if rank == {rank} and step == {at}:
{code}
"""
GROUP = """\
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo"{more})
rank = dist.get_rank()
for step in range({steps}):
    if rank == {rank} and step == {at}:
{code}
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep({pause})
"""


def indented(code: str) -> str:
    """Return code as the body of an `if` in a loop."""
    return textwrap.indent(textwrap.dedent(code).strip("\n"), " " * 8)


def at_step(code: str, *, at: int = 5, rank: int = 1, steps: int = 300, pause: float = 0.1) -> str:
    """Return a script whose rank does something at a step; the others go on."""
    return LOOP.format(head=HEAD, code=indented(code), at=at, rank=rank, steps=steps, pause=pause)


def in_group(
    code: str, *, at: int = 8, rank: int = 1, steps: int = 100_000, pause: float = 0.05, more: str = ""
) -> str:
    """Return a script of a gloo group whose rank does something before a collective of a step."""
    return GROUP.format(code=indented(code), at=at, rank=rank, steps=steps, pause=pause, more=more)


CALLER_AND_CALLEE = """\
- {name: trainer, entrypoint: {class: work.Trainer}, resources: {cpu: 200m}}
- {name: reward, entrypoint: {class: work.Reward}, driver: false, resources: {cpu: 200m}}
"""
"""Roles: a trainer that calls a reward model."""
FEEDER_AND_ENGINE = """\
- {name: feeder, entrypoint: {class: work.Feeder}, resources: {cpu: 200m}}
- {name: engine, entrypoint: {class: work.Engine}, driver: false, resources: {cpu: 200m}}
"""
"""Roles: a feeder and an engine with queues between them."""
ONE_ROLE = "- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m}, restartPolicy: {maxRestarts: 1}}\n"
"""A role of one rank."""
