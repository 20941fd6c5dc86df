"""resources.auto at the command: chosen from the ended jobs of the name, told on stderr, and refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dljob.api import registry
from dljob.api.handle import refuse_unchosen
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.cli.job_file import cluster_job, with_resources
from dljob.errors import UsageError
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter
from dljob.spec.loading.load import load

FILE = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: j}
spec:
  roles:
  - name: w
    replicas: 2
    entrypoint: {class: m.W}
    resources: {auto: {memory: {min: 512Mi, max: 8Gi}}}
"""


def ended(number: int, mib: int, *, name: str = "j") -> Path:
    """A job whose ranks had so much memory for ten minutes."""
    uid = f"{number}" * 32
    folder = registry.folder_of(name, uid)
    registry.register(RegistryEntry(name=name, uid=uid, dir=str(folder), started=float(number)))
    accounts = {"productive": 1200.0}
    ledger = {"seconds": 600.0, "goodput": 1.0, "roles": [{"name": "w", "accounts": accounts}]}
    status = {"name": name, "uid": uid, "phase": "Succeeded", "ledger": ledger}
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "spec.json").write_text(load(FILE).model_dump_json(by_alias=True, exclude_none=True))
    writer = SampleWriter(folder)
    for second in range(0, 600, 60):
        row: dict[str, Any] = {"accounts/w": "pp", "peak/w": [mib, mib]}
        writer.append(SampleRow(1e9 + second, row))
    writer.close()
    return folder


@pytest.mark.usefixtures("home")
def test_plan_tells_what_is_chosen_and_from_which_job(tmp_path, monkeypatch, capsys):
    ended(1, 900)
    ended(2, 800)
    ended(3, 4000, name="other")
    (ended(4, 4000) / "spec.json").write_text("{")  # torn
    monkeypatch.chdir(tmp_path)
    Path("j.yaml").write_text(FILE)
    assert main.run(["plan", "j.yaml", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    source = "a fifth above 900 MiB, the highest peak of 2 earlier jobs, that of j (11111111)"
    assert err == f"roles.w.resources.memory is 1152Mi: {source}\n"
    assert str(1152 << 20) in out or "1152Mi" in out


@pytest.mark.usefixtures("home")
def test_first_job_of_a_name_begins_with_the_least(capsys):
    made = with_resources(load(FILE))
    assert made.spec.roles[0].resources.memory == "512Mi"
    assert "since no earlier job of the name has ended here" in capsys.readouterr().err
    plain = load(FILE.replace("auto: {memory: {min: 512Mi, max: 8Gi}}", "memory: 1Gi"))
    assert with_resources(plain) is plain
    assert capsys.readouterr().err == ""


def test_cluster_chooses_itself_and_python_refuses_what_nobody_chose(tmp_path):
    file = tmp_path / "j.yaml"
    file.write_text(FILE)
    assert cluster_job(file, upload=False).manifest.spec.roles[0].resources.auto is not None
    with pytest.raises(UsageError, match=r"of role w is chosen by dljob run and dljob submit --address"):
        refuse_unchosen(load(FILE))
