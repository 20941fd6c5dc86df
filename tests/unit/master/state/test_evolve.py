"""A changed copy, and nothing else changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dljob.master.state.evolve import evolve
from dljob.master.state.state import RoleState


def test_a_copy_differs_only_in_what_was_named():
    old = RoleState(waiting_count=3, ready_count=2)
    assert evolve(old, ready_count=5) == replace(old, ready_count=5)
    assert old.ready_count == 2


def test_a_field_that_is_not_there_is_refused():
    with pytest.raises(TypeError, match="RoleState has no redy"):
        evolve(RoleState(waiting_count=1), redy=2)
