"""Causes in the parts that carry a job: Ray's processes, PrimeMaster, the command itself."""

from __future__ import annotations

import psutil
from cause import Cause
from planting import kill, pause
from programs import at_step

STEPS = at_step("pass", steps=100_000)
RESTARTS = ("--max-restarts=3",)
STEPPING = """
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.1)
"""
ONE_RANK = "- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m}, restartPolicy: {maxRestarts: 3}}"
MACHINE = 13


def a_little_more_than_is_used() -> str:
    """Return the share of the machine's memory from which Ray's monitor kills: 1.5 GiB above what is used now."""
    memory = psutil.virtual_memory()
    return f"{1 - (memory.available - 1.5 * (1 << 30)) / memory.total:.3f}"


CAUSES = (
    Cause(
        name="raylet-killed",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("raylet", after="step 10"),),
        kind="NodeLost|Killed",
        whom="raylet",
        says=("SIGKILL|exit code 137",),
        advice="^(?!.*kubectl)",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="raylet-stopped-for-good",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(pause("raylet", after="step 10"),),
        kind="NodeFrozen|NodeLost",
        code=(MACHINE,),
        whom="raylet|node",
        says=("stopped|state T|SIGSTOP",),
        advice="^(?!.*kubectl)",
        ends=False,
        limit_s=90,
    ),
    Cause(
        name="head-raylet-stopped-for-a-time",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(pause("head raylet", after="step 10", seconds=12),),
        kind="NodeFrozen|NodeLost|stopped|answers again",
        whom="raylet|node|Ray",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="head-raylet-killed",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("head raylet", after="step 10"),),
        kind="RayLost|HeadLost|NodeLost|Killed|MasterBudgetExhausted",
        whom="raylet|Ray",
        says=("SIGKILL|exit code 137",),
        exit_code=4,
    ),
    Cause(
        name="gcs-killed",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("gcs", after="step 10"),),
        kind="RayLost|HeadLost|NodeLost|Killed",
        whom="gcs|GCS|Ray",
        says=("SIGKILL|exit code 137",),
        exit_code=4,
    ),
    Cause(
        name="gcs-stopped-for-a-time",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(pause("gcs", after="step 10", seconds=11),),
        kind="gcs|NodeFrozen|NodeLost|stopped|answers again",
        whom="gcs|GCS|Ray|node|raylet",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="primemaster-killed",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("PrimeMaster", after="step 10"),),
        kind="MasterRestarted|Killed|master",
        whom="PrimeMaster|master",
        says=("SIGKILL|exit code 137",),
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="primemaster-stopped-for-a-time",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(pause("PrimeMaster", after="step 10", seconds=15),),
        kind="MasterRestarted|stopped|master",
        whom="PrimeMaster|master",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="command-killed",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("command", after="step 10"),),
        kind="Killed|runner|command",
        whom="command|runner|dljob run",
        says=("SIGKILL|exit code 137|was killed",),
    ),
    Cause(
        name="command-terminated",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("command", "TERM", after="step 10"),),
        kind="StoppedByUser",
        code=(14,),
        says=("SIGTERM|signal 15",),
    ),
    Cause(
        name="node-agent-killed",
        group="nothing wrong",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("node agent", after="step 10"),),
        kind="",
        ends=False,
        limit_s=30,
    ),
    Cause(
        name="fork-server-killed-while-a-rank-starts",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(
            kill("main/0", after="step 10"),
            kill("fork server", after="step 10", delay_s=0.1),
        ),
        kind="Killed",
        whom="main/0",
        says=("SIGKILL|exit code 137",),
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="rays-memory-monitor",
        group="Ray's parts",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            held = []
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                if self.context.rank == 1 and 20 < step < 60:
                    held.append(b"x" * (100 << 20))
                time.sleep(0.1)
    """,
        roles="- {name: main, replicas: 2, entrypoint: {class: work.Main}, resources: {cpu: 200m}}",
        env={"RAY_memory_usage_threshold": a_little_more_than_is_used(), "RAY_memory_monitor_refresh_ms": "250"},
        kind="OOMKilled",
        code=(11,),
        whom=r"main/\d",
        says=("low on memory|memory",),
        never="PrimeMaster",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="rank-killed-and-healed-then-the-head-is-gone",
        group="Ray's parts",
        program=STEPPING,
        roles=ONE_RANK,
        acts=(kill("main/0", after="step 10"), kill("gcs", after="(?s)step 30.*step 30", delay_s=1)),
        kind="RayLost|HeadLost|NodeLost|Killed",
        whom="gcs|GCS|Ray",
        never="main/0",
        exit_code=4,
        limit_s=60,
    ),
)
