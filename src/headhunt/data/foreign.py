"""Read sources of other programs: workbooks, databases, data sets of the Hugging Face Hub, and annotation tools."""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from headhunt.data.problems import Problems, brief, quote, quote_some

SQL_URL = re.compile(r"(sqlite|postgresql|mysql|mariadb|oracle|mssql)(\+\w+)?://")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]*[\w-]")
Columns = dict[str, list[Any]]


def read_excel(path: Path, where: str, problems: Problems) -> Columns:
    """Return the columns of the first sheet of a workbook. Its first row that is not empty is the header."""
    openpyxl = _load("openpyxl", "excel", where, problems)
    with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
        rows = [row for row in book.worksheets[0].iter_rows(values_only=True) if any(cell is not None for cell in row)]
    header = [None if name is None else str(name).strip() for name in rows[0]] if rows else []
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(header) if name}


def read_sqlite(path: Path, where: str, problems: Problems) -> Columns:
    """Return the columns of the only table of an SQLite file."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        tables = [name for (name,) in found]
        if len(tables) != 1:
            remedy = f"Give one as sqlite:///{path}#TABLE"
            raise problems.add(where, f"a database must have one table; found {quote_some(tables) or 'none'}", remedy)
        rows = connection.execute('SELECT * FROM "{}"'.format(tables[0].replace('"', '""')))  # noqa: S608 - quoted
        return _to_columns([name for name, *_ in rows.description], rows)


READERS = {
    ".xlsx": read_excel,
    ".xlsm": read_excel,
    ".sqlite": read_sqlite,
    ".sqlite3": read_sqlite,
    ".db": read_sqlite,
}
"""Readers by the suffix of a file."""


def read_url(url: str, where: str, problems: Problems) -> Columns:
    """Return the columns of a table or query, `URL#TABLE` or `URL#SELECT …`, of any database that SQLAlchemy knows."""
    sqlalchemy = _load("sqlalchemy", "sql", where, problems)
    url, _, wanted = url.partition("#")
    try:
        engine = sqlalchemy.create_engine(url)
        with closing(engine.connect()) as connection:
            if " " not in wanted:
                names = sqlalchemy.inspect(engine).get_table_names() if not wanted else [wanted]
                if len(names) != 1:
                    what = f"a database must have one table; found {quote_some(sorted(names)) or 'none'}"
                    raise problems.add(where, what, "Add #TABLE or #SELECT … to the URL")
                quoted = map(engine.dialect.identifier_preparer.quote, names[0].split("."))
                wanted = f"SELECT * FROM {'.'.join(quoted)}"  # noqa: S608 - quoted
            rows = connection.execute(sqlalchemy.text(wanted))
            return _to_columns([str(name) for name in rows.keys()], rows)  # noqa: SIM118 - not a mapping
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        what = f"the database cannot be read ({brief(error)})"
        raise problems.add(where, what, "Check the URL, and install its driver") from None


def load_from_hub(name: str, where: str, problems: Problems) -> Any:
    """Return the splits of a data set of the Hub, from the local cache if there is no network."""
    datasets = _load("datasets", "hub", where, problems)
    try:
        return datasets.load_dataset(name)
    except Exception as error:  # it raises errors of many libraries
        what = f"there is no such file, and no data set {quote(name)} in the local cache or on the Hub ({brief(error)})"
        raise problems.add(where, what, "Check the path or the name") from None


def flatten_annotations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the texts and first answers in an export of Label Studio or Argilla as columns; other rows as they are."""
    flat = [_flatten(row) for row in rows]
    for name in {name for row, given in zip(flat, rows, strict=True) if row is not given for name in row}:
        column = [row.get(name) for row in flat]
        if all(value is None or (isinstance(value, list) and len(value) == 1) for value in column):  # one choice each
            for row, value in zip(flat, column, strict=True):
                row[name] = value and value[0]
    return flat


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    try:
        if isinstance(row.get("data"), dict) and isinstance(row.get("annotations"), list):  # Label Studio
            done = [each["result"] for each in row["annotations"] if not each.get("was_cancelled")]
            answers = {each["from_name"]: each["value"][each["type"]] for each in (done[0] if done else [])}
            return {**row["data"], **answers}
        if isinstance(row.get("fields"), dict) and isinstance(row.get("responses"), dict):  # Argilla
            answers = {name: given[0]["value"] for name, given in row["responses"].items() if given}
            return {**row["fields"], **answers}
    except (KeyError, TypeError, AttributeError):
        pass
    return row


def _to_columns(names: list[str], rows: Iterable[Any]) -> Columns:
    cells = [tuple(row) for row in rows]
    return {name: [row[at] for row in cells] for at, name in enumerate(names)}


def _load(package: str, extra: str, where: str, problems: Problems) -> Any:
    """Import an optional package."""
    try:
        return import_module(package)
    except ImportError:
        remedy = f'Install it: pip install "headhunt[{extra}]"'
        raise problems.add(where, f"the package {package} is needed", remedy) from None
