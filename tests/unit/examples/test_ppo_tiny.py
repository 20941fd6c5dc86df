"""The learning of examples/ppo-tiny without DLJob, and the job that its main.py builds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.api.job import DLJob
from dljob.plan.plan import plan
from dljob.spec.loading.load import load_file

EXAMPLE = Path(__file__).parents[3] / "examples" / "ppo-tiny"
TORCH = ("model", "ppo", "alone")
PLAIN = ("task", "main")


def imported(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    for name in (*PLAIN, *TORCH):
        sys.modules.pop(name, None)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules that need no torch, imported as its ranks import them."""
    yield from imported(monkeypatch, PLAIN)


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Those that do."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    for found in imported(monkeypatch, ("task", *TORCH)):
        found.torch = torch
        yield found
    torch.set_num_threads(threads)


def test_the_file_is_the_job_that_main_builds(plain: SimpleNamespace) -> None:
    built = plain.main.build(plain.main.arguments([])).manifest("ppo-tiny")
    assert built == load_file(EXAMPLE / "dljob.yaml")


def test_a_dry_run_prints_the_job_and_submits_nothing(
    plain: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[str] = []
    monkeypatch.setattr(DLJob, "submit", lambda _job, name: submitted.append(name))
    plain.main.main(["--dry-run", "--no-skip-node-check", "--init-kl-coef", "0"])
    roles = {role["name"]: role for role in json.loads(capsys.readouterr().out)["spec"]["roles"]}
    assert sorted(roles) == ["actor", "critic", "reward", "rollout", "trainer"], "no reference: nothing is paid for it"
    assert roles["actor"]["comm"] == {"backend": "gloo"}, "its nodes are checked as the backend wants it"
    assert submitted == []
    plain.main.main(["--job-name", "mine"])
    assert json.loads(capsys.readouterr().out)["spec"]["roles"][1]["comm"]["preCheck"] is False
    assert submitted == ["mine"]


def test_shares_of_0_4_put_eight_ranks_on_four_devices(plain: SimpleNamespace) -> None:
    made = plan(plain.main.build(plain.main.arguments([])).manifest("ppo-tiny"))
    assert {name: role.accelerator for name, role in made.roles.items()} == {
        "trainer": None,
        **dict.fromkeys(("actor", "critic", "rollout", "reference", "reward"), ("GPU", 4_000)),
    }
    assert made.place("actor", 0).unit == made.place("critic", 0).unit
    assert made.place("actor", 0).bundle == made.place("critic", 0).bundle, "one device for both"
    assert dict(made.node_groups["workers"].resources)["GPU"] == 40_000


def test_score_is_the_share_of_digits_said_backwards(plain: SimpleNamespace) -> None:
    assert plain.task.score([1, 2, 3, 4], [4, 3, 2, 1]) == 1.0
    assert plain.task.score([1, 2, 3, 4], [4, 3, 1, 2]) == 0.5


def test_gae_of_a_perfect_critic_is_nothing_and_of_none_the_discounted_reward(plain: SimpleNamespace) -> None:
    assert plain.task.gae([0.0, 0.0, 1.0], [1.0, 1.0, 1.0]) == pytest.approx([0, 0, 0])
    smooth = plain.task.SMOOTHING
    assert plain.task.gae([0.0, 0.0, 1.0], [0.0, 0.0, 0.0]) == pytest.approx([smooth**2, smooth, 1])


def test_straying_costs_at_each_digit_and_the_score_comes_with_the_last(plain: SimpleNamespace) -> None:
    assert plain.task.judged([-1.0, -1.0], [-2.0, -1.0], 0.5, 0.1) == pytest.approx([-0.1, 0.5])


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_the_net_reads_no_digit_before_it_is_said(learning: SimpleNamespace) -> None:
    torch, net = learning.torch, learning.model.policy(0)
    prompts, answers = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 3, 2, 1]])
    later = answers.clone()
    later[0, 2] = 9
    assert torch.equal(net(prompts, answers)[:, :3], net(prompts, later)[:, :3])
    assert not torch.equal(net(prompts, answers)[:, 3], net(prompts, later)[:, 3])


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_the_policy_gains_nothing_beyond_the_clip(learning: SimpleNamespace) -> None:
    torch, ppo = learning.torch, learning.ppo
    old, advantages = torch.zeros(2, 4), torch.tensor([[1.0] * 4, [0.0] * 4])
    at_clip, beyond = old.clone(), old.clone()
    at_clip[0], beyond[0] = torch.tensor(1 + ppo.CLIP).log(), 1.0
    assert ppo.policy_loss(at_clip, old, advantages) < ppo.policy_loss(old, old, advantages)
    assert torch.isclose(ppo.policy_loss(beyond, old, advantages), ppo.policy_loss(at_clip, old, advantages))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_ppo_tiny_learns_and_the_same_seed_learns_the_same(learning: SimpleNamespace) -> None:
    history = learning.alone.train(30)
    assert sum(history[:5]) / 5 < 0.15
    assert sum(history[-5:]) / 5 > 0.6
    assert learning.alone.train(4) == history[:4]
