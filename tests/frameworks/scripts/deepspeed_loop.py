"""A loop with DeepSpeed's engine: ZeRO stage 1, `save_checkpoint` every second step, `load_checkpoint` at start.

torchrun --nproc-per-node=2 deepspeed_loop.py FOLDER
"""

import sys

import deepspeed
import tiny
import torch

STEPS = 8
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main(folder: str) -> None:
    """Train for eight steps."""
    deepspeed.init_distributed("gloo")
    words, rank, ranks = tiny.tokenizer(), torch.distributed.get_rank(), torch.distributed.get_world_size()
    network = tiny.model()
    engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=CONFIG)
    engine.load_checkpoint(folder)
    tiny.note("begun", str(engine.global_steps))
    while engine.global_steps < STEPS:
        row = (engine.global_steps * ranks + rank) * 2
        batch = torch.tensor([words(tiny.text(row + more))["input_ids"] for more in range(2)])
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach()
        torch.distributed.all_reduce(mean)
        tiny.end_of_step(engine.global_steps)
        torch.distributed.barrier()
        tiny.note_loss(engine.global_steps, mean.item() / ranks)
        if engine.global_steps % 2 == 0:
            engine.save_checkpoint(folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
