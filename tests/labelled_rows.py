"""Labelled rows, and functions that write them to files."""

import csv
import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq

ADJECTIVES = ["warm", "cold", "loud", "quiet", "bright", "dim", "sweet", "sour", "rough", "smooth"]
NOUNS = ["kettle", "garden", "engine", "violin", "harbour", "blanket", "teacher", "window"]


def make_rows(count=80, labels=("bad", "fine", "good")):
    rows = []
    for at in range(count):
        first, second = ADJECTIVES[at % 10], NOUNS[at // 10 % 8]
        rows.append((f"The {second}, {first} as {chr(97 + at % 26) * 3}, said “hello {at}”", labels[at % len(labels)]))
    return rows


ROWS = make_rows()
TEXTS, LABELS = [row[0] for row in ROWS], [row[1] for row in ROWS]


def write_csv(path, rows, header=("text", "label"), delimiter=",", **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, delimiter=delimiter, **options).writerows([header, *rows])
    return path


def write_jsonl(path, rows, names=("text", "label")):
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def write_sources(folder):
    table = pa.table({"text": TEXTS, "label": LABELS})
    pq.write_table(table, folder / "a.parquet")
    pyarrow.feather.write_feather(table, folder / "a.feather")
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    write_csv(folder / "a.csv", ROWS)
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    write_jsonl(folder / "a.jsonl", ROWS)
    (folder / "a.json").write_text(json.dumps([{"text": text, "label": label} for text, label in ROWS]))
    return {
        "csv": folder / "a.csv",
        "csv as str": str(folder / "a.csv"),
        "csv.gz": folder / "a.csv.gz",
        "crlf and quotes": write_csv(folder / "b.csv", ROWS, lineterminator="\r\n", quoting=csv.QUOTE_ALL),
        "bom": write_csv(folder / "c.csv", ROWS, encoding="utf-8-sig"),
        "semicolons": write_csv(folder / "d.csv", ROWS, delimiter=";"),
        "tabs in csv": write_csv(folder / "e.csv", ROWS, delimiter="\t"),
        "tsv": write_csv(folder / "a.tsv", ROWS, delimiter="\t"),
        "bare tsv": write_csv(folder / "b.tsv", ROWS, delimiter="\t", quoting=csv.QUOTE_NONE),
        "jsonl": folder / "a.jsonl",
        "json": folder / "a.json",
        "parquet": folder / "a.parquet",
        "feather": folder / "a.feather",
        "arrow": folder / "a.arrow",
        "table": table,
        "chunked table": pa.concat_tables([table.slice(0, 30), table.slice(30)]),
        "categories": pa.table({"text": TEXTS, "label": pa.array(LABELS).dictionary_encode()}),
        "dict": {"text": TEXTS, "label": LABELS},
        "dict of arrays": {"text": np.array(TEXTS), "label": np.array(LABELS, dtype=object)},
        "lists": (TEXTS, LABELS),
        "tuples": ROWS,
        "objects": [{"text": text, "label": label} for text, label in ROWS],
        "split": {"train": ROWS},
    }


def repeat_some(rows):
    """Add a variant of every fifth text: other case and punctuation."""
    return [*rows, *((text.upper().replace(",", " -- "), label) for text, label in rows[::5])]
