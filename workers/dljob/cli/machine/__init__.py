"""`dljob doctor` on this machine: `facts` gathers facts, `checks` judges them."""
