"""Metric sinks: TensorBoard, W&B, MLflow and packages of others, in a process of their own that PrimeMaster starts.

In reading order: `sink` has what a package implements, `feeding` gives each sink its rows, `process` is the program.
`tensorboard_sink`, `wandb_sink` and `mlflow_sink` are sinks. No other room imports this one (docs/adr/0079).
"""
