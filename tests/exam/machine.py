"""Causes in the machine: signals from outside, memory, processors, limits, ports."""

from __future__ import annotations

from cause import Cause
from planting import kill, pause, shell
from programs import ONE_ROLE, at_step, in_group

SLOW_MACHINE = "throttled|quota|load|slow|Straggler"

CAUSES = (
    Cause(
        name="killed-from-outside",
        group="machine",
        program=at_step("pass"),
        ranks=2,
        acts=(kill("default/1", after="step 5"),),
        kind="Killed",
        whom="default/1",
        says=("SIGKILL",),
        advice="outside|kernel",
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="host-of-a-rank-killed",
        group="machine",
        program=at_step("pass", rank=0),
        acts=(kill("host", after="step 5"),),
        kind="Killed",
        whom="default/0",
        says=("SIGKILL",),
        advice="outside|kernel",
        exit_code=1,
    ),
    Cause(
        name="killed-in-a-group",
        group="machine",
        program=in_group("pass", pause=0.2),
        ranks=3,
        acts=(kill("default/1", after="step 10"),),
        kind="Killed",
        whom="default/1",
        says=("SIGKILL",),
        limit_s=150,
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="terminated-from-outside",
        group="machine",
        program=at_step("pass"),
        ranks=2,
        acts=(kill("default/1", "TERM", after="step 5"),),
        kind="Killed|Preempted|SIGTERM",
        whom="default/1",
        says=("SIGTERM|exit code 143",),
        exit_code=1,
    ),
    Cause(
        name="stopped-rank-of-a-group",
        group="machine",
        program=in_group("pass", pause=0.2),
        ranks=2,
        acts=(pause("default/1", after="step 20"),),
        kind="Hang|stopped",
        whom="default/1",
        says=("stopped|state T|SIGSTOP",),
        never="Network",
        ends=False,
        limit_s=150,
    ),
    Cause(
        name="stopped-rank-without-a-group",
        group="machine",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.1)
    """,
        roles=ONE_ROLE,
        acts=(pause("main/0", after="step 25"),),
        kind="Hang|stopped",
        whom="main/0",
        says=("stopped|state T|SIGSTOP",),
        ends=False,
        limit_s=150,
    ),
    Cause(
        name="memory-limit-of-a-group",
        group="machine",
        program=at_step(
            """
        open(os.environ["EXAM_MEMORY"] + "/cgroup.procs", "w").write("0")
        held = []
        while True:
            held.append(bytearray(8 << 20))
    """
        ),
        ranks=2,
        cgroup={"memory/memory.limit_in_bytes": "64M"},
        kind="OOMKilled",
        code=(11,),
        whom="default/1",
        says=("Killed process|oom_kill|memory",),
        advice="memory",
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="child-killed-by-its-memory-limit",
        group="machine",
        program=at_step(
            """
        import subprocess
        hog = "held = []\\nwhile True: held.append(bytearray(8 << 20))"
        join = 'echo $$ > $EXAM_MEMORY/cgroup.procs; exec "$0" -c "$1"'
        subprocess.run(["bash", "-c", join, sys.executable, hog], check=True)  # CAUSE
    """
        ),
        ranks=2,
        cgroup={"memory/memory.limit_in_bytes": "64M"},
        kind="OOMKilled|Killed|UserError",
        code=(11, 19),
        whom="default/1",
        says=("Killed process|oom_kill|SIGKILL",),
        exit_code=1,
    ),
    Cause(
        name="grows-beyond-its-memory",
        group="machine",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            held = []
            for step in range(1, 10000):
                if step < 24:
                    held.append(b"x" * (50 << 20))
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.2)
    """,
        roles="- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m, memory: 300Mi}}",
        kind="memory",
        whom="main/0",
        ends=False,
        limit_s=90,
    ),
    Cause(
        name="memory-that-grows-step-by-step",
        group="machine",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            held = []
            for step in range(1, 10000):
                held.append(b"x" * (4 << 20))
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.5)
    """,
        roles="- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m, memory: 4Gi}}",
        kind="MemoryGrows",
        code=(11,),
        whom="main/0",
        says=("MiB a step", "full at"),
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="address-space-limit",
        group="machine",
        program=at_step(
            """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(8 << 30)  # CAUSE
    """
        ),
        ranks=2,
        kind="UserError|OOMKilled",
        code=(11,),
        whom="default/1",
        says=("MemoryError",),
        advice="(?is)^(?!.*device)",
        exit_code=1,
    ),
    Cause(
        name="processor-quota-of-a-rank",
        group="machine",
        program="""
    import os, time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                if step == 60 and self.context.rank == 1:
                    for task in os.listdir("/proc/self/task"):
                        open(os.environ["EXAM_CPU"] + "/tasks", "w").write(task)
                print("step", step, flush=True)
                progress(step)
                begin = time.process_time()
                while time.process_time() < begin + 0.05:
                    pass
                time.sleep(0.05)
    """,
        roles="- {name: main, replicas: 2, entrypoint: {class: work.Main}, resources: {cpu: 200m}}",
        cgroup={"cpu/cpu.cfs_quota_us": "6000"},
        kind=SLOW_MACHINE,
        whom="main/1",
        says=("throttled|quota",),
        ends=False,
        limit_s=150,
    ),
    Cause(
        name="busy-neighbours",
        group="machine",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                begin = time.process_time()
                while time.process_time() < begin + 0.2:
                    pass
    """,
        roles=ONE_ROLE,
        acts=(
            shell(
                "for i in $(seq 20); do setsid timeout 70 sh -c 'while :; do :; done' & done; sleep 1", after="step 60"
            ),
        ),
        kind=SLOW_MACHINE,
        whom="load|machine|node|CPU",
        says=("load",),
        ends=False,
        limit_s=110,
    ),
    Cause(
        name="limit-of-processes",
        group="machine",
        program=at_step(
            """
        import threading
        open(os.environ["EXAM_PIDS"] + "/cgroup.procs", "w").write("0")
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # CAUSE
    """
        ),
        ranks=2,
        cgroup={"pids/pids.max": "40"},
        kind="pids.max|limit of processes|limit of threads",
        code=(11, 13),
        whom="default/1",
        says=("start new thread",),
        exit_code=1,
    ),
    Cause(
        name="limit-of-open-files",
        group="machine",
        program=at_step(
            """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = [open("/dev/null") for _ in range(100)]  # CAUSE
    """
        ),
        ranks=2,
        kind="UserError|NodeLost|too many open files",
        code=(10, 13),
        whom="default/1",
        says=("Too many open files",),
        exit_code=1,
    ),
    Cause(
        name="port-taken-by-somebody-else",
        group="machine",
        program="""
    import socket, time
    print("ready", flush=True)
    time.sleep(3)
    socket.create_server(("127.0.0.1", 29777))  # CAUSE
    """,
        acts=(shell("python -m http.server 29777 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1", after="ready"),),
        kind="address already in use",
        code=(13,),
        whom="default/0",
        says=("Address already in use",),
        exit_code=1,
    ),
    Cause(
        name="suspended-machine",
        group="machine",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.1)
    """,
        roles=ONE_ROLE,
        acts=(pause("everything", after="step 30", seconds=20),),
        kind="suspended|stood still|was stopped|paused",
        whom="machine|node|all",
        never="main/0",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="segfault-from-outside",
        group="machine",
        program=at_step("pass"),
        ranks=2,
        acts=(kill("default/1", "SEGV", after="step 5"),),
        kind="UserError|Killed",
        whom="default/1",
        says=("SIGSEGV|signal 11|exit code 139",),
        exit_code=1,
    ),
    Cause(
        name="probe-that-fails",
        group="user code",
        program="""
    import os, threading, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if time.monotonic() < begin + 10 else 500)
            self.end_headers()
    def serve():
        address = os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])
        ThreadingHTTPServer(address, Health).serve_forever()
    begin = time.monotonic()
    """,
        roles="""
    - name: main
      entrypoint: {class: work.serve}
      resources: {cpu: 200m}
      ports: [{name: http}]
      livenessProbe: {httpGet: {port: http, path: /health}, periodSeconds: 1}
      restartPolicy: {maxRestarts: 1}
    """,
        kind="Unhealthy",
        code=(10,),
        whom="main/0",
        says=("liveness probe", "500"),
        ends=False,
        limit_s=90,
    ),
)
