"""A loop of one's own with accelerate: `save_state` every second step, `load_state` and `skip_first_batches` at start.

torchrun --nproc-per-node=2 accelerate_loop.py FOLDER
"""

import sys
from pathlib import Path

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader

STEPS = 8


class Progress:
    """The step, as accelerate saves objects of one's own."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        """Return what is saved."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over what was saved."""
        self.step = state["step"]


def main(folder: str) -> None:
    """Train for eight steps."""
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=project)
    set_seed(1)
    words, progress = tiny.tokenizer(), Progress()
    rows = [torch.tensor(words(tiny.text(number))["input_ids"]) for number in range(64)]
    network = tiny.model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    data = DataLoader(rows, batch_size=2, shuffle=True)
    network, optimizer, data = accelerator.prepare(network, optimizer, data)
    accelerator.register_for_checkpointing(progress)
    saved = sorted(Path(folder, "checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
    if saved:
        accelerator.load_state(str(saved[-1]))
        project.iteration = int(saved[-1].name.split("_")[1]) + 1
    tiny.note("begun", str(progress.step))
    for batch in accelerator.skip_first_batches(data, progress.step):
        loss = network(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        progress.step += 1
        mean = accelerator.gather(loss.detach()).mean().item()
        tiny.end_of_step(progress.step)
        accelerator.wait_for_everyone()
        tiny.note_loss(progress.step, mean)
        if progress.step % 2 == 0:
            accelerator.save_state()
        if progress.step == STEPS:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
