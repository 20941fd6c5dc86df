"""Language modelling by the Trainer of transformers: save every second step, resume from the last checkpoint.

torchrun --nproc-per-node=2 transformers_trainer.py FOLDER
"""

import sys
from pathlib import Path

import tiny
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


def main(folder: str) -> None:
    """Train for eight steps."""
    args = TrainingArguments(
        output_dir=folder,
        max_steps=8,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        seed=1,
        disable_tqdm=True,
    )
    words = tiny.tokenizer()
    rows = [words(tiny.text(number))["input_ids"] for number in range(64)]
    trainer = Trainer(
        model=tiny.model(),
        args=args,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        data_collator=DataCollatorForLanguageModeling(words, mlm=False),
        callbacks=[tiny.Watched()],
    )
    last = get_last_checkpoint(folder) if Path(folder).is_dir() else None  # the trainer of rank 0 makes the folder
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1])
