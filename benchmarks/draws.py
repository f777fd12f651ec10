"""Draw training and test rows of data sets for the benchmarks, and make a set of a million rows from others.

Test rows whose texts are among the training rows are left out, and at most 2,000 are drawn. Training rows are a random
sample in which every class or label occurs at least twice, if the data set has two such rows.

The official test rows of clinc150 are 18 % out of scope, the training rows 0.7 %. Only those in scope are used as test
rows, which is the usual "in-scope accuracy". The training rows keep theirs. clinc150_oos has all test rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import search

CLASSES, LABELS, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MAX_TEST_ROWS = 2_000
MILLION = "sentiment_1m"


@dataclass(frozen=True)
class DataSet:
    """A data set of the data directory."""

    problem_type: str = CLASSES
    pair: bool = False
    test: str = "test"
    """The split that the test rows are drawn from."""
    without: str | None = None
    """Class whose test rows are left out."""
    folder: str | None = None
    """Subdirectory of the data directory; by default the name."""


DATA_SETS = {
    "sst2": DataSet(test="dev"),
    "ag_news": DataSet(),
    "clinc150": DataSet(without="oos"),
    "clinc150_oos": DataSet(folder="clinc150"),
    "goemotions": DataSet(LABELS),
    "reuters90": DataSet(LABELS),
    "imdb": DataSet(),
    "stsb": DataSet(REGRESSION, pair=True),
    "mrpc": DataSet(pair=True),
    "cr": DataSet(),
    "subj": DataSet(),
    "mpqa": DataSet(),
    "rte": DataSet(pair=True, test="dev"),
    MILLION: DataSet(),
}
SEARCH_SETS = {f"search_{name}": name for name in search.TASKS}
"""The sets of benchmarks/search.py with its own draws, by the names they have here."""


@dataclass(frozen=True)
class Drawn:
    """Files of drawn rows, and the facts that are needed to use them."""

    train: Path
    test: Path
    problem_type: str
    pair: bool

    def options(self) -> list[str]:
        """Return the arguments of `headhunt search` that select these rows."""
        return [str(self.train), "--test", str(self.test), "--problem-type", self.problem_type]


def draw(name: str, data: Path, folder: Path, rows: int | None, test_rows: int = MAX_TEST_ROWS) -> Drawn:
    """Write the rows of a data set to files.

    Args:
        name: A name in DATA_SETS or SEARCH_SETS.
        data: Directory with a subdirectory per data set.
        folder: Directory for the files.
        rows: Number of training rows; None is all.
        test_rows: Number of test rows at most.
    """
    if name in SEARCH_SETS:
        task = SEARCH_SETS[name]
        words = search.draw(task, data, folder, rows or 500)
        return Drawn(Path(words[0]), Path(words[2]), CLASSES, task == "mrpc")
    chosen = DATA_SETS[name]
    columns = ["text", "text_b", "label"] if chosen.pair else ["text", "label"]
    if name == MILLION:
        train, test = make_million(data, rows or 1_000_000)
    else:
        source = data / (chosen.folder or name)
        train = pandas.read_parquet(source / "train.parquet")[columns]
        test = pandas.read_parquet(source / f"{chosen.test}.parquet")[columns]
        train = sample(train, rows, chosen.problem_type)
    seen = set(zip(*(train[column] for column in columns[:-1]), strict=True))
    unseen = [key not in seen for key in zip(*(test[column] for column in columns[:-1]), strict=True)]
    test = test[unseen]
    if chosen.without is not None:
        test = test[test.label != chosen.without]
    test = test.sample(min(test_rows, len(test)), random_state=0)
    drawn = Drawn(folder / f"{name}_train.parquet", folder / f"{name}_test.parquet", chosen.problem_type, chosen.pair)
    train.to_parquet(drawn.train, index=False)
    test.to_parquet(drawn.test, index=False)
    return drawn


def sample(frame: pandas.DataFrame, rows: int | None, problem_type: str, seed: int = 0) -> pandas.DataFrame:
    """Return a random sample of rows in which every class or label occurs at least twice, if it can."""
    if rows is None or rows >= len(frame):
        return frame
    order = np.random.default_rng(seed).permutation(len(frame))
    chosen: list[int] = []
    if problem_type != REGRESSION:
        counts: Counter[str] = Counter()
        for position in order:
            label = frame.label.iloc[position]
            labels = [label] if isinstance(label, str) else list(label)
            if any(counts[name] < 2 for name in labels):
                chosen.append(position)
                counts.update(labels)
    kept = set(chosen)
    chosen += [position for position in order if position not in kept]
    # Shuffled again, so that rare labels are not all at the beginning.
    return frame.iloc[np.random.default_rng(seed).permutation(chosen[:rows])]


def make_million(data: Path, rows: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return training rows with a positive or negative sentiment, made from three sets, and their real test rows.

    The first rows are the real training rows of SST-2, of customer reviews (CR) and of English tweets (UMSAB, without
    the neutral ones). Each further row joins two of them that have the same sentiment and the same source, so that its
    label is right. Both have a similar number of words: otherwise rows that share the longer text would count as
    near-duplicates. No two rows join the same texts. The test rows are not changed: SST-2's dev rows and the test rows
    of the other two.

    Args:
        data: Directory with a subdirectory per data set.
        rows: Number of training rows.
    """
    train, test = (
        pandas.concat([_sentiment(data, name, split) for name, split in sources], ignore_index=True)
        for sources in (
            (("sst2", "train"), ("cr", "train"), ("umsab_sentiment", "train")),
            (("sst2", "dev"), ("cr", "test"), ("umsab_sentiment", "test")),
        )
    )
    train = train.drop_duplicates("text", ignore_index=True)
    words = train.text.str.split().str.len()
    size = np.log2(words.clip(lower=1)).astype(int)
    group = train.groupby([train.source, train.label, size]).ngroup().to_numpy()
    members = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    rng = np.random.default_rng(0)
    # Twice as many as needed are drawn, because pairs that were drawn before are left out.
    first = rng.integers(0, len(train), 2 * max(0, rows - len(train)))
    second = members[starts[group[first]] + (rng.random(len(first)) * counts[group[first]]).astype(int)]
    keys = np.minimum(first, second) * len(train) + np.maximum(first, second)
    places = np.sort(np.unique(keys, return_index=True)[1])
    places = places[first[places] != second[places]]
    texts = train.text.to_numpy()
    joined = pandas.DataFrame(
        {
            "text": [f"{a} {b}" for a, b in zip(texts[first[places]], texts[second[places]], strict=True)],
            "label": train.label.to_numpy()[first[places]],
        }
    )
    train = train[["text", "label"]].sample(frac=1, random_state=0)
    complete = pandas.concat([train, joined], ignore_index=True).drop_duplicates("text").head(rows)
    return complete.sample(frac=1, random_state=0), test[["text", "label"]]


def _sentiment(data: Path, name: str, split: str) -> pandas.DataFrame:
    frame = pandas.read_parquet(data / name / f"{split}.parquet")
    if "lang" in frame:
        frame = frame[(frame.lang == "english") & (frame.label != "neutral")]
    return frame[["text", "label"]].assign(source=name)
