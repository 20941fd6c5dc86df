"""`dljob doctor` on this machine: `facts` gathers facts, of divided GPUs by `gpu_modes`; `checks` judges them."""
