"""The script by the path that the page of TorchRec's example has in its command to reproduce.

torchx run -s local_cwd dist.ddp -j 1x8 --script bert4rec_folder/bert4rec_main.py -- ...

It runs the file of the same name in the folder above.
"""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":
    script = Path(__file__).resolve().parents[1] / "bert4rec_main.py"
    runpy.run_path(str(script), run_name="__main__")
