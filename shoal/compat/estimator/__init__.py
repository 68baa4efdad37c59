"""CollectiveStrategy and Estimator: programs as people write them for DeepRec and TensorFlow."""
