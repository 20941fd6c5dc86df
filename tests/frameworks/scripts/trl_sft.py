"""Supervised fine-tuning by TRL, as its documentation has it: save every second step, resume from the last checkpoint.

torchrun --nproc-per-node=2 trl_sft.py FOLDER
"""

import sys
from pathlib import Path

import tiny
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer


def main(folder: str) -> None:
    """Train for eight steps."""
    args = SFTConfig(
        output_dir=folder,
        max_steps=8,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        max_length=32,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=1,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"text": [tiny.text(number) for number in range(64)]})
    trainer = SFTTrainer(
        model=tiny.model(),
        args=args,
        train_dataset=data,
        processing_class=tiny.tokenizer(),
        callbacks=[tiny.Watched()],
    )
    last = get_last_checkpoint(folder) if Path(folder).is_dir() else None  # the trainer of rank 0 makes the folder
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1])
