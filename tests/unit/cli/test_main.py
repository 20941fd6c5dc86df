"""The command line: help, wrong use, errors and exit codes, and what it does not import.

Regenerate the help texts with `UPDATE_GOLDEN=1 python -m pytest tests/unit/cli`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from dljob.cli import main, output
from dljob.errors import DLJobError, NotFoundError, RenamedWarning, UnreachableError

GOLDEN = Path(__file__).parents[2] / "golden" / "help"


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "TTY_COMPATIBLE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_the_help_matches_the_recorded_help(command, capsys):
    if command == "torchrun" and sys.version_info >= (3, 13):
        pytest.skip("torchrun's own words come from argparse, which writes options otherwise since Python 3.13")
    assert main.run([command, "--help"] if command else ["--help"]) == 0
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    golden = GOLDEN / f"{command or 'dljob'}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown)
    assert shown == golden.read_text()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["version"]])
def test_the_help_imports_nothing_heavy(words):
    script = (
        "import sys; from dljob.cli import main; code = main.run(sys.argv[1:]);"
        "heavy = {'ray', 'torch', 'kubernetes', 'kopf', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["sttatus"], 'Did you mean "status"?', "see dljob --help"),
        (["run", "f.yaml", "--fault", "x"], "Did you mean --faults?", "see dljob run --help"),
        (["run"], "requires an argument", "see dljob run --help"),
        (["submit", "f.yaml"], "submit to which place?", "--address HOST:PORT of a Ray, or --kubernetes"),
        (["submit", "f.yaml", "-k", "--address", "h:1"], "submit to one place", "--kubernetes"),
        (["submit", "f.yaml", "--address", "h:1", "--no-upload"], "--upload and --no-upload are for Kubernetes", ""),
        (["run", "f.yaml", "--stop-on-interrupt"], "for a run on Kubernetes", "add --kubernetes"),
        (["run", "f.yaml", "-k", "--pretend", "NPU=8"], "--faults and --pretend", ""),
        (["submit", "f.yaml", "-k", "--quiet"], "--quiet and --roles are for submit --wait --address", ""),
        (["status", "j", "-A"], "--all-namespaces is for the list", ""),
        (["plan", "f.yaml", "-o", "xml"], "xml", "see dljob plan --help"),
        (["logs", "j", "--rank", "one"], "one", "see dljob logs --help"),
    ],
)
def test_wrong_use_is_told_with_the_nearest_right_one(words, message, hint, capsys):
    assert main.run(words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert hint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_no_command_shows_the_help(capsys):
    assert main.run([]) == 0
    assert "Usage: dljob COMMAND" in capsys.readouterr().out


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def command(_words: object) -> int:
        raise error

    monkeypatch.setattr(main, "_dispatch", command)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DLJobError("it failed"), 1),
        (NotFoundError("no job 'x'", hint="look elsewhere"), 3),
        (UnreachableError("no Ray"), 4),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ValueError("odd"), 1),
    ],
)
def test_errors_become_a_message_and_an_exit_code(error, code, monkeypatch, capsys):
    failing(monkeypatch, error)
    assert main.run([]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    if isinstance(error, DLJobError):
        assert printed.err == f"error: {error.message}\n" + (f"  {error.hint}\n" if error.hint else "")
    if isinstance(error, ValueError):
        assert "--debug" in printed.err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "/x/y"), "Permission denied: /x/y"),
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_os_error_is_shown_without_a_traceback(error, told, monkeypatch, capsys):
    failing(monkeypatch, error)
    assert main.run([]) == 1
    assert capsys.readouterr().err == f"error: {told}\n"
    assert main.run([], debug=True) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith(f"error: {told}\n")


def test_the_flag_debug_shows_the_traceback(monkeypatch, capsys):
    failing(monkeypatch, NotFoundError("no job 'x'"))
    with pytest.raises(SystemExit) as left:
        main.main(["status", "--debug", "x"])
    assert left.value.code == 3
    assert "Traceback" in capsys.readouterr().err
    failing(monkeypatch, ValueError("odd"))
    with pytest.raises(ValueError, match="odd"):
        main.run([], debug=True)


def test_an_old_name_is_told_of_on_stderr(monkeypatch, capsys):
    def speak(words: object) -> int:
        for category in (RenamedWarning, UserWarning):
            warnings.warn("f.yaml:1:2: event A is called B now", category, stacklevel=2)
        return 0

    monkeypatch.setattr(main, "_dispatch", speak)
    with pytest.warns(UserWarning, match="A is called B"):  # the other one goes where Python says
        assert main.run(["status"]) == 0
    assert capsys.readouterr().err == "warning: f.yaml:1:2: event A is called B now\n"


def test_python_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "dljob", "version", "-o", "json"], capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout)) == {"dljob", "python", "ray", "torch"}


def test_a_reader_that_leaves_is_no_error():
    writer = subprocess.Popen(
        [sys.executable, "-m", "dljob.cli", "crd"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout
    assert writer.stderr
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait() == 141


def in_a_shell(words: str, *, before: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`dljob` with streams that only a shell gives it."""
    command = ["/bin/sh", "-c", f'unset PYTHONUNBUFFERED; {before} exec "$0" -m dljob.cli {words}', sys.executable]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("version >&-", 0, ""),
        ("version <&- >&- 2>&-", 0, ""),
        ("nosuch 2>&-", 2, ""),
        ("version >/dev/full", 1, "error: No space left on device\n"),
        ("torchrun --help >/dev/full", 1, "error: No space left on device\n"),
        ("nosuch 2>/dev/full", 2, ""),
    ],
)
def test_a_closed_or_full_stream_ends_the_command_with_an_exit_code(words, code, told):
    done = in_a_shell(words)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


def test_a_current_folder_that_is_gone_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = in_a_shell("torchrun --dry-run x.py", before=f"rmdir {gone};", cwd=gone)
    assert (done.returncode, done.stderr) == (1, "error: the current folder is gone\n")


@pytest.mark.parametrize(
    ("env", "terminal", "coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_depend_on_the_terminal_and_the_environment(env, terminal, coloured, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert output.coloured(terminal) is coloured


def test_a_number_that_is_none_is_json_all_the_same(capsys):
    metrics = {"loss": math.nan, "best": [math.inf, -math.inf], "step": 3, "lr": 0.1, "name": "a"}
    output.structured({"metrics": metrics, "none": None, "yes": True}, "json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    shown = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert shown["metrics"] == {"loss": "NaN", "best": ["Infinity", "-Infinity"], "step": 3, "lr": 0.1, "name": "a"}
    assert (shown["none"], shown["yes"]) == (None, True)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path / "train.py"


@pytest.mark.parametrize(
    ("words", "left", "debug"),
    [
        ("torchrun train.py --debug", "torchrun train.py --debug", False),
        ("--debug torchrun train.py --debug", "torchrun train.py --debug", True),
        ("torchrun --debug --to kubernetes train.py", "torchrun --to kubernetes train.py", True),
        ("torchrun --nnodes 2 -r 3 --debug -m a.b --debug", "torchrun --nnodes 2 -r 3 -m a.b --debug", True),
        ("torchrun --nnodes 2 -m a.b c --debug", "torchrun --nnodes 2 -m a.b c --debug", False),
        ("torchrun --help --debug", "torchrun --help", True),
        ("torchrun --nosuch --debug train.py", "torchrun --nosuch train.py", True),
        ("status torchrun --debug", "status torchrun", True),
        ("--debug", "", True),
    ],
)
def test_the_words_of_a_script_are_not_ours(words, left, debug, monkeypatch):
    seen: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(main, "run", lambda words, *, debug, **_: seen.append((list(words), debug)) or 0)
    with pytest.raises(SystemExit):
        main.main(words.split())
    assert seen == [(left.split(), debug)]


@pytest.mark.parametrize("before", [[], ["--debug"]])
def test_a_torchrun_line_of_kubectl_is_about_the_cluster(before):
    said = [*before, "torchrun", "--nnodes", "2", "x.py"]
    assert main.on_kubernetes(said) == [*before, "torchrun", "--to", "kubernetes", "--nnodes", "2", "x.py"]
    launch = ["launch", "x.py"]
    there = [*before, "accelerate", "--to", "kubernetes", *launch]
    assert main.on_kubernetes([*before, "accelerate", *launch]) == there


def test_a_torchrun_line_is_shown_as_a_job(train, capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    line = (
        "--to kubernetes --dry-run --nnodes=2:4 --nproc-per-node=8 --accelerator GPU --rdzv-backend x train.py --help"
    )
    assert main.run(["torchrun", *line.split()]) == 0
    shown = capsys.readouterr()
    assert shown.err == "not used: --rdzv-backend; see dljob torchrun --help\n"
    file = train.with_name("dljob.yaml")
    file.write_text(shown.out)
    assert main.run(["plan", str(file)]) == 0
    assert '- "--help"' in shown.out
    assert "OMP_NUM_THREADS" not in shown.out


def test_a_torchrun_line_has_the_threads_of_its_command(train, capsys, monkeypatch):
    del train
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert main.run(["torchrun", "--dry-run", "--nproc-per-node=2", "train.py"]) == 0
    assert 'name: OMP_NUM_THREADS\n      value: "7"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--to there train.py", "--to there: unknown target", "--to local, --to kubernetes"),
        ("--to h:1 --resume train.py", "--resume: not for --to HOST:PORT", ""),
        ("--image x --no-upload train.py", "--image, --no-upload: for --to kubernetes", ""),
        ("--nproc-pernode 2 train.py", "unrecognized arguments: --nproc-pernode", "Did you mean --nproc-per-node?"),
        ("train.p", "there is no train.p in", "-m for a module"),
        ("--local-ranks-filter a train.py", "no list of local ranks", "write --local-ranks-filter=0,1"),
    ],
)
def test_a_wrong_torchrun_line_is_refused_with_a_hint(train, capsys, words, message, hint):
    assert train.exists()
    assert main.run(["torchrun", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert hint in shown


def test_a_folder_of_commands_is_read_at_a_glance():
    assert len(list(Path(main.__file__).with_name("commands").glob("[a-z]*.py"))) <= 25


MODULE, SCRIPT = ["-m", "dljob"], ["-c", "from dljob.cli.main import main; main()"]


@pytest.mark.parametrize(("launcher", "folder", "script", "said"), [
    (MODULE, ".", "ñ.py", 'module: "ñ.py"'),
    (SCRIPT, "ñ", "x.py", "module: x.py"),
    (SCRIPT, ".", "\udcf1.py", "holds the byte 0xf1, which is no UTF-8 (rename the file, or spell it in UTF-8)"),
])  # fmt: skip
def test_a_name_beyond_ascii_is_read_though_the_locale_lacks_it(launcher, folder, script, said, tmp_path):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / script).touch()
    done = subprocess.run(
        [sys.executable, *launcher, "torchrun", "--dry-run", script],
        cwd=tmp_path / folder,
        env={**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert said in done.stdout + done.stderr
