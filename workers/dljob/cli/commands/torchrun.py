"""`dljob torchrun`: run an unchanged torchrun script as a job."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.api import torchrun as meaning
from dljob.api import torchrun_line
from dljob.api.torchrun_console import console
from dljob.cli import output
from dljob.errors import ExitCode, UsageError

REMOTE = ("image", "namespace", "context", "no-upload")
ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")


def torchrun(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run an unchanged torchrun script as a job: on this machine, on a running Ray, or on Kubernetes.

    Args:
        words: arguments of torchrun and dljob, the script, its arguments; `dljob torchrun --help` lists them.
    """
    line = _read(words)
    if line is None:
        return ExitCode.OK
    if line.to == "local":
        meaning.refuse_unknown_plugins(line)
    return run_line(line, meaning.job)


def own_words(words: Sequence[str]) -> int:
    """Return how many words belong to dljob and torchrun rather than to the script."""
    return torchrun_line.count_own_words(words)


def run_line(
    line: argparse.Namespace, translate: Callable[[argparse.Namespace, meaning.Site], meaning.TorchrunJob]
) -> int:
    """Run the job of a parsed command line, of torchrun or of a launcher on top of it; return the exit code.

    Raises:
        UsageError: the target is none, or an argument is for another.
    """
    local = line.to == "local"
    if not local and line.to != "kubernetes" and not ADDRESS.fullmatch(line.to):
        raise UsageError(
            f"--to {line.to}: unknown target", hint="--to local, --to kubernetes, or --to HOST:PORT of a Ray"
        )
    if line.to != "kubernetes" and (only := [f"--{name}" for name in REMOTE if getattr(line, name.replace("-", "_"))]):
        raise UsageError(f"{', '.join(only)}: for --to kubernetes")
    if line.resume and not local and line.to != "kubernetes":
        raise UsageError("--resume: not for --to HOST:PORT", hint="--to local, or --to kubernetes")
    job = translate(line, _site(local=local))
    # The host of ranks elsewhere is not known here.
    shown = console(line, job.ranks_per_node, socket.getfqdn() if local else "")
    from dljob.plan.plan import plan
    from dljob.spec.loading.load import parse

    # Validated and planned before anything starts, and before --dry-run prints it. A job of this machine is planned
    # once, by its runner.
    manifest = parse(job.document)
    if line.dry_run or not local:
        plan(manifest)
    for note in job.notes:
        output.say(note)
    if line.dry_run:
        output.structured(job.document, "yaml")
        return ExitCode.OK
    from dljob.cli import scripted

    if line.to == "kubernetes":
        return scripted.on_kubernetes(manifest, line)
    return (scripted.run_here if local else scripted.on_ray)(manifest, shown, line)


def _read(words: tuple[str, ...]) -> argparse.Namespace | None:
    """Parse the command line; None when it asked for the help, which was printed."""
    try:
        return torchrun_line.read(words, os.environ)
    except SystemExit:
        # argparse exits after it has printed the help; its errors are UsageErrors (`torchrun_line.Parser`).
        return None


def _site(*, local: bool) -> meaning.Site:
    from dljob.runtime.backend.machine import devices_here

    # This machine's devices say nothing about those of other machines.
    devices = {kind: len(ids) for kind, ids in devices_here().items()} if local else {}
    python, threads = os.environ.get("PYTHON_EXEC", ""), os.environ.get("OMP_NUM_THREADS")
    return meaning.Site(local, len(os.sched_getaffinity(0)), devices, Path.cwd(), python, threads)
