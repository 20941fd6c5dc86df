"""What the scripts of this folder share: a tiny model with random weights, its tokenizer, data, and faults.

Nothing is downloaded, and nothing here knows dljob. `FAULTS=kill:3:1,stop:5:0` makes rank 1 kill itself at the end of
step 3, once, and stops rank 0 by SIGSTOP at step 5; `wait` makes a rank wait there until it is ended, `hold` until the
folder NOTES has a file `go`, and `fail` is an error in each life. In that folder are a file for each fault that was
done, the losses, when each step ended, and the steps with which rank 0 began.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 64 words."""
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **names)


def model(hidden: int = 32) -> LlamaForCausalLM:
    """Return a Llama of two layers, the same in every rank and life."""
    transformers.set_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 128}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=64, num_attention_heads=4, num_key_value_heads=2, **sizes, **special)
    ).to(torch.float32)


def text(number: int, length: int = 16) -> str:
    """Return a sentence; another one for each number."""
    return " ".join(WORDS[(number * 7 + position * (number % 5 + 1)) % len(WORDS)] for position in range(length))


def end_of_step(step: int) -> None:
    """Do what FAULTS asks at the end of this step, in the rank that it names, each once."""
    note("steps", f"{step} {time.time()}")
    for fault in filter(None, os.environ.get("FAULTS", "").split(",")):
        kind, at, rank = fault.split(":")
        mark = Path(os.environ["NOTES"], fault)
        if step != int(at) or os.environ.get("RANK", "0") != rank or (mark.exists() and kind != "fail"):
            continue
        mark.touch()
        if kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[kind])
        elif kind == "fail":
            raise RuntimeError(f"an error of step {step}, in each life")
        elif kind == "hold":
            while not mark.with_name("go").exists():
                time.sleep(0.05)
        else:
            signal.pause()  # its peers wait in the next step


def note(file: str, line: str) -> None:
    """Add a line to a file, in rank 0."""
    if os.environ.get("RANK", "0") == "0":
        with Path(os.environ["NOTES"], file).open("a") as out:
            out.write(line + "\n")


def note_loss(step: int, loss: float) -> None:
    """Keep the loss of a step."""
    note("losses.jsonl", json.dumps([step, loss]))


class Watched(TrainerCallback):
    """The callback of transformers' Trainer that keeps losses and does the fault."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the step from which this life goes on."""
        note("begun", str(state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Keep the loss of a step."""
        if logs and "loss" in logs:
            note_loss(state.global_step, logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Do the fault before the step is saved."""
        end_of_step(state.global_step)
