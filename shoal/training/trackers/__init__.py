"""Who follows a run besides its folder: TensorBoard, MLflow, Weights & Biases, or a class."""
