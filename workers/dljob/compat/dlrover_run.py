"""`dlrover-run`'s command line as a job: torchrun's arguments, and each of its own carried, named, or refused.

Source: `dlrover/trainer/torch/elastic_run.py` of 0.6.1 and of the main branch at 7c3e9648.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob.api import torchrun
from dljob.api.torchrun_line import Argument, Launcher, read, spelled
from dljob.errors import UsageError

COMMAND = "dljob dlrover-run"
CHIPS = {"nvidia.com/gpu": "GPU", "ascend-npu": "NPU", "ascend_npu": "NPU", "mthreads-gpu": "GPU", "cpu": "none"}
"""dlrover-run's words for `--accelerator`; ours are accepted beside them."""
ARGUMENTS = (
    Argument("precheck", 0, int, help="1 or 2: check nodes before the ranks start"),
    Argument("node-check", default=False, flag=True, aliases=("network-check",), help="the same as --precheck 1"),
    Argument("exclude-straggler", default=False, flag=True, help="not used: see docs/howto/node-checks.md"),
    Argument("comm-perf-test", default=False, flag=True, help="not used: the node check measures"),
    Argument("node-unit", 1, int, help="must be 1: nodes come and go one by one"),
    Argument("auto-config", default=False, flag=True, help="--nproc-per-node=auto, where that is not given"),
    Argument("auto-tunning", default=False, flag=True, help="not used: nothing tunes batch sizes or loaders"),
    Argument("save-at-breakpoint", default=False, flag=True, help="not used: dljob.checkpoint always does"),
    Argument("accelerator", help="devices of a rank: GPU, NPU=2, none; or nvidia.com/gpu, ascend-npu"),
    Argument("training-port", 60000, int, help="not used: dljob takes a free port"),
    Argument("numa-affinity", default=False, flag=True, help="--numa-binding=node"),
    Argument("membind-policy", "preferred", help="not used: memory follows the cores that a rank is bound to"),
    Argument("ucp-device-type", "cpu", help="not used: no universal checkpoint is made"),
)
NOT_USED = frozenset(
    {
        *("exclude-straggler", "comm-perf-test", "auto-tunning", "save-at-breakpoint", "training-port"),
        *("membind-policy", "ucp-device-type"),
    }
)
LAUNCHER = Launcher(
    COMMAND,
    "Run an unchanged dlrover-run script as a job: on this machine, on a running Ray, or on Kubernetes. DLRover's "
    "import paths are dljob's in its ranks, as with `python -m dljob.compat --dlrover`. Give the command once for all "
    "machines.",
    "dlrover-run's",
    ARGUMENTS,
    abbreviates=False,
)


def read_line(words: tuple[str, ...], environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse a command line; arguments that torchrun has too get its values.

    Raises:
        UsageError: an argument is unknown, or refused.
    """
    line = read(words, environ, LAUNCHER)
    if line.node_unit != 1:
        raise UsageError(
            f"{spelled(line, 'node-unit')}={line.node_unit}: nodes come and go one by one",
            hint="give the nodes of a unit as one node: --nnodes divided, --nproc-per-node multiplied by it",
        )
    if line.accelerator:
        line.accelerator = CHIPS.get(line.accelerator.lower(), line.accelerator)
    if line.auto_config and line.nproc_per_node == "1":
        line.nproc_per_node = "auto"
    if line.numa_affinity and not line.numa_binding:
        line.numa_binding = "node"
    return line


def job(line: argparse.Namespace, site: torchrun.Site) -> torchrun.TorchrunJob:
    """Translate a command line that `read_line` has parsed."""
    torchrun_job = torchrun.job(line, site)
    (role,) = torchrun_job.document["spec"]["roles"]
    if line.precheck or line.node_check:
        role["comm"] = {**role.get("comm", {}), "preCheck": True}
    role["entrypoint"], role["args"] = served(role["entrypoint"], role.get("args", []))
    return replace(torchrun_job, notes=(*torchrun_job.notes, *_notes(line)))


def served(entrypoint: Mapping[str, Any], args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return an entrypoint and its arguments with DLRover's paths redirected; a program stays as it is."""
    if module := entrypoint.get("module"):
        script_words = [module] if module.endswith(".py") else ["-m", module]
        return {"module": "dljob.compat"}, ["--dlrover", *script_words, *args]
    command: list[str] = list(entrypoint["command"])
    if command[1:2] == ["-u"]:
        command[2:2] = ["-m", "dljob.compat", "--dlrover"]
    return {"command": command}, args


def _notes(line: argparse.Namespace) -> Iterator[str]:
    idle = [
        argument.name
        for argument in ARGUMENTS
        if argument.name in NOT_USED and getattr(line, argument.dest) != argument.default
    ]
    if idle:
        yield f"not used: {', '.join(spelled(line, name) for name in idle)}; see {COMMAND} --help"
    if line.no_python:
        yield "a program given by --no-python imports dlrover as it is installed, not dljob's"


def defined_by(builder: Any, cmd: str) -> None:
    """Define a job's only role by a command line, for `DLJobBuilder.by_dlrover_run_cmd`.

    Raises:
        UsageError: it is no such command, or asks for what the builder cannot say.
    """
    launcher, *words = shlex.split(cmd) or [""]
    if launcher not in ("dlrover-run", "torchrun"):
        raise UsageError(f"{launcher!r} is no launcher", hint="begin with dlrover-run or torchrun")
    line = read_line(tuple(words), {})
    if line.module or line.no_python:
        raise UsageError(f"a builder runs scripts: {cmd!r}", hint=f"dljob {launcher} runs modules and programs")
    site = torchrun.Site(True, os.cpu_count() or 1, _devices(), Path.cwd())
    least, most = torchrun.nnodes(line)
    ranks_per_node, kind = torchrun.nproc(line, site)
    if least < most:
        raise UsageError(f"--nnodes={line.nnodes}: a builder's job has one size", hint=f"dljob {launcher} has a range")
    device, _ = torchrun.accelerator(line, site, most * ranks_per_node, kind)
    builder.node_num(most).device_per_node(ranks_per_node).device_type(device.get("type", "CPU"))
    if launcher == "dlrover-run" and not (line.precheck or line.node_check):
        builder.skip_node_check()
    train_builder = builder.train(shlex.join([line.training_script, *line.training_script_args]))
    train_builder.nnodes(most).nproc_per_node(ranks_per_node)
    train_builder.resource(accelerator=float(device["count"])) if device else train_builder.resource(cpu=1)
    if line.max_restarts:
        train_builder.max_restart(line.max_restarts)


def _devices() -> dict[str, int]:
    from dljob.runtime.backend.machine import devices_here

    return {kind: len(ids) for kind, ids in devices_here().items()}
