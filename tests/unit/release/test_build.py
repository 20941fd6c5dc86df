"""What `make dist` builds; tests/ray/cli/test_dist.py installs it, tests/kube/node/test_chart_node.py the chart."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import build
import pytest
from build import BuildError

FOLDERS = ("workers/", "operator/")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels that were built from the sdist."""
    return build.packages(tmp_path_factory.mktemp("dist"))[1:]


def tracked(root: Path) -> set[str]:
    """The files of the product that git keeps, or would; as they stand below the folder of their package."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    done = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True)
    names = {name.split("/", 1)[1] for name in done.stdout.splitlines() if (root / name).is_file()}
    return {name for name in names if name.startswith("dljob")}


def test_each_file_of_the_product_is_in_one_wheel_and_no_other_file_is(root: Path, wheels: list[Path]) -> None:
    names: list[str] = []
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names += [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(tracked(root))
    assert {"dljob/py.typed", "dljob_operator/py.typed"} <= {*names}
    page = {Path(name).suffix for name in names if name.startswith("dljob/report/assets/")}
    assert {".html", ".css", ".js"} <= page


def test_the_wheels_of_the_tree_are_the_wheels_of_the_sdist(root: Path, wheels: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    for path, place in zip(wheels, build.WHEELS.values(), strict=True):
        build._run(command, "", root / place)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_part_that_fails_says_what_was_run_and_what_it_said() -> None:
    with pytest.raises(BuildError, match=r"^sbom: `git nonsense` ended with 1: git: 'nonsense' is not a git command"):
        build._run(["git", "nonsense"], "sbom")


def test_the_bill_of_materials_is_the_lock_of_what_is_installed(root: Path, tmp_path: Path) -> None:
    (path,) = build.sbom(tmp_path)
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "dljob"
    locked = {(one["name"], one["version"]) for one in tomllib.loads((root / "uv.lock").read_text())["package"]}
    listed = {(one["name"], one["version"]) for one in bill["components"]}
    assert listed <= locked
    names = {name for name, _ in listed}
    assert {"ray", "kopf", "kubernetes", "pydantic"} <= names
    assert not {"torch", "pytest", "ruff"} & names
    others = [one for one in bill["components"] if one["name"] not in ("dljob-operator", "dljob-tools")]
    assert all(file["hashes"] for one in others for file in one["externalReferences"])


def test_an_image_gets_the_name_that_the_chart_gives_it(tmp_path: Path) -> None:
    names = {"org.opencontainers.image.ref.name": "a:dev", "io.containerd.image.name": "a:dev"}
    index = {"schemaVersion": 2, "manifests": [{"digest": "sha256:1", "annotations": names}]}
    old, new = tmp_path / "old.tar", tmp_path / "new.tar"
    with tarfile.open(old, "w") as tar:
        for name, data in (("index.json", json.dumps(index).encode()), ("blobs/sha256/1", b"blob")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    build.rename(old, new, "dljob/operator:1.2.3")
    with tarfile.open(new) as tar:
        (manifest,) = json.load(tar.extractfile("index.json"))["manifests"]  # type: ignore[arg-type]
        assert manifest == {"digest": "sha256:1", "annotations": dict.fromkeys(names, "dljob/operator:1.2.3")}
        assert tar.extractfile("blobs/sha256/1").read() == b"blob"  # type: ignore[union-attr]


def test_the_parts_are_made_and_summed_and_what_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def good(folder: Path) -> list[Path]:
        (folder / "dljob-1.txt").write_text("one")
        return [folder / "dljob-1.txt"]

    def bad(_: Path) -> list[Path]:
        raise BuildError("images: building images takes root")

    monkeypatch.setattr(build, "PARTS", {"python": good, "images": bad})
    (tmp_path / "dljob-0.whl").write_text("of the release before")
    assert build.main([], tmp_path) == 3
    assert capsys.readouterr().err == "not built: images: building images takes root\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", "dljob-1.txt"]
    assert (tmp_path / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'one').hexdigest()}  dljob-1.txt\n"
    assert build.main(["python"], tmp_path) == 0


def test_an_unknown_part_of_a_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["wheel"], tmp_path) == 2
    assert capsys.readouterr().err == "unknown part wheel: there are python, chart, images, sbom\n"
