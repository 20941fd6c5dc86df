"""A folder in which a script of a framework runs, under `dljob torchrun` and under torchrun alone."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from environment import extensions
from pythons import installed

SCRIPTS = Path(__file__).parent / "scripts"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
    # Without it the agent's store dies with its first life, and torchrun never comes back from a killed rank.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
STEPS, RESUMED = list(range(1, 9)), [0, 2, 4, 6]
LONG = 400
"""Seconds: as long as any command here may take on a machine that is in full use."""


@dataclass
class Scene:
    """Where scripts run, what they noted, and how."""

    python: Path
    folder: Path
    ranks: int = 2

    @cached_property
    def env(self) -> dict[str, str]:
        """The variables of all commands: this dljob is installed, nothing asks a network."""
        (self.folder / "site").mkdir()
        shown = {"PYTHONPATH": installed(self.folder / "site"), "DLJOB_HOME": str(self.folder / "home")}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # DeepSpeed asks for ninja before it loads what was compiled.
        path = {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}
        compiled = {"TORCH_EXTENSIONS_DIR": str(extensions(self.python))}
        return {**kept, **OFFLINE, **shown, **path, **compiled, "HF_HOME": str(self.folder / "hf")}

    def start(self, who: str, module: str, words: list[str], faults: str = "") -> subprocess.Popen[bytes]:
        """Start a command of the environment; what it says is in WHO.log, and its losses in WHO/losses.jsonl."""
        out = self.folder / who
        out.mkdir(exist_ok=True)
        env = {**self.env, "FAULTS": faults, "NOTES": str(out)}
        with (self.folder / f"{who}.log").open("ab") as log:
            return subprocess.Popen([self.python, "-m", module, *words], cwd=SCRIPTS, env=env, stdout=log, stderr=log)

    def dljob(self, script: str, faults: str = "") -> subprocess.Popen[bytes]:
        """Start a script under `dljob torchrun`."""
        words = ["torchrun", "--name=ours", f"--nproc-per-node={self.ranks}", "--max-restarts=3"]
        return self.start("ours", "dljob.cli", [*words, script, str(self.folder / "ours" / "out")], faults)

    def torchrun(self, script: str, faults: str = "") -> subprocess.Popen[bytes]:
        """Start it under torchrun alone."""
        words = [f"--nproc-per-node={self.ranks}", "--max-restarts=3", script, str(self.folder / "theirs" / "out")]
        return self.start("theirs", "torch.distributed.run", words, faults)

    def ends(self, process: subprocess.Popen[bytes], who: str, code: int = 0, limit: float = LONG) -> None:
        """Wait until a command ends with this code."""
        assert process.wait(limit) == code, self.said(who)

    def reaches(self, process: subprocess.Popen[bytes], who: str, fault: str, seconds: int = LONG) -> None:
        """Wait until a rank did this fault, while the command goes on."""
        mark, ticks = self.folder / who / fault, threading.Event()
        for _ in range(seconds * 10):
            if mark.exists():
                return
            assert process.poll() is None, self.said(who)
            ticks.wait(0.1)
        raise AssertionError(f"no rank came to {fault}:\n{self.said(who)}")

    def said(self, who: str) -> str:
        """The end of what a command said."""
        return (self.folder / f"{who}.log").read_text()[-6000:]

    def losses(self, who: str) -> dict[int, float]:
        """Step -> loss."""
        return dict(json.loads(line) for line in (self.folder / who / "losses.jsonl").read_text().splitlines())

    def begun(self, who: str) -> list[int]:
        """The step with which each life of rank 0 began."""
        return [int(line) for line in (self.folder / who / "begun").read_text().splitlines()]

    def events(self) -> list[dict[str, str]]:
        """The events of all jobs here, oldest first."""
        files = sorted((self.folder / "home" / "jobs").glob("*/events.jsonl"), key=lambda path: path.stat().st_ctime)
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def goes_on_as_under_torchrun(scene: Scene, script: str, theirs: str) -> None:
    """Check that a script goes on after each fault, with the losses of torchrun alone, where it has these faults."""
    run = scene.dljob(script, "kill:3:1,stop:5:0,wait:7:1")
    scene.reaches(run, "ours", "wait:7:1")
    scene.ends(scene.start("stop", "dljob.cli", ["stop", "ours"]), "stop")
    scene.ends(run, "ours", 6)
    scene.ends(scene.dljob(script), "ours")
    assert scene.begun("ours") == RESUMED, scene.said("ours")
    (hang,) = [event["message"] for event in scene.events() if event["reason"] == "HangFound"]
    assert "stopped by a signal" in hang

    scene.ends(scene.torchrun(script, theirs), "theirs")
    assert scene.begun("theirs") == RESUMED[: 1 + theirs.count("kill")], scene.said("theirs")
    assert list(scene.losses("ours")) == STEPS
    assert scene.losses("ours") == scene.losses("theirs")
