"""Codes of new items by frozen codebooks: whether old ones stay, and collisions before and after.

    python benchmarks/appended_codes.py beauty.item_attributes.json.xz

The file (JSON, also as .xz) says item -> numbers of its attributes; vectors are these as zeros and
ones. One in a hundred items gets its codes by `shoal codes append` behind the others.
"""

import argparse
import json
import lzma
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.data.item_codes import read_codes
from shoal.models.nn.codebooks import Method
from shoal.runs.semantic_ids import append_codes, make_codes, vectors_of_file


def multi_hot(file: Path) -> tuple[list[str], np.ndarray]:
    """Items, and their attributes as zeros and ones."""
    data = file.read_bytes()
    attributes = json.loads(lzma.decompress(data) if file.suffix == ".xz" else data)
    numbers = sorted({one for own in attributes.values() for one in own})
    place = {number: k for k, number in enumerate(numbers)}
    vectors = np.zeros((len(attributes), len(numbers)), np.float16)
    for row, own in enumerate(attributes.values()):
        vectors[row, [place[one] for one in own]] = 1
    return list(attributes), vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="item -> numbers of attributes")
    parser.add_argument("--methods", nargs="+", default=list(get_args(Method)))
    parser.add_argument("--steps", type=int, default=300, help="of the RQ-VAE")
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    items, vectors = multi_hot(args.file)
    order = np.random.default_rng(0).permutation(len(items))
    new, old = order[: len(items) // 100], order[len(items) // 100 :]
    print("python benchmarks/appended_codes.py", *sys.argv[1:])
    print(f"{len(items):,} items, {vectors.shape[1]:,} attributes; {len(new)} items are appended\n")
    print(
        "| method | codes used | evenness | neighbours kept | collisions | with 1 % more "
        "| old codes changed | seconds |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {}
        for key, rows in (("old", old), ("new", new)):
            files[key] = folder / f"{key}.npz"
            np.savez(files[key], ids=np.array(items)[rows], vectors=vectors[rows])
        for method in args.methods:
            start = time.monotonic()
            known, rows = vectors_of_file(files["old"], "item_id")
            made = make_codes(
                known,
                rows,
                folder / "a.json",
                method=method,
                steps=args.steps,
                size=args.size,
            )
            seconds = time.monotonic() - start
            after = append_codes(folder / "a.json", files["new"], folder / "b.json", "item_id")
            first, second = (read_codes(folder / f"{one}.json").codes for one in "ab")
            changed = sum(second[item] != codes for item, codes in first.items())
            levels = made["levels"]
            cells = [
                method,
                " ".join(f"{one['used'] / args.size:.0%}" for one in levels),
                " ".join(f"{one['effective'] / one['used']:.0%}" for one in levels),
                " ".join(f"{one:.0%}" for one in made["neighbours"]),
                f"{1 - made['unique']:.2%}",
                f"{1 - after['unique']:.2%}",
                str(changed),
                f"{seconds:.0f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
