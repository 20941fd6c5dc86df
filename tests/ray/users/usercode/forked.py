"""Scripts of a fork host: `forked.py WHAT`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import dljob

what = sys.argv[1]
me = dljob.current_worker()
if what == "facts":
    said = {
        "name": me.name,
        "world": me.world_size,
        "group": me.group,
        "local": me.local_rank,
        "config": dict(me.config),
        "peers": dict(me.peers),
        "incarnation": me.incarnation,
        "attempt": me.attempt,
        "reason": me.restart_reason,
        "ray": "ray" in sys.modules,
        "torch": "torch" in sys.modules,
        "env": {k: v for k, v in os.environ.items() if k in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"}},
        "job_dir": me.job_dir,
    }
    Path(me.job_dir, f"facts-{me.rank}.json").write_text(json.dumps(said))
elif what == "progress":
    dljob.progress(4, loss=0.25)
    time.sleep(1000)
elif what == "stopping":
    import signal

    terminated = []
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(True))
    print("armed", flush=True)
    me.stopping.wait()
    # Not an Event: a signal that comes just before this thread sleeps in a lock is handled when it wakes (CPython).
    while not terminated:
        time.sleep(0.02)
    print("stopping, because", me.stopping.reason, flush=True)
    sys.exit(6)
elif what == "exit":
    sys.exit(int(sys.argv[2]))
elif what == "call":
    group = dljob.RoleGroup(sys.argv[2])
    answer = {"sum": group[0].call("add", 1, b=2).result(timeout=20)}
    try:
        group[0].call("fail").result(timeout=20)
    except dljob.RemoteError as error:
        answer["error"] = str(error)
    try:
        group[0].options(timeout=0.5).call("nap", 60).result()
    except dljob.CallTimeoutError as error:
        answer["late"] = str(error)
    Path(me.job_dir, "answer.json").write_text(json.dumps(answer))
elif what == "socket":
    Path(me.job_dir, "socket").write_text(os.environ["DLJOB_HOST_SOCKET"])
elif what == "stay":
    print("armed", flush=True)
    time.sleep(1000)
elif what == "serve":
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        """Healthy once there is a file for it, ill once there is another one."""

        def do_GET(self) -> None:
            well = Path(me.job_dir, "well").exists() and not Path(me.job_dir, "ill").exists()
            self.send_response(200 if well else 503)
            self.end_headers()
            self.wfile.write(b"well" if well else b"not well")

        def do_POST(self) -> None:
            Path(me.job_dir, f"drained-{me.rank}").touch()
            self.send_response(200)
            self.end_headers()

    where = (os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"]))
    http.server.ThreadingHTTPServer(where, Handler).serve_forever()
