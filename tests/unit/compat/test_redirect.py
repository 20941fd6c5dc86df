"""`import ray` redirected, in processes of its own, by a stand-in for the adapter; a Ray may be beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dljob.compat import redirect
from dljob.runtime.backend.interface import ALIASES, ENVIRONMENT

ADAPTER = Path(__file__).parent / "adapter"
STRATEGY = "ray.util.scheduling_strategies"


class Runner:
    """Runs programs by `python -m dljob.compat`, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"DISTRIBUTED_BACKEND": "YR", "PYTHONPATH": str(ADAPTER)}
        workers = str(Path(redirect.__file__).parents[2])
        self.env["PYTHONPATH"] += os.pathsep + workers

    def __call__(self, source: str, *args: str, how: tuple[str, ...] = ("-m", "dljob.compat")) -> tuple[int, str, str]:
        program = self.folder / "program.py"
        program.write_text(source)
        command = [sys.executable, *how, *(str(program) if arg == "program.py" else arg for arg in args)]
        env = {name: value for name, value in {**os.environ, **self.env}.items() if value}
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    def says(self, source: str) -> str:
        """What the program prints; it must end well."""
        code, out, err = self(source, "program.py")
        assert (code, err) == (0, "")
        return out


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_every_module_is_one_object_under_both_names(run: Runner) -> None:
    said = run.says(f"""
import sys
import {STRATEGY}, ray.exceptions, ray.actor as by_ray, ray_adapter.util.scheduling_strategies, ray_adapter.actor as own
from ray.util import scheduling_strategies
names = [name for name in sys.modules if name == "ray" or name.startswith("ray.")]
assert len(names) >= 5, names
assert all(sys.modules[name] is sys.modules["ray_adapter" + name[3:]] for name in names), names
assert by_ray is own and scheduling_strategies is sys.modules["{STRATEGY}"]
assert own.__spec__.name == own.__name__ == "ray_adapter.actor" and ray.__spec__.name == "ray_adapter"
print(ray.init())
""")
    assert said == "adapter"


def test_isinstance_and_except_of_the_adapter_hold_for_classes_imported_from_ray(run: Runner) -> None:
    """With a second copy the adapter drops the placement group in silence, and `except` never matches."""
    said = run.says(f"""
import ray
from {STRATEGY} import PlacementGroupSchedulingStrategy
from ray.exceptions import GetTimeoutError
from ray.worker import late
print(ray.group_of(PlacementGroupSchedulingStrategy("rg0")), isinstance(ray.make(), ray.actor.ActorHandle))
try:
    late()
except GetTimeoutError:
    print("caught")
""")
    assert said == "rg0 True\ncaught"


def test_the_bare_replacement_of_ray_loses_the_placement_group(run: Runner) -> None:
    """What the hook is for; should this fail one day, the hook is not needed any more."""
    code, out, _ = run(
        f"""
import sys, ray_adapter
sys.modules["ray"] = ray_adapter
from {STRATEGY} import PlacementGroupSchedulingStrategy
print(repr(ray_adapter.group_of(PlacementGroupSchedulingStrategy("rg0"))))
""",
        "program.py",
        how=(),
    )
    assert (code, out) == (0, "''")


CHILDREN = f"""
import multiprocessing, pickle, sys
from {STRATEGY} import PlacementGroupSchedulingStrategy

def child(strategy):
    import ray
    return ray.__name__, ray.group_of(strategy), type(strategy).__module__

if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, *pool.apply(child, (PlacementGroupSchedulingStrategy("rg0"),)))
"""


def test_children_of_each_start_method_unpickle_the_adapters_classes(run: Runner) -> None:
    said = run.says(CHILDREN)
    own = "ray_adapter rg0 ray_adapter.util.scheduling_strategies"
    assert said == f"spawn {own}\nfork {own}\nforkserver {own}"


def test_a_pickle_that_names_ray_is_read_in_a_fresh_subprocess(run: Runner) -> None:
    """Somebody may have pickled under Ray's name: a child reads it before any line of user code ran."""
    named = f"c{STRATEGY}\nPlacementGroupSchedulingStrategy\n.".encode()
    line = f"import pickle, sys; print(pickle.loads({named!r}).__module__, sys.modules['ray'].__name__)"
    said = run.says(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {line!r}], check=True)")
    assert said == "ray_adapter.util.scheduling_strategies ray_adapter"


def test_a_pickle_made_under_the_redirect_is_read_without_it(run: Runner) -> None:
    """It names the adapter: by Ray's name it would be a class of the real Ray there, or none."""
    line = "import pickle, sys; print(type(pickle.loads(bytes.fromhex(sys.argv[1]))).__module__, 'ray' in sys.modules)"
    said = run.says(f"""
import pickle, subprocess, sys
from {STRATEGY} import PlacementGroupSchedulingStrategy
data = pickle.dumps(PlacementGroupSchedulingStrategy("rg0"))
env = {{"PYTHONPATH": {str(ADAPTER)!r}}}
subprocess.run([sys.executable, "-c", {line!r}, data.hex()], env=env, check=True)
""")
    assert said == "ray_adapter.util.scheduling_strategies False"


OPTIONS = """
import ray
shared = ray.ActorClass()
one, two = shared.options(name="one", resources={"NPU": 1}), shared.options(name="two")
print(one.remote(), two.remote(), shared.remote(), one is two)
"""


def test_options_of_one_class_are_each_their_own(run: Runner) -> None:
    assert run.says(OPTIONS) == (
        "{'custom': {'NPU': 1}, 'name': 'one'} {'custom': {}, 'name': 'two'} {'custom': {}} False"
    )


def test_a_list_of_bundles_is_left_as_it_was_wherever_the_function_comes_from(run: Runner) -> None:
    said = run.says("""
import ray
from ray.util import placement_group
from ray.util.placement_group import placement_group as same
bundles = [{"CPU": 1}]
print(placement_group(bundles), same(bundles, strategy="SPREAD"), ray.util.placement_group is not None, bundles)
""")
    assert said == "('PACK', [{'CPU': 1000}]) ('SPREAD', [{'CPU': 1000}]) True [{'CPU': 1}]"


def test_the_adapter_alone_has_both_faults(run: Runner) -> None:
    code, out, _ = run(
        f"""
import sys, ray_adapter
sys.modules["ray"] = ray_adapter
{OPTIONS}
bundles = [{{"CPU": 1}}]
ray_adapter.util.placement_group(bundles)
print(bundles)
""",
        "program.py",
        how=(),
    )
    both = "{'custom': {'NPU': 1}, 'name': 'two'}"
    assert (code, out) == (0, f"{both} {both} {both} True\n[{{'CPU': 1000}}]")


def test_ray_that_is_loaded_already_is_refused(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("from ray import util")
    (tmp_path / "ray" / "util.py").write_text("")
    code, out, err = run(
        """
import ray
from dljob.compat.redirect import install
try:
    install("yr")
except RuntimeError as error:
    print(error)
print(ray.util.__name__)
""",
        "program.py",
        how=(),
    )
    assert (code, err) == (0, "")
    assert out.startswith("'ray' and 1 of its submodules is loaded in this process already, from ")
    assert str(tmp_path / "ray" / "__init__.py") in out
    assert out.endswith("before anything imports Ray\nray.util")


def test_a_module_the_adapter_lacks_is_refused_and_not_taken_from_a_real_ray(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise SystemExit('the real one')")
    (tmp_path / "ray" / "dag.py").write_text("raise SystemExit('the real one')")
    said = run.says("""
import ray
for line in (
    "import ray.dag", "import ray.util.queue", "from ray.experimental.state.api import get_actor", "ray.timeline()",
    "import ray.util.metrics", "ray.get_gpu_ids()", "ray.__version__", "from ray.exceptions import ActorDiedError",
):
    try:
        exec(line)
    except (ImportError, AttributeError) as error:
        print(getattr(error, "name", "") or "", "|", error)
print(hasattr(ray, "timeline"))
""").splitlines()
    assert said[0] == (
        "ray.dag | DISTRIBUTED_BACKEND=yr, so that `import ray.dag` means ray_adapter.dag, which is not there. "
        "ray_adapter has no such part of Ray: do without it, or unset DISTRIBUTED_BACKEND to use Ray"
    )
    assert [line.split(" |")[0] for line in said[1:3]] == ["ray.util.queue", "ray.experimental"]
    assert said[3] == "timeline | ray.timeline is not provided: here `ray` means ray_adapter, which has no 'timeline'"
    assert said[4].startswith("ray.util.metrics | DISTRIBUTED_BACKEND=yr, so that")
    assert [line.split(" |")[0] for line in said[5:7]] == ["get_gpu_ids", "__version__"]
    assert said[7].startswith(
        "ray_adapter.exceptions | cannot import name 'ActorDiedError' from 'ray_adapter.exceptions'"
    )
    assert said[8] == "False"


def test_without_the_adapter_importing_ray_says_what_to_install(run: Runner) -> None:
    run.env["PYTHONPATH"] = run.env["PYTHONPATH"].split(os.pathsep)[1]
    code, _, err = run("import ray", "program.py")
    assert code == 1
    assert "ModuleNotFoundError: DISTRIBUTED_BACKEND=yr, so that `import ray` means ray_adapter, which is not" in err
    assert "Install ray_adapter in" in err


@pytest.mark.parametrize("value", ["", "ray", " Ray "])
def test_ray_itself_is_left_alone(run: Runner, tmp_path: Path, value: str) -> None:
    run.env["DISTRIBUTED_BACKEND"] = value
    (tmp_path / "ray.py").write_text("mine = 1")
    assert run.says("import ray, os; print(ray.mine, 'site' in os.environ.get('PYTHONPATH', ''))") == "1 False"


def test_an_unknown_backend_is_an_error_that_says_which_there_are(run: Runner) -> None:
    run.env["DISTRIBUTED_BACKEND"] = "spark"
    code, out, err = run("print('ran')", "program.py")
    assert (code, out) == (2, "")
    assert err == (
        "python -m dljob.compat: DISTRIBUTED_BACKEND=spark is no backend for code that imports Ray; "
        "there are: ray, yr, yuanrong"
    )


CHILD = """
print("up")
import sys
sys.path.insert(0, sys.argv[1])
try:
    import ray
    print(ray.__name__)
except ImportError as error:
    print(error)
"""


def test_a_child_with_an_environment_of_its_own_has_its_own_backend(run: Runner, tmp_path: Path) -> None:
    """`ray` in a child is Ray there; a word nobody knows is refused at the import, and not before."""
    (tmp_path / "ray.py").write_text("__name__ = 'the real one'")
    said = run.says(f"""
import os, subprocess, sys
for value in ("ray", "spark", "yuanrong"):
    env = {{**os.environ, "DISTRIBUTED_BACKEND": value}}
    subprocess.run([sys.executable, "-c", {CHILD!r}, {str(tmp_path)!r}], env=env, check=True)
""")
    lines = said.splitlines()
    assert lines[::2] == ["up"] * 3
    assert lines[1::2] == ["the real one", f"import ray: {redirect.unknown('spark')}", "ray_adapter"]


def test_a_sitecustomize_of_others_runs_too(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs', flush=True)")
    run.env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    said = run.says("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import ray; print(ray.init())'])")
    assert said == "theirs\ntheirs\nadapter"


def test_modules_and_scripts_run_as_python_runs_them(run: Runner, tmp_path: Path) -> None:
    source = "import sys, beside; print(__name__, sys.argv, beside.x); sys.exit(3)"
    (tmp_path / "beside.py").write_text("x = 1")
    for args in (("program.py", "-m", "b"), ("-m", "program", "-m", "b")):
        code, out, err = run(source, *args)
        assert (code, err) == (3, "")
        assert out == f"__main__ ['{tmp_path / 'program.py'}', '-m', 'b'] 1"


@pytest.mark.parametrize("args", [(), ("-m",), ("-x",), ("absent.py",)])
def test_a_line_without_a_program_says_how_it_is_used(run: Runner, args: tuple[str, ...]) -> None:
    code, _, err = run("", *args)
    assert code == 2
    assert "usage: DISTRIBUTED_BACKEND=yr python -m dljob.compat SCRIPT.py" in err


def test_installing_twice_is_once_and_an_adapter_that_took_rays_place_is_no_ray(run: Runner) -> None:
    said = run.says("""
import sys, ray_adapter
sys.modules["ray"] = ray_adapter
from dljob.compat.redirect import install
install("yr"); install("yuanrong")
print(sum(hasattr(finder, "backend") for finder in sys.meta_path))
""")
    assert said == "1"


@pytest.mark.parametrize(
    ("adapter", "name", "of"),
    [("a", "a", True), ("a", "a.b", True), ("a", "ab", False), ("a", "ray", False), ("", "ray", False)],
)
def test_a_module_is_of_the_adapter_by_its_own_name(adapter: str, name: str, of: bool) -> None:
    assert redirect._of(adapter, ModuleType(name)) is of


def test_the_backends_have_the_names_that_jobs_know() -> None:
    assert redirect.ENVIRONMENT == ENVIRONMENT
    assert {ALIASES.get(name, name) for name in redirect.ADAPTERS} == {"yr"}


def test_the_environment_of_other_processes_names_backend_and_hook() -> None:
    made = redirect.environment("yr", {"PYTHONPATH": f"/a{os.pathsep}{redirect.SITE}"})
    assert made == {"DISTRIBUTED_BACKEND": "yr", "PYTHONPATH": f"{redirect.SITE}{os.pathsep}/a"}
    assert (Path(redirect.SITE) / "sitecustomize.py").is_file()
