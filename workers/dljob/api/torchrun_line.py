"""The command line of torchrun: every argument that torch 2.15 knows, read as it reads them, without torch.

Source: `torch/distributed/run.py`. Each argument may also come from its `PET_*` variable, as there.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from dljob.errors import UsageError

PREFIX = "PET_"
METHODS = ("spawn", "fork", "forkserver")
NUMA = ("node", "socket", "exclusive", "core-complex")
COMMAND = "dljob torchrun"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of torchrun's. `flag`: it takes no value."""

    name: str
    default: Any = None
    kind: type = str
    help: str = ""
    short: str = ""
    flag: bool = False
    choices: tuple[str, ...] | None = None
    env: bool = True
    also: str = ""
    """Another variable that it may come from."""

    @property
    def dest(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")

    @property
    def options(self) -> tuple[str, ...]:
        """How it is written."""
        spellings = dict.fromkeys((f"--{self.name}", f"--{self.dest}"))
        return (*([self.short] if self.short else []), *spellings)


ARGUMENTS = (
    Argument("nnodes", "1:1", help="machines, or the fewest and the most: MIN:MAX"),
    Argument("nproc-per-node", "1", help="ranks on each machine: a number, auto, gpu, npu, hpu, xpu or cpu"),
    Argument("rdzv-backend", "static", help="not used: PrimeMaster gives the ranks their numbers"),
    Argument("rdzv-endpoint", "", help="not used, as above"),
    Argument("rdzv-id", "none", help="the job's name, and TORCHELASTIC_RUN_ID"),
    Argument("rdzv-conf", "", help="join_timeout=S: the job fails when it has no room after S seconds"),
    Argument("standalone", default=False, flag=True, help="one machine"),
    Argument("max-restarts", 0, int, help="restarts before the job fails"),
    Argument("monitor-interval", 0.1, float, help="not used: a death is seen at once"),
    Argument("start-method", "spawn", choices=METHODS, help="not used: each rank is a process of its own"),
    Argument("event-log-handler", "null", help="not used: dljob events"),
    Argument("role", "default", help="the role's name"),
    Argument("module", default=False, flag=True, short="-m", help="SCRIPT is a module, as for python -m"),
    Argument("no-python", default=False, flag=True, help="SCRIPT is a program"),
    Argument("run-path", default=False, flag=True, help="SCRIPT is run as runpy.run_path does: it always is"),
    Argument("log-dir", help="a folder that gets a link to the ranks' logs, on this machine"),
    Argument("redirects", "0", short="-r", help="ranks that are not on the console: 3, or 0:3,1:3 by local rank"),
    Argument("tee", "0", short="-t", help="ranks whose lines have a prefix: 3, or 0:3,1:3 by local rank"),
    Argument(
        "log-line-prefix-template",
        "",
        help="that prefix: ${role_name}, ${rank}, ${local_rank}, ${hostname}",
        also="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    ),
    Argument("local-ranks-filter", "", help="local ranks that are on the console: 0,1"),
    Argument("duplicate-stdout-filters", [], help="not used: dljob logs"),
    Argument("duplicate-stderr-filters", [], help="not used: dljob logs"),
    Argument("node-rank", 0, int, help="0: the command is given once, and not on each machine"),
    Argument("master-addr", "127.0.0.1", help="not used: the first machine's, and a free port"),
    Argument("master-port", None, int, help="not used, as above"),
    Argument("local-addr", help="not used: Ray's own address of the machine"),
    Argument("logs-specs", env=False, help="not used: dljob logs"),
    Argument("numa-binding", choices=NUMA, env=False, help="ranks run on the cores near their devices"),
    Argument("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", help="not used: SIGINT, SIGTERM stop it"),
    Argument("shutdown-timeout", None, int, help="not used: a rank has 30 s to end after SIGTERM"),
    Argument("virtual-local-rank", default=False, flag=True, help="LOCAL_RANK is 0, and a rank sees its device alone"),
)
"""All but `--print-completion`, which is about torchrun's own command."""

OURS = (
    Argument("to", "local", help="local, kubernetes, or HOST:PORT of a Ray that runs", env=False),
    Argument("dry-run", default=False, flag=True, help="print the DLJob and do nothing", env=False),
    Argument("name", help="the job's name; left out: --rdzv-id, else the script's", env=False),
    Argument("accelerator", help="devices of a rank: GPU, NPU, GPU=2, GPU=0.5, none", env=False),
    Argument("image", help="the runtime image, on Kubernetes", env=False),
    Argument("no-upload", default=False, flag=True, help="the image has the code: this folder stays here", env=False),
    Argument("namespace", help="the namespace, on Kubernetes", env=False),
    Argument("context", help="a context of the kubeconfig", env=False),
)


class Parser(argparse.ArgumentParser):
    """One that raises, as every command here does."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong."""
        raise UsageError(message, hint=f"{_meant(message, tuple(self._option_string_actions))}see {COMMAND} --help")


class _Group(Protocol):
    """Where arguments are added: argparse names the class of a group only in private."""

    add_argument: Callable[..., Any]


def _meant(message: str, known: Sequence[str]) -> str:
    """A word about what an unknown argument is like."""
    word = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
    near = difflib.get_close_matches(word, known, 1) if message.startswith("unrecognized") else []
    return f"Did you mean {near[0]}? " if near else ""


def parser(*, add_help: bool = True) -> Parser:
    """A parser of torchrun's arguments and our own."""
    usage = f"{COMMAND} [options] SCRIPT [arguments of the script]"
    made = Parser(prog=COMMAND, usage=usage, description=ABOUT, add_help=add_help)
    for title, arguments in (("torchrun's", ARGUMENTS), ("where to", OURS)):
        group = made.add_argument_group(title)
        for each in arguments:
            _add(group, each)
    made.add_argument("training_script", metavar="SCRIPT", help="a script, a module (-m) or a program (--no-python)")
    made.add_argument("training_script_args", metavar="...", nargs=argparse.REMAINDER, help="its arguments, unchanged")
    return made


ABOUT = (
    "Run a script of torchrun's, unchanged, as a job: here on a Ray of its own, on a Ray that runs, or on Kubernetes. "
    "The command is given once for all machines. The ranks' lines are on stdout, everything else on stderr. On "
    "Kubernetes all lines are on stderr, as with dljob run, and the outcome is on stdout, as JSON."
)


def _add(group: _Group, each: Argument) -> None:
    if each.flag:
        group.add_argument(*each.options, dest=each.dest, action="store_true", default=each.default, help=each.help)
        return
    group.add_argument(
        *each.options,
        dest=each.dest,
        default=each.default,
        type=each.kind,
        choices=each.choices,
        metavar=None if each.choices else each.dest.upper(),
        help=each.help,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a variable says of an argument, until the words turn out to say nothing of it."""

    variable: str
    text: str

    def read(self, each: Argument) -> object:
        """The value; a flag is a number that is not 0, as torch reads it."""
        try:
            return bool(int(self.text)) if each.flag else each.kind(self.text)
        except ValueError:
            hint = "write 1 or 0" if each.flag else f"write a number, or give --{each.name}"
            raise UsageError(f"{self.variable}={self.text} is no number", hint=hint) from None


def read(words: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The words of a command as torchrun understands them.

    `variables` of what it returns has the arguments that a variable says, each with that variable's name.

    Raises:
        UsageError: torchrun would refuse them.
    """
    known = {each: variable for each in ARGUMENTS if each.env for variable in _variables(each) if variable in environ}
    first = {each.dest: _Said(variable, environ[variable]) for each, variable in known.items()}
    line = parser().parse_args(list(words), argparse.Namespace(**first))
    variables: dict[str, str] = {}
    for each in known:
        said = getattr(line, each.dest)
        if isinstance(said, _Said):
            setattr(line, each.dest, said.read(each))
            variables[each.name] = said.variable
    line.variables = variables
    return line


def _variables(each: Argument) -> Iterator[str]:
    """Where an argument may come from; the last one that is set is heard."""
    if each.also:
        yield each.also
    yield f"{PREFIX}{each.dest.upper()}"


def spelled(line: argparse.Namespace, name: str) -> str:
    """An argument as its user wrote it: `--nnodes`, or `PET_NNODES`."""
    return str(line.variables.get(name, f"--{name}"))


def own(words: Sequence[str]) -> int:
    """How many of a line's words are not arguments of its script. What else is wrong with them `read` says."""
    try:
        line, _ = parser(add_help=False).parse_known_args(list(words))
    except UsageError:
        return len(words)
    return len(words) - len(line.training_script_args)


def given(line: argparse.Namespace) -> tuple[str, ...]:
    """The arguments of torchrun's that say something else than their defaults."""
    return tuple(each.name for each in ARGUMENTS if getattr(line, each.dest) != each.default)
