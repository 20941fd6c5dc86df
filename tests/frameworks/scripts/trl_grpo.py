"""GRPO by TRL, whose completions transformers generates: save every second step, resume from the last checkpoint.

torchrun --nproc-per-node=2 trl_grpo.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import tiny
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer


def reward(completions: list[str], **_: Any) -> list[float]:
    """Return the share of even words."""
    even = {word for number, word in enumerate(tiny.WORDS) if number % 2 == 0}
    return [sum(word in even for word in text.split()) / 8 for text in completions]


def main(folder: str) -> None:
    """Train for eight steps."""
    args = GRPOConfig(
        output_dir=folder,
        use_vllm=False,
        max_steps=8,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=1,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=tiny.model(),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": tiny.text(number, 6)} for number in range(64)]),
        processing_class=tiny.tokenizer(),
        callbacks=[tiny.Watched()],
    )
    last = get_last_checkpoint(folder) if Path(folder).is_dir() else None  # the trainer of rank 0 makes the folder
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1])
