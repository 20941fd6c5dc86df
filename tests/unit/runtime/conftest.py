"""Makes the helper modules beside the tests importable."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "kits")]

if TYPE_CHECKING:
    from master_shell_kit import World

    from dljob.runtime.controller.master_loop import MasterLoop


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a path short enough for socket paths in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Yield a master's loop and all that it talks to, in memory; it looks at progress at once."""
    from master_shell_kit import World

    from dljob.runtime.controller import master_loop

    monkeypatch.setattr(master_loop, "PROGRESS_S", 0.01)
    yield (made := World(tmp_path))
    made.close()


@pytest.fixture
async def shell(world: World) -> MasterLoop:
    """Return the loop of a master in that world, which runs the job."""
    from master_shell_kit import running, until

    await until(running(master := world.master()))
    return master
