"""The manifest of a corpus: the model, files and options of a job, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from headhunt.data.columns import Columns
from headhunt.data.inputs import Input, name_input
from headhunt.data.problems import brief, count, quote_some
from headhunt.delivery.corpus.output import OutputDirectory
from headhunt.errors import HeadhuntError
from headhunt.run.schema import load

SCHEMA = 1
MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"  # readers of Parquet folders skip names with an underscore


@dataclass(frozen=True)
class Options:
    """The options that decide the content of the shards."""

    text: str | None
    text_b: str | None
    keep: tuple[str, ...] | None
    probabilities: bool
    shard_rows: int


@dataclass(frozen=True)
class Summary:
    """The result of labelling a corpus."""

    out: str
    rows: int = 0
    labelled: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    """Number of rows without a label, by problem."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that were not read to their end, with the reason."""
    shards: int = 0
    earlier: int = 0
    """Rows that an earlier job had labelled."""
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """True if every row of every file was read."""
        return not self.unreadable


@dataclass(frozen=True)
class Manifest:
    """The content of `_manifest.json`."""

    model_folder: str
    model_fingerprint: str
    problem_type: str
    labels: tuple[str, ...]
    options: Options
    root: str
    """Root of the filesystem of the input, without its options."""
    files: tuple[Input, ...]
    columns: Columns
    rows: dict[str, int]
    """Number of rows of each readable file, by path."""
    unreadable: dict[str, str]
    """Reasons why the other files cannot be read, by path."""
    result: Summary | None = None

    @classmethod
    def read(cls, output: OutputDirectory) -> Manifest:
        """Read the manifest of an output directory.

        Raises:
            HeadhuntError: If it is damaged or of another version.
        """
        try:
            data = dict(output.read_json(MANIFEST))
            schema = data.pop("schema", None)
            if schema == SCHEMA:
                return load(cls, data)
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
            reason = brief(error)
            raise HeadhuntError(f"{output.url}/{MANIFEST} cannot be read: {reason}. Give a new folder.") from None
        raise HeadhuntError(
            f"{output.url}/{MANIFEST} must have schema {SCHEMA}; found {schema}, of another version. Give a new folder."
        )

    def write(self, output: OutputDirectory) -> None:
        """Write the manifest into an output directory."""
        output.write_json(MANIFEST, {"schema": SCHEMA, **asdict(self)})

    def check_same(
        self, output: OutputDirectory, fingerprint: str, root: str, files: Sequence[Input], options: Options
    ) -> None:
        """Check that another job into the same directory has the same model, files and options.

        Raises:
            HeadhuntError: If it differs.
        """
        differences = []
        if self.model_fingerprint != fingerprint:
            differences.append(f"the model differs ({self.model_folder} was used)")
        for option in fields(Options):
            before, now = getattr(self.options, option.name), getattr(options, option.name)
            if before != now:
                differences.append(f"{option.name}= was {_plain(before)!r} and is {_plain(now)!r}")
        differences += _compare_files(root, self.files, files)
        if differences:
            raise HeadhuntError(
                f"must be a new folder, or one of the same job; in {output.url} {'; '.join(differences)}. "
                "Give another folder, or the same model, files and options.",
                "out",
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _compare_files(root: str, before: Sequence[Input], now: Sequence[Input]) -> list[str]:
    """Describe files that were added, removed or changed."""
    old, new = ({file.path: file for file in files} for files in (before, now))
    changes = (
        ("added", new.keys() - old.keys()),
        ("removed", old.keys() - new.keys()),
        ("changed", {path for path in new.keys() & old.keys() if new[path] != old[path]}),
    )
    descriptions = []
    for change, paths in changes:
        if paths:
            listed = quote_some([name_input(root, path).rpartition("/")[2] for path in sorted(paths)], 3)
            descriptions.append(f"{count(len(paths), 'input file')} {change} ({listed})")
    return descriptions
