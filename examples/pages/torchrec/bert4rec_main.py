"""TorchRec's Bert4Rec example, by its own commands: BERT4Rec from that example's flags.

torchx run -s local_cwd dist.ddp -j 1x2 --script bert4rec_main.py -- --dataset_name random
torchrun --nproc_per_node 2 bert4rec_main.py --dataset_name random --mode ddp
python bert4rec_main.py --dataset_name random

Every flag of the example is honoured or refused by name, others have its defaults, and any key of
Shoal may stand beside them (docs/from/torchrec.md). It is the command
`shoal train --dialect=torchrec`.
"""

from __future__ import annotations

import sys

from shoal.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train", "--dialect=torchrec"]
    main()
