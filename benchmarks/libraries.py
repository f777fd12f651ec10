"""Measure the speed and results of Headhunt's folds and near-duplicates, compared with scikit-learn and datasketch.

`python benchmarks/libraries.py --data DIR` reads `DIR/sst2/train.parquet`, which has short texts in the columns `text`
and `label`. It prints the figures as one line of JSON at the end. `--quick` uses 5,000 rows.
"""

import argparse
import datetime
import json
import os
import platform
import re
import time
import zlib
from collections import defaultdict
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH
from sklearn.model_selection import StratifiedGroupKFold

from headhunt.data.duplicates import MIN_SIMILARITY, TextColumns, compute_sketches, group_duplicates
from headhunt.data.sources import Rows
from headhunt.data.splitting import assign_folds

_FOLDS = 5
_BANDS, _PER_BAND = 4, 4  # as in headhunt.data.duplicates


def group_with_headhunt(rows: Rows) -> np.ndarray:
    """Group near-duplicates with Headhunt."""
    return group_duplicates([TextColumns(rows, ["text"], compute_sketches(rows, ["text"]))])[0]


def group_with_datasketch(rows: Rows) -> np.ndarray:
    """Group near-duplicates with the same shingles, bands and similarity, and a fast hash function."""
    texts = rows.table["text"].to_pylist()
    words = [re.findall(r"[^\W_]+", re.sub(r"\d+", "0", text.lower())) for text in texts]
    shingles = [{" ".join(pair) for pair in pairwise(row)} or set(row) for row in words]
    signatures = MinHash.bulk(
        [[shingle.encode() for shingle in row] for row in shingles],
        num_perm=_BANDS * _PER_BAND,
        hashfunc=zlib.crc32,
    )
    index = MinHashLSH(num_perm=_BANDS * _PER_BAND, params=(_BANDS, _PER_BAND))
    parents = list(range(len(texts)))

    def find(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for at, signature in enumerate(signatures):
        for other in index.query(signature):
            union = len(shingles[at] | shingles[other])
            if union and len(shingles[at] & shingles[other]) / union >= MIN_SIMILARITY:
                low, high = sorted((find(at), find(other)))
                parents[high] = low
        index.insert(at, signature)
    return np.array([find(at) for at in range(len(texts))])


def compare_duplicates(rows: Rows) -> dict:
    """Return time, groups and grouped rows of both libraries."""
    figures: dict = {"rows": len(rows), "bands": _BANDS, "rows_per_band": _PER_BAND, "similarity": MIN_SIMILARITY}
    members = {}
    for name, group in (("headhunt", group_with_headhunt), ("datasketch", group_with_datasketch)):
        started = time.perf_counter()
        groups = group(rows)
        seconds = time.perf_counter() - started
        by_group = defaultdict(list)
        for row, number in enumerate(groups.tolist()):
            by_group[number].append(row)
        members[name] = {row for rows_of_group in by_group.values() if len(rows_of_group) > 1 for row in rows_of_group}
        figures[name] = {"seconds": round(seconds, 2), "groups": len(by_group), "grouped_rows": len(members[name])}
    figures["grouped_by_both"] = len(members["headhunt"] & members["datasketch"])
    return figures


def compare_folds(strata: np.ndarray, groups: np.ndarray) -> dict:
    """Return time and balance of the folds of both libraries, and the fraction of rows in the same fold."""
    figures: dict = {"rows": len(strata), "groups": len(np.unique(groups)), "folds": _FOLDS}
    started = time.perf_counter()
    headhunt_folds = assign_folds(strata, groups, _FOLDS, 0)
    figures["headhunt"] = {
        "seconds": round(time.perf_counter() - started, 3),
        **_measure_balance(strata, headhunt_folds),
    }
    started = time.perf_counter()
    sklearn_folds = np.zeros(len(strata), np.int64)
    splitter = StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=0)
    for number, (_, held_out) in enumerate(splitter.split(strata, strata, groups)):
        sklearn_folds[held_out] = number
    figures["sklearn"] = {"seconds": round(time.perf_counter() - started, 3), **_measure_balance(strata, sklearn_folds)}
    figures["same_fold"] = round(float((headhunt_folds == sklearn_folds).mean()), 3)
    return figures


def _measure_balance(strata: np.ndarray, folds: np.ndarray) -> dict[str, float]:
    """Return the largest difference from equal folds: in rows, and in rows of one class."""
    classes = np.stack([np.bincount(strata[folds == fold], minlength=strata.max() + 1) for fold in range(_FOLDS)])
    sizes = classes.sum(1)
    return {
        "rows_off": round(float(np.abs(sizes - sizes.mean()).max()), 1),
        "rows_of_class_off": round(float(np.abs(classes - classes.mean(0)).max()), 1),
    }


def main() -> None:
    """Parse the command line, compare and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="directory with sst2/train.parquet")
    parser.add_argument("--quick", action="store_true", help="use 5,000 rows")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    table = pq.read_table(args.data / "sst2" / "train.parquet", columns=["text", "label"])
    texts = Rows("sst2", table.slice(0, 5_000 if args.quick else 60_000))
    labelled = Rows("sst2", table.slice(0, 5_000 if args.quick else 50_000))
    strata = np.unique(labelled.table["label"].to_numpy(), return_inverse=True)[1].reshape(-1)
    report = {
        "near_duplicates": compare_duplicates(texts),
        "folds": compare_folds(strata, group_with_headhunt(labelled)),
        "command": f"python benchmarks/libraries.py --data DIR{' --quick' if args.quick else ''}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scikit-learn", "datasketch")},
            "cores": os.cpu_count(),
        },
        "load_average": round(os.getloadavg()[0], 1),  # other work on the machine makes the seconds larger
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
