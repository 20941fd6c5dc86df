"""The `dljob` command: parses its arguments, runs one subcommand, and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from dljob.cli import extensions, output
from dljob.cli.ending import early_end
from dljob.errors import DLJobError, ExitCode, RenamedWarning, UsageError, not_installed

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

DEBUG = "--debug"
SCRIPTED = ("torchrun", "accelerate", "dlrover-run")
"""Commands whose arguments are parsed by their launcher's rules, and end in those of a script."""
COMMANDS = {
    "run": "Run a job and watch it to its end: on this machine, or on Kubernetes.",
    "torchrun": "Run an unchanged torchrun script as a job: on this machine, on a running Ray, or on Kubernetes.",
    "accelerate": "Run an unchanged `accelerate launch` script as a job, with its configuration file.",
    "dlrover-run": "Run an unchanged dlrover-run script as a job, with DLRover's import paths served by dljob.",
    "submit": "Start a job on Kubernetes or on a running Ray, and return once it is accepted.",
    "init": "Write a small working job, dljob.yaml and its script, into a folder that has neither.",
    "plan": "Show which ranks run where: roles, units, bundles, machines. No cluster is needed.",
    "convert": "Turn RayJobs, PyTorchJobs, TrainJobs, JobSets and ElasticJobs into DLJobs, and report each field.",
    "validate": "Check job files: unknown fields, invalid values, roles or a plan that do not fit together.",
    "status": "Show all jobs, or one job: phase, roles, step, restarts, the last fault.",
    "top": "Show all jobs, or the ranks of one job, refreshed in place: steps, heartbeats, memory, devices.",
    "describe": "Show one job on a page: spec, status, nodes, faults and causes, last events, location of its logs.",
    "why": "Explain a job's last failure: first cause, evidence, what followed, what was done, what to do next.",
    "ledger": "Show where a job's time went: its accounts by role, device-hours, goodput, and what its failures cost.",
    "report": "Write a job's page, one HTML file that needs nothing else: where its time went, what failed, and why.",
    "advise": "Propose memory, CPUs, ranks and settings of a job from the records of its past runs, with each gain.",
    "replay": "Show a job as it was at a moment of its past: state, ledger and causes, from its journal.",
    "open": "Open a job's page in the browser, and keep it up to date until Ctrl-C.",
    "trace": "Write a job's trace in Chrome's format: nodes, ranks, their accounts over time, and incidents.",
    "logs": "Show the output of a job's ranks, each line with the prefix [role/rank].",
    "events": "Show the timeline of a job: placement, roles ready, failures, restarts, the end.",
    "stack": "Show where threads of a running job's ranks are in the user's code, without stopping them.",
    "restart": "Restart a running job, one of its roles, or one rank.",
    "scale": "Change the number of ranks of a running job's role, within minReplicas and maxReplicas.",
    "suspend": "Suspend a job on Kubernetes: save its checkpoints, release its machines, and keep only the DLJob.",
    "resume": "Resume a job that is suspended, was stopped or failed, on new machines, from its last checkpoint.",
    "stop": "Stop a running job; its journal, logs and checkpoints stay in its folder.",
    "chaos": "Inject the faults of a file into a running job, and report its reaction to each.",
    "checkpoint": "List or verify checkpoints, or export one for other tools; no running job is needed.",
    "delete": "Delete the folders of ended jobs: journal, logs and files of their ranks.",
    "prune": "Delete the folders of all jobs that ended some time ago.",
    "doctor": "Check the requirements of jobs, on this machine and on the kubeconfig's cluster, with a fix for each.",
    "sim": "Test PrimeMaster's decisions against faults: crashes, kills, lost nodes, late and duplicated events.",
    "crd": "Print the CustomResourceDefinition, which describes every field of a job.",
    "completion": "Print a shell's completion script for this command.",
    "version": "Show the versions of dljob, Python, Ray and torch.",
}
"""Name -> first line of the command's docstring, repeated here so that the help imports no command."""
TOOLS = ("accelerate", "dlrover-run", "convert", "report", "advise", "replay", "open", "trace", "sim")
"""Commands of the wheel dljob-tools, which finds them by entry points."""
OBSERVING = (
    *("status", "top", "describe", "why", "ledger", "report", "advise", "logs", "events", "stack", "replay", "open"),
)
"""Commands whose modules are in `dljob.cli.commands.observe`."""
MODULES = {
    "resume": "suspend",
    "prune": "delete",
    "dlrover-run": "dlrover_run",
    "trace": "observe.job_trace",  # not the name of a module of Python's
    **{name: f"observe.{name}" for name in OBSERVING},
}
"""Modules of `dljob.cli.commands` whose name differs from their command's."""
ABOUT_JOBS = (
    *("run", "submit", "status", "top", "describe", "why", "ledger", "report", "open", "logs", "events", "stack"),
    *("restart", "scale", "suspend", "resume", "stop", "chaos", "doctor"),
)
"""Commands that can act on a cluster; under `kubectl dljob` they do."""
LOCAL_ONLY = {
    "delete": "a job of the cluster: kubectl delete dljob NAME; one of this machine: dljob delete NAME",
    "prune": "on the cluster spec.ttlSecondsAfterFinished deletes ended jobs; on this machine: dljob prune",
    "trace": "with a copy of the job's folder: dljob trace FOLDER; without: kubectl dljob report NAME",
    "advise": "with copies of the jobs' folders: dljob advise FOLDER",
    "replay": "with a copy of the job's folder: dljob replay FOLDER; without: kubectl dljob events NAME",
    "checkpoint": "where the volume with the checkpoints is mounted: dljob checkpoint ls FOLDER",
}
"""Commands that only know jobs of this machine; `kubectl dljob` refuses them. Name -> what to run instead."""

HELP = """Run deep-learning jobs made of different processes, and keep them running when any part fails.

Data goes to stdout, everything else to stderr. NO_COLOR turns colours off; --debug, anywhere, shows tracebacks;
--version is the command version.

Commands act on this machine, unless --kubernetes, --namespace or --context selects a cluster.

Exit codes: 0 done, 1 job failed, 2 wrong usage, invalid spec or a plan that does not fit, 3 not found, 4 Ray or
Kubernetes unreachable or access denied, 5 timed out, 6 job stopped by another user or process, 130 interrupted.
"""


def build(chosen: str = "", without: Collection[str] = ()) -> App:
    """Build the tree of commands but those in `without`; only the module of the `chosen` is imported, for its help."""
    from cyclopts import App

    # No version flag of cyclopts: `--version` is the command `version`, with its options (`_dispatch`).
    app = App(name="dljob", help=HELP, help_format="markdown", version_flags=(), help_flags=("--help", "-h"))
    for order, (name, summary) in enumerate(COMMANDS.items()):
        if name in without:
            continue
        module = MODULES.get(name, name)
        # A command as a path: cyclopts imports it only when it is called, and `dljob --help` imports none.
        # The chosen command's help is its docstring; those of the others are not imported.
        path = f"dljob.cli.commands.{module}:{name.replace('-', '_')}"
        app.command(
            _load(name) if name == chosen in TOOLS else path,
            name=name,
            help=None if name == chosen else summary,
            sort_key=order,
        )
    return app


def _load(name: str) -> Callable[..., int | None]:
    """Return the function of a command of dljob-tools. Raises UsageError where that is missing."""
    return extensions.load(extensions.COMMANDS, name, f"dljob {name}")


def main(argv: Sequence[str] | None = None, *, kubectl: bool = False) -> NoReturn:
    """Run the command and exit with its code; `kubectl`: on the kubeconfig's cluster."""
    # Order: streams first, since parsing may already print; arguments of torchrun's script keep their own --debug.
    _open_streams()
    if argv is None:
        _ensure_utf8()
    words = list(sys.argv[1:] if argv is None else argv)
    own_count = _count_own_words(words)
    # --debug may stand anywhere before torchrun's script, and no command declares it.
    given_words = [word for word in words[:own_count] if word != DEBUG] + words[own_count:]
    code = run(given_words, debug=DEBUG in words[:own_count], kubectl=kubectl)
    # Flushed here, while a failure can still decide the exit code.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        os._exit(code)  # the reader is gone; the flush at a normal exit would only print a second error
    except OSError as error:
        # A full disk may show only at this flush, and must not end in success.
        os._exit(code or _refused(error))
    if _hangs_in_ray():
        os._exit(code)
    sys.exit(code)


def _ensure_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale's encoding lacks a letter of a word or of this folder's path.

    A job file takes no name whose letters are unknown, and a rank would not find the script of that name.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    with suppress(OSError, UnicodeDecodeError):  # the folder is gone; or the bytes are no UTF-8, which helps nobody
        if not "".join(texts := [*sys.argv, os.getcwd()]).isascii():  # noqa: PTH109 - as it is spelled
            for text in texts:
                os.fsencode(text).decode("utf-8")
            os.environ["PYTHONUTF8"] = "1"  # for ranks, too
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this command itself


def _hangs_in_ray() -> bool:
    """Whether a thread still starts or joins a Ray that does not answer: a normal exit would wait for it."""
    # Not imported for this question: without the module nothing calls Ray.
    connect = sys.modules.get("dljob.runtime.backend.connect")
    return connect is not None and any(
        thread.name.startswith(connect.IN_RAY) for thread in connect.threading.enumerate()
    )


def _open_streams() -> None:
    """Open standard streams that the command was started without (`>&-`)."""
    # Otherwise the next file to be opened gets such a descriptor, and prints would go into it. In the order of the
    # descriptors: a new one is always the lowest that is free.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open as long as the process


def _count_own_words(words: Sequence[str]) -> int:
    """Return how many words precede those of torchrun's script, whose --debug is its own."""
    begin = _line(words)
    if not begin or DEBUG not in words:
        return len(words)
    launcher = words[begin - 1]
    if launcher == "torchrun":
        from dljob.cli.commands import torchrun as command
    else:
        try:
            command = sys.modules[_load(launcher).__module__]
        except UsageError:  # `run` tells it
            return len(words)
    return begin + command.own_words(words[begin:])


def _line(words: Sequence[str]) -> int:
    """Return where a launcher's arguments begin; 0: this is another command."""
    first = next((i for i, word in enumerate(words) if word != DEBUG), None)
    return 0 if first is None or words[first] not in SCRIPTED else first + 1


def kubectl_main() -> NoReturn:
    """Run `kubectl dljob ...`: the same commands, on the kubeconfig's cluster."""
    main(kubectl=True)


def on_kubernetes(words: Sequence[str]) -> list[str]:
    """Insert the flag that selects the cluster into the words of a command.

    Raises:
        UsageError: the command only knows jobs of this machine.
    """
    if begin := _line(words):
        # Right behind the command: later words may belong to the script.
        return [*words[:begin], "--to", "kubernetes", *words[begin:]]
    command = next((word for word in words if not word.startswith("-")), "")
    # A user of `kubectl dljob delete hello` means the cluster's job, and must not lose one of this machine.
    if command in LOCAL_ONLY and not {"--help", "-h"} & set(words):
        raise UsageError(f"kubectl dljob {command} would act on this machine", hint=LOCAL_ONLY[command])
    at = next((i for i, word in enumerate(words) if word in ABOUT_JOBS), None)
    # Another word came first: this one is its argument, which only happens to be called like a command.
    if at is None or any(not word.startswith("-") for word in words[:at]):
        return list(words)
    return [*words[: at + 1], "--kubernetes", *words[at + 1 :]]


def run(words: Sequence[str], *, debug: bool = False, kubectl: bool = False) -> int:
    """Run the command and return its exit code. Errors become messages, unexpected ones too unless `debug`.

    Args:
        words: the command and its arguments.
        debug: show tracebacks.
        kubectl: act on the kubeconfig's cluster, as `kubectl dljob` does.
    """
    try:
        with warnings.catch_warnings():  # ours are lines for people; those of libraries go where they always go
            _tell_of_old_names()
            return _dispatch(on_kubernetes(words) if kubectl else words)
    except DLJobError as error:
        with suppress(OSError):
            if debug:
                traceback.print_exc()
            output.error(error)
        return int(error.exit_code)
    # Commands that watch have handlers of their own; here it came at any point, and there is nothing to say.
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # As if the signal had ended the command, which Python ignores: `dljob logs JOB | head` is no error.
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _refused(error, debug=debug)
    except Exception as error:
        if debug:
            raise
        # A missing extra is the user's to install, and no fault of dljob.
        if isinstance(error, ModuleNotFoundError) and (missing := not_installed(error)):
            with suppress(OSError):
                output.error(missing)
            return int(missing.exit_code)
        with suppress(OSError):
            output.say(f"error: {type(error).__name__}: {error}")
            output.say("  this is a fault of dljob; add --debug for the traceback, and please report it")
        return int(ExitCode.JOB_FAILED)


def _tell_of_old_names() -> None:
    """Print each RenamedWarning as a line on stderr, until the surrounding `catch_warnings` ends."""
    usual = warnings.showwarning

    def show(  # noqa: PLR0917 - as `warnings.showwarning` is called
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, RenamedWarning):
            output.say(f"warning: {message}")
        else:
            usual(message, category, filename, lineno, file, line)

    # By default Python shows a warning only once for each place in the code.
    warnings.simplefilter("always", RenamedWarning)
    warnings.showwarning = show


def _refused(error: OSError, *, debug: bool = False) -> int:
    """Report a refusal of this machine, such as a full disk, which is no fault of dljob."""
    with suppress(OSError):
        if debug:
            traceback.print_exception(error)
        output.say(f"error: {_reason(error)}")
    return int(ExitCode.JOB_FAILED)


def _reason(error: OSError) -> str:
    # getcwd() in a deleted folder raises without a name.
    if isinstance(error, FileNotFoundError) and error.filename is None and not _in_folder():
        return "the current folder is gone"
    error_text = error.strerror or str(error) or type(error).__name__
    return error_text if error.filename is None else f"{error_text}: {error.filename}"


def _in_folder() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _dispatch(words: Sequence[str]) -> int:
    if words and words[0] in SCRIPTED:
        # Not by cyclopts: words after the script belong to the script, whatever they look like.
        if words[0] == "torchrun":
            from dljob.cli.commands.torchrun import torchrun

            return torchrun(*words[1:])
        return _load(words[0])(*words[1:]) or 0
    if words and words[0] == "--version":
        # With the command's own options: `dljob --version -o json`.
        words = ["version", *words[1:]]
    from cyclopts import CycloptsError

    app = build(words[0] if words else "")
    try:
        # Without its own exit and print: every error goes through `output.error`, with a hint and our exit code.
        command, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(_one_line(error), hint=_hint(error)) from error
    # Others have handlers of their own, or are not to be ended halfway.
    with early_end() if words and words[0] in (*OBSERVING, "trace") else nullcontext():
        exit_status = command(*bound.args, **bound.kwargs)
    # Commands without an exit code of their own return None, and have succeeded.
    return exit_status if isinstance(exit_status, int) else 0


def _one_line(error: CycloptsError) -> str:
    """Return the parser's message in one line."""
    return " ".join(str(error).split())


def _hint(error: CycloptsError) -> str:
    """Return a hint to the help of the command."""
    chain = " ".join(error.command_chain or ())
    return f"see dljob {chain} --help" if chain else "see dljob --help"
