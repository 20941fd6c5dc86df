"""Causes in the user's own code: exceptions, exits, and what stands still in it."""

from __future__ import annotations

from cause import Cause
from planting import kill
from programs import CALLER_AND_CALLEE, FEEDER_AND_ENGINE, ONE_ROLE, at_step

OF_THE_CODE = "correct the code|log"
"""Advice for an error of the code."""
STALL = "has waited|waits for|stands still|stalled"
"""Words for a wait that does not end."""

ENDS = (
    Cause(
        name="key-error",
        group="user code",
        program=at_step('{}["god"]  # CAUSE'),
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("KeyError: 'god'",),
        advice=OF_THE_CODE,
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="syntax-error",
        group="user code",
        program="import sys\nif True print(1)  # CAUSE",
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("SyntaxError",),
        exit_code=1,
    ),
    Cause(
        name="missing-file",
        group="user code",
        program='open("data/train.bin")  # CAUSE',
        ranks=2,
        kind="UserError",
        code=(10,),
        whom=r"default/\d",
        says=("No such file or directory: 'data/train.bin'",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="missing-argument",
        group="user code",
        program="""
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.parse_args()
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("exit code 2", "required: --data"),
        exit_code=1,
    ),
    Cause(
        name="endless-recursion",
        group="user code",
        program="""
    def depth(n):
        return depth(n + 1)  # CAUSE
    depth(0)
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("RecursionError",),
        exit_code=1,
    ),
    Cause(
        name="old-line-of-device-memory",
        group="user code",
        program="""
    import os, time
    for step in range(100):
        if os.environ["RANK"] == "1" and step == 5:
            print("CUDA out of memory. Tried to allocate 2.00 GiB; retrying with a batch of 4", flush=True)
        if os.environ["RANK"] == "1" and step == 60:
            os._exit(5)
        print("step", step, flush=True)
        time.sleep(0.1)
    """,
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("exit code 5",),
        advice="(?is)^(?!.*memory)",
        never="out of memory",
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="old-line-of-a-retried-request",
        group="user code",
        program="""
    import os, sys, time
    for step in range(100):
        if os.environ["RANK"] == "1" and step == 5:
            print("WARNING urllib3: Connection reset by peer: /v1/score, retrying", file=sys.stderr, flush=True)
        if os.environ["RANK"] == "1" and step == 40:
            sys.exit(3)
        print("step", step, flush=True)
        time.sleep(0.1)
    """,
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("exit code 3",),
        exit_code=1,
    ),
    Cause(
        name="line-of-another-librarys-failure",
        group="user code",
        program=at_step(
            """
        print("[W] NCCL error: unhandled system error, remote process exited; fell back to gloo", flush=True)
        time.sleep(1)
        raise ValueError("label 1001 of 1000")  # CAUSE
    """,
        ),
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("ValueError: label 1001 of 1000",),
        exit_code=1,
    ),
    Cause(
        name="raise-from",
        group="user code",
        program="""
    config = {}
    try:
        rate = config["learning_rate"]  # CAUSE
    except KeyError as error:
        raise RuntimeError("see above") from error
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("KeyError: 'learning_rate'",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="failed-command",
        group="user code",
        program="""
    import subprocess
    subprocess.run(["bash", "tokenize.sh"], check=True, capture_output=True)  # CAUSE
    """,
        files={"tokenize.sh": "echo 'tokenize: vocabulary is of version 3' >&2\nexit 7\n"},
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("exit status 7", "vocabulary is of version 3"),
        exit_code=1,
    ),
    Cause(
        name="error-in-a-thread",
        group="user code",
        program="""
    import queue, threading
    batches = queue.Queue()
    def load():
        raise ValueError("sample 17 has no label")  # CAUSE
    threading.Thread(target=load, daemon=True).start()
    batches.get(timeout=6)
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("ValueError: sample 17 has no label",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="error-in-a-destructor",
        group="user code",
        program="""
    import time
    class Buffer:
        free = False
        def __del__(self):
            raise OSError("release: bad handle 9")  # CAUSE
    buffer = Buffer()
    del buffer
    time.sleep(2)
    raise TimeoutError("no free buffer")
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("release: bad handle 9",),
        exit_code=1,
    ),
    Cause(
        name="child-process-killed",
        group="user code",
        program="""
    import os
    from concurrent.futures import ProcessPoolExecutor
    def work(n):
        os.kill(os.getpid(), 9)
    if __name__ == "__main__":
        with ProcessPoolExecutor(1) as pool:
            pool.submit(work, 1).result()  # CAUSE
    """,
        kind="UserError|Killed",
        whom="default/0",
        says=("BrokenProcessPool|terminated abruptly",),
        exit_code=1,
    ),
    Cause(
        name="pipe-to-a-dead-tool",
        group="user code",
        program="""
    import subprocess
    tool = subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True, bufsize=1)
    tool.kill()
    tool.wait()
    tool.stdin.write("get k0\\n")  # CAUSE
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("BrokenPipeError",),
        exit_code=1,
    ),
    Cause(
        name="refused-by-a-dead-server-of-its-own",
        group="user code",
        program="""
    import socket, time
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    server.close()
    time.sleep(1)
    socket.create_connection(address)  # CAUSE
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("ConnectionRefusedError",),
        exit_code=1,
    ),
    Cause(
        name="segfault",
        group="user code",
        program=at_step("import ctypes; ctypes.string_at(0)  # CAUSE"),
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("SIGSEGV|signal 11|exit code 139",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="abort-of-c++",
        group="user code",
        program="""
    import ctypes, time
    ctypes.CDLL("./reader.so").read()  # CAUSE
    """,
        files={
            "reader.cc": """
    #include <stdexcept>
    extern "C" void read() noexcept { throw std::runtime_error("shard 3 is truncated"); }
    """
        },
        before="g++ -shared -fPIC -o reader.so reader.cc",
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("shard 3 is truncated", "SIGABRT|signal 6|exit code 134"),
        exit_code=1,
    ),
    Cause(
        name="ends-itself-by-sigterm",
        group="user code",
        program=at_step("import signal; os.kill(os.getpid(), signal.SIGTERM)"),
        ranks=2,
        kind="Killed|UserError",
        whom="default/1",
        says=("SIGTERM|signal 15|exit code 143",),
        exit_code=1,
    ),
    Cause(
        name="missing-module",
        group="user code",
        program="import tokenisers_that_nobody_has  # CAUSE",
        kind="ImportError",
        code=(10,),
        whom="default/0",
        says=("tokenisers_that_nobody_has",),
        exit_code=1,
    ),
    Cause(
        name="no-such-script",
        group="user code",
        program="",
        flags=("nowhere.py",),
        kind="nowhere.py",
        code=(2,),
        says=("nowhere.py",),
        exit_code=2,
    ),
    Cause(
        name="no-such-class",
        group="user code",
        program="class Other: ...",
        roles=ONE_ROLE,
        kind="UserError|ImportError|no class|has no",
        whom="main/0|work.Main|Main",
        says=("Main",),
    ),
    Cause(
        name="unknown-field",
        group="user code",
        program="class Main: ...",
        roles="- {name: main, replica: 2, entrypoint: {class: work.Main}}",
        kind="replica",
        code=(2,),
        says=("replicas",),
        exit_code=2,
    ),
    Cause(
        name="larger-than-its-machines",
        group="user code",
        program="class Main: ...",
        roles="- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 8}}",
        spec="nodeGroups: [{name: small, cpu: 2}]",
        kind="NeverFits|DoesNotFit|does not fit|cpu",
        code=(2,),
        says=("8 CPU",),
        exit_code=2,
    ),
    Cause(
        name="longer-than-its-deadline",
        group="user code",
        program="""
    import time
    class Main:
        def run(self):
            time.sleep(600)
    """,
        roles=ONE_ROLE,
        spec="activeDeadlineSeconds: 15",
        kind="DeadlineExceeded",
        code=(15,),
        exit_code=1,
    ),
    Cause(
        name="error-in-a-constructor",
        group="user code",
        program="""
    class Main:
        def __init__(self):
            raise ValueError("no tokenizer at /models/none")  # CAUSE
        def run(self): ...
    """,
        roles=ONE_ROLE,
        kind="UserError",
        code=(10,),
        whom="main/0",
        says=("ValueError: no tokenizer at /models/none",),
        exit_code=1,
    ),
    Cause(
        name="class-rank-killed-at-once",
        group="user code",
        program="""
    import os
    class Main:
        def run(self):
            os.kill(os.getpid(), 9)
    """,
        roles=ONE_ROLE,
        kind="Killed",
        whom="main/0",
        says=("SIGKILL|exit code 137",),
        exit_code=1,
    ),
    Cause(
        name="callees-key-error",
        group="user code",
        program="""
    from dljob import RoleGroup, Worker, rpc
    class Reward(Worker):
        @rpc
        def score(self):
            return {"good": 1.0}["god"]  # CAUSE
    class Trainer(Worker):
        def run(self):
            RoleGroup("reward").score()
    """,
        roles=CALLER_AND_CALLEE,
        kind="UserError",
        code=(10,),
        whom="reward/0",
        says=("KeyError: 'god'",),
        exit_code=1,
    ),
    Cause(
        name="callees-error-cannot-be-unpickled",
        group="user code",
        program="""
    from dljob import RoleGroup, Worker, rpc
    class BadPromptError(Exception):
        def __init__(self, prompt, place):
            super().__init__(f"{prompt} at {place}")
    class Reward(Worker):
        @rpc
        def score(self):
            raise BadPromptError("empty prompt", 12)  # CAUSE
    class Trainer(Worker):
        def run(self):
            RoleGroup("reward").score()
    """,
        roles=CALLER_AND_CALLEE,
        kind="UserError",
        code=(10,),
        whom="reward/0",
        says=("BadPromptError: empty prompt at 12",),
        exit_code=1,
    ),
    Cause(
        name="argument-cannot-be-pickled",
        group="user code",
        program="""
    import threading
    from dljob import RoleGroup, Worker, rpc
    class Reward(Worker):
        @rpc
        def score(self, lock): ...
    class Trainer(Worker):
        def run(self):
            RoleGroup("reward").score(threading.Lock())  # CAUSE
    """,
        roles=CALLER_AND_CALLEE,
        kind="UserError",
        code=(10,),
        whom="trainer/0",
        says=("pickle",),
        exit_code=1,
    ),
    Cause(
        name="call-with-a-timeout-into-a-loop",
        group="user code",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        @rpc(timeout=8)
        def score(self, step):
            while step == 10:
                time.sleep(0.1)  # CAUSE
    class Trainer(Worker):
        def run(self):
            for step in range(1, 100):
                print("step", step, flush=True)
                RoleGroup("reward").score(step)
                progress(step)
                time.sleep(0.1)
    """,
        roles=CALLER_AND_CALLEE,
        kind="UserError|Hang|timeout|timed out|CallTimeoutError",
        whom="reward/0",
        limit_s=150,
    ),
    Cause(
        name="queue-item-that-always-raises",
        group="user code",
        program="""
    from dljob import DataQueue, Worker, progress
    class Feeder(Worker):
        def run(self):
            for task in range(30):
                DataQueue("tasks").put(task, key=str(task))
            for number in range(1, 31):
                DataQueue("done").get()
                progress(number)
    class Engine(Worker):
        def run(self):
            for task in DataQueue("tasks"):
                if task == 20:
                    raise ValueError(f"cannot parse the answer of task {task}")  # CAUSE
                DataQueue("done").put(task, key=str(task))
    """,
        roles=FEEDER_AND_ENGINE,
        kind="UserError",
        code=(10,),
        whom="engine/0",
        says=("ValueError: cannot parse the answer of task 20",),
        limit_s=150,
    ),
    Cause(
        name="stopped-by-ctrl-c",
        group="user code",
        program=at_step("pass"),
        acts=(kill("command", "INT", after="step 5"),),
        kind="StoppedByUser",
        code=(14,),
    ),
)
"""The job ends of it."""

STALLS = (
    Cause(
        name="callee-that-loops",
        group="user code",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        calls = 0
        @rpc(idempotent=True)
        def score(self):
            self.calls += 1
            while self.calls == 12:
                time.sleep(0.5)  # CAUSE
            time.sleep(0.1)
    class Trainer(Worker):
        def run(self):
            for step in range(1, 1000):
                RoleGroup("reward").score()
                progress(step)
    """,
        roles=CALLER_AND_CALLEE,
        kind=STALL,
        whom="reward/0",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="callee-that-holds-the-gil",
        group="user code",
        program="""
    import re, time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        calls = 0
        @rpc(idempotent=True)
        def score(self):
            self.calls += 1
            if self.calls == 12:
                re.match("(a+)+$", "a" * 60 + "b")  # CAUSE
            time.sleep(0.1)
    class Trainer(Worker):
        def run(self):
            for step in range(1, 1000):
                RoleGroup("reward").score()
                progress(step)
    """,
        roles=CALLER_AND_CALLEE,
        kind=f"{STALL}|GIL|interpreter lock",
        whom="reward/0",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="circle-of-calls",
        group="user code",
        program="""
    from dljob import RoleGroup, Worker, rpc
    class A(Worker):
        @rpc(concurrency=1)
        def ask(self, depth):
            return RoleGroup("b").ask(depth - 1)  # CAUSE
        def run(self):
            RoleGroup("a").ask(5)
    class B(Worker):
        @rpc(concurrency=1)
        def ask(self, depth):
            return RoleGroup("a").ask(depth - 1)
    """,
        roles="""
    - {name: a, entrypoint: {class: work.A}, resources: {cpu: 200m}}
    - {name: b, entrypoint: {class: work.B}, driver: false, resources: {cpu: 200m}}
    """,
        kind="circle",
        whom="[ab]/0",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="method-that-calls-itself",
        group="user code",
        program="""
    from dljob import RoleGroup, Worker, rpc
    class Main(Worker):
        @rpc(concurrency=1)
        def ask(self, depth):
            return RoleGroup("main").ask(depth - 1)  # CAUSE
        def run(self):
            RoleGroup("main").ask(5)
    """,
        roles=ONE_ROLE,
        kind="circle",
        whom="main/0",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="engine-that-fills-no-queue",
        group="user code",
        program="""
    import time
    from dljob import DataQueue, Worker, progress
    class Feeder(Worker):
        def run(self):
            for number in range(1, 100):
                DataQueue("done").get()
                progress(number)
    class Engine(Worker):
        def run(self):
            for task in range(20):
                time.sleep(0.2)
                DataQueue("done").put(task)
            while True:
                time.sleep(1)  # CAUSE
    """,
        roles=FEEDER_AND_ENGINE,
        kind=STALL,
        whom="engine/0",
        says=("done",),
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="filter-that-lets-nothing-through",
        group="user code",
        program="""
    import time
    from dljob import DataQueue, Worker, progress
    class Feeder(Worker):
        def run(self):
            for number in range(1, 10000):
                DataQueue("raw").put(number)
                if number <= 20:
                    DataQueue("done").get()
                elif number == 21:
                    self.wait_for_one()
                progress(number)
        def wait_for_one(self):
            import threading
            threading.Thread(target=self.feed, daemon=True).start()
            DataQueue("done").get()
        def feed(self):
            for number in range(100000):
                DataQueue("raw").put(number)
                time.sleep(0.1)
    class Engine(Worker):
        def run(self):
            for task in range(100000):
                item = DataQueue("raw").get()
                if task < 20:
                    DataQueue("done").put(item)
                time.sleep(0.1)
    """,
        roles=FEEDER_AND_ENGINE,
        kind=STALL,
        whom="engine/0",
        says=("done",),
        ends=False,
        limit_s=260,
    ),
    Cause(
        name="stream-that-does-not-go-on",
        group="user code",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        calls = 0
        @rpc(stream=4)
        def score(self):
            for item in range(4):
                yield item
            self.calls += 1
            while self.calls == 12:
                time.sleep(1)  # CAUSE
            time.sleep(0.1)
            yield 5
    class Trainer(Worker):
        def run(self):
            for step in range(1, 1000):
                list(RoleGroup("reward").score())
                progress(step)
    """,
        roles=CALLER_AND_CALLEE,
        kind=STALL,
        whom="reward/0",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="lock-taken-twice",
        group="user code",
        program="""
    import threading, time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            lock = threading.Lock()
            for step in range(1, 1000):
                if step in (15, 16):
                    lock.acquire()  # CAUSE
                progress(step)
                time.sleep(0.1)
    """,
        roles=ONE_ROLE,
        kind=f"Hang|{STALL}|no step",
        whom="main/0",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="constructor-that-never-ends",
        group="user code",
        program="""
    import time
    class Main:
        def __init__(self):
            while True:
                time.sleep(1)  # CAUSE
        def run(self): ...
    """,
        roles=ONE_ROLE,
        kind=f"Hang|{STALL}|not ready|not set up",
        whom="main/0",
        ends=False,
        limit_s=240,
    ),
    Cause(
        name="callee-much-slower-than-it-was",
        group="user code",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        calls = 0
        @rpc
        def score(self):
            self.calls += 1
            time.sleep(0.1 if self.calls < 60 else 3.0)  # CAUSE
    class Trainer(Worker):
        def run(self):
            for step in range(1, 1000):
                RoleGroup("reward").score()
                progress(step)
    """,
        roles=CALLER_AND_CALLEE,
        kind="slow|Straggler|longer",
        whom="reward/0",
        ends=False,
        limit_s=120,
    ),
)
"""The job stands, or is slow, and does not end of it."""

CAUSES = (*ENDS, *STALLS)
