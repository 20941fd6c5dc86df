"""The commands of README and the how-tos: on a cluster they run against one in memory, all others are parsed.

Those of this machine run in tests/ray/cli/test_pages.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_kube import FakeKube, add_head, add_job, add_saved_logs, logs_of
from hello_job import JOB
from pages import BLOCKS, Block

from dljob.cli import main
from dljob.cli.machine import checks as machine
from dljob.kube.api import DLJOBS
from dljob.reconcile.state import names

CLUSTER = ("-n", "-k", "kubernetes")
PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "kubernetes.md").read_text()


def ours(block: Block) -> list[list[str]]:
    """The arguments of each `dljob` of a block."""
    # `cd dljob` is no command of ours.
    commands = [words for words in block.commands if "dljob" in words[:2] and words[0] != "cd"]
    lines = [words[words.index("dljob") + 1 :] for words in commands]
    return [words[: words.index(">")] if ">" in words else words for words in lines]


COMMANDS = [block for block in BLOCKS if block.kind == "commands"]
OURS = [(block.id, words) for block in COMMANDS for words in ours(block) if words[0] != "torchrun"]
"""Of torchrun's the words are torchrun's own."""
REMOTE = [
    pytest.param(block, lines, id=block.id)
    for block in COMMANDS
    if block.key != "run by"
    and (lines := [words for words in ours(block) if set(words) & set(CLUSTER) and "--dry-run" not in words])
]


@pytest.mark.parametrize(("at", "words"), OURS, ids=[f"{at}-{' '.join(words)}" for at, words in OURS])
def test_a_command_of_a_how_to_parses(at, words):
    command, *_ = main.build(words[0]).parse_args(words, exit_on_error=False, print_error=False)
    assert callable(command)


def operator(kube: FakeKube) -> None:
    """One that does at once what it is told."""

    def take(job: dict[str, Any]) -> None:
        name, notes = job["metadata"]["name"], job["metadata"].get("annotations", {})
        phase = "Suspended" if job["spec"].get("suspend") else "Stopped" if names.STOP in notes else "Running"
        taken = [{"id": f"{k}/{at}", "kind": k, "at": at, "state": "Sent", "message": ""}
                 for k in ("restart", "stop") if (at := notes.get(f"dljob.io/{k}"))]  # fmt: skip
        kube.update(name, phase=phase, lastCommands=taken, observedGeneration=job["metadata"].get("generation", 0))

    kube.on_patch = take


@pytest.mark.parametrize(("block", "lines"), REMOTE)
def test_a_block_runs_on_a_cluster(block, lines, kube, tmp_path, monkeypatch):
    """Each line by itself, on a job of its name that runs there, with an operator that obeys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "check_machine", list)
    Path("dljob.yaml").write_text(JOB.replace("name: hello", "name: new"))
    for script in ("hello.py", "train.py"):
        Path(script).write_text("def main(): ...\n")
    create = kube.create

    async def finished(*args: Any) -> Any:
        made = await create(*args)
        if args[0] is DLJOBS:
            kube.update(made["metadata"]["name"], phase="Succeeded", message="", observedGeneration=1, attempt=1)
        return made

    kube.create = finished  # type: ignore[method-assign]
    for words in lines:
        kube.objects.clear()
        over = bool({"--watch", "--follow", "-f"} & set(words))
        phase = "Succeeded" if over else "Suspended" if words[0] == "resume" else "Running"
        for name in ("hello", "ppo", "rl", "sft"):
            job = add_job(kube, name, phase=phase)
            job["spec"]["roles"] = [ELASTIC] if words[0] == "scale" else job["spec"]["roles"]
            job["spec"]["suspend"] = phase == "Suspended"
            kube.put(DLJOBS, job)
            add_head(kube, name)
            add_saved_logs(kube, job, worker_0="a line\n")
        kube.head = {
            "logs": logs_of({("worker", n): "a line\n" for n in (0, 1)}),
            "events": lambda _query: {"events": []},
        }
        operator(kube)
        assert main.run(words) == (1 if words[0] == "doctor" else 0), words  # nothing is installed there


ELASTIC = {"name": "trainer", "type": "Elastic", "replicas": 2, "minReplicas": 2, "maxReplicas": 4,
           "entrypoint": {"class": "hello.main"}}  # fmt: skip


def test_the_annotations_are_those_that_the_operator_reads():
    for name in (names.RESTART, names.RESTART_TARGET, names.STOP):
        assert f" {name}=" in PAGE
