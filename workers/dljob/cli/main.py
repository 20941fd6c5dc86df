"""The `dljob` command: parses, runs one command, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dljob.cli import output
from dljob.errors import DLJobError, ExitCode, UsageError

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

DEBUG = "--debug"
TORCHRUN = "torchrun"
"""Its words are torchrun's, and those of a script: they are not ours to parse."""
COMMANDS = {
    "run": "Run a job and watch it to its end: on this machine, or on Kubernetes.",
    "torchrun": "Run a script of torchrun's, unchanged, as a job: here, on a Ray that runs, or on Kubernetes.",
    "submit": "Start a job on Kubernetes, or on a Ray that runs already, and return when it is in hand there.",
    "plan": "Show which ranks run where: roles, units, bundles, machines. No cluster is needed.",
    "validate": "Check job files: unknown fields, wrong values, roles or a plan that do not fit together.",
    "status": "Show all jobs, or one job: phase, roles, step, restarts, the last fault.",
    "logs": "Show the output of a job's ranks, each line after [role/rank].",
    "events": "Show what happened to a job: room found, roles ready, failures, restarts, the end.",
    "stack": "Show where the ranks of a running job are: the stacks of all their threads, without stopping them.",
    "restart": "Restart a running job, one of its roles, or one rank.",
    "scale": "Give an Elastic role of a running job another number of ranks, within minReplicas and maxReplicas.",
    "suspend": "Give a job's machines back on Kubernetes: what is in memory is saved, and nothing of it is left but "
    "the DLJob.",
    "resume": "Let a suspended job go on: on new machines, from its last checkpoint, with its spec as it is now.",
    "stop": "End a running job; its journal, logs and what it saved stay in its folder.",
    "chaos": "Do the faults of a file to a running job of this machine, and tell what it did about each.",
    "doctor": "Check what jobs need, here and on the cluster of the kubeconfig: one line each, with the fix.",
    "sim": "Try PrimeMaster's decisions against faults: crashes, kills, lost nodes, late and doubled events.",
    "crd": "Print the CustomResourceDefinition: every field of a job, described.",
    "version": "Show the versions of dljob, Python, Ray and torch.",
}
"""Name -> the first line of its docstring, said here so that the help imports no command."""
ABOUT_JOBS = (
    *(
        "run",
        "submit",
        "status",
        "logs",
        "events",
        "stack",
        "restart",
        "scale",
        "suspend",
        "resume",
        "stop",
        "chaos",
        "doctor",
    ),
)
"""Commands that can be about a cluster; under `kubectl dljob` they are."""

HELP = """Run deep-learning jobs made of different processes, and keep them running when any part fails.

Data goes to stdout, everything else to stderr. NO_COLOR turns colours off; --debug, anywhere, shows tracebacks.

Commands are about this machine, unless --kubernetes, --namespace or --context says that they are about a cluster.

Exit codes: 0 done, 1 the job failed, 2 wrong usage or a wrong spec or a plan that does not fit, 3 not found,
4 Ray or Kubernetes not reachable or not allowed, 5 timed out, 130 interrupted.
"""


def build(chosen: str = "") -> App:
    """The command tree; only the `chosen` command's module is imported, for its own help."""
    from cyclopts import App

    app = App(name="dljob", help=HELP, help_format="markdown", version_flags=(), help_flags=("--help", "-h"))
    for order, (name, summary) in enumerate(COMMANDS.items()):
        module = "show_plan" if name == "plan" else name
        app.command(
            f"dljob.cli.commands.{module}:{name}", name=name, help=None if name == chosen else summary, sort_key=order
        )
    return app


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its code."""
    _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    own = _own(words)
    code = run([word for word in words[:own] if word != DEBUG] + words[own:], debug=DEBUG in words[:own])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        os._exit(code)  # nobody reads us any more; flushing once more at exit would complain
    except OSError as error:
        os._exit(code or _refused(error))
    sys.exit(code)


def _open_streams() -> None:
    """Give the command the streams that it was started without (`>&-`), in the order of their numbers.

    Else what is opened first has such a number, and what somebody prints goes there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for as long as we live


def _own(words: Sequence[str]) -> int:
    """How many of the words are not those of a script of torchrun's, whose --debug is its own."""
    begin = _line(words)
    if not begin or DEBUG not in words:
        return len(words)
    from dljob.api import torchrun_line

    return begin + torchrun_line.own(words[begin:])


def _line(words: Sequence[str]) -> int:
    """Where a line of torchrun's begins; 0: this is another command."""
    first = next((i for i, word in enumerate(words) if word != DEBUG), None)
    return 0 if first is None or words[first] != TORCHRUN else first + 1


def kubectl_main() -> NoReturn:
    """`kubectl dljob ...`: the same commands, about the cluster of the kubeconfig."""
    main(on_kubernetes(sys.argv[1:]))


def on_kubernetes(words: Sequence[str]) -> list[str]:
    """The words of a command with the flag that says that it is about a cluster."""
    if begin := _line(words):
        return [*words[:begin], "--to", "kubernetes", *words[begin:]]
    at = next((i for i, word in enumerate(words) if word in ABOUT_JOBS), None)
    if at is None or any(not word.startswith("-") for word in words[:at]):
        return list(words)
    return [*words[: at + 1], "--kubernetes", *words[at + 1 :]]


def run(words: Sequence[str], *, debug: bool = False) -> int:
    """Run the command; its exit code. Every error of ours becomes a message, every other one too unless `debug`."""
    try:
        return _dispatch(words)
    except DLJobError as error:
        with suppress(OSError):
            if debug:
                traceback.print_exc()
            output.error(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _refused(error, debug=debug)
    except Exception as error:
        if debug:
            raise
        with suppress(OSError):
            output.say(f"error: {type(error).__name__}: {error}")
            output.say("  this is a fault of dljob; add --debug for the traceback, and please report it")
        return int(ExitCode.JOB_FAILED)


def _refused(error: OSError, *, debug: bool = False) -> int:
    """Say what the machine refused, a full disk for one: that is no fault of dljob."""
    with suppress(OSError):
        if debug:
            traceback.print_exception(error)
        output.say(f"error: {_reason(error)}")
    return int(ExitCode.JOB_FAILED)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None and not _in_folder():
        return "the current folder is gone"
    what = error.strerror or str(error) or type(error).__name__
    return what if error.filename is None else f"{what}: {error.filename}"


def _in_folder() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _dispatch(words: Sequence[str]) -> int:
    if words and words[0] == TORCHRUN:
        from dljob.cli.commands.torchrun import torchrun

        return torchrun(*words[1:])
    from cyclopts import CycloptsError

    app = build(words[0] if words else "")
    try:
        command, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(_words(error), hint=_hint(error)) from error
    found = command(*bound.args, **bound.kwargs)
    return found if isinstance(found, int) else 0


def _words(error: CycloptsError) -> str:
    """The parser's message in one line."""
    return " ".join(str(error).split())


def _hint(error: CycloptsError) -> str:
    """The help of the command that was meant."""
    chain = " ".join(error.command_chain or ())
    return f"see dljob {chain} --help" if chain else "see dljob --help"
