"""Save the tiny model, its tokenizer, and prompts for verl: save_prompts.py FOLDER."""

import sys
from pathlib import Path

import pandas
import tiny

PROMPTS = 16

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    network = tiny.model()
    network.save_pretrained(folder / "model")
    tiny.tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "words",
            "prompt": [{"role": "user", "content": tiny.text(number, 6)}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number in range(PROMPTS)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "prompts.parquet")
