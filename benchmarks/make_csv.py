"""Write a CSV file of synthetic labelled texts: `python benchmarks/make_csv.py reviews.csv --rows 1000000`.

The texts resemble short reviews. Word frequencies follow Zipf's law, and lengths are log-normal. Classes share most of
their words. As in scraped data, some rows repeat others exactly or with an additional word.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LABELS = ("delivery", "food", "price", "quality", "service")
_COMMON = """the a and of to in is it was for with on that this but not very we they had have were so at as my be there
all our from place good great food service time really would back just like out up one if about get when which more"""
_SPECIAL = {
    "delivery": "late early parcel courier box tracking arrived shipped packaging doorstep driver damaged",
    "food": "tasty soup bland fresh dessert spicy salad menu portion chicken noodles coffee",
    "price": "cheap expensive refund discount value bill charged overpriced bargain cost deal fee",
    "quality": "broken sturdy material stitching flimsy durable finish scratched leather solid faulty cracked",
    "service": "waiter rude friendly helpful manager queue ignored staff polite attentive answered waited",
}
_ONSETS = "b c d f g h l m n p r s t v st tr ch"
_BLOCK = 20_000


def make_vocabulary(random: np.random.Generator, size: int = 20_000) -> np.ndarray:
    """Return common English words, followed by invented words."""
    syllables = [onset + vowel for onset in _ONSETS.split() for vowel in "aeiou"]
    invented = {"".join(random.choice(syllables, random.integers(2, 5))) for _ in range(size)}
    common = _COMMON.split()
    return np.array(common + sorted(invented - set(common)), dtype=object)


def generate_texts(rows: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (text, label). Random numbers are drawn for a block of rows at a time."""
    random = np.random.default_rng(seed)
    words = make_vocabulary(random)
    weights = 1 / (np.arange(len(words)) + 2.7)
    special = [_SPECIAL[label].split() for label in LABELS]
    text = label = ""
    cumulative = np.cumsum(weights / weights.sum())
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        lengths = np.clip(random.lognormal(3.1, 0.5, count), 4, 200).astype(int)
        drawn = words[np.searchsorted(cumulative, random.random(lengths.sum()))].tolist()
        classes = random.choice(len(LABELS), count, p=(0.1, 0.3, 0.15, 0.2, 0.25))
        choices = random.integers(0, 12, (count, 3))
        repeats = random.random(count)
        at = 0
        for row in range(count):
            own = drawn[at : at + lengths[row]]
            at += lengths[row]
            own[1:1] = [special[classes[row]][choice] for choice in choices[row]]
            if repeats[row] < 0.01 and text:
                yield text, label
                continue
            if repeats[row] < 0.02 and text:
                yield f"{text} {own[0]}", label
                continue
            half = len(own) // 2
            text = f"{' '.join(own[:half]).capitalize()}, {' '.join(own[half:])}{'!' if repeats[row] > 0.9 else '.'}"
            if repeats[row] > 0.97:
                text = f'They said "{own[0]}": {text}'
            label = LABELS[classes[row]]
            yield text, label


def write_csv(path: Path, rows: int, seed: int = 0) -> None:
    """Write the file, row by row."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "text", "label"))
        writer.writerows((number, *row) for number, row in enumerate(generate_texts(rows, seed)))


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    args = parser.parse_args()
    write_csv(args.path, args.rows, args.seed)


if __name__ == "__main__":
    main()
