"""DLRover's import paths: the table is what a script finds, name by name, and the page is made from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dljob.compat import redirect
from dljob.compat.dlrover_api.names import MODULES, Kind

WORKERS = Path(redirect.__file__).parents[2]
TORCH = ("loader", "sampler", "trainer", "flash")


class Scripts:
    """Runs programs in a folder of their own; `installed` makes a dlrover that can be imported there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, source: str, *how: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "program.py").write_text(source)
        env = {name: value for name, value in os.environ.items() if name != "DLJOB_COMPAT"}
        return subprocess.run(
            [sys.executable, *how, "program.py"],
            env={**env, "PYTHONPATH": str(WORKERS)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def says(self, source: str) -> list[str]:
        """What a program under `--dlrover` prints; it must end well."""
        done = self.run(source, "-m", "dljob.compat", "--dlrover")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def installed(self, **modules: str) -> None:
        """Write a dlrover package: module with underscores for dots -> its text."""
        for name, text in modules.items():
            path = self.folder.joinpath("dlrover", *name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for parent in path.relative_to(self.folder).parents:
                if parent.name:
                    (self.folder / parent / "__init__.py").touch()


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def test_each_name_of_the_table_is_what_a_script_finds(scripts: Scripts) -> None:
    pytest.importorskip("torch")
    wanted = [(module, name, one) for module, names in MODULES.items() for name, one in names.items()]
    lines = "".join(
        f"try:\n    from {module} import {name} as it\n"
        "    print('found', getattr(it, '__module__', ''))\n"
        "except ImportError as error:\n    print(error)\n"
        for module, name, _ in wanted
    )
    for (module, name, one), said in zip(wanted, scripts.says(lines), strict=True):
        if one.home:
            assert said.startswith("found"), (module, name, said)
        else:
            assert said == f"{module}.{name} of DLRover is not carried over: {one.reason}"
            assert one.kind is Kind.REFUSED


def test_names_without_effect_are_told_once(scripts: Scripts) -> None:
    pytest.importorskip("torch")
    done = scripts.run(
        """
from torch.utils.data import DataLoader
from dlrover.python.unified.api.runtime import RayDataLoaderIter, patch_dataloader_ray
from dlrover.python.unified.api.builder import DLJobBuilder
for _ in range(2):
    patch_dataloader_ray()
    assert [int(x) for x in RayDataLoaderIter(DataLoader([1, 2]))] == [1, 2]
    DLJobBuilder().as_data_stream().role("a").run("a.b").sub_stage([]).enable_node_group_failover("rack")
""",
        "-m",
        "dljob.compat",
        "--dlrover",
    )
    assert done.returncode == 0, done.stderr
    told = [line.split(" has no effect: ")[0] for line in done.stderr.splitlines()[1:]]
    assert told == [
        f"dljob.compat: {name}"
        for name in (
            *("patch_dataloader_ray", "RayDataLoaderIter", "as_data_stream", "sub_stage"),
            "enable_node_group_failover",
        )
    ]


def test_a_name_refused_at_its_use_names_our_way(scripts: Scripts) -> None:
    said = scripts.says(
        """
from dlrover.python.unified.common.workload_desc import CustomWorkloadDesc
try:
    CustomWorkloadDesc(module_name="m", class_name="C")
except Exception as error:
    print(error)
"""
    )
    assert said[0] == "CustomWorkloadDesc(module_name, class_name) of DLRover is not carried over"
    assert said[1].strip() == "name a class as entrypoint, and derive it from dljob.Worker"


def test_an_installed_dlrover_keeps_the_modules_that_are_not_served(scripts: Scripts) -> None:
    scripts.installed(
        python__unified__common__enums="RLRoleType = 'theirs'",
        python__unified__common__own="NAME = 'own'",
        brain="NAME = 'brain'",
    )
    done = scripts.run(
        """
import dlrover.brain, dlrover.python.unified.common.own as own
from dlrover.python.unified.common.enums import RLRoleType
print(dlrover.brain.NAME, own.NAME, RLRoleType.ACTOR.name)
""",
        "-m",
        "dljob.compat",
        "--dlrover",
    )
    assert done.stdout.split() == ["brain", "own", "ACTOR"], done.stderr
    assert done.stderr.splitlines() == [
        f"dljob.compat: DLRover's API is dljob's here; other modules are those of {scripts.folder / 'dlrover'}"
    ]


def test_the_modules_of_an_installed_dlrover_import_beside_the_served_ones(scripts: Scripts) -> None:
    scripts.installed(
        python__unified__common__constant="JOB_OPTIONS_ENV_PREFIX = 'THEIRS_'\nHANG_S = 5",
        python__unified__common__config="from dataclasses import dataclass\n\nLIMIT = 7\nDLConfig = 'theirs'\n"
        "@dataclass\nclass More:\n    a: 'int'",
        python__unified__common__actor_base="class ActorBase:\n    pass",
        python__unified__util__helper="""
from dlrover.python.unified.common.constant import HANG_S, JOB_OPTIONS_ENV_PREFIX
from dlrover.python.unified.common.config import LIMIT, DLConfig, More
from dlrover.python.unified.common.actor_base import ActorBase
""",
    )
    said = scripts.says(
        """
import pickle
from dlrover.python.unified.util import helper as it
print(it.HANG_S, it.JOB_OPTIONS_ENV_PREFIX, it.LIMIT, it.ActorBase.__module__, it.DLConfig.__module__)
assert pickle.loads(pickle.dumps(it.More(1))) == it.More(1)
try:
    from dlrover.python.unified.common.actor_base import ActorBase
except ImportError as error:
    print(error)
try:
    from dlrover.python.unified.common.config import nobody
except ImportError as error:
    print(error)
"""
    )
    assert said[0] == "5 THEIRS_ 7 dlrover.python.unified.common.actor_base dljob.compat.dlrover_api.models"
    assert said[1].startswith("dlrover.python.unified.common.actor_base.ActorBase of DLRover is not carried over")
    assert said[2].startswith("cannot import name 'nobody' from 'dlrover.python.unified.common.config'")


def test_a_name_that_a_test_replaces_is_replaced_where_dljob_uses_it(scripts: Scripts) -> None:
    said = scripts.says(
        """
from unittest.mock import patch
from dlrover.python.unified.driver import main as it
from dljob.compat.dlrover_api import submit
real = submit.submit
with patch("dlrover.python.unified.driver.main.submit") as mock:
    print(submit.submit is mock, it.submit is mock)
print(submit.submit is real, it.submit is real)
it.other = 1
del it.other
print(hasattr(it, "other"))
"""
    )
    assert said == ["True True", "True True", "False"]


def test_without_a_dlrover_an_import_error_names_the_page(scripts: Scripts) -> None:
    said = scripts.says("try:\n    import dlrover.brain.client\nexcept ImportError as error:\n    print(error)")
    (line,) = said
    assert line.startswith("import dlrover.brain: dlrover is not installed, and dljob.compat has no such module of it")
    assert line.endswith("docs/reference/dlrover.md lists those that it has")


def test_ours_after_theirs_is_refused(scripts: Scripts) -> None:
    scripts.installed(python__unified__common__enums="RLRoleType = 'theirs'")
    done = scripts.run("import dlrover.python.unified.common.enums\nimport dljob.compat.dlrover")
    assert done.returncode == 1
    assert "dlrover.python.unified.common.enums is loaded in this process already, from " in done.stderr
    assert "import dljob.compat.dlrover first" in done.stderr


def test_an_import_serves_the_process_and_its_children(scripts: Scripts) -> None:
    done = scripts.run(
        """
import dljob.compat.dlrover, subprocess, sys
code = "from dlrover.python.unified.common.enums import RLRoleType; print(RLRoleType.CRITIC.value)"
exec(code)
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
"""
    )
    assert "CRITIC" in done.stdout.splitlines()[0]
    assert r"stdout='CRITIC\n', stderr=''" in done.stdout, done.stderr


def test_an_unknown_name_of_a_served_module_tells_those_that_are_there(scripts: Scripts) -> None:
    said = scripts.says(
        "import dlrover.python.unified.driver.main as it\ntry:\n    it.mian\nexcept AttributeError as e:\n    print(e)"
    )
    assert said == ["dljob.compat has no dlrover.python.unified.driver.main.mian; it has main, submit"]
