"""The examples, run as a user runs them: `dljob run` on an embedded Ray."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from page_reader import PageReader
from patience import patience
from trace_format import parse

from dljob.calls.trace_rows import CallerRow, decode
from dljob.runtime.journal.samples import read

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[3] / "examples"


def dljob_run(home: Path, *arguments: str) -> dict[str, Any]:
    """The last line of a run that ended well."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dljob.cli", "run", *arguments],
            env={**os.environ, "DLJOB_HOME": str(home), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=patience(180),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError((error.stderr or b"").decode()[-4000:]) from error
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def logs(home: Path) -> str:
    """What all ranks of the only job of a home have printed."""
    return "\n".join(path.read_text(errors="replace") for path in home.glob("jobs/*/logs/**/*") if path.is_file())


NOTHING = {"inProcess": 0, "process": 0, "roleGroup": 0, "role": 0, "job": 0, "node": 0, "master": 0}


def test_hello_cpu_runs_a_function_in_two_ranks(tmp_path: Path) -> None:
    last = dljob_run(tmp_path, str(EXAMPLES / "hello-cpu" / "dljob.yaml"))
    assert last["ranks"] == 2
    assert last["restarts"] == NOTHING
    assert "pids_kept" not in last
    assert {f"hello from rank {rank} of 2" for rank in (0, 1)} <= set(logs(tmp_path).splitlines())


@pytest.mark.torch
def test_torchrun_ddp_runs_a_script_that_knows_nothing_of_dljob(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    last = dljob_run(tmp_path, str(EXAMPLES / "torchrun-ddp" / "dljob.yaml"))
    assert last["restarts"] == NOTHING
    fitted = [line.partition(": ") for line in logs(tmp_path).splitlines() if ": y = " in line]
    assert sorted(rank for rank, _, _ in fitted) == ["rank 0 of 2", "rank 1 of 2"]
    assert len({line for _, _, line in fitted}) == 1, "DDP keeps the weights of all ranks the same"


@pytest.mark.torch
def test_grpo_tiny_loses_a_rollout_a_trainer_and_the_master_and_finishes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    example = tmp_path / "grpo-tiny"
    shutil.copytree(EXAMPLES / "grpo-tiny", example)
    shorten(example / "dljob.yaml", {"iterations: 60": "iterations: 20"})
    shorten(example / "faults.yaml", {"step: 15": "step: 4", "step: 25": "step: 8", "step: 35": "step: 12"})
    with PageReader(tmp_path) as reader:
        files = str(example / "dljob.yaml"), "--faults", str(example / "faults.yaml")
        last = dljob_run(tmp_path, *files, "--trace-calls")
    assert last["iterations"] == 20
    assert last["restarts"] == NOTHING | {"process": 1, "roleGroup": 1, "master": 1}
    assert last["pids_kept"] is True
    samples = read(next(tmp_path.glob("jobs/grpo-tiny-*")))
    assert samples.steps["coordinator"][0][-1] == 20
    assert samples.progress["reward"][-1] == pytest.approx(last["reward"], abs=0.2)
    # A new master hears the counts a while later: the job may have ended by then.
    called = {name: max(sent or 0 for sent in counts["sent"]) for name, counts in samples.calls.items()}
    assert called["coordinator>rollout.generate"]
    assert set(samples.memory) == {"coordinator", "trainer", "rollout", "reference", "reward"}
    for role, ranks in samples.memory.items():  # what `dljob advise` reads
        assert max(filter(None, samples.peak[role][0])) >= min(filter(None, ranks[0]))
        assert max(filter(None, samples.cpu[role][0])) > 0
    assert max(filter(None, samples.served["rollout"][0])) > 0
    assert max(filter(None, samples.waited["coordinator"]["rollout"][0])) > 0
    saved = torch.load(next(tmp_path.glob("jobs/*/checkpoint.pt")))
    assert last["reward"] == pytest.approx(sum(saved["rewards"][-5:]) / 5, abs=1e-4)
    page_tells_the_faults(next(tmp_path.glob("jobs/grpo-tiny-*")), reader)
    trace_has_the_calls(next(tmp_path.glob("jobs/grpo-tiny-*")))


@pytest.mark.slow
@pytest.mark.torch
def test_fleet_tiny_trains_each_prompt_once_and_loses_no_token(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    example = tmp_path / "fleet-tiny"
    shutil.copytree(EXAMPLES / "fleet-tiny", example)
    shorten(
        example / "dljob.yaml",
        {"steps: 60": "steps: 16", "maxReplicas: 4": "maxReplicas: 2", "cutEvery: 5": "cutEvery: 2"},
    )
    # No node leaves: its ranks would start once more.
    steps = {"10": "3", "20": "6", "30": "8", "35": "10", "45": "99"}
    changes = {f"step: {old}": f"step: {new}" for old, new in steps.items()}
    killed = "target: engine/3, fault: kill, expect: {target: engine/3"
    shorten(example / "faults.yaml", {**changes, killed: killed.replace("engine/3", "engine/1")})
    last = dljob_run(tmp_path, str(example / "dljob.yaml"), "--faults", str(example / "faults.yaml"))
    assert [row["at"] is not None for row in last["faults"]] == [True, True, True, True, False]
    assert (last["steps"], last["prompts_trained"], last["prompts_trained_twice"]) == (16, 128, 0)
    assert (last["tokens"], last["tokens_lost"]) == (128 * 8 * 8, 0)
    assert last["tokens_generated"] >= last["tokens"]
    assert {name for name, count in last["restarts"].items() if count} == {"process", "master"}
    assert last["cuts_asked"] >= 2
    record = json.loads(next(tmp_path.glob("jobs/*/record.json")).read_text())
    assert sorted(record["trained"]) == list(range(128)), "counted from the trainer's own state"


@pytest.mark.slow
@pytest.mark.torch
def test_ppo_tiny_learns_on_shares_of_pretended_devices(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    example = tmp_path / "ppo-tiny"
    shutil.copytree(EXAMPLES / "ppo-tiny", example)
    shorten(example / "dljob.yaml", {"iterations: 100": "iterations: 40"})
    last = dljob_run(tmp_path, str(example / "dljob.yaml"), "--pretend", "GPU=4")
    assert last["restarts"] == NOTHING
    assert last["iterations"] == 40
    assert last["score"] > 0.6, "it begins at 0.1"
    assert not list(tmp_path.glob("jobs/*/calls")), "it was not asked to trace its calls"


@pytest.mark.slow
def test_ray_data_feeds_a_trainer_from_cpus_that_no_role_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        metadata.version("pyarrow")
    except metadata.PackageNotFoundError:
        pytest.skip("Ray Data takes pyarrow, which the extra `data` brings")
    monkeypatch.delenv("PYTHONPATH", raising=False)  # which hides it from all other tests
    last = dljob_run(tmp_path, str(EXAMPLES / "ray-data" / "dljob.yaml"))
    assert last["restarts"] == NOTHING
    assert (last["rows"], last["captured"]) == (4 * 13_333, 0)
    assert (last["slope"], last["start"]) == (pytest.approx(3, abs=0.1), pytest.approx(2, abs=0.1))


def test_a_sub_master_of_somebody_elses_closes_its_ring_again_when_a_rank_dies(tmp_path: Path) -> None:
    last = dljob_run(tmp_path, str(EXAMPLES / "sub-master" / "dljob.yaml"))
    assert last["restarts"] == NOTHING | {"roleGroup": 1}
    assert (last["ranks"], last["generation"]) == (3, 2)
    assert last["sums"] == [3 * number + 3 for number in range(20)]


def trace_has_the_calls(folder: Path) -> None:
    """Read the trace of the ended job: calls within the lives of their ranks, arrows, and what the faults did."""
    written = next(folder.glob("calls/coordinator-0.*.jsonl"))
    found = decode(written.read_bytes().splitlines())
    assert found is not None
    # Of more than 50 rows a second a part is sampled: a machine may be so fast.
    sampled = any(isinstance(row, CallerRow) and row.level for row in found.rows)
    # The caller was killed while it wrote.
    with written.open("a") as torn:
        torn.write('["c","ab12:9","rollout",1,"gen')
    file = folder.parent / "trace.json"
    command = [sys.executable, "-m", "dljob.cli", "trace", f"{folder}/", "-o", str(file)]
    done = subprocess.run(command, check=True, timeout=patience(60), capture_output=True, text=True)
    assert "calls: 1 damaged line left out" in done.stderr
    made = parse(file.read_text())
    assert [name.partition(" ")[2] for name, _, _ in made.spans] == ["rollout/1", "trainer", "master"]
    spans = {name: (min(own)[0], max(end for _, end, _ in own)) for name, own in made.slices.items()}
    drawn = {name: own for name, own in made.slices.items() if " calls" in name}
    for name, own in drawn.items():
        begin, end = spans[name.partition(" calls")[0]]
        assert all(begin <= first <= last <= end for first, last, _ in own), name
    calls = [call for own in drawn.values() for call in own]
    counts = Counter(what for _, _, what in calls)
    assert counts["call rollout.generate"] == 40 or sampled, "20 iterations, two rollouts, up to the last one"
    # A process that was killed takes its last second along.
    assert 20 <= counts["run generate"] <= 42
    _, killed, healed = made.spans[1]
    parked = [min(end, healed) - max(begin, killed) for begin, end, what in calls if what == "parked"]
    assert max(parked) > 0, "a call waited while the trainers restarted"
    arrows = Counter(flow for flow in made.flows if flow[0] == "rollout.generate")
    assert {start.partition(" calls")[0] for _, start, _ in arrows} == {"coordinator/0"}
    assert {end.partition(" calls")[0] for _, _, end in arrows} == {"rollout/0", "rollout/1"}
    assert sum(arrows.values()) == counts["run generate"]


def page_tells_the_faults(folder: Path, reader: PageReader) -> None:
    """Compare the page of the ended job, and the one that followed it, with what happened."""
    page = folder.parent / "job.html"
    command = [sys.executable, "-m", "dljob.cli", "report", f"{folder}/", "-o", str(page)]
    subprocess.run(command, check=True, timeout=patience(60))
    text = re.search(r'<script type="application/json" id="data">(.*)</script>', page.read_text())
    assert text
    data = json.loads(text[1])
    assert [own["target"] for own in data["incidents"]] == ["rollout/1", "trainer", "master"]
    assert data["incidents"][1]["restarted"] == ["trainer/0", "trainer/1"]
    accounts = data["accounts"]
    for role in data["ledger"]["roles"]:
        drawn = dict.fromkeys(accounts, 0.0)
        for lane in data["lanes"][role["name"]]:
            for start, account, end in zip(lane[::2], lane[1::2], [*lane[2::2], data["job"]["end"]], strict=True):
                drawn[accounts[account]] += end - start
        assert {name: drawn[name] for name in role["accounts"]} == pytest.approx(role["accounts"], abs=0.05)
    # The live page: each fault soon after the last sign of life of its rank, and the end.
    for incident in data["incidents"]:
        noticed = next((stage["seconds"] for stage in incident["stages"] if stage["name"] == "noticed"), 0.0)
        assert reader.seen[incident["id"]] - (incident["at"] - noticed) <= patience(2)
    assert (reader.data["live"], reader.data["job"]["phase"]) == (False, "Succeeded")
    assert reader.data["events"] == data["events"]
    assert reader.token
    assert reader.token not in reader.text


def shorten(file: Path, changes: dict[str, str]) -> None:
    """Replace words of a file, each of which must be there once."""
    text = file.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} in {file.name}"
        text = text.replace(old, new)
    file.write_text(text)
