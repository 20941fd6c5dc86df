"""The init container: dljob and its requirements into one folder, user code into another, and nothing outside."""

from __future__ import annotations

import json
import os
import runpy
import socket
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from dljob.errors import UsageError
from dljob.raycluster import pods
from dljob.runtime.job import init_container
from dljob.runtime.job.init_container import bring, brought


def closure(*names: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Everything that these distributions need, themselves included, as pip understands it here."""
    found: set[str] = set()
    waiting = [(name, extras) for name in names]
    while waiting:
        name, wanted = waiting.pop()
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if name in found and not wanted:
            continue
        found.add(name)
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                waiting.append((init_container._name(needed.name), tuple(needed.extras)))
    return found


def test_the_packages_brought_along_are_those_dljob_needs_and_ray_lacks():
    by_ray = closure("ray", extras=("default",))
    needed = closure("dljob") - by_ray - closure(*init_container.NOT_IN_PODS) | {"dljob"}
    assert set(brought()) == needed
    assert by_ray >= init_container.BY_RAY


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root") / "lib"
    before = os.umask(0o077)
    try:
        bring(folder)
    finally:
        os.umask(before)
    return folder


def test_lib_holds_dljob_with_its_metadata_and_no_operator(lib):
    assert (lib / "dljob" / "runtime" / "launcher.py").is_file()
    assert not (lib / "dljob_operator").exists()
    (dist_info,) = lib.glob("dljob-*.dist-info")
    assert "dljob.backends" in (dist_info / "entry_points.txt").read_text()


def test_lib_is_the_same_when_the_container_runs_again(lib):
    def files() -> list[Path]:
        # Without bytecode: processes beside this one may compile modules meanwhile.
        return sorted(path.relative_to(lib) for path in lib.rglob("*") if "__pycache__" not in path.parts)

    before = files()
    (lib.parent / ".lib.new").mkdir()
    (lib.parent / ".lib.new" / "half").touch()
    bring(lib)
    assert files() == before
    assert [path.name for path in lib.parent.iterdir()] == ["lib"]


def test_a_job_that_runs_the_tools_gets_them_from_the_wheel_or_is_refused(tmp_path, monkeypatch):
    """As in the operator's image, where the wheel lies and is not installed."""
    found = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name == "dljob-tools":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(pods, "TOOLS_WHEEL_FOLDER", str(tmp_path / "wheels"))
    with pytest.raises(UsageError, match=r"the job runs dljob\.compat, and this image has no dljob-tools"):
        bring(tmp_path / "lib", with_tools=True)
    assert not (tmp_path / "lib").exists()
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / f"wheels/dljob_tools-{metadata.version('dljob')}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("dljob/of_the_tools.py", "")
    bring(tmp_path / "lib", with_tools=True)
    assert (tmp_path / "lib/dljob/of_the_tools.py").is_file()
    assert (tmp_path / "lib/dljob/runtime/launcher.py").is_file()


def test_tools_of_another_version_are_not_brought(tmp_path, monkeypatch):
    (info := tmp_path / "site/dljob_tools-9.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dljob-tools\nVersion: 9\n")
    monkeypatch.syspath_prepend(str(info.parent))
    with pytest.raises(UsageError, match=r"the job runs dljob\.compat: dljob-tools 9 is installed beside dljob 0"):
        bring(tmp_path / "lib", with_tools=True)
    assert not (tmp_path / "lib").exists()


def test_every_user_may_read_lib(lib):
    for path in (lib, *lib.rglob("*")):
        assert path.stat().st_mode & 0o444 == 0o444
        assert not path.is_dir() or path.stat().st_mode & 0o555 == 0o555


@pytest.mark.slow
def test_the_runtime_imports_with_ray_and_lib_alone(lib, tmp_path):
    """In a user's image there is ray[default] and nothing more of what dljob declares."""
    site = tmp_path / "site"
    site.mkdir()
    for name in closure("ray", extras=("default",)):
        for path in metadata.distribution(name).files or ():
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    modules = [
        *("launcher", "job.launcher", "job.driver", "job.gateway", "job.gateway_app", "job.gateway_jobs"),
        *("controller.prime", "controller.prime_actor", "backend.ray_backend", "process.device_probe"),
        *("worker.thread_host", "worker.fork_host", "worker.forkserver", "worker.elastic_master", "worker.worker"),
        *("node.log_tails", "rpc.rpc"),
    ]
    code = (
        f"import sys; sys.path += {[str(site), str(lib)]!r}\n"
        f"import importlib\nfor m in {modules!r}: importlib.import_module('dljob.runtime.' + m)\n"
        # Clients of servers by HTTP need httpx, which is an extra.
        "import dljob\nfor n in dljob.__all__:\n"
        "    n.endswith(('HttpTransport', 'CompletionStream')) or getattr(dljob, n)\n"
        "from dljob.api import registry; registry.home()\n"
        "from dljob.runtime.backend.interface import factory; factory('ray')\n"
        "print(dljob.__file__)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(lib / "dljob" / "__init__.py")


# -- user code


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[..., Path]:
    """A ConfigMap as the kubelet mounts it: keys are links into a dated folder."""

    def mount(**keys: bytes) -> Path:
        folder = tmp_path / "mount"
        dated = folder / "..2026_01_01"
        dated.mkdir(parents=True)
        (folder / "..data").symlink_to(dated.name)
        for key, data in keys.items():
            name = key.replace("__", "-").replace("_", ".")
            (dated / name).write_bytes(data)
            (folder / name).symlink_to(f"..data/{name}")
        return folder

    return mount


def archive(tmp_path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in entries:
            packed.writestr(name, data)
    return path.read_bytes()


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def test_plain_keys_are_files_and_the_kubelets_folders_are_not(mounted, tmp_path):
    source = mounted(train_py=b"print(1)", data_txt=b"x")
    assert init_container.unpack(source, tmp_path / "code") == 2
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == ["data.txt", "train.py"]
    assert not (tmp_path / "code" / "train.py").is_symlink()


def test_the_archive_is_unpacked_and_keys_beside_it_win(mounted, tmp_path):
    packed = archive(tmp_path, ("pkg/a.py", b"a"), (entry("run.sh", stat.S_IFREG | 0o700), b"#!"), ("train.py", b"old"))
    source = mounted(dljob__code_zip=packed, train_py=b"new")
    assert (source / pods.ARCHIVE).is_file()
    code = tmp_path / "code"
    before = os.umask(0o077)
    try:
        assert init_container.unpack(source, code) == 4
    finally:
        os.umask(before)
    assert (code / "pkg" / "a.py").read_bytes() == b"a"
    assert (code / "train.py").read_bytes() == b"new"
    assert (code / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (code / "pkg" / "a.py").stat().st_mode & 0o777 == 0o644
    assert (code / "pkg").stat().st_mode & 0o777 == 0o755


def test_earlier_code_is_replaced_and_without_a_configmap_there_is_none(mounted, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "stale.py").touch()
    init_container.unpack(mounted(train_py=b""), code)
    assert [path.name for path in code.iterdir()] == ["train.py"]
    assert init_container.unpack(tmp_path / "nothing", code) == 0
    assert not code.exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../evil.py", "not below its folder"),
        ("a/../../evil.py", "not below its folder"),
        ("/etc/evil", "not below its folder"),
        ("a\\..\\evil", "not below its folder"),
        (entry("link", stat.S_IFLNK | 0o777), "a link or a device"),
        (entry("pipe", stat.S_IFIFO | 0o644), "a link or a device"),
    ],
)
def test_an_archive_cannot_reach_outside(mounted, tmp_path, name, why):
    source = mounted(dljob__code_zip=archive(tmp_path, ("ok.py", b""), (name, b"/etc/passwd")))
    with pytest.raises(UsageError, match=why):
        init_container.unpack(source, tmp_path / "deep" / "er" / "code")
    assert not list(tmp_path.rglob("evil*"))


def test_an_archive_may_not_unpack_to_more_than_the_limit_whatever_it_says(mounted, tmp_path, monkeypatch):
    monkeypatch.setattr(init_container, "UNPACKED_BYTES", 3 << 20)
    source = mounted(dljob__code_zip=archive(tmp_path, ("a", bytes(2 << 20)), ("b", bytes(2 << 20))))
    with pytest.raises(UsageError, match="more than 3 MiB"):
        init_container.unpack(source, tmp_path / "code")


def test_an_archive_may_not_hold_more_files_than_the_limit(mounted, tmp_path, monkeypatch):
    monkeypatch.setattr(init_container, "FILES", 2)
    source = mounted(dljob__code_zip=archive(tmp_path, ("a", b""), ("b", b""), ("c", b"")))
    with pytest.raises(UsageError, match="more than 2 entries"):
        init_container.unpack(source, tmp_path / "code")


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04"])
def test_a_file_that_is_no_archive_is_refused_in_words(mounted, tmp_path, data):
    with pytest.raises(UsageError, match="cannot be unpacked"):
        init_container.unpack(mounted(dljob__code_zip=data), tmp_path / "code")


def test_the_program_fills_both_and_says_so_or_says_why_not(mounted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pods, "LIB", str(tmp_path / "root" / "lib"))
    monkeypatch.setattr(pods, "CODE", str(tmp_path / "root" / "code"))
    monkeypatch.setattr(pods, "CODE_SOURCE", str(mounted(train_py=b"", dljob__code_zip=b"bad")))
    assert init_container.main() == 1
    assert "dljob-code.zip cannot be unpacked" in capsys.readouterr().err
    Path(pods.CODE_SOURCE, "..data", pods.ARCHIVE).write_bytes(archive(tmp_path, ("a.py", b"")))
    assert init_container.main() == 0
    assert "2 files" in capsys.readouterr().out
    assert json.dumps(sorted(path.name for path in Path(pods.CODE).iterdir())) == '["a.py", "train.py"]'


def test_pods_run_the_init_container_under_its_old_path(monkeypatch):
    monkeypatch.setattr(init_container, "main", lambda: 7)
    monkeypatch.delitem(sys.modules, "dljob.runtime.unpack", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("dljob.runtime.unpack", run_name="__main__")
    assert ended.value.code == 7
    assert runpy.run_module("dljob.runtime.unpack")["main"] is init_container.main, "an import runs nothing"


def free_port() -> int:
    """A port of loopback at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_worker_waits_until_somebody_listens_at_the_heads_port(monkeypatch):
    port, refused = free_port(), threading.Event()
    monkeypatch.setattr(init_container.time, "sleep", lambda _pause: refused.set() or threading.Event().wait(0.01))
    found: list[float | None] = []
    waiting = threading.Thread(target=lambda: found.append(init_container.await_head("127.0.0.1", port)))
    waiting.start()
    assert refused.wait(10)
    assert not found
    with socket.create_server(("127.0.0.1", port)):
        waiting.join(10)
    assert found[0] is not None


def test_a_head_that_does_not_come_is_left_to_kuberays_wait():
    assert init_container.await_head("127.0.0.1", free_port(), within=0.3) is None
    assert init_container.await_head("no-such-head.invalid", 6379, within=0.01) is None


def test_pauses_between_two_looks_grow_with_the_time_waited(monkeypatch):
    now, pauses = [0.0], list[float]()

    def sleep(pause: float) -> None:
        pauses.append(pause)
        now[0] += pause

    # Threads of earlier tests sleep by the module that all share.
    monkeypatch.setattr(init_container, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    port = free_port()
    assert init_container.await_head("127.0.0.1", port) is None
    assert (pauses[0], max(pauses)) == (0.1, 5.0)
    assert len(pauses) < 60, "a thousand pods whose head's image takes minutes"


@pytest.mark.parametrize(("words", "said"), [(["--await-head"], "there after"), ([], "")])
def test_only_workers_wait_for_the_head(words, said, tmp_path, monkeypatch, capsys):
    for name in ("LIB", "CODE", "CODE_SOURCE"):
        monkeypatch.setattr(pods, name, str(tmp_path / name))
    monkeypatch.setattr(init_container, "brought", tuple)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("FQ_RAY_IP", "127.0.0.1")
        monkeypatch.setattr(sys, "argv", ["unpack", *words, str(server.getsockname()[1])])
        assert init_container.main() == 0
    printed = capsys.readouterr().out
    assert ("head 127.0.0.1:" in printed) is bool(words)
    assert said in printed
