"""The variables that show a process its devices, as Ray's own managers set them; and who may keep us from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from dljob.compat import redirect
from dljob.master.state.actions import RankStart
from dljob.plan.devices import DEVICES, all_left_alone, leaves_variable, visible_devices
from dljob.plan.plan import plan
from dljob.plan.role import RolePlan
from dljob.raycluster import pods
from dljob.runtime.process import environment
from dljob.spec.model import DLJobManifest

accelerators = pytest.importorskip("ray._private.accelerators")

KNOWN = ("GPU", "NPU", "TPU", "HPU", "neuron_cores", "RBLN", "FURIOSA", "TTNPU", "MBLT")
"""All kinds that Ray 2.60 gives ids to."""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if "VISIBLE" in name or name.startswith(("TPU_", "RBLN_", "FURIOSA_")):
            monkeypatch.delenv(name)


@pytest.fixture
def managers() -> dict[str, type]:
    return {m.__name__: m for m in accelerators.get_all_accelerator_managers()} | {
        name: getattr(accelerators, name) for name in ("AMDGPUAcceleratorManager", "IntelGPUAcceleratorManager")
    }


def set_by_ray(manager: type, ids: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Ray adds to the environment of a worker with these devices."""
    before = dict(os.environ)
    with monkeypatch.context() as mine:
        mine.setattr(os, "environ", dict(before))
        manager.set_current_process_visible_accelerator_ids(list(ids))  # type: ignore[attr-defined]
        return {k: v for k, v in os.environ.items() if before.get(k) != v}


@pytest.mark.parametrize("ids", [("1",), ("0", "3"), ("0", "1", "2")])
def test_every_kind_is_shown_as_ray_shows_it(ids, managers, monkeypatch):
    for manager in managers.values():
        variable = manager.get_visible_accelerator_ids_env_var()  # type: ignore[attr-defined]
        if variable:
            assert visible_devices(variable, ids) == set_by_ray(manager, ids, monkeypatch), manager.__name__


def test_every_switch_that_ray_obeys_is_obeyed(managers, monkeypatch):
    for manager in managers.values():
        variable = manager.get_visible_accelerator_ids_env_var()  # type: ignore[attr-defined]
        if not variable:
            continue
        module = __import__(manager.__module__, fromlist=["_"])
        (switch,) = {v for k, v in vars(module).items() if k.startswith("NOSET_")}
        assert leaves_variable(variable, {switch: "1"}), manager.__name__
        monkeypatch.setenv(switch, "1")
        assert set_by_ray(manager, ("0",), monkeypatch) == {}


def test_a_kind_has_rays_variable_here_and_other_resources_none():
    environment.variable_of.cache_clear()
    for kind in KNOWN:
        manager = accelerators.get_accelerator_manager_for_resource(kind)
        assert environment.variable_of(kind) == manager.get_visible_accelerator_ids_env_var()
    assert environment.variable_of("licence") == ""


def test_the_vendor_of_the_machines_gpus_decides_the_variable(monkeypatch):
    amd = accelerators.AMDGPUAcceleratorManager
    monkeypatch.setattr(accelerators, "get_accelerator_manager_for_resource", lambda _: amd)
    environment.variable_of.cache_clear()
    try:
        assert environment.shown("GPU", ("2",), {}) == {"HIP_VISIBLE_DEVICES": "2"}
        assert environment.shown("GPU", ("2",), {"RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"}) == {}
    finally:
        environment.variable_of.cache_clear()


def test_our_table_says_the_same_as_ray():
    for device in DEVICES.values():
        if device.ray and device.ray != "GPU":
            assert environment.variable_of(device.ray) == device.visible_env


def start(index: int, *ids: str) -> RankStart:
    return RankStart(0, 2, 0, 1, 0, devices=(("NPU", ids),), device_index=index)


def test_a_process_that_starts_its_rank_again_sees_what_it_saw_first():
    """Its peers were moved elsewhere: a new process of this node sees fewer, this one's runtime has looked already."""
    first = start(2, "0", "1", "2", "3")
    assert environment.keep_devices("NPU", None, first) is first
    assert environment.keep_devices("NPU", first, start(0, "2", "3")) == first
    assert environment.keep_devices("NPU", start(0, "2"), start(1, "0", "2")) == start(0, "2")
    assert environment.keep_devices("NPU", first, start(0, "7")) == start(0, "7")
    assert environment.keep_devices("", RankStart(0, 1, 0, 1, 0), RankStart(0, 2, 0, 1, 0)) == RankStart(0, 2, 0, 1, 0)


def test_where_nobody_hides_devices_a_rank_finds_its_own_among_all(monkeypatch):
    switch = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
    alone = role_of(**{switch: "1"})
    assert environment.device_index("NPU", start(0, "5"), role_of()) == 0
    assert environment.device_index("NPU", start(0, "5"), alone) == 5
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
    assert environment.device_index("NPU", start(0, "5"), alone) == 1
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "x")
    assert environment.device_index("NPU", start(0, "uuid"), alone) == 0
    assert environment.device_index("", RankStart(0, 1, 0, 1, 0), alone) == 0
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
    monkeypatch.setenv(switch, "1")
    assert environment.device_index("NPU", start(0, "5"), role_of()) == 5, "an image may say so for all"


def role_of(quota: object = None, **env: str) -> RolePlan:
    made = plan(
        DLJobManifest.model_validate(
            {"metadata": {"name": "j"}, "spec": {"roles": [{"name": "w", "entrypoint": {"class": "a.B"}}]}}
        )
    )
    return replace(made.roles["w"], env=tuple(env.items()), quota=quota)


def test_workers_without_user_code_have_what_python_ray_and_dljob_read():
    read = {
        "PYTHONPATH": "/p",
        "LD_PRELOAD": "x.so",
        "RAY_BACKEND_LOG_LEVEL": "debug",
        "DLJOB_PRELOAD": "0",
        "PATH": "/bin",
        "TMPDIR": "/t",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    role = role_of(**read, NCCL_DEBUG="INFO", HF_HOME="/h", OMP_NUM_THREADS="3")
    assert dict(environment.of_host_without_user_code(role)) == read
    assert environment.of_fork_server(role) == dict(role.env)


def test_devices_of_kinds_that_a_rank_takes_none_of_are_hidden():
    every = {environment.variable_of(kind) for kind in KNOWN}
    assert environment.hidden(role_of(), {}, {}) == dict.fromkeys(every, "")
    rest = environment.hidden(role_of(), {"NPU": ("3",)}, {})
    assert set(rest) == every - {"ASCEND_RT_VISIBLE_DEVICES"}


def test_the_environment_of_a_rank_hides_them():
    spec = SimpleNamespace(role=role_of(), job=SimpleNamespace(name="j", uid="u", dir="/d"))
    order = SimpleNamespace(world_size=1, generation=1, store="")
    bare = environment.rank_environment(spec, order, RankStart(0, 1, 0, 1, 0))  # type: ignore[arg-type]
    assert bare["CUDA_VISIBLE_DEVICES"] == bare["ASCEND_RT_VISIBLE_DEVICES"] == ""
    taking = environment.rank_environment(spec, order, start(0, "3"))  # type: ignore[arg-type]
    assert (taking["CUDA_VISIBLE_DEVICES"], taking["ASCEND_RT_VISIBLE_DEVICES"]) == ("", "3")
    spec.role = role_of(CUDA_VISIBLE_DEVICES="7", ASCEND_RT_VISIBLE_DEVICES="7")
    said = {**dict(spec.role.env), **environment.rank_environment(spec, order, start(0, "3"))}  # type: ignore[arg-type]
    assert (said["CUDA_VISIBLE_DEVICES"], said["ASCEND_RT_VISIBLE_DEVICES"]) == ("7", "3"), "its own are no choice"


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("local_rank", [0, 2])
def test_a_virtual_local_rank_finds_what_torch_sets(local_rank, switch, monkeypatch):
    """Also where Ray is told to leave the variable alone, or all ranks would take device 0."""
    agent = pytest.importorskip("torch.distributed.elastic.agent.server.local_elastic_agent").LocalElasticAgent
    ids, variable = ("4", "5", "6", "7"), "CUDA_VISIBLE_DEVICES"
    monkeypatch.setenv(variable, ",".join(ids))
    monkeypatch.setenv(f"RAY_EXPERIMENTAL_NOSET_{variable}", switch)
    theirs: dict[str, str] = {}
    agent._set_local_rank_env(None, theirs, local_rank, SimpleNamespace(virtual_local_rank=True))
    role = replace(role_of(), elastic=True, virtual_local_rank=True)
    begins = RankStart(local_rank, 1, local_rank, 4, 0, devices=(("GPU", (ids[local_rank],)),))
    spec = SimpleNamespace(role=role, job=SimpleNamespace(name="j", uid="u", dir="/d"))
    order = SimpleNamespace(world_size=4, generation=1, store="")
    ours = environment.rank_environment(spec, order, begins)  # type: ignore[arg-type]
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["LOCAL_WORLD_SIZE"] == "4"
    assert environment.device_index("GPU", begins, role) == 0


def test_a_role_that_asks_for_it_sees_all_devices():
    assert environment.hidden(role_of(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"), {}, {}) == {}
    assert environment.hidden(role_of(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1"), {}, {})
    assert environment.hidden(role_of(quota=(("GPU", 10_000),)), {}, {}) == {}
    assert "CUDA_VISIBLE_DEVICES" not in environment.hidden(role_of(CUDA_VISIBLE_DEVICES="1"), {}, {})
    switch = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    assert "CUDA_VISIBLE_DEVICES" not in environment.hidden(role_of(), {}, switch)
    assert environment.hidden(role_of(**all_left_alone()), {}, all_left_alone()).keys() <= {
        "FURIOSA_DEVICES", "RBLN_DEVICES", "TT_VISIBLE_DEVICES", "QBRUNTIME_VISIBLE_DEVICES"
    }  # fmt: skip


def test_without_ray_our_own_table_says_what_can_be_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray._private", None)
    environment.known_kinds.cache_clear()
    try:
        assert set(environment.known_kinds()) == {"GPU", "NPU", "TPU", "HPU", "neuron_cores"}
    finally:
        environment.known_kinds.cache_clear()


@pytest.mark.parametrize(
    ("pythonpath", "before", "behind"),
    [
        (None, [], ["/code", "/driver"]),
        ("/more", ["/more"], ["/code", "/driver"]),
        (".", ["/code"], ["/driver"]),
        (":/more", ["/code", "/more"], ["/driver"]),
        ("", [], ["/code", "/driver"]),
        ("/more:../code", ["/more", "/code"], ["/driver"]),
    ],
)
def test_the_code_takes_no_place_of_the_standard_librarys_in_a_script(pythonpath, before, behind, monkeypatch):
    """Nor does the psutil that Ray brings take the place of the installed one, nor a folder of the job's driver."""
    thirdparty, library = str(Path(ray.__file__).parent / "thirdparty_files"), sysconfig.get_path("stdlib")
    more = ["/more"] if "more" in (pythonpath or "") else []
    monkeypatch.setattr(sys, "path", ["/driver", "/code", thirdparty, "", *more, "/lib/python.zip", library, "/site"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if pythonpath is not None:
        monkeypatch.setenv("PYTHONPATH", pythonpath)
    assert environment.script_import_path("/code") == [*before, "/lib/python.zip", library, "/site", *behind]
    assert environment.script_import_path("") == ["/driver", "/code", *more, "/lib/python.zip", library, "/site"]


@pytest.fixture
def code(tmp_path):
    """The folder of a job with a `secrets.py` and a package at its root, and a script below it that imports both."""
    folder = tmp_path / "code"
    (folder / "scripts").mkdir(parents=True)
    (folder / "secrets.py").write_text("")
    (folder / "mylib.py").write_text("")
    script = "import json, secrets, sys, mylib\nprint(json.dumps([secrets.__file__, mylib.__file__, sys.path]))\n"
    (folder / "scripts" / "train.py").write_text(script)
    return folder


def run_script(code: Path, variable: str) -> list[Any]:
    """What the script finds with a PYTHONPATH: its `secrets`, its `mylib` and its import path."""
    env = {**os.environ, "PYTHONPATH": environment.python_path(variable, str(code))}
    command = [sys.executable, "scripts/train.py"]
    return json.loads(subprocess.run(command, env=env, cwd=code, capture_output=True, check=True).stdout)


def test_what_a_rank_starts_finds_the_code_behind_the_standard_library(code):
    secrets, mylib, path = run_script(code, "")
    assert Path(secrets).parent == Path(sysconfig.get_path("stdlib"))
    assert (mylib, path[0], path[-1]) == (str(code / "mylib.py"), str(code / "scripts"), str(code))
    assert environment.SITE not in path
    assert run_script(code, "/more")[2] == [path[0], "/more", *path[1:]]


def test_the_code_stands_first_for_what_a_rank_starts_where_the_users_variable_says_so(code):
    assert run_script(code, "/more:.")[2][:3] == [str(code / "scripts"), "/more", str(code)]
    assert run_script(code, ".")[0] == str(code / "secrets.py")


def test_hooks_of_others_run_once_beside_that_of_the_codes_folder(code, tmp_path):
    """Before it and behind it: each runs the next, as that of `dljob.compat` does."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.path.append('/theirs')\n")
    assert run_script(code, str(theirs))[2][-2:] == [str(code), "/theirs"]
    env = {**os.environ, "PYTHONPATH": f"{redirect.SITE}:{environment.python_path(str(theirs), str(code))}"}
    done = subprocess.run([sys.executable, "scripts/train.py"], env=env, cwd=code, capture_output=True, check=True)
    path = json.loads(done.stdout)[2]
    assert (path[-2:], path.count("/theirs"), done.stderr) == ([str(code), "/theirs"], 1, b"")


def in_pod(monkeypatch: pytest.MonkeyPatch, root: Path, uid: int = 1000660000) -> str:
    """Let this be a pod whose uid has no entry in passwd; return the home of such users."""
    monkeypatch.setattr(pods, "ROOT", str(root))
    monkeypatch.setattr(pods, "USER_HOME", str(root / "user"))
    monkeypatch.setattr(os, "getuid", lambda: uid)
    return str(root / "user")


def test_a_user_that_the_image_does_not_know_has_a_home_and_a_name(monkeypatch, tmp_path):
    home = in_pod(monkeypatch, tmp_path)
    found = environment.of_user({"HOME": "/no/such"})
    user = {"USER": "uid-1000660000", "LOGNAME": "uid-1000660000"}
    assert found == {"HOME": home, "PYTHONUSERBASE": "/no/such/.local", **user}
    assert os.access(home, os.W_OK)
    assert environment.of_user({}) == {"HOME": home, **user}
    kept = {"HOME": str(tmp_path), "LOGNAME": "ann"}
    assert environment.of_user(kept) == {"USER": "ann", "LOGNAME": "ann"}


def test_a_user_with_a_home_and_an_entry_keeps_both(monkeypatch, tmp_path):
    in_pod(monkeypatch, tmp_path, uid=0)
    assert environment.of_user({"HOME": str(tmp_path)}) == {}
    # Outside of a pod it is the machine's business.
    in_pod(monkeypatch, tmp_path / "none")
    assert environment.of_user({"HOME": "/no/such"}) == {}
