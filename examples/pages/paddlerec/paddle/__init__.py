"""A stand-in for one command of Paddle's: `python -m paddle.distributed.launch`."""
