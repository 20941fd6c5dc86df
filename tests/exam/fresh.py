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
            "head raylet", "gcs", "host" (of a rank), "node agent", "fork server", "everything"
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
from planting import kill, shell

CAUSES: tuple[Cause, ...] = (
    Cause(
        name="peer-reports-the-reset-first",  # rank 1 fails, and ends long after the rank that its closed socket broke
        group="user code",
        program="""
import os, socket, struct, time, traceback
rank = int(os.environ["RANK"])

def scale(loss, tokens):
    return loss / tokens  # CAUSE

if rank == 0:
    peer, _ = socket.create_server(("127.0.0.1", 29611)).accept()
    for step in range(100):
        loss, = struct.unpack("d", peer.recv(8))
        print("step", step, "loss", loss, flush=True)
else:
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", 29611))
            break
        except ConnectionRefusedError:
            time.sleep(0.2)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        for tokens in [512, 512, 480, 512, 512, 0, 512]:
            peer.sendall(struct.pack("d", scale(900.0, tokens)))
            time.sleep(0.3)
    except Exception:
        traceback.print_exc()
        peer.close()
        print("uploading the last profile ...", flush=True)
        time.sleep(8)
        raise
""",
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("ZeroDivisionError",),
        advice="correct the code",
        never="Network|default/0",
        peers=True,
    ),
    Cause(
        name="prefetch-thread-died",  # the main thread sees an empty queue a quarter of a minute later
        group="user code",
        program="""
import os, queue, threading, time
rank = int(os.environ["RANK"])
rows = [{"text": "a b c"}] * 12
if rank == 1:
    rows[5] = {"txt": "d e f"}
batches = queue.Queue(maxsize=2)

def prefetch():
    for row in rows * 10:
        batches.put(row["text"].split())  # CAUSE

threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
for step in range(100):
    tokens = batches.get(timeout=15)
    time.sleep(0.3)
    print("step", step, len(tokens), flush=True)
""",
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("KeyError.*text",),
        peers=True,
    ),
    Cause(
        name="loader-worker-segfaults",  # the rank raises, its peer says that a connection closed
        group="libraries",
        program="""
import ctypes, os, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index == 41 and dist_rank == 0:
            ctypes.string_at(0)
        return torch.ones(4)

dist_rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
for step, batch in enumerate(DataLoader(Images(), batch_size=4, num_workers=1)):
    total = batch.sum()
    dist.all_reduce(total)
    time.sleep(0.2)
    print("step", step, float(total), flush=True)
""",
        ranks=2,
        kind="UserError|Unknown",
        code=(10, 19),
        whom="default/0",
        says=("DataLoader worker", "Segmentation fault|SIGSEGV|signal 11"),
        never="Network|default/1|OOMKilled",
        peers=True,
    ),
    Cause(
        name="ends-with-0-before-its-peer",  # a shorter shard, and sys.exit(0): the longer one sees a closed connection
        group="user code",
        program="""
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
batches = iter(range(9 if rank == 0 else 6))
step = 0
while True:
    batch = next(batches, None)
    if batch is None:
        print("end of data", flush=True)
        sys.exit(0)
    loss = torch.tensor([float(batch)])
    dist.all_reduce(loss)
    time.sleep(0.2)
    step += 1
    print("step", step, float(loss), flush=True)
""",
        ranks=2,
        kind="ended|exited|finished|left|completed",
        whom="default/1",
        peers=True,
    ),
    Cause(
        name="uneven-shards-wait-for-each-other",  # one in a collective, the other for a file that is written after it
        group="user code",
        program="""
import os, time
import torch
import torch.distributed as dist
from dljob import progress
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(16 if rank == 0 else 14):
    loss = torch.tensor([1.0])
    dist.all_reduce(loss)
    time.sleep(0.2)
    progress(step)
    print("step", step, flush=True)
if rank == 0:
    open("eval.json", "w").write("{}")
while not os.path.exists("eval.json"): time.sleep(0.5)  # CAUSE
""",
        ranks=2,
        kind="hang|wait|stall|no step",
        whom="default/1",
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="queues-in-a-circle",  # the trainer wants samples first, the rollout weights
        group="user code",
        program="""
from dljob import DataQueue, Worker, progress

class Trainer(Worker):
    def run(self):
        samples, weights = DataQueue("samples", max_items=8), DataQueue("policy", max_items=8)
        for step in range(20):
            batch = samples.get()
            progress(step)
            weights.put({"version": step, "of": len(batch)})

class Rollout(Worker):
    def run(self):
        samples, weights = DataQueue("samples", max_items=8), DataQueue("policy", max_items=8)
        while True:
            policy = weights.get()
            samples.put([policy["version"]] * 4)
""",
        roles="""
- {name: trainer, entrypoint: {class: work.Trainer}, resources: {cpu: 200m}}
- {name: rollout, driver: false, entrypoint: {class: work.Rollout}, resources: {cpu: 200m}}
""",
        kind="wait|hang|stall|circle|deadlock",
        whom="trainer|rollout",
        says=("samples", "policy"),
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="queue-that-nobody-fills-any-more",  # its producer ended with success, and has not closed it
        group="user code",
        program="""
import time
from dljob import DataQueue, progress

def produce():
    queue = DataQueue("prompts", max_items=16)
    for number in range(12):
        queue.put({"prompt": number})
        time.sleep(0.1)
    print("all prompts are in the queue", flush=True)

def consume():
    queue = DataQueue("prompts", max_items=16)
    for step in range(20):
        item = queue.get()  # CAUSE
        time.sleep(0.2)
        progress(step)
        print("step", step, item, flush=True)
""",
        roles="""
- {name: producer, entrypoint: {class: work.produce}, resources: {cpu: 200m}}
- {name: consumer, entrypoint: {class: work.consume}, resources: {cpu: 200m}}
""",
        kind="wait|hang|stall|empty",
        whom="producer|consumer|prompts",
        says=("prompts",),
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="rank-in-a-throttled-group",  # its control group has 3 % of a CPU
        group="machine",
        program="""
import os, time
from dljob import progress
rank = int(os.environ["RANK"])
if rank == 2:
    open(os.environ["EXAM_CPU"] + "/cgroup.procs", "w").write("0")
for step in range(2000):
    end = time.thread_time() + 0.04
    while time.thread_time() < end:
        pass
    time.sleep(0.1)
    progress(step)
    if step % 10 == 0:
        print("step", step, flush=True)
""",
        ranks=3,
        cgroup={"cpu/cpu.cfs_quota_us": "3000"},
        kind="Straggler",
        whom="default/2",
        never="UserError|Network|default/[01]",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="all-are-as-slow-as-one",  # a collective in each step hides whose input became slow
        group="user code",
        program="""
import time
import torch
import torch.distributed as dist
from dljob import progress
dist.init_process_group("gloo")
rank = dist.get_rank()

def read(step):
    if rank == 1 and step > 25: time.sleep(2.5)  # CAUSE
    return torch.tensor([float(step)])

for step in range(1000):
    loss = read(step)
    dist.all_reduce(loss)
    time.sleep(0.1)
    progress(step)
    print("step", step, flush=True)
""",
        ranks=3,
        kind="slow|straggler|wait",
        whom="default/1",
        never="Network|default/[02]",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="out-of-memory-was-handled",  # a caught CUDA error in the log; what ended the rank is a label
        group="user code",
        program='''
import os, sys, time
rank = int(os.environ["RANK"])

class OutOfMemoryError(RuntimeError):
    """As torch names it."""

def forward(batch):
    if batch > 8:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a capacity of 79.15 GiB "
                               "of which 1.21 GiB is free.")
    return 0.5

batch = 16
for step in range(30):
    try:
        forward(batch)
    except OutOfMemoryError:
        import traceback
        traceback.print_exc()
        batch //= 2
        print("WARNING: out of memory; the batch is", batch, "from now on", file=sys.stderr, flush=True)
    labels = ["0", "1", "1", "n/a" if step == 8 and rank == 0 else "0"]
    numbers = [int(label) for label in labels]  # CAUSE
    time.sleep(0.2)
    print("step", step, sum(numbers), flush=True)
''',
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("ValueError: invalid literal for int",),
        advice="correct the code",
        never="OOMKilled|out of memory|DeviceError|default/1",
        peers=True,
    ),
    Cause(
        name="leaves-by-exit-3-amid-telemetry",  # the reason is one line above tracebacks that mean nothing
        group="user code",
        program="""
import logging, os, socket, threading, time
rank = int(os.environ["RANK"])

def telemetry():
    while True:
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError:
            logging.exception("telemetry: cannot send, will try again")
        time.sleep(0.4)

threading.Thread(target=telemetry, daemon=True).start()
for step in range(30):
    time.sleep(0.2)
    print("step", step, flush=True)
    if rank == 1 and step == 9:
        print("fatal: vocabulary of 50257 is not divisible by 8, giving up", flush=True)
        time.sleep(1.5)
        os._exit(3)
""",
        ranks=2,
        kind="UserError|Unknown",
        code=(10, 19),
        whom="default/1",
        says=("code 3", "not divisible by 8"),
        never="Network|default/0",
        peers=True,
    ),
    Cause(
        name="kernel-kills-the-loader-not-the-rank",  # the rank only sees that its child is gone
        group="machine",
        program="""
import multiprocessing, os, time
rank = int(os.environ["RANK"])

def load(queue):
    open(os.environ["EXAM_MEMORY"] + "/cgroup.procs", "w").write("0")
    cache = []
    for number in range(1000):
        cache.append(os.urandom(1 << 20) * 4)
        queue.put(number)
        time.sleep(0.1)

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue(2)
    loader = fork.Process(target=load, args=(queue,), daemon=True)
    if rank == 1:
        loader.start()
    for step in range(150):
        while rank == 1:
            try:
                queue.get(timeout=1)
                break
            except Exception:
                if not loader.is_alive():
                    raise RuntimeError(f"loader is gone: exit code {loader.exitcode}") from None
        time.sleep(0.1)
        print("step", step, flush=True)
""",
        ranks=2,
        cgroup={"memory/memory.limit_in_bytes": "60m"},
        kind="OOMKilled",
        code=(11,),
        whom="default/1",
        advice="memory",
        never="Network|default/0",
    ),
    Cause(
        name="disk-full-in-the-saver-thread",  # what fails is the reader of a checkpoint that was cut off
        group="disks",
        program="""
import os, pickle, threading, time
rank = int(os.environ["RANK"])

def save(step):
    try:
        with open(f"disk/step-{step}.ckpt", "wb") as file:
            pickle.dump(os.urandom(6 << 20), file)
    except OSError as error:
        print("saver: warning:", error, flush=True)

for step in range(40):
    time.sleep(0.2)
    print("step", step, flush=True)
    if rank == 0 and step % 4 == 3:
        threading.Thread(target=save, args=(step,)).start()
    if rank == 0 and step % 8 == 7 and step > 8:
        time.sleep(1)
        with open(f"disk/step-{step}.ckpt", "rb") as file:
            state = pickle.load(file)
""",
        ranks=2,
        disk="20m",
        kind="no space left|disk",
        code=(13,),
        whom="default/0|disk|node",
        says=("No space left on device",),
        never="Network|default/1",
    ),
    Cause(
        name="bad-line-in-a-pool-of-parsers",  # the rank's traceback is of multiprocessing, the line is in the worker
        group="user code",
        program="""
import json, multiprocessing, os, time
rank = int(os.environ["RANK"])

def parse(line):
    return json.loads(line)["text"]  # CAUSE

if __name__ == "__main__":
    lines = open("data.jsonl").read().splitlines()[rank::2] * 3
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step, text in enumerate(pool.imap(parse, lines)):
            time.sleep(0.2)
            print("step", step, text, flush=True)
""",
        ranks=2,
        files={"data.jsonl": '{"text": "a"}\n' * 13 + '{"text": "cut of\n' + '{"text": "b"}\n' * 20},
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("JSONDecodeError",),
        advice="correct the code",
        peers=True,
    ),
    Cause(
        name="waits-for-a-file-of-another-name",  # before the first step, and rank 0 waits for the one that waits
        group="user code",
        program="""
import os, time
rank = int(os.environ["RANK"])
if rank == 0:
    os.makedirs("cache", exist_ok=True)
    open("cache/vocabulary.txt", "w").write("a b c")
    print("vocabulary is written", flush=True)
    while not os.path.exists("cache/ready-1"): time.sleep(0.5)
else:
    while not os.path.exists("cache/vocab.txt"): time.sleep(0.5)  # CAUSE
    open("cache/ready-1", "w").write("")
for step in range(10):
    time.sleep(0.2)
    print("step", step, flush=True)
""",
        ranks=2,
        kind="wait|hang|stall|no step|progress",
        whom="default/1",
        never="Network",
        ends=False,
        limit_s=240,  # idleSeconds is 180
        peers=True,
    ),
    Cause(
        name="last-batch-of-another-size",  # rank 1 aborts in C++, rank 0 has a traceback and a lost connection
        group="libraries",
        program="""
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    rows = 3 if rank == 1 and step == 7 else 8
    errors = torch.ones(rows, 64)
    dist.all_reduce(errors)
    time.sleep(0.2)
    print("step", step, float(errors.sum()), flush=True)
""",
        ranks=2,
        kind="UserError|Unknown",
        code=(10, 19),
        whom="default/1",
        says=("preamble|data size|mismatch",),
        never="Network|NodeLost|default/0",
        peers=True,
    ),
    Cause(
        name="collective-times-out-for-a-slow-peer",  # the rank that waited reports, the one that came late is alive
        group="user code",
        program="""
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
rank = dist.get_rank()

def evaluate():
    print("evaluation of all checkpoints", flush=True)
    time.sleep(60)  # CAUSE

for step in range(20):
    if rank == 1 and step == 8:
        evaluate()
    loss = torch.ones(1)
    dist.all_reduce(loss)
    time.sleep(0.2)
    print("step", step, flush=True)
""",
        ranks=2,
        kind="timed out|timeout|wait|slow|hang",
        whom="default/1",
        says=("[Tt]imed? ?out",),
        peers=True,
    ),
    Cause(
        name="sigterm-becomes-an-exception",  # a handler raises in the middle of innocent code
        group="machine",
        program="""
import os, signal, time
rank = int(os.environ["RANK"])

def on_signal(number, frame):
    print("got signal", number, signal.Signals(number).name, flush=True)
    raise RuntimeError("training was interrupted")

signal.signal(signal.SIGTERM, on_signal)
for step in range(100):
    rows = [number * number for number in range(1000)]
    time.sleep(0.2)
    print("step", step, sum(rows), flush=True)
""",
        ranks=2,
        acts=(kill("default/1", "TERM", after="step 9"),),
        kind="Killed|Preempted|Unknown|StoppedByUser",
        code=(14, 19),
        whom="default/1",
        says=("SIGTERM|signal 15",),
        peers=True,
    ),
    Cause(
        name="fork-while-a-thread-holds-a-lock",  # the child never gets the lock, the rank waits for the child
        group="user code",
        program="""
import multiprocessing, os, threading, time
from dljob import progress
rank = int(os.environ["RANK"])
lock = threading.Lock()

def write_metrics():
    while True:
        with lock:
            time.sleep(0.9)
        time.sleep(0.01)

def evaluate(step):
    with lock:  # CAUSE
        open(f"evaluated-{step}", "w").write("0.5")

if rank == 0:
    threading.Thread(target=write_metrics, daemon=True).start()
for step in range(60):
    time.sleep(0.2)
    progress(step)
    print("step", step, flush=True)
    if step % 15 == 14:
        if rank == 0:
            child = multiprocessing.get_context("fork").Process(target=evaluate, args=(step,))
            child.start()
            child.join()
        while not os.path.exists(f"evaluated-{step}"):
            time.sleep(0.1)
""",
        ranks=2,
        kind="hang|wait|stall|no step|lock",
        whom="default/0",
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="filter-leaves-nothing-to-fill-a-batch",  # an endless loop at full speed; its peer waits
        group="user code",
        program="""
import os, time
from dljob import progress
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def barrier(step):
    open(f"at-{step}-{rank}", "w").close()
    while not all(os.path.exists(f"at-{step}-{other}") for other in range(ranks)):
        time.sleep(0.05)

def fill(rows, language):
    batch = []
    while len(batch) < 4:
        batch += [row for row in rows if row["language"] == language]  # CAUSE
    return batch

rows = [{"language": "en"}, {"language": "fr"}] * 50
for step in range(30):
    language = "eo" if rank == 1 and step == 11 else "en"
    fill(rows, language)
    time.sleep(0.2)
    barrier(step)
    progress(step)
    print("step", step, flush=True)
""",
        ranks=2,
        kind="hang|busy|loop|stall|no step|wait",
        whom="default/1",
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="spawns-without-a-main-guard",  # the pool says that a process ended abruptly, its child's stderr says why
        group="libraries",
        program="""
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor

def tokenize(text):
    return text.split()

rank = int(os.environ.get("RANK", "0"))
if rank == 1:
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    for tokens in pool.map(tokenize, ["a b c", "d e"]):  # CAUSE
        print(tokens, flush=True)
for step in range(60):
    time.sleep(0.2)
    print("step", step, flush=True)
""",
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("bootstrapping phase|BrokenProcessPool",),
        advice="correct the code",
        never="Network|OOMKilled|Killed|default/0",
        peers=True,
    ),
    Cause(
        name="tar-failed-and-nobody-looked",  # a command's error is ignored, its file is not there
        group="user code",
        program="""
import os, time
rank = int(os.environ["RANK"])
for step in range(20):
    time.sleep(0.2)
    print("step", step, flush=True)
    if step == 6 and rank == 0:
        os.makedirs("data", exist_ok=True)
        os.system("tar -xf corpus.tar -C data")
        text = open("data/corpus.txt").read()  # CAUSE
""",
        ranks=2,
        files={"corpus.tar": "<html><body>403 Forbidden</body></html>"},
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("FileNotFoundError", "tar: .*(archive|error|Error)"),
        peers=True,
    ),
    Cause(
        name="reward-waits-for-a-judge-that-never-answers",  # the trainer is in a call, its callee in recv
        group="network",
        program="""
import socket, time
from dljob import RoleGroup, Worker, progress, rpc

class Reward(Worker):
    def setup(self):
        self.judge, self.far_end = socket.socketpair()
        self.calls = 0

    @rpc
    def score(self, texts):
        self.calls += 1
        if self.calls <= 9:
            self.far_end.send(b"1")
        self.judge.send(b"score")
        return float(self.judge.recv(1))  # CAUSE

class Trainer(Worker):
    def run(self):
        reward = RoleGroup("reward")
        for step in range(40):
            scores = reward.score(["a", "b"])
            time.sleep(0.2)
            progress(step)
            print("step", step, scores, flush=True)
""",
        roles="""
- {name: trainer, entrypoint: {class: work.Trainer}, resources: {cpu: 200m}}
- {name: reward, driver: false, entrypoint: {class: work.Reward}, resources: {cpu: 200m}}
""",
        kind="wait|hang|stall|no step",
        whom="reward/0",
        never="Killed",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="error-two-calls-away",  # the trainer ends by it, the code at fault is the judge's
        group="user code",
        program="""
import time
from dljob import RoleGroup, Worker, progress, rpc

class Judge(Worker):
    @rpc
    def grade(self, answer):
        grades = {"good": 1.0, "bad": 0.0}
        return grades[answer]  # CAUSE

class Reward(Worker):
    @rpc
    def score(self, answers):
        return [RoleGroup("judge").call_rank0("grade", answer).result() for answer in answers]

class Trainer(Worker):
    def run(self):
        for step in range(20):
            answers = ["good", "bad", "so-so" if step == 6 else "good"]
            scores = RoleGroup("reward").score(answers)
            time.sleep(0.2)
            progress(step)
            print("step", step, scores, flush=True)
""",
        roles="""
- {name: trainer, entrypoint: {class: work.Trainer}, resources: {cpu: 200m}, restartPolicy: {level: Never}}
- {name: reward, driver: false, entrypoint: {class: work.Reward}, resources: {cpu: 200m}}
- {name: judge, driver: false, entrypoint: {class: work.Judge}, resources: {cpu: 200m}}
""",
        kind="UserError",
        code=(10,),
        whom="judge/0|trainer/0",
        says=("KeyError.*so-so",),
        never="Network|NodeLost|reward/0: ",
    ),
    Cause(
        name="callee-aborts-in-a-call",  # C++ aborts in a rollout; the trainer has lost its peer
        group="libraries",
        program="""
import os, sys, time
from dljob import RoleGroup, Worker, progress, rpc

class Rollout(Worker):
    calls = 0

    @rpc
    def generate(self, prompts):
        self.calls += 1
        if self.calls == 6 and self.context.rank == 1:
            sys.stderr.write("terminate called after throwing an instance of 'c10::Error'\\n"
                             "  what():  invalid device ordinal\\n")
            sys.stderr.flush()
            os.abort()
        return prompts

class Trainer(Worker):
    def run(self):
        rollout = RoleGroup("rollout")
        for step in range(20):
            rollout.generate(["a", "b"])
            time.sleep(0.2)
            progress(step)
            print("step", step, flush=True)
""",
        roles="""
- {name: trainer, entrypoint: {class: work.Trainer}, resources: {cpu: 200m}, restartPolicy: {level: Never}}
- name: rollout
  replicas: 2
  driver: false
  entrypoint: {class: work.Rollout}
  resources: {cpu: 200m}
""",
        kind="Unknown|UserError|DeviceError|Killed",
        whom="rollout/1",
        says=("SIGABRT|signal 6|Aborted|c10::Error",),
        never="Network|NodeLost|trainer/0: |rollout/0",
    ),
    Cause(
        name="second-life-meets-the-folder-of-the-first",  # a passing error, and a restart that can never succeed
        group="user code",
        program="""
import os, time
from dljob import progress

def main():
    os.mkdir("run-7")  # CAUSE
    for step in range(1, 6):
        time.sleep(0.2)
        progress(step)
        print("step", step, flush=True)
    raise ConnectionError("license server: too many seats, try again")
""",
        roles="""
- {name: worker, entrypoint: {class: work.main}, resources: {cpu: 200m}}
""",
        kind="UserError",
        code=(10,),
        whom="worker/0",
        says=("FileExistsError",),
        advice="correct the code",
        never="Network|license",
    ),
    Cause(
        name="child-blocks-on-a-full-pipe",  # the rank waits for the end of a child whose output nobody reads
        group="user code",
        program="""
import os, subprocess, sys, time
from dljob import progress
rank = int(os.environ["RANK"])

def convert(step):
    child = subprocess.Popen([sys.executable, "-c", "print('converted ' * 20000)"], stdout=subprocess.PIPE)
    child.wait()  # CAUSE
    open(f"converted-{step}", "w").close()

for step in range(40):
    time.sleep(0.2)
    progress(step)
    print("step", step, flush=True)
    if step == 12:
        if rank == 0:
            convert(step)
        while not os.path.exists(f"converted-{step}"):
            time.sleep(0.1)
""",
        ranks=2,
        kind="hang|wait|stall|no step",
        whom="default/0",
        never="Network",
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="no-route-to-the-data",  # the address of a data server goes away; the user's code wraps the error
        group="network",
        program="""
import os, socket, threading, time
rank = int(os.environ["RANK"])
SERVER = ("10.77.0.5", 29612)

def serve():
    listener = socket.create_server(("0.0.0.0", SERVER[1]))
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"row")
        connection.close()

def read(number):
    try:
        with socket.create_connection(SERVER, timeout=5) as connection:
            return connection.recv(3)
    except OSError as error:
        raise ValueError(f"shard {number} is invalid") from error

if rank == 0:
    threading.Thread(target=serve, daemon=True).start()
    print("the data server runs", flush=True)
else:
    while True:
        try:
            socket.create_connection(SERVER, timeout=1).close()
            break
        except OSError:
            time.sleep(0.3)
for step in range(60):
    if rank == 1:
        read(step)
    time.sleep(0.3)
    print(f"step {step} of rank {rank}", flush=True)
""",
        ranks=2,
        acts=(
            shell("ip link set lo up; ip addr add 10.77.0.5/32 dev lo", after="the data server runs"),
            shell("ip addr del 10.77.0.5/32 dev lo; ip route add unreachable 10.77.0.5/32", after="step 6 of rank 1"),
        ),
        kind="Network",
        code=(13,),
        whom="default/1|node|network",
        says=("No route to host",),
        never="default/0",
    ),
    Cause(
        name="disk-becomes-read-only",  # the clean-up after the error fails, too
        group="disks",
        program="""
import os, time
rank = int(os.environ["RANK"])

def save(step):
    name = f"disk/step-{step}"
    try:
        with open(name + ".tmp", "w") as file:
            file.write("weights " * 1000)
        os.replace(name + ".tmp", name)
    except OSError:
        os.unlink(name + ".tmp")
        raise

for step in range(60):
    time.sleep(0.2)
    print(f"step {step} of rank {rank}", flush=True)
    if rank == 0 and step % 3 == 2:
        save(step)
""",
        ranks=2,
        disk="20m",
        acts=(shell("mount -o remount,ro disk", after="step 9 of rank 0"),),
        kind="read-only|disk",
        code=(13,),
        whom="default/0|disk|node",
        says=("Read-only file system",),
        never="Network|default/1",
    ),
    Cause(
        name="bus-error-in-a-mapped-file",  # a sparse file is larger than its disk: no exception, a signal
        group="disks",
        program="""
import mmap, os, time
rank = int(os.environ["RANK"])
if rank == 1:
    with open("disk/cache.bin", "w+b") as file:
        file.truncate(64 << 20)
        cache = mmap.mmap(file.fileno(), 0)
for step in range(60):
    time.sleep(0.2)
    print("step", step, flush=True)
    if rank == 1:
        cache[step << 20 : (step + 1) << 20] = os.urandom(1 << 20)
""",
        ranks=2,
        disk="8m",
        kind="sigbus|bus error|signal 7|no space|disk",
        code=(11, 13, 19),
        whom="default/1|disk|node",
        says=("SIGBUS|[Bb]us error|signal 7",),
        never="Network|default/0|OOMKilled",
        peers=True,
    ),
    Cause(
        name="gcs-killed-while-a-rank-retries",  # refused connections in a log are of something else
        group="Ray's parts",
        program="""
import logging, os, socket, time
rank = int(os.environ["RANK"])
for step in range(150):
    time.sleep(0.3)
    print("step", step, flush=True)
    if rank == 1 and step % 4 == 0:
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError:
            logging.exception("metrics: not sent")
""",
        ranks=2,
        acts=(kill("gcs", "KILL", after="step 9"),),
        kind="gcs|head",
        whom="gcs|head|Ray",
        never="UserError|default/",
        limit_s=120,
    ),
    Cause(
        name="quiet-for-more-than-a-minute",  # a compilation: no line, no step, and then it goes on
        group="nothing wrong",
        program="""
import os, time
from dljob import progress
rank = int(os.environ["RANK"])
for step in range(14):
    if step == 8:
        print("compiling the model for the new shapes ...", flush=True)
        time.sleep(75)
    time.sleep(0.2)
    progress(step)
    print("step", step, flush=True)
""",
        ranks=2,
        kind="",
        code=(0,),
        limit_s=150,
        exit_code=0,
    ),
    Cause(
        name="refused-three-times-then-served",  # a caught error with its traceback, retried until it works
        group="nothing wrong",
        program="""
import logging, os, socket, threading, time
rank = int(os.environ["RANK"])

def serve_late():
    time.sleep(6)
    socket.create_server(("127.0.0.1", 29613)).accept()
    time.sleep(60)

if rank == 0:
    threading.Thread(target=serve_late, daemon=True).start()
else:
    for attempt in range(30):
        try:
            connection = socket.create_connection(("127.0.0.1", 29613), timeout=2)
            break
        except ConnectionRefusedError:
            logging.exception("ERROR: attempt %d: the feature store refused the connection", attempt)
            time.sleep(1.5)
    else:
        raise SystemExit("no feature store")
for step in range(20 if rank else 75):
    time.sleep(0.2)
    print("step", step, flush=True)
print("done", flush=True)
""",
        ranks=2,
        kind="",
        code=(0,),
        exit_code=0,
        peers=True,
    ),
    Cause(
        name="helper-crashes-and-the-rank-has-another-way",  # a crash and a kill in the log, none of the rank
        group="nothing wrong",
        program="""
import os, subprocess, sys, time, traceback
rank = int(os.environ["RANK"])

def fused(step):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

for step in range(20):
    time.sleep(0.2)
    print("step", step, flush=True)
    if rank == 1 and step == 5:
        probe = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"])
        print(f"the probe of the fast path ended with {probe.returncode}: Segmentation fault (core dumped)", flush=True)
        loader = subprocess.Popen(["sleep", "60"])
        loader.kill()
        print(f"a loader was Killed, exit code {loader.wait()}; out of memory? a new one is made", flush=True)
    if rank == 1 and 8 <= step <= 12:
        try:
            fused(step)
        except RuntimeError:
            traceback.print_exc()
            print("FATAL: fused kernel failed, the plain one is used", flush=True)
""",
        ranks=2,
        kind="",
        code=(0,),
        exit_code=0,
        peers=True,
    ),
)
