"""The three wheels beside the packages of the lock: what works with each set, and what says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import build
import grimp
import pytest

from dljob.cli.main import TOOLS
from dljob.runtime.job.init_container import NOT_IN_PODS

JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: a}
spec: {roles: [{name: w, entrypoint: {command: [python, -u, -m, dljob.compat, --dlrover, train.py]}}]}
"""
OPERATOR, ALL = ("dljob", "dljob_operator"), ("dljob", "dljob_tools")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder as of site-packages, with the locked packages and the named wheels."""
    folder = tmp_path_factory.mktemp("dist")
    build.packages(folder)

    def make(*wheels: str) -> Path:
        site = tmp_path_factory.mktemp("site")
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(("dljob", "_dljob")):
                (site / path.name).symlink_to(path)
        for wheel in wheels:
            (path,) = folder.glob(f"{wheel}-*.whl")
            with zipfile.ZipFile(path) as archive:
                archive.extractall(site)
        return site

    return make


CHECK = """
from pathlib import Path
from dljob.runtime.process.extensions import check
from dljob.spec.loading.load import load_file
check(load_file(Path("a.yaml")).spec, "")
"""
"""What PrimeMaster does before a rank of the job starts."""
IMPORT_OPERATOR = """
import pkgutil, dljob_operator, dljob.kube, dljob.raycluster, dljob.reconcile, dljob.runtime.job.init_container
for package in (dljob_operator, dljob.kube, dljob.raycluster, dljob.reconcile):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
"""
FACTORY = "from dljob.runtime.backend.interface import factory; factory('yr')"


def run(site: Path, folder: Path, *words: str, start: str = "-mdljob.cli") -> subprocess.CompletedProcess[str]:
    (folder / "a.yaml").write_text(JOB)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DLJOB_", "PYTHON"))}
    env = {**kept, "PYTHONPATH": str(site), "DLJOB_HOME": str(folder / "home"), "NO_COLOR": "1"}
    command = [sys.executable, "-S", start, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_no_wheel_imports_a_module_of_one_that_it_does_not_need(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dljob` none of the others, `dljob-operator` those of `dljob`, `dljob-tools` all."""
    monkeypatch.syspath_prepend(str(root))
    from hatch_build import wheel_of

    def of(module: str) -> str:
        path = module.replace(".", "/")
        folders = (root / "workers" / path, root / "operator" / path)
        return wheel_of(f"{path}/__init__.py" if any(folder.is_dir() for folder in folders) else f"{path}.py")

    graph = grimp.build_graph("dljob", "dljob_operator", cache_dir=None)
    arrows = {
        (of(module), of(imported), module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    wrong = [
        f"{module} -> {imported}"
        for wheel, other, module, imported in sorted(arrows)
        if other not in {"dljob": ("dljob",), "dljob-operator": ("dljob", "dljob-operator")}.get(wheel, (other,))
    ]
    assert wrong == []
    assert len({wheel for wheel, *_ in arrows}) == 3


def test_without_the_tools_each_of_their_commands_names_them(environment: Callable[..., Path], tmp_path: Path) -> None:
    site = environment("dljob")
    for command in TOOLS:
        done = run(site, tmp_path, command, "a.yaml")
        assert (done.returncode, done.stdout) == (2, ""), command
        assert done.stderr.splitlines()[0] == f"error: dljob {command}: needs dljob[tools]"
    assert run(site, tmp_path, "accelerate", "a.py", "--debug").returncode == 2
    for words in (("--help",), ("validate", "a.yaml"), ("plan", "a.yaml"), ("status",)):
        done = run(site, tmp_path, *words)
        assert done.returncode == 0, done.stderr
    completion = run(site, tmp_path, "completion", "bash")
    assert "suspend" in completion.stdout
    assert "accelerate" not in completion.stdout


def test_without_the_tools_a_backend_and_a_job_of_theirs_are_refused_by_name(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    site = environment("dljob")
    (tmp_path / "yr.yaml").write_text(JOB.replace("spec: {", "spec: {backend: {name: yr}, "))
    refused = run(site, tmp_path, "run", "yr.yaml")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "needs dljob[tools]" in refused.stderr
    refused = run(site, tmp_path, CHECK, start="-c")
    assert "UsageError: role w runs dljob.compat, which is not installed here" in refused.stderr
    assert "pip install 'dljob[tools]'" in refused.stderr
    assert run(environment(*ALL), tmp_path, CHECK, start="-c").returncode == 0


def test_tools_of_another_version_are_refused_and_what_needs_none_works(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    site = environment(*ALL)
    assert run(site, tmp_path, "sim", "--seeds", "1").returncode == 0
    (info,) = site.glob("dljob_tools-*.dist-info")
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("\nVersion: ", "\nVersion: 9"))
    refused = run(site, tmp_path, "sim", "--seeds", "1")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: dljob sim: dljob-tools 90.1.0 is installed beside dljob 0.1.0")
    assert run(site, tmp_path, "validate", "a.yaml").returncode == 0
    (tmp_path / "yr.yaml").write_text(JOB.replace("spec: {", "spec: {backend: {name: yr}, "))
    refused = run(site, tmp_path, "run", "yr.yaml")
    assert refused.stderr.startswith("error: the backend yr: dljob-tools 90.1.0 is installed beside dljob 0.1.0")
    refused = run(site, tmp_path, CHECK, start="-c")
    assert "UsageError: role w: dljob-tools 90.1.0 is installed beside dljob 0.1.0" in refused.stderr
    refused = run(site, tmp_path, FACTORY, start="-c")
    assert "UsageError: the backend 'yr': dljob-tools 90.1.0 is installed beside dljob 0.1.0" in refused.stderr


def test_an_entry_point_that_fails_at_import_is_named_and_the_rest_works(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    site = environment(*ALL)
    (site / "dljob/cli/commands/convert.py").write_text("import no_such_module_of_ours\n")
    refused = run(site, tmp_path, "convert", "a.yaml")
    assert refused.returncode == 2
    assert "dljob.cli.commands.convert:convert of dljob-tools cannot be imported: ModuleNotFoundError" in refused.stderr
    assert run(site, tmp_path, "sim", "--seeds", "1").returncode == 0


def test_the_operator_needs_neither_tools_nor_packages_of_the_command(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    site = environment(*OPERATOR)
    for package in NOT_IN_PODS:
        (site / package).unlink()
    shown = run(site, tmp_path, "--help", start="-mdljob_operator")
    assert shown.returncode == 0, shown.stderr
    assert "--init-image" in shown.stdout
    imported = run(site, tmp_path, IMPORT_OPERATOR, start="-c")
    assert (imported.returncode, imported.stderr) == (0, "")
