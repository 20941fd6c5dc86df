"""Parser of torchrun's command line: every argument of torch 2.15, parsed as torch does, without importing torch.

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
    """One argument of torchrun; a `flag` takes no value."""

    name: str
    default: Any = None
    kind: type = str
    help: str = ""
    short: str = ""
    flag: bool = False
    choices: tuple[str, ...] | None = None
    env: bool = True
    also: str = ""
    """A further environment variable that sets it."""
    aliases: tuple[str, ...] = ()
    """Further names."""

    @property
    def dest(self) -> str:
        """Name of the argument as a Python attribute."""
        return self.name.replace("-", "_")

    @property
    def options(self) -> tuple[str, ...]:
        """Spellings on the command line, with dashes and with underscores."""
        # Without duplicates: argparse refuses the same option twice, and a name without a dash has one spelling.
        names = (self.name, *self.aliases)
        spellings = dict.fromkeys(f"--{form}" for name in names for form in (name, name.replace("-", "_")))
        return (*([self.short] if self.short else []), *spellings)


ARGUMENTS = (
    Argument("nnodes", "1:1", help="number of machines, or its minimum and maximum: MIN:MAX"),
    Argument("nproc-per-node", "1", help="ranks on each machine: a number, auto, gpu, npu, hpu, xpu or cpu"),
    Argument("rdzv-backend", "static", help="not used: PrimeMaster assigns the ranks"),
    Argument("rdzv-endpoint", "", help="not used, like --rdzv-backend"),
    Argument("rdzv-id", "none", help="name of the job, and TORCHELASTIC_RUN_ID"),
    Argument("rdzv-conf", "", help="join_timeout=S: the job fails when it is not placed after S seconds"),
    Argument("standalone", default=False, flag=True, help="use one machine"),
    Argument("max-restarts", 0, int, help="restarts before the job fails"),
    Argument("monitor-interval", 0.1, float, help="not used: the end of a process is noticed at once"),
    Argument("start-method", "spawn", choices=METHODS, help="not used: each rank is a separate process"),
    Argument("event-log-handler", "null", help="not used: see dljob events"),
    Argument("role", "default", help="name of the role"),
    Argument("module", default=False, flag=True, short="-m", help="SCRIPT is a module, as for python -m"),
    Argument("no-python", default=False, flag=True, help="SCRIPT is a program"),
    Argument("run-path", default=False, flag=True, help="run SCRIPT like runpy.run_path, which dljob always does"),
    Argument("log-dir", help="folder that gets a link to the ranks' logs, on this machine"),
    Argument("redirects", "0", short="-r", help="ranks hidden on the console: 3 for all, or 0:3,1:3 by local rank"),
    Argument("tee", "0", short="-t", help="ranks shown with a prefix: 3 for all, or 0:3,1:3 by local rank"),
    Argument(
        "log-line-prefix-template",
        "",
        help="prefix for --tee: ${role_name}, ${rank}, ${local_rank}, ${hostname}",
        also="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    ),
    Argument("local-ranks-filter", "", help="local ranks shown on the console: 0,1"),
    Argument("duplicate-stdout-filters", [], help="not used: see dljob logs"),
    Argument("duplicate-stderr-filters", [], help="not used: see dljob logs"),
    Argument("node-rank", 0, int, help="must be 0: one command serves all machines"),
    Argument("master-addr", "127.0.0.1", help="not used: dljob takes the first machine and a free port"),
    Argument("master-port", None, int, help="not used, like --master-addr"),
    Argument("local-addr", help="not used: dljob takes Ray's address of the machine"),
    Argument("logs-specs", env=False, help="not used: see dljob logs"),
    Argument("numa-binding", choices=NUMA, env=False, help="bind ranks to cores near their devices"),
    Argument(
        "signals-to-handle",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="a variable of the ranks; SIGINT, SIGTERM and SIGHUP stop the job",
    ),
    Argument("shutdown-timeout", None, int, help="not used: a rank has 30 s to end after SIGTERM"),
    Argument("virtual-local-rank", default=False, flag=True, help="LOCAL_RANK is 0, and a rank sees only its device"),
)
"""All arguments but `--print-completion`, which is about torchrun's own command."""

OURS = (
    Argument("to", "local", help="local, kubernetes, or HOST:PORT of a running Ray", env=False),
    Argument("dry-run", default=False, flag=True, help="only print the DLJob", env=False),
    Argument(
        "name",
        help="name of the job; default: --rdzv-id, else the script's name (a second run at once: train-2)",
        env=False,
    ),
    Argument(
        "resume",
        default=False,
        flag=True,
        help="go on from the newest checkpoint of the job of this name that was stopped, failed or was killed",
        env=False,
    ),
    Argument("accelerator", help="devices of a rank: GPU, NPU, GPU=2, GPU=0.5, none", env=False),
    Argument("image", help="runtime image, on Kubernetes", env=False),
    Argument("no-upload", default=False, flag=True, help="do not upload: the image has the code", env=False),
    Argument("namespace", help="namespace, on Kubernetes", env=False),
    Argument("context", help="context of the kubeconfig", env=False),
)


_ABBREVIATED = frozenset(("help", *(argument.dest for argument in ARGUMENTS)))
"""Attributes of the options that torchrun's own parser has, which alone may be abbreviated."""


class Parser(argparse.ArgumentParser):
    """Parser that raises UsageError, as every command of dljob does, where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message with a hint."""
        raise UsageError(
            message, hint=f"{_suggestion(message, tuple(self._option_string_actions))}see {self.prog} --help"
        )

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the option that a word abbreviates.

        argparse asks this for the script's words, too, and refuses a word that may stand for several options.
        """
        matches = [match for match in super()._get_option_tuples(option_string) if match[0].dest in _ABBREVIATED]
        return matches[:1] if len({match[0].dest for match in matches}) == 1 else []


class _Group(Protocol):
    """Protocol of an argument group: argparse has its class only as a private name."""

    add_argument: Callable[..., Any]


def _suggestion(message: str, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown argument; empty when none is similar."""
    word = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
    if not message.startswith("unrecognized"):
        return ""
    near = [option for option in known if option.startswith(word) and "_" not in option] or difflib.get_close_matches(
        word, known, 1
    )
    return f"Did you mean {', '.join(near)}? " if near else ""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher that takes torchrun's arguments and some more."""

    command: str
    about: str
    title: str = ""
    arguments: tuple[Argument, ...] = ()
    """Its own arguments; one with the name of one of ours replaces that."""
    abbreviates: bool = True
    """Whether `--nno` is `--nnodes`."""

    @property
    def groups(self) -> tuple[tuple[str, tuple[Argument, ...]], ...]:
        """Titles and arguments of its help."""
        launcher_names = {argument.name for argument in self.arguments}
        dljob_arguments = tuple(argument for argument in OURS if argument.name not in launcher_names)
        more = ((self.title, self.arguments),) if self.arguments else ()
        return (*more, ("torchrun's", ARGUMENTS), ("target", dljob_arguments))


def parser(launcher: Launcher | None = None, *, add_help: bool = True) -> Parser:
    """Return a parser of torchrun's and dljob's arguments, and of those of a launcher on top of it."""
    made_for = launcher or TORCHRUN
    usage = f"{made_for.command} [options] SCRIPT [arguments of the script]"
    new_parser = Parser(
        prog=made_for.command,
        usage=usage,
        description=made_for.about,
        add_help=add_help,
        allow_abbrev=made_for.abbreviates,
    )
    for title, arguments in made_for.groups:
        group = new_parser.add_argument_group(title)
        for argument in arguments:
            add(group, argument)
    new_parser.add_argument(
        "training_script", metavar="SCRIPT", help="a script, a module (-m) or a program (--no-python)"
    )
    # REMAINDER: words after the script belong to it, also those that look like options of ours.
    new_parser.add_argument(
        "training_script_args", metavar="...", nargs=argparse.REMAINDER, help="its arguments, unchanged"
    )
    return new_parser


ABOUT = (
    "Run an unchanged torchrun script as a job: on this machine with its own Ray, on a running Ray, or on Kubernetes. "
    "Give the command once for all machines. The ranks' lines go to stdout, everything else to stderr. On "
    "Kubernetes all lines go to stderr, as with dljob run, and the outcome goes to stdout, as JSON."
)


TORCHRUN = Launcher(COMMAND, ABOUT)


def add(group: _Group, argument: Argument) -> None:
    """Add an argument to a parser, in all its spellings."""
    if argument.flag:
        group.add_argument(
            *argument.options, dest=argument.dest, action="store_true", default=argument.default, help=argument.help
        )
        return
    group.add_argument(
        *argument.options,
        dest=argument.dest,
        default=argument.default,
        type=argument.kind,
        choices=argument.choices,
        metavar=None if argument.choices else argument.dest.upper(),
        help=argument.help,
    )


@dataclass(frozen=True, slots=True)
class _FromVariable:
    """Value of a variable, as the argument's default until the command line is parsed."""

    variable: str
    text: str

    def read(self, argument: Argument) -> object:
        """Convert the value; a flag is set by a number other than 0, as in torch."""
        try:
            return bool(int(self.text)) if argument.flag else argument.kind(self.text)
        except ValueError:
            hint = "write 1 or 0" if argument.flag else f"write a number, or give --{argument.name}"
            raise UsageError(f"{self.variable}={self.text} is no number", hint=hint) from None


def read(words: Sequence[str], environ: Mapping[str, str], launcher: Launcher | None = None) -> argparse.Namespace:
    """Parse a command line as torchrun does.

    `variables` of the result maps each argument that came from a variable to that variable's name.

    Raises:
        UsageError: torchrun would refuse the arguments.
    """
    # Variables are unparsed defaults first: an argument on the command line replaces them, so that an invalid variable
    # matters only when it is used.
    arguments = (*ARGUMENTS, *(launcher or TORCHRUN).arguments)
    known = {
        argument: variable
        for argument in arguments
        if argument.env
        for variable in _variables(argument)
        if variable in environ
    }
    first = {argument.dest: _FromVariable(variable, environ[variable]) for argument, variable in known.items()}
    # argparse keeps attributes of a given namespace, unless a word sets them.
    line = parser(launcher).parse_args(list(words), argparse.Namespace(**first))
    variables: dict[str, str] = {}
    for argument in known:
        value = getattr(line, argument.dest)
        # Still the default: no word of the command line has replaced it.
        if isinstance(value, _FromVariable):
            setattr(line, argument.dest, value.read(argument))
            variables[argument.name] = value.variable
    line.variables = variables
    return line


def _variables(argument: Argument) -> Iterator[str]:
    """Yield the variables of an argument, the one that takes precedence last."""
    if argument.also:
        yield argument.also
    yield f"{PREFIX}{argument.dest.upper()}"


def spelled(line: argparse.Namespace, name: str) -> str:
    """Return an argument as the user wrote it: `--nnodes`, or `PET_NNODES`."""
    return str(line.variables.get(name, f"--{name}"))


def count_own_words(words: Sequence[str], launcher: Launcher | None = None) -> int:
    """Return how many words belong to dljob and torchrun rather than to the script, which is the last of them."""
    at = script_at(words, parser(launcher, add_help=False))
    return len(words) if at is None else at + 1


def script_at(words: Sequence[str], line_parser: Parser) -> int | None:
    """Return the index of the script; None where there is none, or an error, for which `read` has a message.

    `line_parser` is a parser without --help, which would print and exit.
    """
    try:
        line, _ = line_parser.parse_known_args(list(words))
    except UsageError:
        return None
    # A `--` may stand between the script and its arguments.
    before = list(words[: len(words) - len(line.training_script_args)])
    return len(before) - 1 - before[::-1].index(line.training_script)


def given_arguments(line: argparse.Namespace) -> tuple[str, ...]:
    """Return torchrun's arguments whose values differ from their defaults."""
    return tuple(argument.name for argument in ARGUMENTS if getattr(line, argument.dest) != argument.default)
