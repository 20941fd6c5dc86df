"""The learning of examples/grpo-tiny without DLJob: it learns, and a restart recomputes the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")]

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo-tiny"
MODULES = ("task", "model", "grpo", "alone")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules, imported as its ranks import them: by their short names from its folder."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


def test_reward_is_the_share_of_digits_in_place(example: SimpleNamespace) -> None:
    assert example.task.reward([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert example.task.reward([1, 2, 3, 4], [1, 3, 2, 4]) == 0.5
    assert example.task.reward([1, 2, 3, 4], [4, 3, 2, 1]) == 0.0


def test_prompts_depend_on_iteration_and_rank_only(example: SimpleNamespace) -> None:
    prompts = example.task.prompts
    assert prompts(0, 3, 1, 8) == prompts(0, 3, 1, 8)
    assert prompts(0, 3, 1, 8) != prompts(0, 4, 1, 8)
    assert prompts(0, 3, 1, 8) != prompts(0, 3, 0, 8)
    assert {len(p) for p in prompts(0, 0, 0, 8)} == {4}


def test_policy_is_causal_and_of_the_size_it_says(example: SimpleNamespace) -> None:
    policy = example.model.Policy(0)
    assert sum(p.numel() for p in policy.parameters()) == 101_962
    tokens = torch.tensor([[1, 2, 3, 4, 10, 1, 2, 3]])
    later = tokens.clone()
    later[0, 6] = 9
    assert torch.allclose(policy(tokens)[:, :6], policy(later)[:, :6], atol=1e-6)
    assert not torch.allclose(policy(tokens)[:, 6:], policy(later)[:, 6:], atol=1e-3)


def test_sampled_logprobs_are_those_of_the_answers(example: SimpleNamespace) -> None:
    policy, prompts = example.model.Policy(0), torch.randint(10, (6, 4), generator=torch.Generator().manual_seed(1))
    answers, logprobs = example.model.sample(policy, prompts, torch.Generator().manual_seed(2))
    assert torch.allclose(example.model.answer_logprobs(policy, prompts, answers), logprobs, atol=1e-5)


def test_advantages_compare_within_a_group_only(example: SimpleNamespace) -> None:
    size = example.task.SAMPLES
    got = example.grpo.advantages(torch.tensor([1.0] * size + [0.0, 1.0] * (size // 2)))
    assert got[:size].abs().max() == 0
    assert got[size] < -0.9
    assert got[size + 1] > 0.9


def test_loss_gains_nothing_beyond_the_clip(example: SimpleNamespace) -> None:
    size, grpo = example.task.SAMPLES, example.grpo
    old = torch.zeros(size, 4)
    rewards = torch.tensor([1.0] + [0.0] * (size - 1))
    at_clip, beyond = old.clone(), old.clone()
    at_clip[0], beyond[0] = torch.tensor(1 + grpo.CLIP).log(), 1.0
    assert grpo.loss(at_clip, old, at_clip, rewards) < grpo.loss(old, old, old, rewards)
    assert torch.isclose(grpo.loss(beyond, old, beyond, rewards), grpo.loss(at_clip, old, at_clip, rewards))


@pytest.mark.slow
def test_grpo_tiny_learns_and_the_same_seed_learns_the_same(example: SimpleNamespace) -> None:
    history = example.alone.train(36)
    assert sum(history[:5]) / 5 < 0.15
    assert sum(history[-5:]) / 5 > 0.7
    assert example.alone.train(6) == history[:6]
