"""Too little memory: /dev/shm that others have filled, arrays as large as all that is free, and readers that die."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_kit import Place

USER = Path(__file__).parents[1] / "users" / "awkward" / "scarce.py"
pytestmark = pytest.mark.ray

# Two stores of 80 MiB, the smallest, and nothing beside them but what the job itself takes.
OWN_SHM = ("unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=400m tmpfs /dev/shm && exec "$@"', "_")


def test_a_full_shm_is_an_error_in_words_and_what_a_killed_reader_mapped_is_given_back(tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run([*OWN_SHM, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount of its own to be had")
    place = Place(tmp_path)
    shutil.copy(USER, tmp_path)
    roles = [("uses", "uses"), ("reader", "Reader"), ("bystander", "Reader")]
    (tmp_path / "job.yaml").write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: job}\nspec:\n  roles:\n"
        + "".join(
            f"  - {{name: {name}, driver: {str(name == 'uses').lower()}, entrypoint: {{class: scarce.{entry}}}, "
            "resources: {cpu: 100m}}\n"
            for name, entry in roles
        )
    )
    with place.running("run", tmp_path / "job.yaml", within=OWN_SHM) as run:
        code, out, lines = run.end(120)
    assert code == 0, (out, lines)
    seen = json.loads((place.entry()["folder"] / "seen.json").read_text())
    for name, who in (("argument", "reader/0.take"), ("answer", "reader/0"), ("publish", "WeightChannel('w').publish")):
        assert who in seen[name]
        assert (
            "/dev/shm of this node is full: 8 MiB are needed for Ray's object store, 0 of 400 MiB are free"
            in seen[name]
        )
        assert "nodeGroups[].sharedMemory, and --shm-size for a container" in seen[name]
    # Refused before a byte of it is copied, so that no process is killed for want of memory.
    assert "UsageError: reader/0.take: an array of" in seen["huge argument"]
    assert (
        "RemoteError: reader/0.give raised UsageError: the result of reader/0.give: an array of" in seen["huge answer"]
    )
    for name in ("huge argument", "huge answer"):
        assert "is too large for a call, which makes up to 4 copies" in seen[name]
    # Copies of checkpoints lie in memory of their own.
    assert (seen["save"], seen["version"]) == ("None", "1")
    assert [seen[f"{name} after"] for name in ("argument", "answer", "version")] == [
        str(8 << 20),
        str(8 << 20),
        "(2, 2)",
    ]
    # The two newest versions and the one that the bystander maps, of 8 MiB each.
    assert seen["stored"][-1] <= 25, seen["stored"]
    status = json.loads(place.dljob("status", "job", "-o", "json").stdout)
    assert {kind: count for kind, count in status["restarts"].items() if count} == {"process": 3}
