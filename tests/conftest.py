"""For all tests: one thread each, so that a busy machine slows them down and no more."""

import torch

torch.set_num_threads(1)
