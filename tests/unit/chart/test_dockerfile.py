"""What can be said of the images without building them; tests/kube/node/test_chart_node.py runs them."""

from __future__ import annotations

import re

from chart_kit import ROOT

from dljob.runtime.job.init_container import NOT_IN_PODS

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage -> its instructions, continued lines joined, the FROM among them."""
    found: dict[str, list[tuple[str, str]]] = {}
    at: list[tuple[str, str]] = []
    lines = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            at = found[rest.split(" AS ")[1]] = []
        if word:
            at.append((word, rest))
    return found


def test_packages_come_from_the_lock_by_hash() -> None:
    for target in ("operator", "runtime"):
        (install,) = [rest for word, rest in stages()[f"{target}-packages"] if word == "RUN"]
        assert f"--only-binary :all: --no-deps --require-hashes -r /{target}.txt" in install


def test_the_operator_image_has_neither_ray_nor_torch_nor_packages_of_the_command() -> None:
    (export,) = [rest for word, rest in stages()["requirements"] if word == "RUN"]
    operator, runtime = (part for part in export.split("$export")[1:])
    assert operator.split()[:2] == ["--extra", "operator"]
    assert "torch" not in operator
    assert set(re.findall(r"--prune (\S+)", operator)) == NOT_IN_PODS  # and with them what they alone require
    assert runtime.split()[:2] == ["--extra", "runtime"]


def test_the_image_uses_the_uv_version_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", makefile, re.MULTILINE)
    assert f" uv=={version} " in TEXT


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for made in stages().values()
        for word, rest in made
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert "*" in ignored
    assert {source for source in copied if source.partition("/")[0] not in kept} == set()
    assert kept <= copied
    assert all((ROOT / name).exists() for name in kept)
