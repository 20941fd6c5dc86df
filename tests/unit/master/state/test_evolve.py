"""A changed copy, and nothing else changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dljob.master.state.evolve import evolve
from dljob.master.state.state import RoleState


def test_a_copy_differs_only_in_what_was_named():
    old = RoleState(waiting=3, ready=2)
    assert evolve(old, ready=5) == replace(old, ready=5)
    assert old.ready == 2


def test_a_field_that_is_not_there_is_refused():
    with pytest.raises(TypeError, match="RoleState has no redy"):
        evolve(RoleState(waiting=1), redy=2)
