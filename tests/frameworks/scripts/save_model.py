"""Save the tiny model and its tokenizer: save_model.py FOLDER [HIDDEN]."""

import sys

import tiny

if __name__ == "__main__":
    network = tiny.model(*map(int, sys.argv[2:]))
    network.generation_config.eos_token_id = None  # answers have their full length
    network.save_pretrained(sys.argv[1])
    tiny.tokenizer().save_pretrained(sys.argv[1])
