"""Write scikit-learn's handwritten digits as Parquet: 1,437 to train on and 360 held out.

    python prepare.py OUT      # OUT/train/digits.parquet and OUT/held-out/digits.parquet

They are real data (UCI's optical recognition of handwritten digits, 1998) that the package ships, so
nothing is downloaded. Publish them as two datasets: what is held out is then a version of its own.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

HELD_OUT = 360


def main(out: Path) -> None:
    digits = load_digits()
    pixels = digits.data.astype(np.float32) / 16  # 8 x 8 pixels, 0 to 1
    order = np.random.default_rng(0).permutation(len(pixels))
    for name, rows in (("train", order[HELD_OUT:]), ("held-out", order[:HELD_OUT])):
        table = pa.table(
            {
                "pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels[rows].ravel()), 64),
                "digit": pa.array(digits.target[rows].astype(np.int64)),
            }
        )
        path = out / name / "digits.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        print(f"{path}: {len(rows)} digits")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
