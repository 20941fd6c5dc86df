"""What another user of the machine can do to a running job: nothing but what SECURITY.md says.

A process of user 65534 tries to read, write, replace, connect to and signal everything that a job makes, by its full
path also where the folder above cannot be listed. Each top-level thing must be in the table of SECURITY.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import psutil
import pytest
from cli_kit import Place

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(200),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may"),
]

ROOT = Path(__file__).parents[3]
OTHER = 65534
JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: victim}
spec:
  env: [{name: API_KEY, value: my-secret-api-key}]
  roles:
  - name: main
    type: Elastic
    replicas: 2
    entrypoint: {module: train.py}
    comm: {backend: gloo}
    resources: {cpu: 100m}
  - {name: helper, driver: false, replicas: 1, entrypoint: {class: helper.Helper}, resources: {cpu: 100m}}
"""
TRAIN = """
import os, pathlib, time
import torch
import torch.distributed as dist
from dljob import DataQueue, RoleGroup, checkpoint
dist.init_process_group("gloo")
checkpoint.save(1, {"weights": torch.ones(1000)})
DataQueue("samples").put(RoleGroup("helper").call_rank0("answer").result())
print("ready", flush=True)
while not pathlib.Path(os.environ["DLJOB_HOME"], "enough").exists():
    time.sleep(0.05)
"""
HELPER = """
from dljob import Worker, rpc
class Helper(Worker):
    def run(self):
        self.context.stopping.wait()
    @rpc
    def answer(self):
        return 42
"""


def below(path: Path) -> Iterator[Path]:
    """A path and all that is below it."""
    yield path
    if path.is_dir() and not path.is_symlink():
        for folder, folders, files in os.walk(path):
            yield from (Path(folder, name) for name in (*folders, *files))


def tries(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What somebody may try with a path."""
    yield "replace", lambda: path.rename(f"{path}.moved")
    if path.is_dir():
        yield "list", lambda: list(path.iterdir())
        yield "create in", (path / "planted").touch
    elif path.is_socket():
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            yield "connect to", lambda kind=kind: socket.socket(socket.AF_UNIX, kind).connect(str(path))
    else:
        yield "read", lambda: path.open("rb").close()
        yield "write", lambda: path.open("r+b").close()


def as_another_user(do: Callable[[], list[str]]) -> list[str]:
    """What a function returns in a process of another user."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.write(writer, json.dumps(do()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    return json.loads(text)


def succeeded(attempts: Sequence[tuple[str, Callable[[], object]]]) -> list[str]:
    """The names of attempts that were not refused."""
    done: list[str] = []
    for name, attempt in attempts:
        with suppress(OSError):
            attempt()
            done.append(name)
    return done


def abstract_sockets(pids: set[int]) -> set[str]:
    """The abstract addresses at which some processes listen."""
    inodes = set[str]()
    for pid in pids:
        with suppress(OSError):
            inodes |= {str(fd.readlink()).strip("socket:[]") for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and row[7].startswith("@") and row[6] in inodes}


def is_served(address: str) -> bool:
    """Whether a listener at an abstract address does more for a stranger than to hang up."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as line:
            line.settimeout(5)
            try:
                line.connect("\0" + address[1:])
                line.sendall(b'{"op": "hello", "rank": 0, "incarnation": 1}\n')
                if line.recv(1 << 16):
                    return True
            except TimeoutError:
                return True
            except OSError:
                continue
    return False


def table_of_security() -> dict[str, int]:
    """The patterns of what a job makes, with their modes, as SECURITY.md has them."""
    rows = re.findall(r"^ *\| `([^`]+)` \| (\d{4}) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    return {pattern: int(mode, 8) for pattern, mode in rows}


def of_shared_memory(pids: set[int]) -> Iterator[Path]:
    """The files of shared memory that some processes have mapped, and that have a name."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            names = {row.path for row in psutil.Process(pid).memory_maps()}
            yield from (Path(name) for name in names if name.startswith("/dev/shm/") and Path(name).exists())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter and list, as a home folder often is."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_another_user_reaches_nothing_of_a_job(open_folder: Path) -> None:
    place = Place(open_folder)
    for name, text in {"job.yaml": JOB, "train.py": TRAIN, "helper.py": HELPER}.items():
        (open_folder / name).write_text(text)
    temporary = open_folder / "t"
    temporary.mkdir()
    temporary.chmod(0o1777)
    place.env["TMPDIR"] = str(temporary)
    table = table_of_security()
    with place.running("run", str(open_folder / "job.yaml")) as run:
        run.until_all("[main/0] ready", "[main/1] ready")
        runner = psutil.Process(run.process.pid)
        pids = {runner.pid, *(process.pid for process in runner.children(recursive=True))}
        made = [*temporary.iterdir(), place.home, *of_shared_memory(pids)]
        for path in made:
            name = str(path).replace(str(place.home), "DLJOB_HOME").replace(str(temporary), "TMPDIR")
            modes = [mode for pattern, mode in table.items() if fnmatch(name, pattern)]
            assert modes == [stat.S_IMODE(path.lstat().st_mode)], f"{path} is not so in SECURITY.md"
        paths = [path for top in made for path in below(top)]
        assert len(paths) > 50
        attempts = [(f"{name} {path}", attempt) for path in paths for name, attempt in tries(path)]
        attempts += [(f"signal {pid}", lambda pid=pid: os.kill(pid, 0)) for pid in pids]
        environments = [Path(f"/proc/{pid}/environ") for pid in pids]
        attempts += [(f"read {path}", path.read_bytes) for path in environments]
        assert as_another_user(lambda: succeeded(attempts)) == []
        addresses = abstract_sockets(pids)
        assert addresses, "hosts listen at abstract addresses"
        assert as_another_user(lambda: [address for address in sorted(addresses) if is_served(address)]) == []
        place.home.joinpath("enough").touch()
        code, _, errors = run.end()
    assert code == 0, errors
