"""The project's own fuzzer: wire, files, configs and the native core. `make fuzz` runs it.

__main__.py   starts the children, counts, and watches their time and memory
child.py      one child: input after input, each a function of (seed, target, number)
mutate.py     how an input is made of a sound one
target.py     sound inputs, and what reads one
files.py      targets: every data format, checkpoints, manifests, caches, configs
runs.py       targets: files that a run leaves, and that are given to a trained one
peers.py      targets: journals, answers of servers, the rendezvous, requests to the HTTP service
folders.py    targets: artifacts and prepared folders, whose checksums are right
core.py       target: every function that the native core exports
operators.py  target: every operator that the graph of an artifact may call
frames.py     target: messages (messages.py) to a live parameter server
corpus/       inputs that once found something; they are tried first
"""

import sys
from pathlib import Path

# What tests share; a child of the fuzzer is started without pytest.
sys.path += [str(Path(__file__).parents[1] / name) for name in ("helpers", "ps")]
