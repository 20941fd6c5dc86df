"""Command lines of containers: programs, shell texts, and torchrun in either."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dljob.api import torchrun, torchrun_line
from dljob.spec.rules.launchers import LAUNCHERS

_DLROVER_FLAGS = (
    *("node-check", "network-check", "comm-perf-test", "exclude-straggler", "auto-config", "auto-tunning"),
    *("save-at-breakpoint", "numa-affinity"),
)
_DLROVER_VALUES = ("node-unit", "precheck", "accelerator", "training-port", "ucp-device-type", "membind-policy")
LINE = replace(
    torchrun_line.TORCHRUN,
    arguments=(
        *(torchrun_line.Argument(name, default=False, flag=True, env=False) for name in _DLROVER_FLAGS),
        *(torchrun_line.Argument(name, env=False) for name in _DLROVER_VALUES),
        torchrun_line.Argument("use-env", default=False, flag=True, env=False),
    ),
)
"""torchrun with the arguments that only dlrover-run has, and the one of torch.distributed.launch."""
SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env bash")
_WRAPPERS = frozenset(
    (
        *("uv", "poetry", "pdm", "pixi", "hatch", "pipenv", "conda", "mamba", "micromamba"),
        *("numactl", "taskset", "nice", "ionice", "chrt", "timeout", "stdbuf", "tini", "dumb-init", "catchsegv"),
        *("nsys", "ncu", "rocprof", "py-spy", "xvfb-run"),
    )
)
"""Programs that run the rest of their words, behind options and values of their own."""
_PYTHON = re.compile(r"(pypy|python)(\d+(\.\d+)?)?")
_META = re.compile(r"[\n;&|<>()$`*?\[\]{}~!#\"'\\]")
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
"""`$$`, which Kubernetes turns into `$`, or `$(NAME)`. From the left: `$$(NAME)` is no reference."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_FILE = re.compile(r"(\./)?([\w.-]+/)*[\w.-]+\.(py|sh|json|ya?ml|cfg|toml|txt|jsonl|ipynb)")
_END = re.compile(r"\n|;|&&|\|\||\||&(?!\d)|\d*>+&?|<")
_NO_PARENTHESIS = r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^()'\"\\]"
_COMMAND_SUBSTITUTION = re.compile(
    rf"\$\((?:{_NO_PARENTHESIS}|\((?:{_NO_PARENTHESIS}|\((?:{_NO_PARENTHESIS})*\))*\))*\)|`[^`]*`", re.DOTALL
)
_DOUBLE_QUOTED = rf"\"(?:\\.|{_COMMAND_SUBSTITUTION.pattern}|[^\"\\])*\""
_PART_OF_WORD = re.compile(rf"\\.|'[^']*'|{_DOUBLE_QUOTED}|{_COMMAND_SUBSTITUTION.pattern}", re.DOTALL)
_PART_OF_DOUBLE_QUOTES = re.compile(rf"\\.|{_COMMAND_SUBSTITUTION.pattern}", re.DOTALL)
_QUOTED_HEREDOC = re.compile(r"(?m)^([^\n]*<<-?[ \t]*(?:(['\"])(\w+)\2|\\(\w+))[^\n]*\n)(?:.*\n)*?(?=\t*(?:\3|\4)$)")
"""A here-document in which a shell expands nothing: its first line, and the lines up to its end."""
_RUNS_SHELL = re.compile(r"\b(ba|s)?sh\b[^\n]*<<")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_BEFORE_ASSIGNMENT = re.compile(r"export|declare|local|readonly|typeset|env|then|do|else|\{|\(|-\w+")
_DUPLICATE = re.compile(r"\d*>&\d")
"""One stream of a process that goes where another goes, such as `2>&1`."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """The command of a container."""

    argv: tuple[str, ...]
    """Its words; of a shell those before its text."""
    shell: str = ""
    """The text that a shell runs; empty: there is no shell."""
    behind: tuple[str, ...] = ()
    """The words behind that text: `$0`, `$1` and so on in it."""


@dataclass(frozen=True, slots=True)
class Torchrun:
    """A torchrun command line within a command."""

    words: tuple[str, ...]
    """Its arguments, with the script and the script's."""
    wrapper: tuple[str, ...] = ()
    """The words before it, such as `env A=1` or `numactl -l`, where no shell runs it."""
    before: str = ""
    """What the shell runs before it."""
    tail: str = ""
    """The script and its arguments as they stand in the shell's text, with all behind them."""
    later: str = ""
    """What of `tail` the shell runs behind the torchrun line, or where it writes the line's output."""
    shell: tuple[str, ...] = ("bash", "-c")
    """The words of the shell before its text."""
    behind: tuple[str, ...] = ()
    """The words behind the text."""
    adds_local_rank: bool = False
    """Whether it is torch.distributed.launch, which without --use-env gives --local-rank to the script."""


def of_words(words: Sequence[str]) -> ContainerCommand:
    """Return a command by its words: `sh -c TEXT` is a shell, its text, and the words behind it."""
    program = words[0]
    shell = program in SHELLS or program.rpartition("/")[2] in ("sh", "bash")
    if shell and (at := _text_of_shell(words)):
        return ContainerCommand(tuple(words[:at]), words[at], tuple(words[at + 1 :]))
    return ContainerCommand(tuple(words))


def _text_of_shell(words: Sequence[str]) -> int:
    """Return the index of the text that a shell runs, behind its options; 0: it runs none."""
    at, runs = 1, False
    while at < len(words) and words[at].startswith(("-", "+")):
        flag = words[at]
        at += 1
        if flag in ("--", "-"):
            break
        if not flag.startswith("--"):
            runs = runs or "c" in flag  # -c, -lc, -exc
            at += flag.count("o") + flag.count("O")  # each takes a word: -euo pipefail
    return at if runs and at < len(words) else 0


def of_text(text: str) -> ContainerCommand:
    """Return the command of a line that a shell is to run; a plain one needs no shell."""
    text = text.strip()
    if _META.search(text):
        return ContainerCommand(("bash", "-c"), text)
    return ContainerCommand(tuple(shlex.split(text)))


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` of known variables, and `$$` by `$`; other names stay, as in Kubernetes."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else known.get(match[1], match[0]), text)


def refers(text: str, names: Collection[str]) -> bool:
    """Whether Kubernetes would replace one of these names in a text."""
    return any(match[1] in names for match in _REFERENCE.finditer(text))


def mentions(text: str, name: str) -> bool:
    """Whether a shell's text reads a variable."""
    return re.search(rf"\$\{{?{name}\b", text) is not None


def resolved(line: ContainerCommand, known: Mapping[str, str], of_rank: Mapping[str, str]) -> ContainerCommand:
    """Return a command with `$(NAME)` replaced as Kubernetes does.

    Args:
        line: the command.
        known: variables with their values.
        of_rank: variables whose values only a rank has, with the variables in which a shell finds them there.
    """
    known = {name: value for name, value in known.items() if name not in of_rank}
    if not any(refers(word, of_rank) for word in (*line.argv, *line.behind)):
        argv, behind = (tuple(expanded(word, known) for word in part) for part in (line.argv, line.behind))
        return ContainerCommand(
            argv, expanded(line.shell, known | {name: f"${{{alias}}}" for name, alias in of_rank.items()}), behind
        )

    def quoted(word: str) -> str:
        return _in_double_quotes(word, known, of_rank) if refers(word, of_rank) else shlex.quote(expanded(word, known))

    words = [*line.argv, *([line.shell] if line.shell else []), *line.behind]
    return ContainerCommand(("sh", "-c"), f"exec {' '.join(map(quoted, words))}")


def _in_double_quotes(word: str, known: Mapping[str, str], of_rank: Mapping[str, str]) -> str:
    """Return a word as a shell reads it: it replaces only references to variables of the rank."""
    quoted, at = "", 0
    for match in _REFERENCE.finditer(word):
        read = f"${{{of_rank[match[1]]}}}" if match[1] in of_rank else _escaped(expanded(match[0], known))
        quoted += _escaped(word[at : match.start()]) + read
        at = match.end()
    return f'"{quoted}{_escaped(word[at:])}"'


def _escaped(text: str) -> str:
    return re.sub(r'([$`"\\])', r"\\\1", text)


def exporting(variables: Mapping[str, str]) -> str:
    """Return the begin of a text that sets variables: name -> value within double quotes."""
    assignments = [f'{name}="{value}"' for name, value in variables.items()]
    return f"export {' '.join(assignments)}; " if assignments else ""


def with_exports(line: ContainerCommand, variables: Mapping[str, str]) -> ContainerCommand:
    """Return a command before which a shell sets variables."""
    text = exporting(variables)
    if not text or line.shell:
        return replace(line, shell=text + line.shell)
    return ContainerCommand(("sh", "-c"), f'{text}exec "$@"', ("sh", *line.argv))


def argv(command: ContainerCommand, workdir: str = "") -> list[str]:
    """Return the words of an entrypoint; `workdir` is the folder to start in, empty for the job's folder."""
    words = [*command.argv, *([command.shell] if command.shell else []), *command.behind]
    return ["sh", "-c", 'cd "$0" && exec "$@"', workdir, *words] if workdir else words


def relative_files(command: ContainerCommand) -> list[str]:
    """Return words of a command that look like files in its folder."""
    if command.shell:
        # A text that changes the folder, or gets its files, knows where it is.
        if re.search(r"(^|[\s;&|])(cd|pushd|git|wget|curl)\s", command.shell):
            return []
        words = [*re.split(r"[\s;&|<>()'\"=]+", command.shell), *command.behind[1:]]
    else:
        words = list(command.argv)
    return [word for word in words if _FILE.fullmatch(word)]


def shell_scripts(command: ContainerCommand) -> list[str]:
    """Return the shell scripts that a command runs: by name, by a shell, or from a shell's text."""
    words = re.split(r"[\s;&|<>()'\"=]+", command.shell) if command.shell else list(command.argv)
    named = [word for word in (*words, *command.behind[1:]) if word.endswith((".sh", ".bash"))]
    if not command.shell and command.argv[0].rpartition("/")[2] in ("sh", "bash"):
        named += [word for word in words[1:] if not word.startswith("-")][:1]
    return list(dict.fromkeys(named))


def launcher(command: ContainerCommand, env: Mapping[str, str] | None = None) -> str:
    """Return the name of a program in a command that starts ranks, torchrun too; empty where there is none.

    Args:
        command: the command.
        env: variables of its container, of which a shell's text may run the value.
    """
    words = () if command.shell else command.argv
    line = " ".join((command.shell, *words, *command.behind[1:], "")).lstrip()
    read = {name: value for name, value in (env or {}).items() if mentions(command.shell, name)}
    text = with_exports(command, read).shell if command.shell else shlex.join(words)
    for searched in (line, *(f"{inner.strip()} " for inner in _texts_within(text))):
        launchers = [(match.start(), name) for name, shape in LAUNCHERS.items() if (match := shape.search(searched))]
        if launchers:
            return min(launchers)[1]
        if name := _launches(searched.split()):
            return name
    return _launches(command.behind[1:])


def _texts_within(text: str) -> Iterator[str]:
    """Yield what a shell's text may run besides its own words: values of variables, quoted commands, and `$(...)`."""
    text = _QUOTED_HEREDOC.sub(lambda heredoc: heredoc[0] if _RUNS_SHELL.search(heredoc[1]) else heredoc[1], text)
    for begin, end in _simple_commands(text):
        can_assign = can_run = True
        for first, last in _pieces(text, begin, end):
            plain_text, substituted_commands = _cut_substitutions(text[first:last])
            word = _plain(plain_text, {})
            for inner in substituted_commands:
                yield inner
                yield from _texts_within(inner)
            assignment = _ASSIGNMENT.match(word) if can_assign else None
            if assignment and word[assignment.end() :].startswith("("):  # an array, whose other words follow
                yield text[first + assignment.end() + 1 : end]
            elif assignment or (can_run and re.search(r"\s", word)):
                inner = word[assignment.end() :] if assignment else word
                yield inner
                yield from _texts_within(inner) if inner != text else ()
            can_assign = can_assign and (assignment or _BEFORE_ASSIGNMENT.fullmatch(word)) is not None
            # What these print, or compute with, is no command.
            can_run = can_run and word not in ("echo", "printf") and not _PYTHON.fullmatch(word.rpartition("/")[2])


def _cut_substitutions(word: str) -> tuple[str, list[str]]:
    """Return a word without its `$(...)` and backticks, and their commands; escaped or in single quotes they stay."""
    commands: list[str] = []

    def cut(match: re.Match[str]) -> str:
        part = match[0]
        if part.startswith('"'):
            return f'"{_PART_OF_DOUBLE_QUOTES.sub(cut, part[1:-1])}"'
        if part.startswith(("\\", "'")):
            return part
        commands.append(part.removeprefix("$(").removeprefix("`")[:-1])
        return ""

    return _PART_OF_WORD.sub(cut, word), commands


def _launches(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        behind = words[at + 1] if at + 1 < len(words) else ""
        if name == "colossalai" and behind == "run":
            return f"{name} {behind}"
        if name in ("deepspeed", "dlrover-run", "mpirun", "mpiexec", "horovodrun") and at <= 1 + words.count("&&") * 4:
            return name
    return ""


def find_torchrun(command: ContainerCommand, known: Mapping[str, str]) -> Torchrun | None:
    """Return the torchrun line of a command; None where there is none.

    Args:
        command: the command.
        known: variables of the shell with their values.
    """
    if not command.shell:
        words = command.argv
        begin, behind = _call_of_torchrun(words)
        return Torchrun(words[behind:], words[:begin], adds_local_rank=_is_launch(words, behind)) if behind else None
    text = command.shell.replace('"$@"', shlex.join(command.behind[1:])) if command.behind else command.shell
    call = _in_text(text, known)
    return replace(call, shell=command.argv, behind=command.behind) if call else None


def _call_of_torchrun(words: Sequence[str]) -> tuple[int, int]:
    """Return the indices of the word that begins the call of torchrun, and behind its last one; 0, 0: there is none."""
    is_wrapped = False
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in ("torchrun", "dlrover-run", "torchrun_main"):
            return _begin_of_python(words, at), at + 1
        module = words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and module in (
            "torch.distributed.run",
            "torch.distributed.launch",
            "dlrover.python.elastic_agent.torch.run",
            "dlrover.trainer.torch.elastic_run",
        ):
            return _begin_of_python(words, at), at + 2
        is_wrapped = is_wrapped or name in _WRAPPERS
        # Only what may stand before torchrun in a command: env, its assignments, python and its options.
        if not (
            is_wrapped
            or name in ("env", "exec", "sudo", "nohup", "time")
            or _PYTHON.fullmatch(name)
            or "=" in word
            or word.startswith("-")
        ):
            break
    return 0, 0


def _is_launch(words: Sequence[str], behind: int) -> bool:
    return words[behind - 1] == "torch.distributed.launch"


def _begin_of_python(words: Sequence[str], at: int) -> int:
    """Return the index of the python that runs the word at an index, with options between; else that index."""
    begin = at - 1
    while begin > 0 and words[begin].startswith("-"):
        begin -= 1
    return begin if begin >= 0 and _PYTHON.fullmatch(words[begin].rpartition("/")[2]) else at


def _in_text(text: str, known: Mapping[str, str]) -> Torchrun | None:
    """Find torchrun in a shell's text: the first simple command that calls it."""
    for first, last in _simple_commands(text):
        pieces = list(_pieces(text, first, last))
        words = [_plain(text[a:b], known) for a, b in pieces]
        begin, at = _call_of_torchrun(words)
        if not at:
            continue
        script = at + torchrun_line.own(words[at:], LINE) - 1
        if not at <= script < len(pieces):
            return None
        before, tail = text[: pieces[begin][0]], text[pieces[script][0] :]
        later = _DUPLICATE.sub("", text[last:])
        runs = any(later[begin:end].strip() for begin, end in _simple_commands(later))
        return Torchrun(
            tuple(words[at:]),
            before=before,
            tail=tail,
            later=later.strip() if runs else "",
            adds_local_rank=_is_launch(words, at),
        )
    return None


def _simple_commands(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each simple command: between separators that stand outside quotes."""
    ranges: list[tuple[int, int]] = []
    begin = at = 0
    quote = ""
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 2
            continue
        substitution = _COMMAND_SUBSTITUTION.match(text, at) if quote != "'" else None
        if substitution:
            at = substitution.end()
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1] in " \t\n"):
            stop = text.find("\n", at)
            ranges.append((begin, at))
            begin = at = len(text) if stop < 0 else stop
            continue
        elif separator := _END.match(text, at):
            ranges.append((begin, at))
            begin = at = separator.end()
            continue
        at += 1
    return [*ranges, (begin, len(text))]


def _pieces(text: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Return begin and end of each word of a simple command."""
    word = re.compile(rf"(?:{_PART_OF_WORD.pattern}|\$\{{[^}}]*\}}|[^\s'\"\\])+", re.DOTALL)
    ranges = [(match.start(), match.end()) for match in word.finditer(text, begin, end)]
    return [(a, b) for a, b in ranges if text[a:b].replace("\\\n", "")]


def _plain(word: str, known: Mapping[str, str]) -> str:
    """Return a word without quotes, known variables replaced."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name, match[3] if match[3] is not None else match[0])

    word = word.replace("\\\n", "")
    text = word if word.startswith("'") else _VARIABLE.sub(value, word)
    try:
        return " ".join(shlex.split(text, posix=True))  # several are within $(...)
    except ValueError:
        return text


def torch_role(call: Torchrun, options: Sequence[str], environ: Mapping[str, str], workdir: str) -> TorchRole:
    """Translate a torchrun line as `dljob torchrun` does.

    Args:
        call: the line.
        options: options that win over those of the line, such as the number of machines.
        environ: variables `PET_*`.
        workdir: the folder to start in; empty for the job's folder.

    Raises:
        UsageError: torchrun or dljob would refuse the line.
    """
    script = torchrun_line.own(call.words, LINE) - 1
    # Later options win, but not behind a `--`.
    at = script - (call.words[script - 1 : script] == ("--",))
    line = torchrun_line.read([*call.words[:at], *options, *call.words[at:]], environ, LINE)
    converted = torchrun.job(line, torchrun.Site(local=False, cpus=1, devices={}, folder=torchrun.Path("/")))
    role = converted.document["spec"]["roles"][0]
    if call.tail:
        run = "" if line.no_python else "python -u -m " if line.module else "python -u "
        role["entrypoint"] = {
            "command": argv(ContainerCommand(call.shell, f"{call.before}{run}{call.tail}", call.behind), workdir)
        }
        role.pop("args", None)
    elif workdir or call.wrapper:
        entrypoint = role["entrypoint"]
        module = entrypoint.get("module", "")
        inner = entrypoint.get("command") or ["python", "-u", *(["-m"] if not module.endswith(".py") else []), module]
        role["entrypoint"] = {"command": argv(ContainerCommand((*call.wrapper, *inner)), workdir)}
    return TorchRole(role, converted.document["spec"], converted.notes, line.nnodes)


@dataclass(frozen=True, slots=True)
class TorchRole:
    """Translation of a torchrun line."""

    role: dict[str, Any]
    spec: dict[str, Any]
    """The spec around the role, with faultTolerance and deadlines."""
    notes: tuple[str, ...]
    nnodes: str
