"""The command line, the log, and what is refused before anything starts."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dljob.errors import UsageError
from dljob_operator import main as command
from dljob_operator.app import App

KEY = "k" * 32


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "key"
    file.write_text(KEY)
    return f"--token-key-file={file}"


def test_the_flags_are_what_the_operator_runs_with(key: str) -> None:
    flags = ["--namespace=a", "--namespace=b", "--namespace=a", "--image=i:{rayVersion}", "--ray-version=2.61.0"]
    more = ["--init-image=init", "--workers=3", "--metrics-port=0", "--health-port=9", "--context=c", "--kubeconfig=f"]
    found = command.options(command.parser().parse_args([key, *flags, *more]))
    assert found.namespaces == ("a", "b")
    assert (found.settings.image, found.settings.ray_version, found.settings.init_image) == (
        "i:{rayVersion}",
        "2.61.0",
        "init",
    )
    assert (found.workers, found.metrics_port, found.health_port) == (3, 0, 9)
    assert (found.context, found.kubeconfig) == ("c", "f")
    assert found.settings.version
    assert len(found.key.token("u", "c")) == 64


@pytest.mark.parametrize("flag", ["--image=docker://ray:1", "--init-image=example.org/Team/dljob:1"])
def test_an_impossible_image_is_refused(flag, capsys):
    with pytest.raises(SystemExit):
        command.parser().parse_args([flag])
    assert "is not the name of an image" in capsys.readouterr().err


def test_what_the_cluster_has_lacked_for_long_is_looked_for_rarely(key: str) -> None:
    app = App(command.options(command.parser().parse_args([key])))
    assert [app.look_again_after(waited) for waited in (0.0, 50.0, 120.0, 86400.0)] == [10.0, 10.0, 20.0, 60.0]


def test_a_selector_of_namespaces_excludes_names_of_them(key: str) -> None:
    found = command.options(command.parser().parse_args([key, "--namespace-selector=team=ml,a notin (b)"]))
    assert (found.namespace_selector, found.namespaces) == ("team=ml,a notin (b)", ())
    with pytest.raises(UsageError, match="--namespace and --namespace-selector exclude each other"):
        command.options(command.parser().parse_args([key, "--namespace-selector=team", "--namespace=a"]))


def test_the_operator_reads_json_as_deep_as_an_api_server_takes_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    read: list[object] = []

    async def run(_arguments: object, _given: object) -> None:
        read.append(json.loads("[" * 9_990 + "]" * 9_990))

    monkeypatch.setattr(command, "_run", run)
    usual = sys.getrecursionlimit()
    try:
        command.main([key])
    finally:
        sys.setrecursionlimit(usual)
    assert len(read) == 1


def test_the_key_may_come_by_a_variable(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    by_file = command.options(command.parser().parse_args([key]))
    monkeypatch.setenv(command.KEY_VARIABLE, KEY)
    by_variable = command.options(command.parser().parse_args([]))
    assert by_file.key.token("u", "c") == by_variable.key.token("u", "c")
    monkeypatch.setenv(command.KEY_VARIABLE, "short")
    with pytest.raises(UsageError, match=r"in \$DLJOB_TOKEN_KEY has 5 bytes"):
        command.options(command.parser().parse_args([]))


def test_without_a_key_one_is_made_up_with_a_warning_but_not_in_a_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(command.KEY_VARIABLE, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with caplog.at_level(logging.WARNING):
        command.options(command.parser().parse_args([]))
    assert "a key is generated" in caplog.text
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UsageError, match="no token key is given"):
        command.options(command.parser().parse_args([]))


@pytest.mark.parametrize(
    "flags", [["--workers=0"], ["--metrics-port=70000"], ["--log-format=xml"], ["--nonsense"], ["--name=a"]]
)
def test_wrong_flags_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(flags)
    assert caught.value.code == 2
    assert "usage: dljob-operator" in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_an_exit_code(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([key, f"--kubeconfig={tmp_path}/none"])
    assert caught.value.code == 4
    assert "no kubeconfig at" in capsys.readouterr().err


def test_a_line_of_the_log_is_json_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    command.log_as("json")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").exception("it %s", "failed")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("error", "x", "it failed")
    assert "ValueError: why" in line["exception"]
    assert line["time"].endswith("Z")
    command.log_as("plain")
    logging.getLogger("x").info("hello")
    assert "INFO     hello" in capsys.readouterr().err


def test_the_operator_that_must_begin_anew_replaces_itself(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[list[str]] = []

    async def run(app: App) -> None:
        app.restarts = True

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command.os, "execv", lambda program, argv: replaced.append(argv))
    monkeypatch.setattr(command.logging, "shutdown", lambda: None)
    command.main([key])
    assert replaced[0][1:] == ["-m", "dljob_operator", key]


def test_an_operator_in_which_something_hangs_ends_without_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class EndedError(Exception):
        pass

    async def run(app: App) -> None:
        app.hangs = True

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command.os, "_exit", end)
    monkeypatch.setattr(command.logging, "shutdown", lambda: None)
    with pytest.raises(EndedError, match="0"):
        command.main([key])


def test_the_operator_needs_neither_ray_nor_torch() -> None:
    block = "import sys; sys.modules.update(ray=None, torch=None); import dljob_operator.main"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_leader_election_is_on_where_its_flag_asks_for_it(key: str) -> None:
    assert command.options(command.parser().parse_args([key])).elect is None
    assert command.options(command.parser().parse_args([key, "--leader-elect=false"])).elect is None
    short = command.options(command.parser().parse_args([key, "--leader-elect"])).elect
    assert short is not None
    assert (short.name, short.namespace, short.pace.duration, short.pace.retry) == ("dljob-operator", "", 8, 2.6)
    flags = ["--leader-elect=true", "--leader-elect-lease-duration=15s", "--leader-elect-retry-period=2.5"]
    more = ["--leader-elect-resource-name=ours", "--leader-elect-resource-namespace=sys"]
    found = command.options(command.parser().parse_args([key, *flags, *more])).elect
    assert found is not None
    assert (found.name, found.namespace, found.pace.duration, found.pace.retry) == ("ours", "sys", 15, 2.5)


def test_a_lease_must_last_three_renewals(key: str) -> None:
    for flags in (["--leader-elect-retry-period=3s"], ["--leader-elect-retry-period=0.5s"]):
        with pytest.raises(UsageError, match="at most a third of it"):
            command.options(command.parser().parse_args([key, "--leader-elect", *flags]))


@pytest.mark.parametrize("flag", ["=yes", "-lease-duration=2.5s", "-lease-duration=1m", "-retry-period=soon"])
def test_flags_of_the_election_that_make_no_sense_are_refused(
    key: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.parser().parse_args([key, f"--leader-elect{flag}"])
    assert "--leader-elect" in capsys.readouterr().err
