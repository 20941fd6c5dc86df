"""`python -m dljob.compat [--dlrover] [-m] PROGRAM ARGS`: the program as Python runs it, with imports redirected."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from dljob.compat.redirect import ADAPTERS, RedirectError, backend_of, install_everywhere, unknown
from dljob.errors import ExitCode

USAGE = (
    "usage: DISTRIBUTED_BACKEND=yr python -m dljob.compat SCRIPT.py ARGS, or -m MODULE ARGS; "
    "python -m dljob.compat --dlrover SCRIPT.py ARGS, or --dlrover -m MODULE ARGS"
)


def main(argv: Sequence[str]) -> None:
    """Redirect `import ray` if the environment names another backend, and run the program here as `__main__`.

    With `--dlrover`, DLRover's import paths are redirected, too.
    """
    dlrover = list(argv[:1]) == ["--dlrover"]
    argv = argv[1:] if dlrover else argv
    module = list(argv[:1]) == ["-m"]
    program = list(argv[1:] if module else argv)
    if not program or program[0].startswith("-"):
        _refuse(USAGE)
    backend = backend_of(os.environ)
    if backend != "ray":
        if backend not in ADAPTERS:
            _refuse(unknown(backend))
        try:
            install_everywhere(backend, os.environ)
        except RedirectError as error:
            _refuse(str(error))
    if dlrover:
        _serve_dlrover()
    sys.argv = program
    if module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    if not Path(program[0]).exists():
        _refuse(f"there is no file {program[0]}; {USAGE}")
    sys.path[0] = str(Path(program[0]).resolve().parent)
    runpy.run_path(program[0], run_name="__main__")


def _serve_dlrover() -> None:
    from dljob.compat.dlrover_api.process import install_everywhere as serve

    try:
        serve(os.environ)
    except RedirectError as error:
        _refuse(str(error))


def _refuse(reason: str) -> None:
    sys.stderr.write(f"python -m dljob.compat: {reason}\n")
    raise SystemExit(ExitCode.USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
