"""Runs the code blocks of README and the how-tos that need Ray, all on one embedded Ray: `pages_run.py FOLDER`.

Prints a JSON object: the blocks that ran, the number of jobs and commands, and the errors by block. `dljob
run` and `dljob torchrun` start no Ray of their own here and use this one.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))

from pages import BLOCKS, Block
from patience import patience

from dljob.api.find import job
from dljob.api.handle import JobHandle, submit
from dljob.cli import main
from dljob.errors import DeadlineError
from dljob.runtime.backend import embedded
from dljob.runtime.backend.machine import EmbeddedNode
from dljob.spec.loading.load import load, parse

TOP: dict[str, Any] = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
CODE = """
import time
from dljob import Worker, checkpoint, progress

class Patient(Worker):
    pass

def wait():
    for step in range(1, 6000):
        progress(step)
        time.sleep(0.1)

def save():
    import torch
    for step in (1100, 1200):
        checkpoint.save(step, {"model": torch.nn.Linear(2, 2).state_dict()})
        checkpoint.wait()
"""
HEAD = "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: job}\nspec:\n"
JOB = HEAD + "  roles:\n  - {name: trainer, entrypoint: {module: train.py}, resources: {cpu: 50m}}\n"
PPO = HEAD + "  checkpoint: {path: /tmp}\n  roles:\n  - {name: actor, type: Elastic, entrypoint: {module: train.py}}\n"
FAULTS = "- {when: {time: 0}, target: worker/0, fault: kill}\n"


class Pages:
    """The blocks and the Ray that they run on."""

    def __init__(self, folder: Path, ray: embedded.EmbeddedRay) -> None:
        self.folder = folder
        self.ray = ray
        self.wrong: dict[str, str] = {}
        self.ran: list[str] = []
        self.scripts = self.code("scripts")

    def code(self, name: str, **files: str) -> Path:
        """Create a folder with files; returns its path."""
        made = self.folder / name
        made.mkdir()
        for file, text in {"waiting.py": CODE, **files}.items():
            (made / file).write_text(text)
        return made

    def start(self, name: str, spec: dict[str, Any], code: Path) -> JobHandle:
        for role in spec["roles"]:
            role.setdefault("resources", {"cpu": "50m"})
        manifest = parse({**TOP, "metadata": {"name": name}, "spec": spec})
        place = {"address": self.ray.address, "environment": self.ray.environment(), "runner": os.getpid()}
        return submit(manifest, code_dir=code, **place)

    # -- Python

    def python(self) -> None:
        """Run the Python blocks: all scripts as one job, each block with roles as its own job, two jobs at a time."""
        scripts: list[Block] = []
        waiting: list[tuple[list[Block], JobHandle, str]] = []
        for number, block in enumerate(one for one in BLOCKS if one.key == "in a job"):
            said = block.job
            text = "\n".join([said.pop("before", ""), block.text, said.pop("after", "")])
            if "roles" not in said:
                (self.scripts / f"page_{len(scripts)}.py").write_text(text)
                scripts.append(block)
                continue
            phase = said.pop("phase", "Succeeded")
            if len(waiting) == 2:
                self.ended(*waiting.pop(0))
            code = self.code(f"python-{number}", **{"page.py": text})
            waiting.append(([block], self.start(f"page-{number}", said, code), phase))
        roles = [{"name": f"r{n}", "entrypoint": {"module": f"page_{n}.py"}} for n in range(len(scripts))]
        waiting.append((scripts, self.start("scripts", {"roles": roles}, self.scripts), "Succeeded"))
        for each in waiting:
            self.ended(*each)

    def ended(self, blocks: list[Block], handle: JobHandle, phase: str) -> None:
        """Wait for the end phase that a page states."""
        self.ran += [block.id for block in blocks]
        try:
            status = handle.wait(timeout=patience(100))
        except DeadlineError:
            status = handle.status()
        if status["phase"] != phase:
            logs = "\n".join(path.read_text()[-1500:] for path in (Path(handle.dir) / "logs").glob("*.log"))
            said = f"{status['phase']}: {status.get('message')}\n{logs}"
            self.wrong |= {block.id: said for block in blocks}

    # -- commands

    def commands(self) -> None:
        """Run the commands about this machine, in a folder with files of the names that they use."""
        code = self.code("hello", **{"job.yaml": JOB, "ppo.yaml": PPO, "faults.yaml": FAULTS})
        self.jobs(code)
        os.chdir(code)
        for block in BLOCKS:
            if block.kind == "commands" and not block.marked and block.key != "run by":
                for words in block.commands:
                    self.command(block, words)

    def jobs(self, code: Path) -> None:
        """Start the jobs that the commands name."""
        wait = {"name": "worker", "entrypoint": {"class": "waiting.wait"}}
        save = {"name": "worker", "entrypoint": {"class": "waiting.save"}}
        elastic = {"type": "Elastic", "replicas": 2, "minReplicas": 2, "maxReplicas": 4}
        comm = {"backend": "gloo", "initProcessGroup": False}
        saved = self.start("llama", {"roles": [save]}, code)
        fleet = {"name": "rollout", "driver": False, "replicas": 2, "minReplicas": 1, "maxReplicas": 8}
        trainer = {**wait, **elastic, "comm": comm, "name": "trainer"}
        self.start("sft", {"roles": [trainer, {"entrypoint": {"class": "waiting.Patient"}, **fleet}]}, code)
        self.start("grpo-tiny", {"roles": [dict(wait)]}, code)
        for name in ("trainer-job", "spot-job"):
            self.start(name, {"roles": [dict(wait)]}, code).stop()
        self.ended([block for block in BLOCKS if block.page == "checkpoints.md"], saved, "Succeeded")

    def settled(self, words: list[str]) -> None:
        """Wait until a submitted job runs or a stopped one has ended, because the following lines expect that."""
        if words[0] == "submit":
            handle = job(load(Path(words[1]).read_text()).metadata.name)
            while handle.status()["phase"] in ("Pending", "Scheduling"):
                time.sleep(0.1)
        elif words[0] == "stop":
            job(words[1]).wait(timeout=patience(100))

    def command(self, block: Block, words: list[str]) -> None:
        """Run a command, unless it is about a Kubernetes cluster."""
        given = dict(word.split("=", 1) for word in words[: words.index("dljob")]) if "dljob" in words else {}
        words = [word.replace("HOST:PORT", self.ray.address) for word in words[len(given) :]]
        remote = {"-n", "-k", "kubernetes"} & set(words) and "--dry-run" not in words
        if words[0] != "dljob" or words[1] == "doctor" or remote:
            return
        told = io.StringIO()
        os.environ |= given
        try:
            with redirect_stdout(told), redirect_stderr(told):
                code = main.run(words[1 : words.index(">")] if ">" in words else words[1:])
        finally:
            for name in given:
                del os.environ[name]
        self.ran.append(block.id)
        if code == 0:
            self.settled(words[1:])
        if code != (2 if "\nerror: " in block.text else 0):
            said = f"{' '.join(words)}: exit {code}\n{told.getvalue()[-2000:]}\n"
            self.wrong[block.id] = self.wrong.get(block.id, "") + said


@contextmanager
def shared(folder: Path) -> Any:
    """Start one embedded Ray, which also serves commands that would start their own."""
    devices = {"CPU": 16.0, "memory": 8.0 * 2**30, "GPU": 8.0, "NPU": 8.0}
    nodes = [EmbeddedNode(f"node-{n}", devices, {}, {}, ("CUDA_VISIBLE_DEVICES",)) for n in range(2)]
    with embedded.EmbeddedRay(nodes) as ray:
        real = embedded.EmbeddedRay
        ray.__class__ = type("SharedRay", (real,), {"__enter__": lambda self: self, "__exit__": lambda *_: None})
        embedded.EmbeddedRay = lambda *_, **__: ray  # type: ignore[assignment,misc]
        try:
            yield ray
        finally:
            ray.__class__ = real


if __name__ == "__main__":
    where = Path(sys.argv[1])
    with shared(where) as here:
        pages = Pages(where, here)
        pages.python()
        pages.commands()
    sys.__stdout__.write(json.dumps({"wrong": pages.wrong, "ran": len(pages.ran), "blocks": pages.ran}, indent=1))
