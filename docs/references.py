"""Reference pages made from the product's own tables: the command, exit codes, reasons and environment variables."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pydoc
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dlrover_page

from dljob import errors
from dljob.cli import main
from dljob.errors import DLJobError, ExitCode
from dljob.plan import env
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse
from dljob.telemetry import reasons, remedies
from dljob.telemetry.remedies import CauseKind

FOLDER = "docs/reference"
CODES = {
    ExitCode.OK: "The command did what it was asked; a watched job succeeded.",
    ExitCode.JOB_FAILED: "The job failed, or a check of the command did.",
    ExitCode.USAGE: "Wrong arguments, an invalid spec, or a plan that does not fit. Nothing was started.",
    ExitCode.NOT_FOUND: "There is no job, role, rank or file of that name, or the job has ended and takes no orders.",
    ExitCode.UNREACHABLE: "Ray or Kubernetes did not answer or denied access, or a folder cannot be written.",
    ExitCode.TIMED_OUT: "What was waited for did not happen in time.",
    ExitCode.STOPPED: "Another user or process stopped the job.",
    ExitCode.INTERRUPTED: "Ctrl-C interrupted the command.",
}
KINDS = {
    CauseKind.NOTHING: "Nothing failed.",
    CauseKind.USER_CODE: "The user's code, or a module that it imports.",
    CauseKind.MEMORY: "Memory of the machine or of a device.",
    CauseKind.DEVICE: "A device.",
    CauseKind.NODE: "A node, its disk or the network.",
    CauseKind.STOPPED: "Stopped, suspended or preempted.",
    CauseKind.SPEC: "The spec asks for what is invalid, does not exist or does not fit.",
    CauseKind.UNKNOWN: "Unknown.",
}
IN_RANKS = {
    "DLJOB_NAME": "name of the job",
    "DLJOB_UID": "the job's unique id; a job of the same name has another one",
    "DLJOB_ROLE": "name of the role",
    "DLJOB_RANK": "number of the rank in its role, from 0",
    "DLJOB_REPLICAS": "number of ranks of the role; of an Elastic role, as many as there are now",
    "DLJOB_LOCAL_RANK": "number of the rank among those of its role on this machine",
    "DLJOB_DIR": "folder of the job, for files that live as long as it",
    "DLJOB_INCARNATION": "how many times this rank has been started, from 1",
    "DLJOB_RESTART_REASON": "why this process was started again; empty at its first start",
}
IN_SERVERS = {
    "DLJOB_HOST": "address on which to listen: loopback on a laptop, that of the pod on Kubernetes",
    "DLJOB_PORT_<NAME>": "number of the port of that name, in capitals and with `_` for `-`",
}
BESIDE_SERVERS = {
    "DLJOB_WEIGHTS": "for the command of `weights.load`: JSON with the version and the file of each channel",
    "DLJOB_ENDPOINTS": "JSON file with the ready ranks of each role with ports; replaced whole at each change",
    "DLJOB_ENDPOINTS_<ROLE>": "the ready ranks of that role at this start, as `host:port,host:port` of its first port",
}
IN_ELASTIC_RANKS = {
    "RANK": "number of the rank in the world",
    "WORLD_SIZE": "number of ranks of the world",
    "LOCAL_RANK": "number of the rank on its machine; 0 with virtualLocalRank",
    "LOCAL_WORLD_SIZE": "number of ranks on the machine",
    "GROUP_RANK": "number of the machine",
    "GROUP_WORLD_SIZE": "number of machines",
    "ROLE_RANK": "as RANK",
    "ROLE_WORLD_SIZE": "as WORLD_SIZE",
    "ROLE_NAME": "name of the role; the role's own `env` may set another",
    "TORCHELASTIC_RESTART_COUNT": "restarts of the world so far",
    "TORCHELASTIC_MAX_RESTARTS": "restarts after which the job fails",
    "TORCHELASTIC_RUN_ID": "the job's unique id; the role's own `env` may set another",
    "TORCHELASTIC_ERROR_FILE": "where torch's `@record` writes the error that ends the rank; empty without a log",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT, or `--signals-to-handle` of `dljob torchrun`",
    "MASTER_ADDR": "host of the world's store",
    "MASTER_PORT": "port of the world's store",
    "TORCHELASTIC_USE_AGENT_STORE": "True: another process serves the store",
    env.NCCL_ERRORS: "1, unless it is set",
    "OMP_NUM_THREADS": "1 where several ranks share a machine, unless it is set",
}
INTERNAL = {
    env.COLLECTIVES: "backends and groups of `spec.collectives`, as JSON",
    "DLJOB_CHECKPOINT": "mount point of `spec.checkpoint` on Kubernetes",
    "DLJOB_COMPAT": "`dlrover`: DLRover's import paths are dljob's in this process",
    "DLJOB_DLROVER": "a job of DLRover's builders in its own terms, for its ranks",
    "DLJOB_FORK_IMPORTS": "modules that the template of a role's workers imports before it forks them",
    "DLJOB_CLEAN_IMPORTS": "modules that the template of scripts' ranks imports before it forks them",
    "DLJOB_FORK_SOCKETS": "the pid of a worker's raylet, and the folder of the sockets of its templates",
    "DLJOB_EMBEDDED": "marks the processes of a Ray that `dljob run` started",
    "DLJOB_HOST_SOCKET": "socket by which a rank talks to its host",
    "DLJOB_TOKEN_KEY": "key of the operator, from which it derives the token of each job; the chart sets it",
}
READ = {
    "DLJOB_HOME": ("command", "folder of jobs and logs; default: `dljob` in the user's state folder"),
    "DISTRIBUTED_BACKEND": ("command, ranks", "`ray` or `yr`: the backend of jobs that name none"),
    "RAY_ADDRESS": ("Python API", "a running Ray to join, where `submit` gets no `address`"),
    "KUBECONFIG": ("command", "kubeconfig files, as for kubectl"),
    "DLJOB_FORKED_WORKERS": (
        "command, `ray start`",
        "0: `dljob run`, and `ray start` with our hook, start each of Ray's workers as Ray does, instead of forking it",
    ),
    "DLJOB_TRACE_CALLS": ("ranks", "1 in a role's `env`: record its calls for `dljob trace`; `--trace-calls` sets it"),
    "DLJOB_PRELOAD": (
        "scripts",
        "0 in a role's `env`: only torch is imported before its ranks are forked",
    ),
    "NO_COLOR": ("command", "set: no colours"),
    "FORCE_COLOR": ("command", "set: colours also where stdout is no terminal"),
    "XDG_RUNTIME_DIR": ("command", "folder for the sockets by which commands reach a running job"),
    "LOG_LEVEL": ("ranks", "level of `worker.log`; default: INFO"),
    "DLROVER_UNIFIED_*": ("DLRover's `job.submit`", "options of its JobConfig: see [DLRover's names](dlrover.md)"),
    "DLROVER_LOG_LEVEL": ("ranks", "level of DLRover's `default_logger`; default: INFO"),
    "PET_*": ("dljob torchrun", "defaults of torchrun's arguments, as torchrun reads them"),
}


def generated() -> dict[str, str]:
    """Return path in the repository -> text of each page."""
    made = {"cli": cli(), "exit-codes": exit_codes(), "reasons": every_reason(), "environment": environment()}
    made["dlrover"] = dlrover_page.page(table)
    made["python"] = python_page()
    return {f"{FOLDER}/{name}.md": "\n".join(lines).rstrip() + "\n" for name, lines in made.items()}


# -- the Python API

SIGNATURES = "## Signatures"


def python_page() -> list[str]:
    """Return the page of the Python API: what is written by hand, and the signatures of all that it names."""
    text = (Path(__file__).resolve().parent.parent / FOLDER / "python.md").read_text(encoding="utf-8")
    lines = text.partition(SIGNATURES)[0].splitlines()
    names = [line.removeprefix("::: ") for line in lines if line.startswith("::: ") and "errors" not in line]
    stubs = [line for name in names for line in (*_stub(name), "")]
    return [
        *lines,
        SIGNATURES,
        "",
        "All of the above in short, for readers of the sources:",
        "",
        "```text",
        *stubs[:-1],
        "```",
    ]


def _stub(name: str) -> list[str]:
    """Return a function's signature; of a class also those of its public methods, and its properties."""
    thing: Any = pydoc.locate(name)
    short = name.rpartition(".")[2]
    if inspect.isfunction(thing):
        return [f"{short}{_signature(thing)}"]
    # Not a class: an object with methods, such as `checkpoint`.
    head = [f"class {short}{_signature(thing, is_class=True)}" if inspect.isclass(thing) else short]
    bases = [base for base in (thing if isinstance(thing, type) else type(thing)).__mro__ if "dljob" in base.__module__]
    members = {member: value for base in bases for member, value in vars(base).items() if not member.startswith("_")}
    for member, value in members.items():
        if isinstance(value, property) and value.fget is not None:
            head.append(f"    .{member}{_signature(value.fget, is_property=True)}")
        elif isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            head.append(f"    .{member}{_signature(getattr(thing, member))}")
    return head


class _Text(str):
    """An annotation as it is written: `inspect` would show it in quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(thing: Callable[..., object], *, is_class: bool = False, is_property: bool = False) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # of a dict or an enum in C
        return ""
    if is_property:
        return f": {signature.return_annotation}"
    parameters = [
        each.replace(annotation=each.annotation if each.annotation is each.empty else _Text(each.annotation))
        for name, each in signature.parameters.items()
        if name != "self"
    ]
    returned = signature.return_annotation
    answer = returned if is_class or returned is signature.empty else _Text(returned)
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty if is_class else answer))
    # Defaults that are objects would show where they lie in memory.
    return re.sub(r"<[^=]*? at 0x[0-9a-f]+>+", "...", text)


def table(head: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """Return a table; `head` has the columns, separated by bars."""
    columns = head.split("|")
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows), ""]


# -- the command


def cli() -> list[str]:
    """Return the page of the command: each subcommand with its arguments."""
    text = ["# The command `dljob`", ""]
    text += [
        "This page lists every command with its options, as `dljob COMMAND --help` does.",
        "",
    ]
    text += [
        *main.HELP.partition("\n\n")[2].strip().splitlines(),
        "",
        "[Exit codes](exit-codes.md) has more about them.",
        "",
    ]
    text += table("command|purpose", ((f"[{name}](#{name})", about) for name, about in main.COMMANDS.items()))
    for name in main.COMMANDS:
        text += [f"## {name}", "", *(_scripted(name) if name in main.SCRIPTED else _command(name)), ""]
    return text


def _command(name: str) -> list[str]:
    """Return what cyclopts says of a command, with its own title left out."""
    app = main.build(name)
    said = app.generate_docs(output_format="markdown", recursive=True)
    (part,) = re.findall(rf"^## dljob {name}\n+(.*?)(?=^## |\Z)", said, re.M | re.S)
    part = re.sub(r"^\*\*Commands\*\*:\n", "**Commands**:\n", part, flags=re.M)
    part = re.sub(r"\]\(#dljob-[\w-]+\)", "]", part)  # headings of subcommands have other anchors here
    part = re.sub(r"\[(`[\w-]+`)\]", r"\1", part)
    part = re.sub(r"^#+ (.*)$", r"### \1", part, flags=re.M)
    part = re.sub(r"^    (?=\S)", "  ", part, flags=re.M)
    return [line.rstrip() for line in part.strip().replace("```console", "```text").splitlines()]


def _scripted(command: str) -> list[str]:
    said = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(said):
        main.run([command, "--help"])
    if before is None:
        del os.environ["COLUMNS"]
    else:
        os.environ["COLUMNS"] = before
    return ["```text", *(line.rstrip() for line in said.getvalue().strip().splitlines()), "```"]


# -- exit codes


def exit_codes() -> list[str]:
    """Return the page of exit codes."""
    text = ["# Exit codes", "", "This page is for scripts and CI that call `dljob`.", ""]
    text += table("code|meaning", ((code.value, CODES[code]) for code in ExitCode))
    stands = (
        "An order whose error says `the order stands` is carried out once PrimeMaster or the operator goes on. Without"
        " these words a job of this machine got none: `restart` and `scale` first ask PrimeMaster for its state."
    )
    text += [stands, ""]
    text += ["`dljob why JOB` ends with the kind of the first cause; 3 and 4 are as above.", ""]
    text += table("code|first cause", ((kind.value, KINDS[kind]) for kind in CauseKind))
    text += [
        "## Exceptions",
        "",
        "In Python the same failures are exceptions; a command ends with the code of its exception.",
        "",
    ]
    kinds = [(f"`{each.__name__}`", each.exit_code.value, _first_line(each)) for each in _exceptions(DLJobError)]
    return text + table("exception|code|meaning", kinds)


def _exceptions(root: type[DLJobError]) -> Iterator[type[DLJobError]]:
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
        yield from _exceptions(each)


def _first_line(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


# -- reasons


def every_reason() -> list[str]:
    """Return the page of reasons: of events, of faults, and of the end of a job."""
    text = ["# Reasons", ""]
    text += [
        "This page is for those who match on the reasons of events and of a job's status; they are an interface.",
        "",
    ]
    text += ["## Events and verdicts", "", "`dljob events JOB` shows them; the last group ends a job.", ""]
    for title, rows in _commented(Path(reasons.__file__)).items():
        text += [f"### {title.partition(';')[0].rstrip('.')}", "", *table("reason|meaning", rows)]
    text += ["## Causes of a fault", "", "`dljob why JOB` shows them, with the evidence.", ""]
    faults = [(f"`{name}`", KINDS[each.kind], _sentence(each.advice)) for name, each in remedies.FAULTS.items()]
    text += table("reason|kind|what to do", faults)
    text += ["## Causes of an end or of a wait", ""]
    verdicts = [(f"`{name}`", KINDS[each.kind], _sentence(each.advice)) for name, each in remedies.VERDICTS.items()]
    return text + table("reason|kind|what to do", verdicts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text else ""


def _commented(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Return title -> (value, meaning): a comment on its own line is a title, one behind a constant its meaning."""
    groups: dict[str, list[tuple[str, str]]] = {}
    value, title = "", ""
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.STRING and re.match(r"[A-Z_]+ = \"", token.line):
                value = token.string.strip("\"'")
            elif token.type == tokenize.COMMENT and token.start[1] == 0:
                title, value = token.string.removeprefix("# "), ""
            elif token.type == tokenize.COMMENT and value:
                meaning = token.string.removeprefix("# ")
                groups.setdefault(title, []).append((f"`{value}`", _sentence(meaning)))
                value = ""
    return groups


# -- environment variables


def environment() -> list[str]:
    """Return the page of environment variables, those that ranks find and those that dljob reads.

    Raises:
        LookupError: a rank gets a variable that has no meaning here.
    """
    unknown = _given() - {*IN_RANKS, *IN_ELASTIC_RANKS}
    if unknown:
        raise LookupError(f"docs/references.py has no meaning for the variables {sorted(unknown)}")
    text = ["# Environment variables", ""]
    text += ["This page is for authors of user code and for administrators: what ranks find, and what dljob reads.", ""]
    text += ["## In every rank", "", *table("variable|value", _rows(IN_RANKS))]
    text += ["## In ranks of a role with ports", "", *table("variable|value", _rows(IN_SERVERS))]
    text += ["## In all ranks of a job with such a role", "", *table("variable|value", _rows(BESIDE_SERVERS))]
    text += [
        "## In ranks of an Elastic role",
        "",
        "As torchrun sets them.",
        "",
        *table("variable|value", _rows(IN_ELASTIC_RANKS)),
    ]
    text += ["Ranks see their devices by the variable of the vendor: [accelerators](../howto/accelerators.md).", ""]
    read = ((f"`{name}`", who, about) for name, (who, about) in READ.items())
    text += ["## Read by dljob", "", *table("variable|read by|meaning", read)]
    return [
        *text,
        "## Internal",
        "",
        "Set by dljob for its own processes; do not set them.",
        "",
        *table("variable|value", _rows(INTERNAL)),
    ]


def _rows(variables: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", about) for name, about in variables.items()]


def _given() -> set[str]:
    """Return the names of all variables that a rank of an Elastic role gets."""
    fields = {"name": "any", "type": "Elastic", "entrypoint": {"module": "any.py"}, "comm": {"backend": "gloo"}}
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "any"}, "spec": {"roles": [fields]}}
    given = env.rank_env(
        plan(parse(job)).roles["any"],
        0,
        job="any",
        uid="any",
        job_dir="/",
        incarnation=1,
        local_rank=0,
        local_world_size=2,
        group_rank=0,
        group_world_size=1,
        world_size=2,
        generation=1,
        store="any:1",
    )
    return set(given)
