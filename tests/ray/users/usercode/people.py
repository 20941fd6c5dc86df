"""User code of all tempers, as the host tests start it."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import dljob


def answer():
    return {"answer": 42}


def facts(context):
    return {
        "name": context.name,
        "life": [context.attempt, context.incarnation, context.restart_reason],
        "argv": sys.argv,
        "cwd": str(Path.cwd()),
        "config": dict(context.config),
        "pid": os.getpid(),
        "own_kb": int(next(line for line in Path("/proc/self/status").open() if line.startswith("RssAnon")).split()[1]),
        "torch": "torch" in sys.modules,
        "env": {k: v for k, v in os.environ.items() if k.startswith(("DLJOB", "CUDA", "ASCEND", "RANK", "MY_"))},
    }


def raises():
    return 1 / 0


def exits(context):
    sys.exit(context.config["code"])


def hard_exit():
    os._exit(3)


def waits(context):
    context.stopping.wait()
    return f"stopped: {context.stopping.reason}"


def sleeps():
    time.sleep(1000)


def serves():
    http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler).serve_forever()


def unserialisable():
    return object()


def steps():
    dljob.progress(1, loss=2.0)
    dljob.progress(7, loss=0.5)
    return 7


def shuts_ray_down():
    import ray

    ray.shutdown()
    return "went on"


def fork_comes_back():
    """The child returns from the entrypoint too."""
    if os.fork():
        os.wait()
        return "parent"
    return "child"


def leaves_a_daemon(context):
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(context.job_dir, "fork.pid").write_text(str(process.pid))
    if context.config.get("waits"):
        context.stopping.wait()


class BadInit:
    def __init__(self):
        raise ValueError("no model here")

    def run(self):
        return None


class Hooked(dljob.Worker):
    def __init__(self):
        self.calls = ["__init__"]

    def self_check(self):
        self.calls.append("self_check")
        return not self.config.get("unfit")

    def setup(self):
        self.calls.append("setup")

    def on_restart(self, reason):
        self.calls.append(f"on_restart {reason}")

    def run(self):
        self.calls.append("run")
        return self.calls

    def shutdown(self):
        self.calls.append("shutdown")
        self.log.info("hooks: %s", " ".join(self.calls))


class Server(dljob.Worker):
    """Serves until it is stopped."""

    def shutdown(self):
        self.log.info("shutdown, because %s", self.context.stopping.reason)


class Engine(dljob.Worker):
    """An HTTP server beside the rank's calls: `/well` as long as the file `well` is there, other paths likewise."""

    def setup(self):
        folder = Path(self.context.job_dir)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                well = (folder / self.path.strip("/")).exists()
                self.send_response(200 if well else 503)
                self.end_headers()
                self.wfile.write(b"well" if well else b"not well")

        where = os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])
        server = http.server.ThreadingHTTPServer(where, Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (folder / "asked").touch()


def segfaults():
    import ctypes

    ctypes.string_at(0)


def leaves_through_ray():
    import ray

    ray.actor.exit_actor()


def interrupts_itself():
    raise KeyboardInterrupt


def counts(context):
    """One line a step, for as long as it may."""
    with Path(context.job_dir, "steps").open("a") as out:
        for step in range(100_000):
            out.write(f"{step}\n")
            out.flush()
            time.sleep(context.config.get("step_s", 0.01))


def forks_and_waits(context):
    """A forked child holds all sockets of its parent."""
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    Path(context.job_dir, "fork.pid").write_text(str(pid))
    time.sleep(1000)


not_callable = 3


class NeedsTwo:
    def __init__(self, first, second):
        self.both = first, second

    def run(self):
        return self.both


class RunNeedsOne:
    def run(self, batch):
        return batch


class NoRun:
    """Has no run at all."""


class BadSetup(dljob.Worker):
    def setup(self):
        raise LookupError("no data here")


def steps_for_ever():
    import itertools
    import time

    for step in itertools.count(1):
        dljob.progress(step)
        time.sleep(0.02)
