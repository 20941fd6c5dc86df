"""status, logs, events, restart and stop on jobs that have ended or whose runner is gone: what needs no Ray."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from dljob.api import registry
from dljob.api.handle import JobHandle, handle_of
from dljob.api.logs import UNTIMED
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.errors import UsageError
from dljob.telemetry.remedies import CauseKind

UID = "0123456789abcdef0123456789abcdef"
ENDED: dict[str, Any] = {
    "name": "ppo",
    "uid": UID,
    "phase": "Failed",
    "reason": "UserErrorRepeats",
    "message": "actor/0: ValueError: bad",
    "seconds": 12.0,
    "restarts": {"process": 2, "roleGroup": 0, "role": 1, "job": 0, "master": 0},
    "progress": {"step": 7, "metrics": {"reward": 0.25}},
    "ledger": {
        "seconds": 50.0,
        "processes": 2,
        "goodput": 0.83,
        "recentGoodput": 0.9,
        "accounts": {"queue": 0.04, "init": 5.0, "productive": 83.0, "replace": 11.96},
        "roles": [],
    },
    "roles": [{"name": "actor", "desired": 2, "ready": 0, "running": 0, "succeeded": 1, "failed": 1, "restarts": 2}],
    "ranks": [
        {"role": "actor", "rank": 0, "phase": "Failed", "incarnation": 3, "node": "n1", "pid": 11, "step": 7},
        {"role": "actor", "rank": 1, "phase": "Succeeded", "incarnation": 1, "node": "n1", "pid": 12, "step": None},
    ],
    "recentFaults": [
        {"target": "actor/0", "level": "Process", "firstCause": "killed", "seconds": 0.4},
        {"target": "actor/0", "level": "Role", "firstCause": "ValueError: bad", "seconds": None},
    ],
}
NOTES = [
    {"seq": 1, "time": 101.5, "reason": "Admitted", "target": "job", "message": "2 units held"},
    {
        "seq": 2,
        "time": 104.25,
        "reason": "Recovered",
        "target": "actor/0",
        "message": "1 rank ready again",
        "level": "Process",
        "seconds": 0.4,
    },
]


def job(home: Path, **more: Any) -> RegistryEntry:
    """A job of this home, without a status."""
    name, uid = more.pop("name", "ppo"), more.pop("uid", UID)
    folder = str(home / "jobs" / f"{name}-{uid[:8]}")
    return registry.register(RegistryEntry(**{"name": name, "uid": uid, "dir": folder, "started": 100.0, **more}))


def ended(home: Path, **more: Any) -> RegistryEntry:
    record = job(home, **more)
    (record.folder / "status.json").write_text(json.dumps(ENDED))
    (record.folder / "events.jsonl").write_text("".join(json.dumps(n) + "\n" for n in NOTES))
    return record


def gone(home: Path) -> RegistryEntry:
    """A job whose runner's pid is now another process: ours, which started at another time."""
    return job(home, runner=os.getpid(), runner_started=registry.start_of(os.getpid()) - 1)


@pytest.fixture
def homeless(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DLJOB_HOME of a user whom the machine does not know, without HOME, as in a container."""

    def unknown(_: int) -> object:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_a_user_without_a_home_folder_needs_dljob_home_alone(homeless, capsys):
    assert main.run(["status"]) == 0
    assert str(homeless) in capsys.readouterr().err
    # In an interpreter of its own: the Kubernetes client looks for a home folder while it is imported.
    code = "import pwd, sys; pwd.getpwuid = {}.__getitem__; from dljob.cli import main; main.run(sys.argv[1:])"
    command = [sys.executable, "-c", code, "status", "-n", "team"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "no kubeconfig at ~/.kube/config" in done.stderr


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("said", ["", "~/jobs"])
def test_a_user_without_a_home_folder_is_told_what_to_set(said, monkeypatch, capsys):
    monkeypatch.setenv("DLJOB_HOME", said)
    assert main.run(["status"]) == 4
    assert "has no home folder" in (shown := capsys.readouterr().err)
    assert "set DLJOB_HOME to a folder that you may write to" in shown


def test_status_lists_all_jobs_with_their_phases(home, capsys):
    ended(home)
    job(home, name="gone", uid="f" * 32, runner=2**22 + 1, runner_started=5, started=160.0)
    assert main.run(["status"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP", "AGE"]
    assert first.split() == ["ppo", "01234567", "Failed", "1/2", "3", "7", first.split()[-1]]
    assert re.fullmatch(r"\d{6}h\d\dm", first.split()[-1]), "it started in 1970"
    assert second.split()[:3] == ["gone", "ffffffff", "Lost"]
    assert main.run(["status", "-o", "json"]) == 0
    assert [j["phase"] for j in json.loads(capsys.readouterr().out)] == ["Failed", "Lost"]


def test_status_shows_an_ended_job_in_full(home, capsys):
    record = ended(home)
    assert main.run(["status", "ppo"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[:7] == [
        "ppo (01234567): Failed",
        "  UserErrorRepeats: actor/0: ValueError: bad",
        "  step 7  reward 0.25",
        "  goodput: 83.0%, last 10 min 90.0%; replace 12.0%, init 5.0%",
        "  restarts: 2 process, 1 role",
        "  fault: actor/0 [Process] killed; recovered in 0.40 s",
        "  fault: actor/0 [Role] ValueError: bad; not yet recovered",
    ]
    assert any(line.split() == ["actor/0", "Failed", "7", "11", "3", "n1"] for line in shown.splitlines())
    assert main.run(["status", UID[:8], "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**ENDED, "dir": record.dir}


def test_a_job_whose_runner_is_gone_is_lost(home, capsys):
    record = gone(home)
    assert main.run(["status", "ppo"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ppo (01234567): Lost")
    lost = f"RunnerKilled: its runner (pid {os.getpid()}) is gone without a final status: it was killed"
    assert lost in shown
    assert main.run(["why", "ppo"]) == CauseKind.STOPPED
    assert f"first cause: job: {lost}" in capsys.readouterr().out
    for words in (["stop", "ppo"], ["restart", "ppo"]):
        assert main.run(words) == 3
        assert record.dir in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoiled",
    [
        ('{"phase": "Runn', "Unterminated string"),
        ("", "Expecting value"),
        (None, "No such file"),
        (Path(), "Is a directory"),
        ("[1]", "it names no phase of a job"),
        ('{"phase": "Running"}', ""),
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        ("Completed", "Succeeded", 0),
        ("StoppedByUser", "Stopped", CauseKind.STOPPED),
        ("CrashLoop", "Failed", CauseKind.UNKNOWN),
    ],
)
def test_a_job_whose_status_is_damaged_ended_as_its_events_say(home, capsys, spoiled, end):
    (content, damage), (reason, phase, code) = spoiled, end
    record = gone(home)
    status = record.folder / "status.json"
    if isinstance(content, str):
        status.write_text(content)
    elif content is not None:
        status.mkdir()
    ends = [(reason, "job", "the verdict"), ("RankEnded", "w/0", ""), ("Released", "job", "all is gone")]
    notes = [
        {"seq": seq, "time": 160.5, "reason": each, "target": target, "message": message}
        for seq, (each, target, message) in enumerate(ends, 3)
    ]
    (record.folder / "events.jsonl").write_text("".join(json.dumps(note) + "\n" for note in [*NOTES, *notes]))
    assert main.run(["status"]) == 0
    assert phase in capsys.readouterr().out
    assert main.run(["why", "ppo"]) == code
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith(f"ppo (01234567): {phase}: {reason}: the verdict")
    assert ("its status.json cannot be read: " in head, damage in head) == (bool(damage), True)
    assert main.run(["stop", "ppo"]) == 3
    assert f"job ppo has ended: {phase}" in capsys.readouterr().err


def test_a_job_from_before_a_restart_of_the_machine_was_not_killed(home, capsys):
    host, _, pids = registry.this_host().split("/")
    job(home, runner=os.getpid(), runner_started=registry.start_of(os.getpid()) - 1, runner_host=f"{host}/old/{pids}")
    assert main.run(["why", "ppo"]) == CauseKind.NODE
    assert "this machine was restarted while the job ran" in capsys.readouterr().out


def test_orders_to_an_ended_job_are_refused(home, capsys):
    ended(home)
    for words in (["stop", "ppo"], ["stack", "ppo"], ["restart", "ppo", "actor"], ["scale", "ppo", "actor=1"]):
        assert main.run(words) == 3
        assert "job ppo has ended: Failed" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["actor", "actor=", "=2", "actor=-1", "actor=2.5", "actor=1234567", "actor=٣"])
def test_a_size_is_a_role_and_a_number(size, home, capsys):
    ended(home)
    assert main.run(["scale", "ppo", size]) == 2
    assert (
        f"is not a role with a number of ranks\n  write {size.partition('=')[0] or 'trainer'}=4"
        in capsys.readouterr().err
    )


class Answers:
    """A connection to a job of which one rank more is refused."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = [note("CommandRefused", "scale refused: of an earlier order")]
        self.ordered: list[str] = []

    def notes(self, after: int = 0) -> list[dict[str, Any]]:
        return [{**said, "seq": seq} for seq, said in enumerate(self.said, 1) if seq > after]

    def command(self, kind: str, target: str, *, by: str) -> None:
        self.ordered.append(f"{kind} {target}")
        self.said.append(note("CommandAccepted", "scale") if target == "actor=2" else note("CommandRefused", "no"))
        assert by


def note(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "target": "actor", "message": message}


def test_a_size_that_a_role_cannot_have_is_refused_in_primemasters_words(home):
    answers = Answers()
    handle = JobHandle(job(home), cast("Any", answers))
    handle.scale("actor", 2)
    with pytest.raises(UsageError, match="no"):
        handle.scale("actor", 3)
    assert answers.ordered == ["scale actor=2", "scale actor=3"]


def test_commands_refuse_an_unknown_job_and_suggest_a_near_name(home, capsys):
    for command in ("status", "logs", "events", "stack", "restart", "stop", "scale"):
        assert main.run([command, "pp0", *(["actor=1"] if command == "scale" else [])]) == 3
        assert "is DLJOB_HOME another one?" in capsys.readouterr().err
    ended(home)
    assert main.run(["status", "pp0"]) == 3
    assert "did you mean 'ppo'?" in capsys.readouterr().err


def test_commands_tell_that_a_running_jobs_master_does_not_answer(home, capsys, monkeypatch):
    from dljob.api.local import views
    from dljob.runtime.control_socket import client

    monkeypatch.setattr(client, "REACH_S", 0.0)
    monkeypatch.setattr(views, "ANSWER_S", 0.0)
    me = os.getpid()
    record = job(home, runner=me, runner_started=registry.start_of(me), address="127.0.0.1:1")
    for command in ("stop", "restart", "stack", "status", "events"):
        assert main.run([command, "ppo"]) == 4
        assert "job ppo cannot be reached" in capsys.readouterr().err
    (record.folder / "status.json").write_text(json.dumps({**ENDED, "phase": "Running"}))
    assert main.run(["status", "ppo"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("ppo (01234567): Running")
    assert "this was written" in err


def test_commands_refuse_a_job_folder_of_another_user(home, capsys, monkeypatch):
    me, owner = os.getpid(), os.getuid() or 1234
    record = job(home, runner=me, runner_started=registry.start_of(me), address="127.0.0.1:1")
    if os.getuid() == 0:
        os.chown(record.folder, owner, owner)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert main.run(["stop", "ppo"]) == 4
    assert f"job ppo belongs to user {owner}, and this is user 4711" in capsys.readouterr().err


def test_root_joins_no_ray_that_a_user_names(home, capsys, monkeypatch):
    record = job(home, address="127.0.0.1:1")
    if os.getuid() == 0:
        os.chown(record.folder, 1234, 1234)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main.run(["stop", "ppo"]) == 4
    assert "belongs to user" in capsys.readouterr().err


def test_commands_about_a_local_job_import_no_ray(tmp_path):
    from socket_kit import serving

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home, me = Path(name), os.getpid()
        os.environ["DLJOB_HOME"], before = name, os.environ.get("DLJOB_HOME")
        try:
            record = job(home, runner=me, runner_started=registry.start_of(me))
        finally:
            os.environ.pop("DLJOB_HOME") if before is None else os.environ.update(DLJOB_HOME=before)
        (record.folder / "spec.json").write_text(SPEC)
        (record.folder / "logs").mkdir()
        (record.folder / "logs" / "actor-0.log").write_text("here\n")
        (tmp_path / "faults.yaml").write_text("[]\n")
        orders = [[*words.split()] for words in ORDERS]
        orders.append(["chaos", "ppo", str(tmp_path / "faults.yaml")])
        with serving(record.folder, UID):
            done = subprocess.run(
                [sys.executable, "-c", GUARDED, json.dumps(orders)],
                env={**os.environ, "DLJOB_HOME": name},
                capture_output=True,
                text=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0] * len(orders), done.stderr


ORDERS = (
    "status",
    "status ppo",
    "events ppo",
    "logs ppo",
    "stack ppo",
    "restart ppo actor/1",
    "scale ppo actor=2",
    "stop ppo",
)
SPEC = json.dumps(
    {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "ppo"},
        "spec": {"roles": [{"name": "actor", "replicas": 2, "entrypoint": {"class": "a.B"}}]},
    }
)
GUARDED = """
import json, sys
sys.modules["ray"] = sys.modules["torch"] = None  # an import of them fails
from dljob.cli.main import run
print(json.dumps([run(words, debug=True) for words in json.loads(sys.argv[1])]))
"""


def test_events_shows_the_notes_of_a_job(home, capsys):
    ended(home)
    assert main.run(["events", "ppo"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["1.5s", "Admitted", "job", "2", "units", "held"]
    assert "4.2s  Recovered" in second
    assert second.endswith("actor/0        [Process] 1 rank ready again (0.40 s)")
    assert main.run(["events", "ppo", "--follow", "-o", "json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == NOTES


def write_logs(record: RegistryEntry, **texts: str) -> None:
    (record.folder / "logs").mkdir()
    for name, text in texts.items():
        (record.folder / "logs" / f"{name.replace('_', '-')}.log").write_text(text)


def test_logs_shows_the_output_of_each_rank(home, capsys):
    write_logs(ended(home), actor_0="a\nb\nc", actor_1="d\n", ref_model_0="e\n")
    assert main.run(["logs", "ppo"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[actor/0] a",
        "[actor/0] b",
        "[actor/0] c",
        "[actor/1] d",
        "[ref-model/0] e",
    ]
    assert main.run(["logs", "ppo", "--role", "actor", "--tail", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == ["[actor/0] c", "[actor/1] d"]
    assert main.run(["logs", "ppo", "--rank", "1", "--tail", "0"]) == 0
    assert capsys.readouterr().out == ""
    assert main.run(["logs", "ppo", "-f", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "[actor/1] d\n"
    assert main.run(["logs", "ppo", "-f", "--rank", "0", "--role", "actor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "[actor/0] c", "a line without an end is shown at the end"
    assert main.run(["logs", "ppo", "--role", "critic"]) == 3
    assert "there is output of: actor, ref-model" in capsys.readouterr().err


def test_logs_shows_a_terminal_what_is_left_of_a_progress_bar(home, monkeypatch, capsys):
    write_logs(ended(home), actor_0="  0%|  |\r100%|##|\nb\r\n\n")
    for follow in ([], ["-f"]):
        assert main.run(["logs", "ppo", *follow]) == 0
        assert capsys.readouterr().out == "[actor/0]   0%|  |\r100%|##|\n[actor/0] b\n[actor/0] \n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.run(["logs", "ppo"]) == 0
    assert capsys.readouterr().out == "[actor/0] 100%|##|\n[actor/0] b\n[actor/0] \n"


def test_logs_shows_the_output_since_a_moment(home, capsys, caplog):
    record = ended(home)
    write_logs(record, actor_0="", actor_1="d\n")
    log = record.folder / "logs" / "actor-0.log"
    for text, at in (("", 3600), ("a\n", 600), ("b\n", 60)):
        with log.open("a") as file:
            file.write(text)
        with log.with_suffix(".marks").open("ab") as file:
            file.write(struct.pack("<QQ", time.time_ns() - at * 10**9, log.stat().st_size))
    with log.open("a") as file:
        file.write("c\n")
    assert main.run(["logs", "ppo", "actor/0", "--since", "5m"]) == 0
    assert capsys.readouterr() == ("[actor/0] b\n[actor/0] c\n", "")
    assert main.run(["logs", "ppo", "actor/0", "-f", "--since", "30s"]) == 0
    assert capsys.readouterr().out == "[actor/0] c\n"
    assert main.run(["logs", "ppo", "actor/0", "--tail", "1", "--since", "5m"]) == 0
    assert capsys.readouterr().out == "[actor/0] c\n"
    ago = datetime.now(UTC) - timedelta(minutes=30)
    for at in (ago.isoformat(), ago.astimezone().replace(tzinfo=None).isoformat(), "0d1h0m", "99999d"):
        assert main.run(["logs", "ppo", "actor/0", "--since", at]) == 0
        assert capsys.readouterr().out == "[actor/0] a\n[actor/0] b\n[actor/0] c\n"
    handle, out = handle_of(record), io.StringIO()
    handle.logs(role="actor", since=time.time() - 300, out=out)
    handle.logs(rank=0, since=datetime.now(UTC) - timedelta(seconds=30), follow=True, out=out)
    assert out.getvalue() == "[actor/0] b\n[actor/0] c\n[actor/1] d\n[actor/0] c\n"
    assert [record.message for record in caplog.records] == [UNTIMED.format("actor/1")]
    assert main.run(["logs", "ppo", "--since", "5m"]) == 0
    shown, err = capsys.readouterr()
    assert shown == "[actor/0] b\n[actor/0] c\n[actor/1] d\n"
    assert "the output of actor/1 has no known times: its log is shown whole" in err


@pytest.mark.parametrize(
    ("since", "said"),
    [
        ("-5m", "--since '-5m' is neither a span nor a time"),
        ("yesterday", "--since 'yesterday' is neither a span nor a time"),
        ("5", "--since '5' is neither a span nor a time"),
        ("", "--since '' is neither a span nor a time"),
        ("2026-13-01", "--since '2026-13-01' is neither a span nor a time"),
        ("9999-01-01T00:00:00Z", "--since 9999-01-01T00:00:00Z is in the future: it is 2"),
    ],
)
def test_logs_refuses_a_moment_that_it_cannot_read(home, since, said, capsys):
    write_logs(ended(home), actor_0="a\n")
    assert main.run(["logs", "ppo", "--since", since]) == 2
    out, err = capsys.readouterr()
    assert (out, said in err, "write a span (90s, 10m, 1h30m, 2d)" in err) == ("", True, True), err


def test_logs_tells_that_a_job_has_no_output_yet(home, capsys):
    ended(home)
    assert main.run(["logs", "ppo"]) == 3
    assert "no output yet" in capsys.readouterr().err


def test_logs_of_a_job_that_has_just_begun_are_empty(home, capsys):
    me = os.getpid()
    job(home, runner=me, runner_started=registry.start_of(me))
    for target in ((), ("actor",)):
        assert main.run(["logs", "ppo", *target]) == 0
        assert capsys.readouterr() == ("", "")


def test_logs_of_a_rank_that_has_not_written_yet_are_empty(home, capsys):
    folder = Path(ended(home).dir)
    roles = [{"name": "actor", "desired": 2}]
    (folder / "status.json").write_text(json.dumps({"phase": "Running", "roles": roles}))
    for target in ((), ("actor",), ("actor/1",)):
        assert main.run(["logs", "ppo", *target]) == 0
        assert capsys.readouterr() == ("", "")
    for target in ("actor/2", "actr"):
        assert main.run(["logs", "ppo", target]) == 3
        assert f"no output of {target}" in capsys.readouterr().err


def test_the_living_one_of_two_jobs_of_a_name_is_found(home):
    me = os.getpid()
    alive = job(home, uid="a" * 32, runner=me, runner_started=registry.start_of(me), started=50.0)
    late = ended(home)
    assert registry.find("ppo") == alive
    assert registry.find(UID) == late
    (alive.folder / "status.json").write_text(json.dumps({"phase": "Succeeded"}))
    assert registry.find("ppo") == late


def test_the_entry_is_for_this_user_only_and_comes_back_whole(home):
    record = job(home, environment=(("A", "b"),), address="h:1")
    assert (record.folder / "job.json").stat().st_mode & 0o777 == 0o600
    assert record.folder.stat().st_mode & 0o777 == 0o700
    (home / "jobs" / "rubbish").mkdir()
    (home / "jobs" / "rubbish" / "job.json").write_text("{")
    assert registry.records() == [record]
    assert registry.register(replace(record, address="h:2")).address == registry.records()[0].address


def test_a_home_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    from dljob.errors import UnreachableError

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "file"))
    with pytest.raises(UnreachableError, match=r"cannot keep jobs in .*\n.*set DLJOB_HOME"):
        registry.check_home()
    with pytest.raises(UnreachableError, match="cannot keep jobs in"):
        job(tmp_path / "file")
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(UnreachableError, match="Permission denied"):
        registry.check_home()


def test_without_dljob_home_the_users_state_folder_is_the_home(monkeypatch):
    monkeypatch.delenv("DLJOB_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert registry.home() == Path("/state/dljob")
