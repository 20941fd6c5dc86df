"""The engines of examples/fleet-tiny without DLJob: their numbers depend on weights, prompt and position alone."""

from __future__ import annotations

import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")]

EXAMPLE = Path(__file__).parents[3] / "examples" / "fleet-tiny"
MODULES = ("task", "model", "grpo", "engine", "stream")
QUESTION = [3, 1, 4, 1]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules, imported as its ranks import them: by their short names from its folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


@contextmanager
def serving(example: SimpleNamespace, folder: Path, *, dies_after: int = -1, version: int = 1) -> Iterator[Any]:
    """An engine in a thread, which may drop its connection after some tokens."""
    engine = example.engine.Engine(0, folder / "made" / f"{version}-{dies_after}")
    engine.held = version, example.model.Policy(version)

    class Requests(example.engine.Requests):
        left = dies_after

        def _part(self, data: bytes) -> None:
            if not type(self).left:
                self.connection.close()
                raise BrokenPipeError
            type(self).left -= 1
            super()._part(data)

    Requests.engine = engine
    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield SimpleNamespace(role="engine", rank=version, engine=engine, address=f"127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    engine.made.close()


class Engines:
    """The endpoints of the role, in the order in which they are picked."""

    def __init__(self, *engines: Any) -> None:
        self.engines = list(engines)

    @contextmanager
    def using(self, *, without: list[Any]) -> Iterator[Any]:
        """The first that was not lost."""
        yield next(one for one in self.engines if one not in without)

    def changes(self, *, timeout: float) -> Iterator[list[Any]]:
        """They never change."""
        yield self.engines


def decoded(example: SimpleNamespace, tokens: list[int], policy: Any) -> Any:
    """The numbers after each of some tokens, read as an engine reads them."""
    decoder = example.model.Decoder(policy)
    return [decoder.read(token) for token in tokens]


def test_decoding_gives_the_numbers_of_the_trainer(example: SimpleNamespace) -> None:
    policy = example.model.Policy(0)
    assert sum(p.numel() for p in policy.parameters()) == 102_218
    tokens = example.model.sequence(QUESTION, [1, 2, 3, 4, 5, 6, 7])
    together = policy(torch.tensor([tokens]))[0]
    assert torch.allclose(torch.stack(decoded(example, tokens, policy)), together, atol=1e-5)


def test_the_numbers_depend_neither_on_prefill_nor_on_other_requests(example: SimpleNamespace) -> None:
    policy, tokens = example.model.Policy(0), example.model.sequence(QUESTION, [1, 2, 3, 4])
    alone = decoded(example, tokens, policy)
    # As an engine that made the last digits itself, between tokens of another request.
    ours, theirs = example.model.Decoder(policy), example.model.Decoder(policy)
    between = [(ours.read(token), theirs.read(other)) for token, other in zip(tokens, [9] * 9, strict=True)]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(decoded(example, tokens, policy))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Bit by bit: a sampled token must not change because the engine had other work.
    for numbers in ([own for own, _ in between], *found):
        assert all(torch.equal(one, other) for one, other in zip(alone, numbers, strict=True))
    assert not torch.equal(alone[-1], between[-1][1])


def test_a_random_number_belongs_to_a_position(example: SimpleNamespace) -> None:
    chance = example.task.chance
    assert chance("7/0", 3) == chance("7/0", 3) != chance("7/0", 4)
    drawn = [example.model.draw(torch.log(torch.full((10,), 0.1)), "7", position)[0] for position in range(2000)]
    assert all(150 < drawn.count(digit) < 250 for digit in range(10))


@pytest.mark.parametrize("after", [0, 1, 5, 8])
def test_a_stream_that_lost_its_engine_is_equal_to_an_undisturbed_one(
    example: SimpleNamespace, tmp_path: Path, after: int
) -> None:
    with serving(example, tmp_path) as engine, serving(example, tmp_path, dies_after=after) as dies:
        whole, none = example.stream.ask(Engines(engine), QUESTION, "7/0")
        resumed, lost = example.stream.ask(Engines(dies, engine), QUESTION, "7/0")
    assert (none, lost) == (0, 1)
    assert (resumed.tokens, resumed.logprobs) == (whole.tokens, whole.logprobs)
    assert len(whole.tokens) == example.task.LENGTH


def test_each_segment_tells_its_version(example: SimpleNamespace, tmp_path: Path) -> None:
    with serving(example, tmp_path, version=2) as newer, serving(example, tmp_path, dies_after=3) as dies:
        answer, _ = example.stream.ask(Engines(dies, newer), QUESTION, "7/0")
    assert [(part.engine, part.version, part.count) for part in answer.segments] == [
        ("engine/1", 1, 3),
        ("engine/2", 2, 5),
    ]
    made = {file.name: file.stat().st_size for file in (tmp_path / "made").iterdir()}
    assert made == {"1-3": 4, "2--1": 5}, "one token was made that nobody received"


def test_an_engine_without_weights_is_not_ready(example: SimpleNamespace, tmp_path: Path) -> None:
    with serving(example, tmp_path) as engine:
        assert urllib.request.urlopen(f"http://{engine.address}/health").status == 200
        assert urllib.request.urlopen(f"http://{engine.address}/drain", data=b"").status == 200
        engine.engine.held = None
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{engine.address}/health")
        caught.value.close()
    assert caught.value.code == 503


def test_training_on_answers_of_older_weights_makes_good_ones_likelier(example: SimpleNamespace) -> None:
    task, policy = example.task, example.model.Policy(0)
    good, bad = QUESTION * 2, [9] * 8
    old = example.model.answer_logprobs(policy, torch.tensor([QUESTION] * 2), torch.tensor([good, bad])).tolist()
    answers = [task.Answer(good, old[0])] * 4 + [task.Answer(bad, old[1])] * 4
    optimizer = torch.optim.AdamW(policy.parameters(), example.grpo.LEARNING_RATE)
    rewards = [[task.reward(QUESTION, answer.tokens) for answer in answers]]
    assert rewards == [[1.0] * 4 + [0.0] * 4]
    example.grpo.update(policy, optimizer, [task.Group(0, QUESTION, answers)], rewards)
    new = example.model.answer_logprobs(policy, torch.tensor([QUESTION]), torch.tensor([good]))
    assert new.sum() > sum(old[0])
