"""The environments of the frameworks, and their scripts in it, under dljob and under torchrun alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kits")]

from environment import NotToBeHadError, make  # noqa: E402 - found by the path above
from scenes import Scene  # noqa: E402


@pytest.fixture(scope="session")
def framework_python() -> Path:
    """Return the Python of the environment; skips what asks for it where there is none."""
    return made("environment")


def made(name: str) -> Path:
    """Return the Python of an environment; skips where it cannot be had."""
    try:
        return make(name)
    except NotToBeHadError as error:
        pytest.skip(str(error))


@pytest.fixture
def deepspeed_scene(tmp_path: Path) -> Scene:
    """Return a folder in which scripts run in the environment of DeepSpeed."""
    return Scene(made("deepspeed"), tmp_path)


@pytest.fixture
def vllm_scene(tmp_path: Path) -> Scene:
    """Return a folder in which scripts run in the environment of vLLM."""
    return Scene(made("vllm"), tmp_path)


@pytest.fixture
def verl_scene(tmp_path: Path) -> Scene:
    """Return a folder in which scripts run in the environment of verl."""
    return Scene(made("verl"), tmp_path)


@pytest.fixture
def scene(framework_python: Path, tmp_path: Path) -> Scene:
    """Return a folder in which scripts run in that environment."""
    return Scene(framework_python, tmp_path)
