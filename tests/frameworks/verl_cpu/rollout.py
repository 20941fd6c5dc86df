"""The rollout `transformers`: each replica is one actor, worker and server in one, with a model of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM, StoppingCriteria
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator


class Aborted(StoppingCriteria):
    """Ends a generation after its next token, when the weights are to change."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Whether each sequence is to end."""
        return torch.full((input_ids.shape[0],), self.asked.is_set())


class TransformersRollout(BaseRollout):
    """A model of transformers that makes tokens from tokens."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any = None) -> None:
        super().__init__(config, model_config, device_mesh)
        self.model = AutoModelForCausalLM.from_config(self.model_config.hf_config).eval()
        self.global_steps: int | None = None
        self.aborted = Aborted()

    async def resume(self, tags: list[str]) -> None:
        """Nothing to do: no memory was released."""

    async def release(self) -> None:
        """Nothing to do: the weights stay."""

    async def update_weights(
        self, weights: AsyncIterator[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Take over the weights of a step."""
        self.model.load_state_dict({name: weight async for name, weight in ensure_async_iterator(weights)})
        self.global_steps = global_steps

    @torch.no_grad()
    def generate(self, prompt_ids: list[int], params: dict[str, Any]) -> TokenOutput:
        """Make tokens until the end of the sequence, the limit, or an abort."""
        temperature = params["temperature"]
        sampling = {"temperature": temperature, "top_p": params["top_p"], "top_k": max(params["top_k"], 0)}
        made = self.model.generate(
            torch.tensor([prompt_ids]),
            max_new_tokens=params.get("max_tokens", self.config.response_length),
            do_sample=bool(temperature),
            stopping_criteria=[self.aborted],
            return_dict_in_generate=True,
            output_scores=True,
            **(sampling if temperature else {}),
        )
        tokens = made.sequences[0, len(prompt_ids) :]
        scores = torch.stack([score[0] for score in made.scores]).log_softmax(-1)
        return TokenOutput(
            token_ids=tokens.tolist(),
            log_probs=scores.gather(-1, tokens[:, None])[:, 0].tolist() if params["logprobs"] else None,
            stop_reason="aborted" if self.aborted.asked.is_set() else "completed",
            extra_fields={"global_steps": self.global_steps},
        )


class TransformersServer(CheckpointEngineWorker):
    """The actor of a replica: it takes weights as verl's checkpoint worker does, and answers verl's client."""

    def __init__(self, rollout_config: Any, model_config: Any) -> None:
        super().__init__(rollout_config, model_config, TransformersRollout(rollout_config, model_config))
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.free = asyncio.Lock()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Answer verl's client, one request at a time."""
        async with self.free:
            await self.resumed.wait()
            return await asyncio.to_thread(self.server_adapter.generate, prompt_ids, sampling_params)

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Let the running request return what it has, and hold the others."""
        self.resumed.clear()
        self.server_adapter.aborted.asked.set()

    async def resume_generation(self) -> None:
        """Go on with them."""
        self.server_adapter.aborted.asked.clear()
        self.resumed.set()

    async def sleep(self) -> None:
        """Nothing to do: no memory is released."""

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = sleep


class TransformersReplica(RolloutReplica):
    """One rollout server."""

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        """Return the actor that is worker and server in one."""
        server = ray.remote(TransformersServer)
        return RayClassWithInitArgs(server, rollout_config=self.config, model_config=self.model_config)

    async def launch_servers(self) -> None:
        """The workers are the servers."""
        self.servers = self.workers
        self._server_handle = self.workers[0]
        self._server_address = f"transformers_{self.replica_rank}"
