"""`python -m paddle.distributed.launch --gpus 0,1 tools/trainer.py -m config.yaml`: the command
`shoal train` of the same words.
"""

from __future__ import annotations

import sys

from shoal.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
