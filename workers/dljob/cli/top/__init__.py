"""`dljob top`: `picture` computes the lines, `feed` asks for news in a thread, `screen` owns the terminal."""
