"""A job with no network namespace around it, as on anybody's machine: nothing of it is open to others.

`make test` runs this file beside the namespaces of its tier, in the network of the machine itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from cli_kit import Place, using

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]

TRAIN = """
import os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item(), flush=True)
while not pathlib.Path(os.environ["DLJOB_HOME"], "enough").exists():
    time.sleep(0.05)
"""


def listening(pid: int) -> dict[tuple[str, int], str]:
    """The ports at which a process and its descendants listen, with the process's name."""
    found: dict[tuple[str, int], str] = {}
    runner = psutil.Process(pid)
    for process in [runner, *runner.children(recursive=True)]:
        try:
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    found[each.laddr.ip.removeprefix("::ffff:"), each.laddr.port] = process.name()
        except psutil.NoSuchProcess:
            continue
    return found


def test_no_port_of_a_job_is_open_beyond_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    with place.running("torchrun", "--nproc-per-node=2", "train.py", within=["env", "-u", "GLOO_SOCKET_IFNAME"]) as run:
        assert run.process.stdout
        lines = [run.process.stdout.readline() for _ in range(2)]
        assert all("sum 2.0" in line for line in lines), lines
        ports = listening(run.process.pid)
        token = Path(place.entry("train")["environment"]["RAY_AUTH_TOKEN_PATH"])
        assert place.entry("train")["environment"]["RAY_AUTH_MODE"] == "token"
        assert (token.stat().st_mode & 0o777, token.stat().st_uid) == (0o600, os.geteuid())
        assert {"gcs_server", "raylet"} <= set(ports.values())
        assert {place: name for place, name in ports.items() if place[0] != "127.0.0.1"} == {}
        place.home.joinpath("enough").touch()
        code, _, errors = run.end()
    assert code == 0, errors
    assert using(token.parent) == []
