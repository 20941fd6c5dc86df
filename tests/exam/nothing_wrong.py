"""Jobs in which nothing is wrong: whoever is blamed for them is innocent."""

from __future__ import annotations

from cause import Cause
from programs import CALLER_AND_CALLEE, ONE_ROLE, at_step, in_group

CAUSES = (
    Cause(name="ends-well", group="nothing wrong", program=at_step("pass", steps=20), ranks=2, kind="", exit_code=0),
    Cause(
        name="words-of-failures-in-its-output",
        group="nothing wrong",
        program=at_step(
            """
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; using less", flush=True)
        print("Connection reset by peer", file=sys.stderr, flush=True)
    """,
            steps=20,
        ),
        ranks=2,
        kind="",
        exit_code=0,
    ),
    Cause(
        name="sound-group",
        group="nothing wrong",
        program=in_group("pass", steps=60),
        ranks=2,
        kind="",
        limit_s=150,
        exit_code=0,
    ),
    Cause(
        name="slow-first-call",
        group="nothing wrong",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        @rpc
        def score(self, step):
            time.sleep(30 if step == 1 else 0.1)
    class Trainer(Worker):
        def run(self):
            for step in range(1, 200):
                RoleGroup("reward").score(step)
                progress(step)
                print("step", step, flush=True)
    """,
        roles=CALLER_AND_CALLEE,
        kind="",
        ends=False,
        limit_s=45,
    ),
    Cause(
        name="evaluation-between-short-steps",
        group="nothing wrong",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 100):
                time.sleep(35 if step == 30 else 0.1)
                progress(step)
                print("step", step, flush=True)
    """,
        roles=ONE_ROLE,
        kind="",
        limit_s=100,
        exit_code=0,
    ),
    Cause(
        name="steps-that-become-longer",
        group="nothing wrong",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                time.sleep(0.1 if step < 60 else 1.5)
                progress(step)
                print("step", step, flush=True)
    """,
        roles=ONE_ROLE,
        kind="",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="future-that-nobody-awaits",
        group="nothing wrong",
        program="""
    import time
    from dljob import RoleGroup, Worker, progress, rpc
    class Reward(Worker):
        @rpc(concurrency=4)
        def score(self, step):
            time.sleep(600 if step == 5 else 0.05)
    class Trainer(Worker):
        def run(self):
            futures = []
            for step in range(1, 10000):
                future = RoleGroup("reward").call("score", step)
                if step == 5:
                    futures.append(future)
                else:
                    future.result()
                progress(step)
                print("step", step, flush=True)
                time.sleep(0.1)
    """,
        roles=CALLER_AND_CALLEE,
        kind="",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="rank-that-ends-before-the-others",
        group="nothing wrong",
        program=at_step("sys.exit(0)", steps=60),
        ranks=2,
        kind="",
        exit_code=0,
    ),
)
