"""Which imports a script begins with, as its source says."""

from __future__ import annotations

from pathlib import Path

import pytest
from role_kit import role_plan

from dljob.runtime.process import preload
from dljob.spec.variables import PRELOAD

OWN = "import numpy\nfrom . import sibling\nWORDS = [f'w{n}' for n in range(60)]\n\ndef late():\n    import scipy\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import first\n")
    (tmp_path / "pkg" / "own.py").write_text(OWN)
    (tmp_path / "pkg" / "sibling.py").write_text("import second\nimport pkg.own\n")
    (tmp_path / "pkg" / "__main__.py").write_text("import fourth\n")
    (tmp_path / "sets.py").write_text("import os\nos.environ['HF_HOME'] = '/x'\n")
    return tmp_path


def names(code: Path, text: str) -> list[str]:
    (code / "train.py").write_text(text)
    return [".".join((name, *taken)) for name, taken in preload.leading("train.py", code)]


def test_imports_of_own_files_are_followed_in_the_order_of_their_execution(code):
    said = '"""A script."""\nfrom __future__ import annotations\nimport sys, dljob\nimport torch.nn as nn, trl\n'
    said += "from pkg import own\nfrom trl import SFTConfig, SFTTrainer\nfrom wild import *\n"
    assert names(code, said) == [
        *("torch.nn", "trl", "first", "numpy", "second"),
        *("trl.SFTConfig.SFTTrainer", "wild"),
    ]


@pytest.mark.parametrize(
    "between",
    [
        *("import os\nos.environ['HF_HOME'] = '/x'", "import os\nos.environ.setdefault('A', 'b')", "_ = load_dotenv()"),
        *("import sets", "import sys\nsys.path.insert(0, 'x')", "import broken", "for each in (): pass", "f()()"),
        *("if later():\n    import some", "a.b = 1", "x: int = start()", "assert setup()", "x = f()()"),
    ],
)
def test_nothing_is_listed_behind_a_statement_that_does_something_else(code, between):
    (code / "broken.py").write_text("import (\n")
    assert names(code, f"import a\n{between}\nimport b\n") == ["a"]


@pytest.mark.parametrize(
    "between",
    [
        *("log = logging.getLogger(__name__)", "HERE = Path(__file__).parent", "x, y = 1, 2", "x: int = 3", "pass"),
        *("class A(B):\n    pass", "def f():\n    g()", "async def f():\n    g()", "if TYPE_CHECKING:\n    import c"),
        *("if __name__ == '__main__':\n    main()", "try:\n    pass\nexcept ImportError:\n    g()", "'a text'"),
    ],
)
def test_statements_that_change_nothing_for_an_import_may_stand_between(code, between):
    assert names(code, f"import a\n{between}\nimport b\n") == ["a", "b"]


def test_an_import_that_may_fail_counts_and_its_handler_does_not(code):
    assert names(code, "try:\n    import a\nexcept ImportError:\n    import b\nelse:\n    import c\n") == ["a", "c"]


def test_a_module_is_found_with_its_packages_and_a_package_by_its_main(code):
    assert preload.leading("pkg.own", code) == (("first", ()), ("numpy", ()), ("second", ()))
    assert preload.leading("pkg", code) == (("first", ()), ("fourth", ()))
    assert preload.leading("not_there", code) == preload.leading("not_there.py", code) == ()


def test_too_many_files_are_not_read(code, monkeypatch):
    monkeypatch.setattr(preload, "FILES", 2)
    assert names(code, "import a\nimport pkg.own\nimport b\n") == ["a", "first"]


def test_the_fork_server_of_a_role_gets_the_imports_of_its_script(code):
    (code / "train.py").write_text("import torch\nimport trl\n")
    role = role_plan("w", ("module", "train.py"))
    imports = (("torch", ()), ("trl", ()))
    assert preload.of(role, str(code)) == preload.Preload(("torch",), imports, str(code), "train.py", str(code))
    assert preload.of(role_plan("w", ("module", "train.py"), env=((PRELOAD, "0"),)), str(code)) == (
        preload.Preload(("torch",))
    )
    assert preload.of(role_plan("w", ("command", "python", "train.py")), str(code)) == preload.Preload()
    elsewhere = preload.of(role_plan("w", ("module", "pkg/__main__.py")), str(code))
    assert (elsewhere.first, elsewhere.imports) == (str(code / "pkg"), (("fourth", ()),))
