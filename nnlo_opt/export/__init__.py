"""Runs in the files of other tools: tables, Optuna, TensorBoard, MLflow, Weights & Biases."""
