"""BERT4Rec on Goodreads, from config.toml, after preprocessing.py.

torchx run -s local_cwd dist.ddp -j 1x2 --script train.py
torchrun --nproc_per_node 2 train.py --n_epochs=1
python train.py --model_parallel=false

It is the command `shoal train config.toml`; its keys and any of Shoal's may be given besides.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train", str(Path(__file__).parent / "config.toml")]
    main()
