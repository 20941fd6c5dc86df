"""The engines of examples/fleet-tiny without DLJob: their numbers depend on weights, prompt and position alone."""

from __future__ import annotations

import json
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
MODULES = ("task", "model", "grpo", "engine")
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
def serving(example: SimpleNamespace, folder: Path, version: int = 1) -> Iterator[str]:
    """An engine in a thread, which loads weights as its host would order it; its URL."""
    engine = example.engine.Engine(folder / "made" / f"{version}")

    class Requests(example.engine.Requests):
        """Those of this engine."""

    Requests.engine = engine
    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(urllib.error.HTTPError) as without:
        post(f"{url}/v1/completions", {"prompt": [10], "max_tokens": 1})
    without.value.close()
    file = folder / f"{version}.safetensors"
    file.write_bytes(safetensors(example.model.Policy(version).state_dict()))
    post(f"{url}/load", {"version": version, "channels": {"policy": str(file)}})
    yield url
    server.shutdown()
    server.server_close()
    engine.made.close()


def post(url: str, body: Any) -> bytes:
    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:  # noqa: S310 - the engine of the test
        return answer.read()


def safetensors(state: dict[str, Any]) -> bytes:
    """The file that dljob writes of a published version."""
    header, data = dict[str, Any](), b""
    for name, tensor in state.items():
        raw = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tokens(url: str, received: list[int], count: int, seed: str = "7/0") -> list[tuple[int, float, int]]:
    """(token, log-probability, version) of each chunk of a stream, behind tokens that were received before."""
    body = {"prompt": [*QUESTION, 10, *received], "max_tokens": count, "seed": seed}
    events = [line[6:] for line in post(f"{url}/v1/completions", body).splitlines() if line]
    assert events.pop() == b"[DONE]"
    chunks = [json.loads(event) for event in events]
    return [(c["choices"][0]["token_ids"][0], c["choices"][0]["logprob"], c["weights_version"]) for c in chunks]


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


@pytest.mark.parametrize("after", [1, 5, 7])
def test_a_stream_that_goes_on_elsewhere_is_equal_to_an_undisturbed_one(
    example: SimpleNamespace, tmp_path: Path, after: int
) -> None:
    (tmp_path / "other").mkdir()
    with serving(example, tmp_path) as url, serving(example, tmp_path / "other") as other:
        whole = tokens(url, [], 8)
        begun = tokens(url, [], after)
        rest = tokens(other, [token for token, _, _ in begun], 8 - after)
    assert begun + rest == whole
    assert {version for _, _, version in whole} == {1}
    assert (tmp_path / "made" / "1").stat().st_size == 8 + after, "a byte for each token"


def test_newer_weights_are_used_from_the_next_request_on(example: SimpleNamespace, tmp_path: Path) -> None:
    with serving(example, tmp_path, version=2) as url:
        (first, *_) = tokens(url, [], 8)
        post(f"{url}/load", {"version": 3, "channels": {"policy": str(tmp_path / "2.safetensors")}})
        assert post(f"{url}/drain", {}) == b""
        with urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310 - the same
            assert answer.status == 200
        assert tokens(url, [], 1) == [(*first[:2], 3)]


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
