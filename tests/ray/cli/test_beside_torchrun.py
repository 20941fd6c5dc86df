"""torchrun beside `dljob torchrun`, option by option and variable by variable: the table of docs/reference/torchrun.md.

Regenerate it with `UPDATE_GOLDEN=1 python -m pytest tests/ray/cli/test_beside_torchrun.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.api import torchrun, torchrun_line

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

FACTS = Path(__file__).parents[1] / "users" / "torchrun_facts.py"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "torchrun.md"
BEGIN, END = "<!-- made by: tests/ray/cli/test_beside_torchrun.py -->\n", "<!-- end -->\n"
BIN = Path(sys.executable).parent
LAUNCHERS = {"torchrun": [str(BIN / "torchrun")], "dljob": [str(BIN / "dljob"), "torchrun"]}
Facts = dict[int, dict[str, Any]]

LINES = {
    "script": (
        "--standalone --nnodes=1 --nproc-per-node=2 --max-restarts=2 --rdzv-id=Run_7 --role=Trainer_A --tee=3 "
        "--log-line-prefix-template=${role_name}/${rank}: --signals-to-handle=SIGTERM,SIGUSR1 --log-dir=logs "
        "--rdzv-conf=join_timeout=300 sub/facts.py --stdin --lr $local_rank $$x"
    ),
    "module": "--nproc-per-node=2 --redirects=0:3 --module sub.facts --lr 3",
    "program": "--nproc-per-node=2 --local-ranks-filter=1 --virtual-local-rank --no-python ./facts.sh --lr 3",
    "path": "--nproc-per-node=1 --run-path sub/facts.py --lr 3",
}
"""Command lines that both launchers get."""
SHOWN_BY = {
    "nnodes": "GROUP_WORLD_SIZE",
    "nproc-per-node": "WORLD_SIZE",
    "standalone": "GROUP_WORLD_SIZE",
    "max-restarts": "TORCHELASTIC_MAX_RESTARTS",
    "rdzv-id": "TORCHELASTIC_RUN_ID",
    "role": "ROLE_NAME",
}
"""Options that a rank sees in a variable."""
SEEN = {
    "tee": "script",
    "log-line-prefix-template": "script",
    "module": "module",
    "redirects": "module",
    "no-python": "program",
    "local-ranks-filter": "program",
    "virtual-local-rank": "program",
    "run-path": "path",
}
"""Options whose effect is in the output, and the line that shows it."""
OTHERS = {
    "rdzv-conf": "`join_timeout` is the deadline until all ranks are ready; other keys are named as not used",
    "log-dir": "gets a link to the ranks' logs, a log for both streams of a rank; torchrun's has folders of attempts",
    "node-rank": "refused unless 0",
    "signals-to-handle": "`TORCHELASTIC_SIGNALS_TO_HANDLE` of the ranks; SIGINT, SIGTERM and SIGHUP stop the job",
    "numa-binding": "the same, not measured here",
}
ANY_VALUE = {
    "MASTER_PORT": "a free port",
    "TORCHELASTIC_ERROR_FILE": "a file that can be written",
    "MASTER_ADDR": "this machine",
}
"""Variables whose values differ from run to run."""
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""torchrun's run id with --standalone, whatever --rdzv-id says."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a script below its root, and at its root a module of each name of the standard library."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("project")
    for folder in (root, root / "plain"):
        for name in ("sub", "children"):
            (folder / name).mkdir(parents=True)
        (folder / "sub" / "facts.py").write_text(FACTS.read_text())
    (root / "facts.sh").write_text(f'#!/bin/sh\nexec {sys.executable} -u sub/facts.py "$@"\n')
    (root / "facts.sh").chmod(0o755)
    for name in sys.stdlib_module_names:
        (root / f"{name}.py").write_text("raise ImportError('a module of the project')")
    return root


def environ(project: Path, launcher: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    home = {"DLJOB_HOME": str(project / "home")} if launcher == "dljob" else {}
    return {**inherited, **home, "NO_COLOR": "1", "FACTS_FOLDER": str(project / "children"), "PYTHONPATH": "more"}


def start(project: Path, launcher: str, line: str, **more: Any) -> subprocess.Popen[bytes]:
    command = [*LAUNCHERS[launcher], *line.split()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(command, cwd=project, env=environ(project, launcher), **pipes)


def run(project: Path, launcher: str, line: str) -> tuple[str, str, int]:
    with start(project, launcher, line) as process:
        out, error = process.communicate(b"first\nsecond\n", timeout=200)
    return out.decode(), error.decode(), process.returncode


def facts_of(project: Path, launcher: str, line: str) -> tuple[Facts, str]:
    """Return what the shown ranks found, and the text before each of their lines."""
    out, error, code = run(project, launcher, line)
    assert code == 0, out + error
    rows = re.findall(r"^(.*?)facts (\{.*\})$", out, re.MULTILINE)
    facts_by_prefix = [(prefix, json.loads(text)) for prefix, text in rows]
    prefixes = "; ".join(sorted(prefix for prefix, _ in facts_by_prefix if prefix))
    return {int(each["env"]["RANK"]): each for _, each in facts_by_prefix}, prefixes


def plain(value: Any, project: Path) -> Any:
    """Return a value without what differs from machine to machine."""
    if isinstance(value, list):
        return [plain(each, project) for each in value]
    return value.replace(str(project), "/project") if isinstance(value, str) else value


def path_words(path: list[str], project: Path) -> str:
    words = [each if each.startswith("/project") else "Python's" for each in plain(path, project)]
    return ", ".join(dict.fromkeys(words))


def variable_rows(theirs: Facts, ours: Facts, project: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what rank 1 of 2 has in its environment beside that of the command."""
    base_environ = environ(project, "dljob")
    their_variables, our_variables = (
        {
            name: value
            for name, value in facts[1]["env"].items()
            if base_environ.get(name) != value and name not in ("_", "PWD", "LC_CTYPE")
        }
        for facts in (theirs, ours)
    )
    for name in sorted(their_variables):
        cells = [
            ANY_VALUE.get(name, f"`{UUID.sub('random', env[name])}`") if env.get(name) else "-"
            for env in (their_variables, our_variables)
        ]
        yield f"`{name}`", cells[0], cells[1]
    more = sorted({re.sub(r"^(DLJOB|RAY)_.*", r"\1_*", name) for name in our_variables.keys() - their_variables.keys()})
    yield "further variables", "-", ", ".join(f"`{name}`" for name in more)


def fact_rows(theirs: Facts, ours: Facts, project: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what else rank 1 of 2 found."""
    for title, key in (("`sys.path`", "path"), ("`sys.path` of a script that it starts", "child")):
        yield title, path_words(theirs[1][key], project), path_words(ours[1][key], project)
    handled = ("`, `".join(facts[1]["signals"]) for facts in (theirs, ours))
    yield "signals without the usual handler", *(f"`{names}`" if names else "-" for names in handled)
    yield "`sys.argv`", *(f"`{' '.join(plain(facts[1]['argv'], project))}`" for facts in (theirs, ours))
    for title, key in (("`__file__`", "file"), ("working directory", "cwd"), ("a line of stdin, a pipe", "stdin")):
        yield title, *(f"`{str(plain(facts[1][key], project)).strip()}`" for facts in (theirs, ours))


def watched(project: Path, launcher: str) -> dict[str, str]:
    """Return how the output of ranks arrives, until the command is told to end."""
    pieces, output, last_output = 0, b"", b""
    with start(project, launcher, "--nproc-per-node=2 sub/facts.py --out", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while output.count(b"ready") < 2 and (data := os.read(process.stdout.fileno(), 1 << 20)):
            pieces += b"%" in data
            output += data
        assert output.count(b"ready") == 2
        process.send_signal(signal.SIGTERM)
        last_output, _ = process.communicate(timeout=100)
    longest = max(map(len, output.split(b"\n")))
    return {
        "a progress bar of 6 states, in a pipe": "as it moves" if pieces >= 5 else f"in {pieces} pieces",
        "a line of 3 MiB": "whole" if longest == 3 << 20 else f"at most {longest} bytes",
        "what ranks print after SIGTERM to the command": f"{last_output.count(b'saved')} of 2 lines",
        "exit code after SIGTERM": str(process.returncode),
    }


def at_once(project: Path, launcher: str) -> str:
    """Return whether two runs of one script go at once."""
    processes = [start(project, launcher, "--standalone --nproc-per-node=1 sub/facts.py") for _ in range(2)]
    codes = [process.communicate(timeout=200) and process.returncode for process in processes]
    return "both run" if codes == [0, 0] else f"exit codes {codes}"


def option_rows(project: Path, facts_by_line: dict[str, dict[str, tuple[Facts, str]]]) -> Iterator[tuple[str, str]]:
    """Yield each option of torchrun, and what it is in dljob torchrun."""
    for option in torchrun_line.ARGUMENTS:
        name = option.name
        if name in SHOWN_BY or name in SEEN:
            line = SEEN.get(name, "script")
            theirs, ours = (output_of(facts_by_line[line][launcher], name) for launcher in LAUNCHERS)
            words = "the same" if theirs == ours else f"{theirs} there, {ours} here"
            words += f", by `{SHOWN_BY[name]}`" if name in SHOWN_BY else ""
        elif name in OTHERS:
            words = OTHERS[name]
        else:
            assert name in torchrun.NOT_USED
            words = "not used, and named"
        yield f"`--{name}`", words


def output_of(shown: tuple[Facts, str], name: str) -> Any:
    facts, prefixes = shown
    if name in SHOWN_BY:
        return UUID.sub("random", facts[1]["env"][SHOWN_BY[name]])
    if name in ("tee", "log-line-prefix-template"):
        return prefixes
    if name == "virtual-local-rank":
        return [each["env"]["LOCAL_RANK"] for each in facts.values()]
    return [(rank, each["argv"][1:], each["main"]) for rank, each in sorted(facts.items())]


def test_the_page_says_what_both_do(project: Path) -> None:
    facts_by_line = {
        line: {
            # With -m the folder of the command is first under both, and in processes of torchrun with --run-path.
            launcher: facts_of(project / "plain" if line in ("module", "path") else project, launcher, words)
            for launcher in LAUNCHERS
        }
        for line, words in LINES.items()
    }
    theirs, ours = (facts_by_line["script"][launcher][0] for launcher in LAUNCHERS)
    for facts in (theirs, ours):
        assert facts[1]["queue"] == str(Path(os.__file__).with_name("queue.py"))
        assert facts[1]["error_file"]
    rows = [*variable_rows(theirs, ours, project), *fact_rows(theirs, ours, project)]
    consoles = {launcher: watched(project, launcher) for launcher in LAUNCHERS}
    rows += [(title, words, consoles["dljob"][title]) for title, words in consoles["torchrun"].items()]
    rows.append(("the same script twice at once", *(at_once(project, launcher) for launcher in LAUNCHERS)))
    failures = [run(project, launcher, "--nproc-per-node=1 sub/facts.py --fail")[2] for launcher in LAUNCHERS]
    rows.append(("exit code of a script that fails", *map(str, failures)))
    table = ["| rank 1 of 2 finds | torchrun | `dljob torchrun` |", "| --- | --- | --- |"]
    table += [f"| {' | '.join(row)} |" for row in rows]
    table += ["", "| torchrun's option | in `dljob torchrun` |", "| --- | --- |"]
    table += [f"| {' | '.join(row)} |" for row in option_rows(project, facts_by_line)]
    compare("\n".join(table) + "\n")


def compare(table: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    present, end, after = rest.partition(END)
    assert end, "the page has no place for the table"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}")
        return
    assert present == table
