"""Eight events of a server that answers requests: started by its own command alone, and as a server role.

A caller sends one greedy request again and again, half a second after each answer or error. The event comes while one
is under way: the server is paused until the request was sent and the harm is done. Seconds: from the event to the next
answer. Requests: those that ended in an error, or without an answer. Where the master or the head was killed, answers
are watched for some time; where one is lost then, the next one counts.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from recipe_figures import Figure
from run_processes import end, end_machine, end_master, end_tables, processes
from scenes import SCRIPTS, Scene

LIMIT, START = 120.0, 400.0
"""Seconds until a server that does not answer is started again, and those that its start may take."""
WATCHED = {"master": 20.0, "head": 60.0}
"""Event -> seconds for which a server that still answers is watched: what was killed is not the server itself."""
REQUEST = "request"
HEALTH = {"httpGet": {"path": "/health", "port": "http"}}
PROBES: dict[str, Any] = {
    "startupProbe": {**HEALTH, "periodSeconds": 5, "failureThreshold": 120},
    "readinessProbe": {**HEALTH, "periodSeconds": 1},
    "livenessProbe": {**HEALTH, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
}


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started: `python -m MODULE WORDS`, with `{model}` in them, and variables."""

    module: str
    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    """The width of the model, where the smallest one is too narrow."""

    def line(self, model: Path) -> list[str]:
        """Return the words behind the module."""
        return [word.format(model=model) for word in self.words]


SERVERS = {
    "transformers_serve": ServerCommand("transformers.cli.transformers", ("serve", "{model}", "--device=cpu")),
    "vllm_serve": ServerCommand(
        "vllm.entrypoints.openai.api_server",
        ("--model={model}", "--dtype=float32", "--enforce-eager"),
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"},
        ("128",),
    ),
}


@dataclass
class ServedRun:
    """A run with a server and its caller."""

    scene: Scene
    side: str
    server: ServerCommand
    event: str
    command: subprocess.Popen[bytes] | None = None
    caller: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.scene.folder / "model"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command: the server, or the job with server and caller."""
        if self.side == "theirs":
            words = [*self.server.line(self.model), "--host=127.0.0.1", f"--port={self.port}"]
            self.command = self.scene.start(self.side, self.server.module, words)
        else:
            self.command = self.scene.start(self.side, "dljob.cli", ["run", str(self.scene.folder / "dljob.json")])
        return self.command

    def prepare(self) -> None:
        """Save the model, and what else the first start needs."""
        self.scene.env.update(self.server.env)
        save = [self.scene.python, "save_model.py", self.model, *self.server.hidden]
        subprocess.run(save, cwd=SCRIPTS, env=self.scene.env, check=True, timeout=300)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        shutil.copy(SCRIPTS / "ask_again.py", self.scene.folder)
        (self.scene.folder / "dljob.json").write_text(json.dumps(self.job()))

    def job(self) -> dict[str, Any]:
        """Return the job; a machine can only be lost where another one is free."""
        python = str(self.scene.python)
        words = " ".join([python, "-m", self.server.module, *self.server.line(self.model)])
        serve: dict[str, Any] = {"name": "serve", "driver": False, "ports": [{"name": "http"}], **PROBES}
        serve["entrypoint"] = {"command": ["sh", "-c", f"exec {words} --host $DLJOB_HOST --port $DLJOB_PORT_HTTP"]}
        ask: dict[str, Any] = {"name": "ask", "dependsOn": [{"role": "serve"}]}
        ask["entrypoint"] = {"command": [python, "ask_again.py", str(self.model), "http://serve"]}
        spec: dict[str, Any] = {"roles": [serve, ask]}
        if self.event == "node":
            serve["nodeGroup"], ask["nodeGroup"] = "machine", "still"
            still = {"name": "still", "replicas": 1, "cpu": "2"}
            spec["nodeGroups"] = [still, {"name": "machine", "replicas": 2, "cpu": "2"}]
        return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "ours"}, "spec": spec}

    def call(self) -> None:
        """Start the caller of a server alone, which is no process of the run."""
        env = {**self.scene.env, "NOTES": str(self.scene.folder / self.side), "HF_HOME": ""}
        words = [self.scene.python, "ask_again.py", self.model, f"http://127.0.0.1:{self.port}"]
        self.caller = subprocess.Popen(words, cwd=SCRIPTS, env=env)

    def serving(self) -> list[psutil.Process]:
        """Return the processes of the server, the one that listens first."""
        words = ["-m", self.server.module]
        (main,) = [one for one in processes(self.scene) if one.cmdline()[1:3] == words]
        return [main, *main.children(recursive=True)]

    def requests(self) -> list[tuple[str, float, str]]:
        """Return the lines of the caller."""
        file = self.scene.folder / self.side / "requests"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def kill_server(run: ServedRun, serving: list[psutil.Process]) -> None:
    """Kill the process that listens."""
    end(run.scene, serving[:1])


def kill_machine(run: ServedRun, serving: list[psutil.Process]) -> None:
    """Kill all that runs on the machine of the server."""
    if run.side == "ours":
        end_machine(run.scene, serving[0])
    end(run.scene, serving)


def terminate(run: ServedRun, _serving: list[psutil.Process]) -> None:
    """Send SIGTERM to the command."""
    if run.command is not None:
        run.command.terminate()


HARMS: dict[str, Callable[[ServedRun, list[psutil.Process]], None]] = {
    "rank": kill_server,
    "hang": lambda _run, _serving: None,  # it stays paused
    "node": kill_machine,
    "master": lambda run, _serving: end_master(run.scene),
    "head": lambda run, _serving: end_tables(run.scene),
    "sigterm": terminate,
}


def measure(scene: Scene, side: str, figure: Figure) -> Figure:
    """Let the event happen, and return what it cost."""
    run = ServedRun(scene, side, SERVERS[figure.framework], figure.event)
    run.prepare()
    command = run.start()
    if side == "theirs":
        run.call()
    try:
        scene.reaches(command, side, "ready")
        return happened(run, replace(figure, unit=REQUEST))
    finally:
        if run.caller is not None:
            run.caller.kill()


def happened(run: ServedRun, figure: Figure) -> Figure:
    """Do the harm while a request is under way, and follow what becomes of it and of those behind it."""
    before, serving = len(run.requests()), run.serving()
    for process in serving:
        process.suspend()
    (run.scene.folder / run.side / "go").touch()
    awaited(lambda: len(run.requests()) > before, START)
    begun = time.time()
    HARMS[run.event](run, serving)
    if run.event != "hang":
        for process in serving:
            with contextlib.suppress(psutil.Error):
                process.resume()
    since = begun
    if run.event == "sigterm" and run.command is not None:
        figure, since = again(run, figure, f"the command ended with {run.command.wait(LIMIT)}")
    at = answer(run, since, LIMIT if since == begun else START)
    if at is not None and (trouble := troubled(run, at, WATCHED.get(run.event, 0.0))) is not None:
        at = answer(run, trouble, LIMIT)
    if at is None:
        code = run.command.poll() if run.command is not None else None
        figure, since = again(run, figure, f"no answer for {LIMIT:g} s" if code is None else f"it ended with {code}")
        at = answer(run, since, START)
    if at is None:
        raise RuntimeError(run.scene.said(run.side))
    return replace(figure, seconds=round(at - begun, 1), steps=lost(run.requests()[before:], at))


def again(run: ServedRun, figure: Figure, why: str) -> tuple[Figure, float]:
    """Start the command again, as a person could; return the figure that says so, and when it was."""
    end(run.scene)
    since = time.time()
    run.start()
    return replace(figure, again=f"{why}: started again"), since


def answer(run: ServedRun, since: float, limit: float) -> float | None:
    """Wait for the first answer behind `since`, until the command ends or the limit has passed; return its time."""

    def ended() -> bool:
        return first_answer(run.requests(), since) is not None or (
            run.command is not None and run.command.poll() is not None
        )

    awaited(ended, since + limit - time.time())
    return first_answer(run.requests(), since)


def troubled(run: ServedRun, at: float, seconds: float) -> float | None:
    """Watch the answers for some seconds; return when one was lost or the command ended, None if neither did."""
    found: list[float] = []

    def trouble() -> bool:
        found.extend(when for what, when, _ in run.requests() if what == "lost" and when > at)
        if run.command is not None and run.command.poll() is not None:
            found.append(time.time())
        return bool(found)

    awaited(trouble, seconds)
    return found[0] if found else None


def first_answer(rows: list[tuple[str, float, str]], since: float) -> float | None:
    """Return when the first answer came behind a time; an answer unlike those before it is an error."""
    if len(texts := {text for what, _, text in rows if what == "answered"}) > 1:
        raise RuntimeError(f"the same greedy request has different answers: {texts}")
    return next((when for what, when, _ in rows if what == "answered" and when > since), None)


def lost(rows: list[tuple[str, float, str]], until: float) -> int:
    """Return how many requests of these lines had no answer until then; the answer at that time is the last one."""
    kinds = [what for what, when, _ in rows if when <= until]
    return kinds.count("begun") - kinds.count("answered")


def awaited(there: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is there, for some seconds; return whether it is."""
    tick, until = threading.Event(), time.time() + seconds
    while not (found := there()) and time.time() < until:
        tick.wait(0.1)
    return found
