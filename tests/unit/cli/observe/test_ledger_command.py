"""ledger: where the time of a job's ranks went, by its status in a folder, here or on a cluster."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from fake_kube import add_head, add_job
from hypothesis import given
from hypothesis import strategies as st

from dljob.api.local import views
from dljob.api.registry import RegistryEntry
from dljob.api.shown_job import JobAccounts
from dljob.cli import main, spending
from dljob.kube.api import DLJOBS
from dljob.logs import archive

UID = "a7efe1" * 5 + "00"
SPEC: dict[str, Any] = {
    "roles": [
        {"name": "trainer", "replicas": 2, "accelerator": {"count": 2}},
        {"name": "rollout", "accelerator": {"type": "NPU", "count": "0.5"}},
        {"name": "judge"},
    ]
}
FAULTS: list[dict[str, Any]] = [
    {"level": "Process", "target": "trainer/1", "firstCause": "trainer/1: OOMKilled: \x1b[2Jby SIGKILL",
     "detectedAt": "2026-01-01T00:05:00Z", "seconds": 3.0, "lostSteps": 1},
    {"level": "Role", "target": "judge", "firstCause": "judge/0: Killed: gone", "seconds": None},
]  # fmt: skip
LEDGER: dict[str, Any] = {
    "seconds": 3600.0,
    "processes": 4,
    "goodput": 0.6667,
    "recentGoodput": 0.5,
    "accounts": {"queue": 0.0, "productive": 9600.0, "detect": 1200.0, "init": 3600.0, "spare": 60.0},
    "roles": [
        {"name": "trainer", "accounts": {"init": 3600.0, "productive": 3600.0, "spare": 60.0}},
        {"name": "rollout", "accounts": {"productive": 2400.0, "detect": 1200.0}},
        {"name": "judge", "accounts": {"productive": 3600.0}},
    ],
}


def status(**more: Any) -> dict[str, Any]:
    return {"name": "ppo", "uid": UID, "phase": "Running", "ledger": LEDGER, **more}


def accounts(said: dict[str, Any], spec: dict[str, Any] | None = None) -> JobAccounts:
    return JobAccounts(views.overview(RegistryEntry("ppo", UID, "/gone"), said), SPEC if spec is None else spec)


def test_the_accounts_stand_by_role_in_the_ledgers_order():
    said = status(recentFaults=FAULTS, restarts={"process": 1, "role": 1})
    assert spending.lines(accounts(said), 80) == [
        "ppo (a7efe1a7): Running, 1h00m, 4 ranks",
        "goodput 66.7%, last 10 min 50.0%; 4.5 device-hours, 2.33 of them productive",
        "",
        "ACCOUNT           all  trainer  rollout    judge",
        "queue           0.0 %        -        -        -",
        "init           25.0 %   50.0 %        -        -",
        "productive     66.7 %   50.0 %   66.7 %  100.0 %",
        "detect          8.3 %        -   33.3 %        -",
        "total         100.0 %  100.0 %  100.0 %  100.0 %",
        "rank time       4h00m    2h00m    1h00m    1h00m",
        "spares          1m00s    1m00s   0.00 s   0.00 s",
        "device-hours      4.5        4      0.5        0",
        "",
        "restarts: 2; detect: 8.3%, 20m00s of the ranks",
        "  2026-01-01T00:05:00Z recovered in 3.0 s, 1 step lost: trainer/1 [Process] OOMKilled: \\x1b[2Jby SIGKILL",
        "  - not yet recovered: judge [Role] judge/0: Killed: gone",
    ]


def test_busy_time_stands_beside_the_accounts():
    waited: dict[str, float] = {"calls of rollout": 0.4, "queue done": 0.05, "weights policy": 0.0}
    roles: list[dict[str, Any]] = [
        {**LEDGER["roles"][0], "busy": {"share": 0.05, "seconds": 9.0, "waited": waited}},
        {**LEDGER["roles"][1], "busy": {"share": "x", "waited": None}},
        *LEDGER["roles"][2:],
    ]
    shown = spending.lines(accounts(status(ledger={**LEDGER, "roles": roles})), 80)
    assert "busy                -    5.0 %        -        -" in shown
    assert shown[-2:] == ["waited, while productive, for:", "  trainer: calls of rollout 40.0%, queue done 5.0%"]
    found = spending.data(accounts(status(ledger={**LEDGER, "roles": roles})))["roles"]
    assert found[0]["busy"]["share"] == 0.05
    assert "busy" not in found[2]


def test_a_failure_without_lost_time_is_still_told():
    quiet: dict[str, Any] = {**LEDGER, "accounts": {"productive": 600.0}, "roles": []}
    shown = spending.lines(accounts(status(ledger=quiet, recentFaults=FAULTS[1:]), {}), 80)
    assert shown[-2:] == ["restarts: 0", "  - not yet recovered: judge [Role] judge/0: Killed: gone"]
    assert not any("device" in line or "spares" in line for line in shown)


@pytest.mark.parametrize("columns", [80, 40])
def test_tables_of_many_roles_fit_the_terminal(columns):
    roles = [{"name": f"role-{n}", "accounts": {"productive": 1.0, "wait": 2.0}} for n in range(30)]
    whole = {**LEDGER, "accounts": {"productive": 30.0, "wait": 60.0}, "roles": roles}
    shown = spending.lines(accounts(status(ledger=whole), {}), columns)
    assert max(map(len, shown)) <= columns
    heads = [line.split()[1:] for line in shown if line.startswith("ACCOUNT")]
    assert list(itertools.chain(*heads)) == ["all", *(f"role-{n}" for n in range(30))]


@pytest.mark.parametrize("ledger", [None, {}, {**LEDGER, "goodput": None}, {**LEDGER, "accounts": {}, "roles": []}])
def test_a_job_of_which_no_rank_began_has_nothing_to_account_for(ledger):
    assert spending.lines(accounts(status(ledger=ledger)), 80)[1:] == ["no time to account for: no rank has begun"]


@given(st.dictionaries(st.sampled_from(["queue", "init", "productive", "later"]), st.floats(0, 1e9)))
def test_shares_sum_to_a_hundred_percent_whatever_the_accounts(held):
    found = spending.shares(held)
    assert sum(found.values()) == (spending.WHOLE if sum(held.values()) > 0 else 0)
    assert all(abs(found[name] / spending.WHOLE - held[name] / sum(held.values())) < 0.001 for name in found)


TEXT = st.text(st.characters(codec="utf-8"), max_size=40) | st.just("a\nb\x1b[2J\u202eevil\u200f")
VALUE = st.recursive(
    st.none() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "accounts", "init", "spare", "roles", "accelerator", "count"]), inner
        )
    ),
    max_leaves=12,
)
KEYS = ("seconds", "processes", "goodput", "recentGoodput", "accounts", "roles")


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, VALUE)) | VALUE,
    st.lists(st.dictionaries(st.sampled_from([*FAULTS[0]]), VALUE), max_size=3) | VALUE,
    st.dictionaries(st.just("roles"), VALUE),
)
def test_a_ledger_of_another_version_is_told_as_far_as_it_can_be(ledger, faults, spec):
    job = accounts(status(ledger=ledger, recentFaults=faults, restarts=ledger), spec)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200e-\u200f\u2028-\u202e]", "".join(spending.lines(job, 80)))
    spending.data(job)


def test_devices_that_are_no_number_are_not_counted():
    spec = {"roles": [{"name": "trainer", "accelerator": {"count": "many"}}]}
    assert spending.columns(status(), spec)[0].devices == 0.0


def test_accounts_of_a_later_dljob_come_last_and_count():
    shown = spending.columns({"ledger": {"accounts": {"nap": 1.0, "idle": 1.0}}}, {})
    assert list(shown[0].accounts) == ["idle", "nap"]


def test_a_copied_folder_tells_its_ledger_for_programs(tmp_path, home, capsys, monkeypatch):
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps(status(recentFaults=FAULTS)))
    (folder / "spec.json").write_text(json.dumps({"spec": SPEC}))
    monkeypatch.chdir(tmp_path)
    assert main.run(["ledger", "copy", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["deviceSeconds"], said["productiveDeviceSeconds"]) == (16200.0, 8400.0)
    assert said["accounts"]["productive"] == {"seconds": 9600.0, "share": 0.667}
    assert [role["name"] for role in said["roles"]] == ["trainer", "rollout", "judge"]
    assert said["incidents"] == FAULTS
    (folder / "spec.json").write_text("[]")
    assert main.run(["ledger", f"{folder}/"]) == 0
    assert "device-hours" not in capsys.readouterr().out


def test_a_copied_folder_tells_its_status_without_the_endpoints_of_what_has_ended(tmp_path, capsys):
    served = [{"role": "s", "ready": 0, "desired": 2, "addresses": []}]
    (tmp_path / "status.json").write_text(json.dumps(status(phase="Succeeded", endpoints=served)))
    assert main.run(["status", f"{tmp_path}/"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ppo (a7efe1a7): Succeeded")
    assert "endpoints of s" not in said
    assert main.run(["status", f"{tmp_path}/", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "Succeeded"
    assert main.run(["status", f"{tmp_path}/", "--watch"]) == 2
    assert "is a path: nothing there changes" in capsys.readouterr().err


def test_a_job_is_meant_before_a_folder_of_its_name(tmp_path, home, capsys, monkeypatch):
    from dljob.api import registry

    mine = registry.register(RegistryEntry("ppo", UID, str(registry.folder_of("ppo", UID)), started=1.0))
    (mine.folder / "status.json").write_text(json.dumps(status(phase="Succeeded")))
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo" / "status.json").write_text(json.dumps(status(phase="Failed")))
    monkeypatch.chdir(tmp_path)
    assert main.run(["ledger", "ppo"]) == 0
    assert capsys.readouterr().out.startswith("ppo (a7efe1a7): Succeeded")


def test_on_a_cluster_primemaster_tells_the_ledger(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    kube.head["status"] = lambda _query: status()
    code, out, _ = dljob("ledger", "hello", "-n", "team", "-o", "json")
    assert (code, json.loads(out)["goodput"]) == (0, 0.6667)
    assert json.loads(out)["name"] == "ppo"


def test_without_primemaster_the_ledger_is_read_from_the_volume(kube, dljob, tmp_path):
    job = add_job(kube, phase="Succeeded", completionTime="2026-01-01T00:00:00Z")
    body = {**job, "spec": {**job["spec"], "checkpoint": {"path": str(tmp_path), "claimName": "c"}}}
    kept = archive.root(str(tmp_path), "hello", kube.put(DLJOBS, body)["metadata"]["uid"])
    code, _, err = dljob("ledger", "hello", "-n", "team")
    assert (code, "its last status is not kept" in err, "is on claim c" in err) == (3, True, True)
    kept.mkdir()
    (kept / "status.json").write_text(json.dumps(status(phase="Running")))
    code, out, _ = dljob("ledger", "hello", "-n", "team")
    assert code == 0
    assert "Succeeded, 1h00m, 4 ranks\ngoodput 66.7%" in out, "the phase is that of the DLJob"


def test_a_cluster_without_a_volume_says_where_it_would_be_kept(kube, dljob):
    add_job(kube, phase="Running")
    code, _, err = dljob("ledger", "hello", "-n", "team")
    assert (code, "with spec.checkpoint.path" in err) == (3, True)
    add_job(kube, "early", phase="Pending")
    code, _, err = dljob("ledger", "early", "-n", "team")
    assert (code, "nothing of job early in namespace team runs yet" in err) == (3, True)


@pytest.mark.parametrize("ledger", [7, [LEDGER], "x"])
def test_a_ledger_that_cannot_be_read_is_not_called_an_empty_one(ledger):
    told = "no time to account for: the ledger is damaged, or of another version"
    assert spending.lines(accounts(status(ledger=ledger)), 80)[1:] == [told]
