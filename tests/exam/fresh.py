"""Causes by a reader who knows dljob by its documentation alone, and has not seen the code of the product.

A row plants one fault and says what `dljob why` must answer, judged by what happened and not by what dljob can do:

    Cause(
        name="list-index-in-rank-1",  # unique, lower case
        group="user code",  # libraries, machine, disks, network, Ray's parts, Kubernetes; "nothing wrong": kind=""
        program='''
    import os
    rank = int(os.environ["RANK"])
    for step in range(5):
        print("step", step, flush=True)
        if rank == 1 and step == 3:
            [][0]  # CAUSE
    ''',
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("IndexError: list index out of range",),
        advice="correct the code",
    )

**What runs.** `program` is written to train.py and run by `dljob torchrun --nproc-per-node=RANKS FLAGS train.py`; its
ranks are default/0, default/1 ... With `roles` it is work.py and `dljob run dljob.yaml FLAGS` runs it: `roles` has the
YAML below `roles:`, `spec` further YAML below `spec:`. Other files of the folder go to `files={"data.txt": "..."}`,
variables to `env`. Take `cpu: 200m` a role, 1 to 3 ranks, steps of 0.1 to 0.3 s, and no torch unless the cause is in it
(then `gloo`).

**What is done from outside** while it runs: `acts=(pause("default/1", after="step 5"),)`. `after` is a regular
expression that is waited for in the command's output, where all lines of ranks are. Of planting.py:

    kill(TARGET, "KILL", after=...)            a signal: KILL, STOP, CONT, TERM, INT, SEGV ...
    pause(TARGET, after=..., seconds=10)       STOP, and CONT later; without seconds: for good
    shell("ip link set eth0 down", after=...)  a command in the user's folder, as root, in a network and mounts of its
                                               own: eth0 and lo are a laptop's, and nothing reaches the machine
    TARGET  a rank ("default/1", "trainer/0"), "command" (dljob run itself), "PrimeMaster", "raylet" (where ranks run),
            "head raylet", "gcs", "host" (of a rank), "node agent", "light agent", "fork server", "everything"
    before="..."  a command of the shell before the job starts

`disk="20m"` mounts a file system of that size at ./disk; `home="disk"` keeps job folders there.
`cgroup={"pids/pids.max": "300"}` (version 1; memory/memory.limit_in_bytes, cpu/cpu.cfs_quota_us) makes a group: a
program joins it by `open(os.environ["EXAM_PIDS"] + "/cgroup.procs", "w").write("0")` (EXAM_MEMORY, EXAM_CPU);
`limited=True` puts the whole command in it.

**What is expected**

    kind       reasons of docs/reference/reasons.md, any of which is right ("Killed|NodeLost"), or words in lower case
               of which the first cause must contain one ("waited|stopped"); "" where nothing failed
    code       exit codes of `dljob why` that are right (docs/reference/exit-codes.md); left out: any but 0
    whom       a regular expression: the rank ("trainer/0") or the part ("raylet|node", "PrimeMaster") at fault
    # CAUSE    a comment at the line of the user's code that must be named as file:line; none where no line is to blame
    says       regular expressions: what the first cause and its evidence must contain; facts only ("exit code 5")
    advice     a regular expression for what the user is told to do next; left out: not graded
    never      a regular expression for innocents in the first cause ("Network|default/0"); other ranks than `whom`, the
               network, and the user's code where the machine is at fault are innocents without it
    ends       False where the job does not end by itself (a stall, a slow rank, a fault that heals): `why` is asked
               while it runs, until it says something
    limit_s    how long that may take, or the job itself (90); a stall is told after 60 s without a step, so take 120
    exit_code  of `dljob run` or `dljob torchrun`; left out: not graded
    peers      True where the same train.py makes sense under plain torchrun, Ray Train and Ray
    missing    a function that says what the machine lacks for it, "" where nothing
"""

from __future__ import annotations

from cause import Cause
from planting import kill, pause, shell  # noqa: F401 - for rows to come

CAUSES: tuple[Cause, ...] = ()
