"""pyarrow and tokenizers, which have threads of their own, in the environment that has both: what forks survives them.

Ranks of scripts are forked by a process that has imported what the script begins with. Those of classes are forked with
Ray alone, or with what DLJOB_FORK_IMPORTS says; where such an import starts a thread, Ray starts them itself.
"""

from __future__ import annotations

import json

import pytest
from scenes import SCRIPTS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
WORDS = 20_000
ROLES = {"script": {"module": "native_threads.py"}, "class": {"class": "native_threads.Uses"}}


def lives(scene: Scene, monkeypatch: pytest.MonkeyPatch, imports: str) -> dict[str, dict[str, object]]:
    """Run a job of both; return what each life has noted."""
    monkeypatch.setenv("DLJOB_FORK_IMPORTS", imports)
    notes = scene.folder / "notes"
    notes.mkdir()
    env = [{"name": "NOTES", "value": str(notes)}, {"name": "TOKENIZERS_PARALLELISM", "value": "true"}]
    roles = [
        {"name": name, "entrypoint": entry, "env": env, "resources": {"cpu": "100m"}} for name, entry in ROLES.items()
    ]
    spec = {"code": {"workingDir": str(SCRIPTS)}, "roles": roles}
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "threads"}, "spec": spec}
    file = scene.folder / "dljob.json"
    file.write_text(json.dumps(job))
    scene.ends(scene.start("ours", "dljob.cli", ["run", str(file)]), "ours")
    said = {
        name: json.loads((notes / f"{name}.json").read_text()) for name in (f"{r}-{n}" for r in ROLES for n in (1, 2))
    }
    for name, life in said.items():
        assert (life["total"], life["tokens"]) == (sum(range(WORDS)), 2 * WORDS), name
    return said


@pytest.mark.parametrize("imports", ["", "tokenizers"])
def test_ranks_are_forked_and_use_both_packages_in_each_life(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, imports: str
) -> None:
    said = lives(scene, monkeypatch, imports)
    for life in (1, 2):
        assert said[f"script-{life}"]["had"] == {"pyarrow": True, "tokenizers": True}
        assert said[f"class-{life}"]["server"]
        assert said[f"class-{life}"]["had"]["tokenizers"] is (imports == "tokenizers")


def test_ranks_import_a_package_that_starts_threads_by_themselves(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lives(scene, monkeypatch, "pyarrow,tokenizers")
    for life in (1, 2):
        assert said[f"script-{life}"]["had"] == {"pyarrow": True, "tokenizers": True}
        assert not said[f"class-{life}"]["server"], "Ray has started it: no server of such an environment forks"
