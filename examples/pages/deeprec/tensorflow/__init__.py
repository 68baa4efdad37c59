"""A stand-in for one command of DeepRec's: `python3 -m tensorflow.python.distribute.launch`."""

import sys

if sys.argv[0] != "-m":  # nothing else is here, and libraries ask whether TensorFlow is
    raise ImportError(
        "this folder has TensorFlow's launcher alone; a script takes shoal.CollectiveStrategy "
        "instead, as estimator_movielens.py does"
    )
