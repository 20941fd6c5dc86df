"""Command lines of containers: programs, shell texts, and torchrun in either."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Any

from dljob.api import torchrun, torchrun_line
from dljob.spec.rules.launchers import LAUNCHERS

_DLROVER_FLAGS = (
    *("node-check", "network-check", "comm-perf-test", "exclude-straggler", "auto-config", "auto-tunning"),
    *("save-at-breakpoint", "numa-affinity"),
)
_DLROVER_VALUES = ("node-unit", "precheck", "accelerator", "training-port", "ucp-device-type", "membind-policy")
TORCHRUN_PARSER = replace(
    torchrun_line.TORCHRUN,
    arguments=(
        *(torchrun_line.Argument(name, default=False, flag=True, env=False) for name in _DLROVER_FLAGS),
        *(torchrun_line.Argument(name, env=False) for name in _DLROVER_VALUES),
        torchrun_line.Argument("use-env", default=False, flag=True, env=False),
    ),
)
"""torchrun with the further arguments of dlrover-run and of torch.distributed.launch."""
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env bash")
_WRAPPERS = {
    *("uv", "poetry", "pdm", "pixi", "hatch", "pipenv", "conda", "mamba", "micromamba"),
    *("numactl", "taskset", "nice", "ionice", "chrt", "timeout", "stdbuf", "tini", "dumb-init", "catchsegv"),
    *("nsys", "ncu", "rocprof", "py-spy", "xvfb-run"),
}
"""Programs that run the rest of their words, behind options and values of their own."""
_PYTHON = re.compile(r"(pypy|python)(\d+(\.\d+)?)?")
_SHELL_SYNTAX = re.compile(r"[\n;&|<>()$`*?\[\]{}~!#\"'\\]")
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
"""`$$`, which Kubernetes turns into `$`, or `$(NAME)`. From the left: `$$(NAME)` is no reference."""
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_RELATIVE_FILE = re.compile(r"(\./)?([\w.-]+/)*[\w.-]+\.(py|sh|json|ya?ml|cfg|toml|txt|jsonl|ipynb)")
_SEPARATOR_OR_REDIRECTION = re.compile(r"\n|;|&&|\|\||\||&(?!\d)|\d*>+&?|<")
_NO_PARENTHESIS = r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^()'\"\\]"
_COMMAND_SUBSTITUTION = re.compile(
    rf"\$\((?:{_NO_PARENTHESIS}|\((?:{_NO_PARENTHESIS}|\((?:{_NO_PARENTHESIS})*\))*\))*\)|`[^`]*`", re.DOTALL
)
_DOUBLE_QUOTED = rf"\"(?:\\.|{_COMMAND_SUBSTITUTION.pattern}|[^\"\\])*\""
_PART_OF_WORD = re.compile(rf"\\.|'[^']*'|{_DOUBLE_QUOTED}|{_COMMAND_SUBSTITUTION.pattern}", re.DOTALL)
_PART_OF_DOUBLE_QUOTES = re.compile(rf"\\.|{_COMMAND_SUBSTITUTION.pattern}", re.DOTALL)
_QUOTED_HEREDOC = re.compile(
    r"^(?P<first_line>[^\n]*<<-?[ \t]*(?:(['\"])(\w+)\2|\\(\w+))[^\n]*\n)(?:.*\n)*?(?=\t*(?:\3|\4)$)", re.MULTILINE
)
"""A here-document in which a shell expands nothing: its first line, and the lines up to its end."""
_SHELL_WITH_HEREDOC = re.compile(r"\b(ba|s)?sh\b[^\n]*<<")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_MAY_PRECEDE_ASSIGNMENT = re.compile(r"export|declare|local|readonly|typeset|env|then|do|else|\{|\(|-\w+")
_WORD_BREAK = re.compile(r"[\s;&|<>()'\"=]+")
_STREAM_DUPLICATION = re.compile(r"\d*>&\d")
"""One stream of a process that goes where another goes, such as `2>&1`."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """The command of a container."""

    argv: tuple[str, ...]
    """Its words; of a shell those before its text."""
    shell_text: str = ""
    """The text that a shell runs; empty: there is no shell."""
    shell_args: tuple[str, ...] = ()
    """The words behind that text: `$0`, `$1` and so on in it."""


@dataclass(frozen=True, slots=True)
class TorchrunCall:
    """A call of torchrun within a command."""

    torchrun_args: tuple[str, ...]
    """The arguments of torchrun, then the script and its arguments."""
    words_before: tuple[str, ...] = ()
    """The words before the call, such as `env A=1` or `numactl -l`, where no shell runs it."""
    text_before: str = ""
    """The shell's text before the call."""
    text_from_script: str = ""
    """The shell's text from the script on: its arguments and all behind them."""
    text_after_call: str = ""
    """The end of `text_from_script` that is no argument: further commands, or where the output goes."""
    shell_argv: tuple[str, ...] = ("bash", "-c")
    """The words of the shell before its text."""
    shell_args: tuple[str, ...] = ()
    """The words behind the shell's text."""
    adds_local_rank: bool = False
    """Whether it is torch.distributed.launch, which without --use-env gives --local-rank to the script."""


def parse_words(words: Sequence[str]) -> ContainerCommand:
    """Return a command by its words: `sh -c TEXT` is a shell, its text, and the words behind it."""
    program = words[0]
    if program in _SHELLS or basename(program) in ("sh", "bash"):
        text_index = _index_of_shell_text(words)
        if text_index:
            return ContainerCommand(tuple(words[:text_index]), words[text_index], tuple(words[text_index + 1 :]))
    return ContainerCommand(tuple(words))


def _index_of_shell_text(words: Sequence[str]) -> int:
    """Return the index of the text that a shell runs, which follows its options; 0: it runs none."""
    index, has_text_option = 1, False
    while index < len(words) and words[index].startswith(("-", "+")):
        flags = words[index]
        index += 1
        if flags in ("--", "-"):
            break
        if not flags.startswith("--"):
            has_text_option = has_text_option or "c" in flags  # -c, -lc, -exc
            index += flags.count("o") + flags.count("O")  # each takes a word: -euo pipefail
    return index if has_text_option and index < len(words) else 0


def parse_text(text: str) -> ContainerCommand:
    """Return the command of a line that a shell is to run; a plain one needs no shell."""
    text = text.strip()
    if _SHELL_SYNTAX.search(text):
        return ContainerCommand(("bash", "-c"), text)
    return ContainerCommand(tuple(shlex.split(text)))


def expand_references(text: str, known_values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` of known variables, and `$$` by `$`; other names stay, as in Kubernetes."""
    return _REFERENCE.sub(lambda match: known_values.get(match[1], match[0]) if match[1] else "$", text)


def refers_to_any(text: str, names: Collection[str]) -> bool:
    """Whether a text has `$(NAME)`, which Kubernetes expands, of one of these names."""
    return any(reference[1] in names for reference in _REFERENCE.finditer(text))


def reads_variable(shell_text: str, name: str) -> bool:
    """Whether a shell's text has `$NAME` or `${NAME}`."""
    return re.search(rf"\$\{{?{name}\b", shell_text) is not None


def resolve_references(
    command: ContainerCommand, known_values: Mapping[str, str], rank_variables: Mapping[str, str]
) -> ContainerCommand:
    """Return a command with `$(NAME)` replaced as Kubernetes does; a shell replaces those that differ by rank.

    `rank_variables`: variables whose values only a rank has -> the variable in which its shell finds the value.
    """
    known_values = {name: value for name, value in known_values.items() if name not in rank_variables}
    if any(refers_to_any(word, rank_variables) for word in (*command.argv, *command.shell_args)):
        words = entrypoint_words(command)
        quoted_words = [_quote_keeping_rank_references(word, known_values, rank_variables) for word in words]
        return ContainerCommand(("sh", "-c"), f"exec {' '.join(quoted_words)}")
    argv = tuple(expand_references(word, known_values) for word in command.argv)
    shell_args = tuple(expand_references(word, known_values) for word in command.shell_args)
    shell_references = {name: f"${{{alias}}}" for name, alias in rank_variables.items()}
    return ContainerCommand(argv, expand_references(command.shell_text, known_values | shell_references), shell_args)


def _quote_keeping_rank_references(
    word: str, known_values: Mapping[str, str], rank_variables: Mapping[str, str]
) -> str:
    """Quote a word for a shell, which still replaces the word's references to variables of the rank."""
    if not refers_to_any(word, rank_variables):
        return shlex.quote(expand_references(word, known_values))
    quoted, end = "", 0
    for reference in _REFERENCE.finditer(word):
        text = _escape_for_double_quotes(expand_references(reference[0], known_values))
        if reference[1] in rank_variables:
            text = f"${{{rank_variables[reference[1]]}}}"
        quoted += _escape_for_double_quotes(word[end : reference.start()]) + text
        end = reference.end()
    return f'"{quoted}{_escape_for_double_quotes(word[end:])}"'


def _escape_for_double_quotes(text: str) -> str:
    return re.sub(r'([$`"\\])', r"\\\1", text)


def export_statement(values: Mapping[str, str]) -> str:
    """Return `export NAME="VALUE"; ` for a shell, by name -> value within double quotes; empty without any."""
    assignments = [f'{name}="{value}"' for name, value in values.items()]
    return f"export {' '.join(assignments)}; " if assignments else ""


def prepend_exports(command: ContainerCommand, values: Mapping[str, str]) -> ContainerCommand:
    """Return a command before which a shell sets variables."""
    statement = export_statement(values)
    if not statement or command.shell_text:
        return replace(command, shell_text=statement + command.shell_text)
    return ContainerCommand(("sh", "-c"), f'{statement}exec "$@"', ("sh", *command.argv))


def entrypoint_words(command: ContainerCommand, workdir: str = "") -> list[str]:
    """Return the words of an entrypoint; `workdir` is the folder to start in, empty for the job's folder."""
    words = [*command.argv, *([command.shell_text] if command.shell_text else []), *command.shell_args]
    return ["sh", "-c", 'cd "$0" && exec "$@"', workdir, *words] if workdir else words


def find_relative_files(command: ContainerCommand) -> list[str]:
    """Return words of a command that look like files in the folder where it starts."""
    if command.shell_text:
        # A text that changes the folder, or gets its files, knows where it is.
        if re.search(r"(^|[\s;&|])(cd|pushd|git|wget|curl)\s", command.shell_text):
            return []
        words = [*_WORD_BREAK.split(command.shell_text), *command.shell_args[1:]]
    else:
        words = list(command.argv)
    return [word for word in words if _RELATIVE_FILE.fullmatch(word)]


def find_shell_scripts(command: ContainerCommand) -> list[str]:
    """Return the shell scripts that a command runs: by name, by a shell, or from a shell's text."""
    words = _WORD_BREAK.split(command.shell_text) if command.shell_text else list(command.argv)
    scripts = [word for word in (*words, *command.shell_args[1:]) if word.endswith((".sh", ".bash"))]
    if not command.shell_text and basename(command.argv[0]) in ("sh", "bash"):
        scripts += [word for word in words[1:] if not word.startswith("-")][:1]
    return list(dict.fromkeys(scripts))


def find_launcher(command: ContainerCommand, env: Mapping[str, str] | None = None) -> str:
    """Return the name of a program in a command that starts ranks, torchrun too; empty where there is none.

    `env`: variables of its container, of which a shell's text may run the value.
    """
    argv = () if command.shell_text else command.argv
    whole_text = " ".join((command.shell_text, *argv, *command.shell_args[1:], "")).lstrip()
    if command.shell_text:
        read_values = {name: value for name, value in (env or {}).items() if reads_variable(command.shell_text, name)}
        shell_text = prepend_exports(command, read_values).shell_text
    else:
        shell_text = shlex.join(argv)
    for text in (whole_text, *(f"{nested_text.strip()} " for nested_text in _nested_shell_texts(shell_text))):
        matches = {name: pattern.search(text) for name, pattern in LAUNCHERS.items()}
        launchers = [(match.start(), name) for name, match in matches.items() if match]
        if launchers:
            return min(launchers)[1]
        if name := _find_launcher_word(text.split()):
            return name
    return _find_launcher_word(command.shell_args[1:])


def _nested_shell_texts(text: str) -> Iterator[str]:
    """Yield the parts of a shell's text that may run as commands: values of assignments, quoted words, `$(...)`."""
    for heredoc in _QUOTED_HEREDOC.finditer(text):
        if not _SHELL_WITH_HEREDOC.search(heredoc["first_line"]):  # no program runs these lines
            text = text.replace(heredoc[0], heredoc["first_line"])
    for command_begin, command_end in _command_ranges(text):
        may_assign = may_run = True
        for word_begin, word_end in _word_ranges(text, command_begin, command_end):
            plain_text, substituted_commands = _cut_substitutions(text[word_begin:word_end])
            word = _unquote(plain_text, {})
            for substituted_command in substituted_commands:
                yield substituted_command
                yield from _nested_shell_texts(substituted_command)
            assignment = _ASSIGNMENT.match(word) if may_assign else None
            value = word[assignment.end() :] if assignment else word
            if assignment and value.startswith("("):  # an array, whose other words follow
                yield text[word_begin + assignment.end() + 1 : command_end]
            elif assignment or (may_run and re.search(r"\s", word)):
                yield value
                if value != text:
                    yield from _nested_shell_texts(value)
            may_assign = may_assign and bool(assignment or _MAY_PRECEDE_ASSIGNMENT.fullmatch(word))
            # Arguments of these programs are printed or computed with, and not run.
            may_run = may_run and word not in ("echo", "printf") and not _PYTHON.fullmatch(basename(word))


def _cut_substitutions(word: str) -> tuple[str, list[str]]:
    """Return a word without its `$(...)` and backticks, and the commands in them; in single quotes they stay."""
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


def _find_launcher_word(words: Sequence[str]) -> str:
    """Return the launcher among the words of a command, where it is no argument of another program; else empty."""
    # The program is the first word, or behind a wrapper or a variable; each `&&` begins one of a few words more.
    last_program_index = 1 + words.count("&&") * 4
    for index, word in enumerate(words):
        name = basename(word)
        if name == "colossalai" and "run" in words[index + 1 : index + 2]:
            return "colossalai run"
        if name in ("deepspeed", "dlrover-run", "mpirun", "mpiexec", "horovodrun") and index <= last_program_index:
            return name
    return ""


def find_torchrun(command: ContainerCommand, known_values: Mapping[str, str]) -> TorchrunCall | None:
    """Return the call of torchrun in a command, whose shell has variables of known values; None without a call."""
    if not command.shell_text:
        words = command.argv
        call_words = _find_call_words(words)
        if not call_words:
            return None
        adds_local_rank = words[call_words.stop - 1] == "torch.distributed.launch"
        return TorchrunCall(words[call_words.stop :], words[: call_words.start], adds_local_rank=adds_local_rank)
    text = command.shell_text
    if command.shell_args:
        text = text.replace('"$@"', shlex.join(command.shell_args[1:]))
    call = _find_torchrun_in_text(text, known_values)
    return replace(call, shell_argv=command.argv, shell_args=command.shell_args) if call else None


def _find_call_words(words: Sequence[str]) -> range:
    """Return the indices of the words that call torchrun, such as `python -u -m MODULE`; empty: there is no call."""
    is_wrapped = False
    for index, word in enumerate(words):
        name = basename(word)
        if name in ("torchrun", "dlrover-run", "torchrun_main"):
            return range(_index_of_python_before(words, index), index + 1)
        module = words[index + 1] if index + 1 < len(words) else ""
        if word == "-m" and module in (
            "torch.distributed.run",
            "torch.distributed.launch",
            "dlrover.python.elastic_agent.torch.run",
            "dlrover.trainer.torch.elastic_run",
        ):
            return range(_index_of_python_before(words, index), index + 2)
        is_wrapped = is_wrapped or name in _WRAPPERS
        # Only words that may stand before torchrun in a command: env, its assignments, python and its options.
        is_program = name in ("env", "exec", "sudo", "nohup", "time") or _PYTHON.fullmatch(name)
        if not (is_wrapped or is_program or "=" in word or word.startswith("-")):
            break
    return range(0)


def _index_of_python_before(words: Sequence[str], index: int) -> int:
    """Return the index of the python that runs the word at `index`, with options between; without python `index`."""
    python_index = index - 1
    while python_index > 0 and words[python_index].startswith("-"):
        python_index -= 1
    is_python = python_index >= 0 and _PYTHON.fullmatch(basename(words[python_index]))
    return python_index if is_python else index


def script_index(torchrun_args: Sequence[str]) -> int:
    """Return the index of the script among torchrun's arguments; -1: there is none."""
    return torchrun_line.count_own_words(torchrun_args, TORCHRUN_PARSER) - 1


def _find_torchrun_in_text(text: str, known_values: Mapping[str, str]) -> TorchrunCall | None:
    """Find torchrun in a shell's text: the first simple command that calls it."""
    for command_begin, command_end in _command_ranges(text):
        word_ranges = _word_ranges(text, command_begin, command_end)
        words = [_unquote(text[begin:end], known_values) for begin, end in word_ranges]
        call_words = _find_call_words(words)
        if not call_words:
            continue
        index_of_script = call_words.stop + script_index(words[call_words.stop :])
        if not call_words.stop <= index_of_script < len(word_ranges):
            return None
        call_begin, _ = word_ranges[call_words.start]
        script_begin, _ = word_ranges[index_of_script]
        text_after_call = _STREAM_DUPLICATION.sub("", text[command_end:])
        has_commands = any(text_after_call[begin:end].strip() for begin, end in _command_ranges(text_after_call))
        return TorchrunCall(
            tuple(words[call_words.stop :]),
            text_before=text[:call_begin],
            text_from_script=text[script_begin:],
            text_after_call=text_after_call.strip() if has_commands else "",
            adds_local_rank=words[call_words.stop - 1] == "torch.distributed.launch",
        )
    return None


def _command_ranges(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each simple command: between separators that stand outside quotes."""
    ranges: list[tuple[int, int]] = []
    begin = offset = 0
    quote = ""
    while offset < len(text):
        letter = text[offset]
        if letter == "\\" and quote != "'":
            offset += 2
            continue
        substitution = _COMMAND_SUBSTITUTION.match(text, offset) if quote != "'" else None
        if substitution:
            offset = substitution.end()
            continue
        separator = _SEPARATOR_OR_REDIRECTION.match(text, offset)
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (offset == 0 or text[offset - 1] in " \t\n"):
            comment_end = text.find("\n", offset)
            ranges.append((begin, offset))
            begin = offset = len(text) if comment_end < 0 else comment_end
            continue
        elif separator:
            ranges.append((begin, offset))
            begin = offset = separator.end()
            continue
        offset += 1
    return [*ranges, (begin, len(text))]


def _word_ranges(text: str, command_begin: int, command_end: int) -> list[tuple[int, int]]:
    """Return begin and end of each word of a simple command."""
    word = re.compile(rf"(?:{_PART_OF_WORD.pattern}|\$\{{[^}}]*\}}|[^\s'\"\\])+", re.DOTALL)
    ranges = [match.span() for match in word.finditer(text, command_begin, command_end)]
    # A line that goes on in the next one has a backslash and a newline, which are no word.
    return [(begin, end) for begin, end in ranges if text[begin:end].replace("\\\n", "")]


def _unquote(word: str, known_values: Mapping[str, str]) -> str:
    """Return a word of a shell's text without quotes, known variables replaced by their values or defaults."""

    def expand(variable: re.Match[str]) -> str:
        name, default = variable[1] or variable[2], variable[3]
        return known_values.get(name, variable[0] if default is None else default)

    word = word.replace("\\\n", "")
    text = word if word.startswith("'") else _SHELL_VARIABLE.sub(expand, word)
    try:
        return " ".join(shlex.split(text, posix=True))  # several are within $(...)
    except ValueError:
        return text


def torch_role(call: TorchrunCall, options: Sequence[str], environ: Mapping[str, str], workdir: str) -> TorchRole:
    """Translate a call of torchrun as `dljob torchrun` does.

    Args:
        call: the call.
        options: options that win over those of the call, such as the number of machines.
        environ: variables `PET_*`.
        workdir: the folder to start in; empty for the job's folder.

    Raises:
        UsageError: torchrun or dljob would refuse the call.
    """
    args = call.torchrun_args
    options_end = script_index(args)
    # Later options win, but not behind a `--`.
    if args[options_end - 1 : options_end] == ("--",):
        options_end -= 1
    parsed_args = torchrun_line.read([*args[:options_end], *options, *args[options_end:]], environ, TORCHRUN_PARSER)
    job = torchrun.job(parsed_args, torchrun.Site(local=False, cpus=1, devices={}, folder=torchrun.Path("/")))
    role = job.document["spec"]["roles"][0]
    if call.text_from_script:
        python = "python -u -m " if parsed_args.module else "python -u "
        if parsed_args.no_python:
            python = ""
        text = f"{call.text_before}{python}{call.text_from_script}"
        words = entrypoint_words(ContainerCommand(call.shell_argv, text, call.shell_args), workdir)
        role["entrypoint"] = {"command": words}
        role.pop("args", None)
    elif workdir or call.words_before:
        entrypoint = role["entrypoint"]
        module = entrypoint.get("module", "")
        python_words = ["python", "-u", module] if module.endswith(".py") else ["python", "-u", "-m", module]
        command = ContainerCommand((*call.words_before, *(entrypoint.get("command") or python_words)))
        role["entrypoint"] = {"command": entrypoint_words(command, workdir)}
    return TorchRole(role, job.document["spec"], job.notes)


@dataclass(frozen=True, slots=True)
class TorchRole:
    """Translation of a call of torchrun."""

    role: dict[str, Any]
    spec: dict[str, Any]
    """The spec around the role, with faultTolerance and deadlines."""
    remarks: tuple[str, ...]
