"""The standby of PrimeMaster: whether there is one, where it runs, and what `dljob plan` says of it."""

from __future__ import annotations

import pytest

from dljob.spec.cluster import Master
from dljob.spec.standing import StandbyMode, choose_standby, preview_standby, standby_node


@pytest.mark.parametrize(
    ("mode", "machines", "wanted", "why"),
    [
        ("Auto", 1, False, "one machine"),
        ("Auto", 2, True, "2 machines"),
        ("Always", 1, True, "Always"),
        ("Never", 9, False, "Ray alone"),
    ],
)
def test_a_standby_is_made_by_mode_and_number_of_machines(mode: StandbyMode, machines: int, wanted: bool, why: str):
    choice = choose_standby(mode, machines)
    assert (choice.is_wanted, why in choice.reason) == (wanted, True)


def test_the_plan_of_a_job_says_what_standby_it_has():
    assert "two machines or more" in preview_standby("Auto")
    assert preview_standby("Always") == "Always"


def test_a_job_has_a_standby_only_where_its_file_says_so():
    assert Master().standby == "Never"


@pytest.mark.parametrize(
    ("others", "shared", "node"),
    [(("b", "c"), True, "b"), (("b",), False, "a"), ((), True, "a")],
)
def test_only_a_shared_journal_lets_the_standby_live_elsewhere(others: tuple[str, ...], shared: bool, node: str):
    assert standby_node("a", others, shared=shared) == node
