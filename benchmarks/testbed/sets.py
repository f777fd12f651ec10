"""The data sets of the testbed: which rows they have and how they are drawn.

None of them is a set that the scoreboard uses. Every pair of cs224n_sts is also in stsb, a set of the scoreboard, so
numbers are made from two other sets: the sentiment of tweets (-1, 0, 1) and the entailment of pairs (0, 0.5, 1).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

sys.path.append(str(Path(__file__).parents[1]))
from draws import CLASSES, LABELS, REGRESSION, sample

SCOREBOARD = ("mr", "sst2", "sst5", "cs224n_sst5", "ag_news", "stsb", "trec6", "mrpc", "cola", "banking77")
"""Data sets that must never be in the testbed; cs224n_sts is a part of stsb."""
MAX_TEST_ROWS = 1_000
FEW_SPECS = 17  # logistic regression, which is one of them, is only for classes
INTENTS = 30
SENTIMENT = {"negative": -1.0, "neutral": 0.0, "positive": 1.0}
ENTAILMENT = {"contradiction": 0.0, "neutral": 0.5, "entailment": 1.0}


@dataclass(frozen=True)
class TuningSet:
    """A data set of the testbed."""

    folder: str
    """Directory of the data set in the data directory."""
    problem_type: str = CLASSES
    pair: bool = False
    rows: int = 500
    test: str = "test"
    """The split that the test rows are drawn from."""
    specs: int | None = None
    """Number of specs that are trained on it, the first of the list; None is all."""
    language: str | None = None
    """Value of the column `lang`; None takes all rows."""
    intents: int | None = None
    """Number of classes that are kept, drawn at random; None keeps all."""
    numbers: Mapping[str, float] | None = None
    """Number of each class, for regression."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are used."""
        return ["text", "text_b", "label"] if self.pair else ["text", "label"]


SETS = {
    "subj": TuningSet("subj"),
    "cr": TuningSet("cr"),
    "mpqa": TuningSet("mpqa"),
    "umsab_en": TuningSet("umsab_sentiment", language="english"),
    "clinc30": TuningSet("clinc150", intents=INTENTS),
    "rte": TuningSet("rte", pair=True, test="dev"),
    "subj_2000": TuningSet("subj", rows=2_000, specs=FEW_SPECS),
    "mpqa_2000": TuningSet("mpqa", rows=2_000, specs=FEW_SPECS),
    "clinc30_2000": TuningSet("clinc150", intents=INTENTS, rows=2_000, specs=FEW_SPECS),
    "goemotions": TuningSet("goemotions", LABELS, specs=FEW_SPECS),
    "umsab_number": TuningSet("umsab_sentiment", REGRESSION, language="english", numbers=SENTIMENT, specs=FEW_SPECS),
    "mnli_number": TuningSet("mnli", REGRESSION, pair=True, test="dev", numbers=ENTAILMENT, specs=FEW_SPECS),
}
"""The sets by name. Sets with all specs are the main ones."""


@dataclass(frozen=True)
class DrawnSet:
    """Files of drawn rows."""

    train: Path
    test: Path
    fingerprint: str
    """Hash of all drawn rows."""


def draw_set(chosen: TuningSet, data: Path, folder: Path, rows: int | None = None, test_rows: int = 0) -> DrawnSet:
    """Write the training and test rows of a set to files.

    Args:
        chosen: The set.
        data: Directory with a subdirectory per data set.
        folder: Directory for the files.
        rows: Number of training rows; by default that of the set.
        test_rows: Largest number of test rows; 0 is MAX_TEST_ROWS.
    """
    train, test = (_read(chosen, data / chosen.folder / f"{split}.parquet") for split in ("train", chosen.test))
    train = sample(train, rows or chosen.rows, chosen.problem_type)
    texts = chosen.columns[:-1]
    seen = set(zip(*(train[column] for column in texts), strict=True))
    test = test[[key not in seen for key in zip(*(test[column] for column in texts), strict=True)]]
    test = test.drop_duplicates(texts)
    test = test.sample(min(test_rows or MAX_TEST_ROWS, len(test)), random_state=0)
    drawn = DrawnSet(folder / "train.parquet", folder / "test.parquet", fingerprint(train, test))
    folder.mkdir(parents=True, exist_ok=True)
    train.to_parquet(drawn.train, index=False)
    test.to_parquet(drawn.test, index=False)
    return drawn


def fingerprint(*frames: pandas.DataFrame) -> str:
    """Return a hash of the texts and labels of data frames, in order."""
    digest = hashlib.sha256()
    for frame in frames:
        for row in frame.itertuples(index=False):
            values = [list(value) if isinstance(value, np.ndarray) else value for value in row]
            digest.update(repr(values).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _read(chosen: TuningSet, path: Path) -> pandas.DataFrame:
    """Return the rows of a split that belong to a set."""
    if chosen.folder in SCOREBOARD or chosen.folder == "cs224n_sts":
        raise ValueError(f"The testbed must be kept apart from the scoreboard; found {chosen.folder}.")
    frame = pandas.read_parquet(path)
    if chosen.language is not None:
        frame = frame[frame.lang == chosen.language]
    if chosen.intents is not None:
        names = np.array(sorted(set(frame.label) - {"oos"}))
        kept = np.random.default_rng(0).permutation(names)[: chosen.intents]
        frame = frame[frame.label.isin(kept)]
    if chosen.numbers is not None:
        frame = frame.assign(label=frame.label.map(chosen.numbers))
    return frame[chosen.columns].reset_index(drop=True)
