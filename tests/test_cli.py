"""The commands as a user runs them: in this process where it can be, in one of their own where that is the point."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from bad_inputs import BAD_INPUTS
from conftest import sentences

from headhunt.cli import main
from headhunt.predictor import Predictor
from headhunt.spec import Spec

QUICK = {"recipe": {"epochs": 12, "batch_size": 16, "learning_rate": 0.003, "max_length": 32}}
COMMAND = [sys.executable, "-m", "headhunt.cli"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: object, stdin: bytes = b"") -> Done:
    """Runs `headhunt WORDS` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    source = io.TextIOWrapper(io.BytesIO(stdin), "ascii", "surrogateescape")  # as where no language is set
    with (
        mock.patch.object(sys, "argv", ["headhunt", *map(str, words)]),
        mock.patch.object(sys, "stdin", source),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def succeed(*words: object, stdin: bytes = b"") -> str:
    done = run(*words, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def refuse(*words: object, saying: list[str], stdin: bytes = b"") -> None:
    done = run(*words, stdin=stdin)
    assert done.code == 2, done
    last = done.err[f"\n{done.err}".index("\nerror: ") :]
    for fragment in saying:
        assert fragment in last, last
    assert "Traceback" not in done.err and not done.out


def write_csv(path: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def make_rows(problem_type: str, count: int, seed: int) -> tuple[str, list[tuple[object, ...]]]:
    """A header and rows whose labels follow from the words in them."""
    texts, labels = sentences(count, seed)
    if problem_type == "single_label_classification":
        return "text,label", list(zip(texts, labels, strict=True))
    if problem_type == "regression":
        return "text,label", [(text, round(len(text.split()) / 7, 3)) for text in texts]
    if problem_type == "multi_label_classification":
        return "text,label", [
            (text, "|".join(w for w in ("cat", "dog", label) if w in (*text.split(), label)))
            for text, label in zip(texts, labels, strict=True)
        ]
    others = sentences(count, seed + 100)[0]
    return "text,text_b,label", list(zip(texts, others, labels, strict=True))


@pytest.fixture(scope="module")
def models(encoders, tmp_path_factory):
    """By problem_type: the folder of a model that `fit` saved, the test file, and what `fit --json` printed."""
    made: dict[str, tuple[Path, Path, dict]] = {}

    def get(problem_type: str = "single_label_classification") -> tuple[Path, Path, dict]:
        if problem_type not in made:
            folder = tmp_path_factory.mktemp(f"cli-{problem_type}")
            train = write_csv(folder / "train.csv", *make_rows(problem_type, 96, 0))
            test = write_csv(folder / "test.csv", *make_rows(problem_type, 32, 1))
            (folder / "spec.json").write_text(json.dumps(QUICK))
            options = (
                ["--problem-type", "multi_label_classification"] if problem_type == "multi_label_classification" else []
            )
            words = ["fit", train, "--test", test, "--out", folder / "model", "--encoder", encoders()]
            printed = succeed(*words, "--spec", folder / "spec.json", "--json", *options)
            made[problem_type] = folder / "model", test, json.loads(printed)
        return made[problem_type]

    return get


def read_texts(test: Path) -> list[str]:
    with test.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


# ------------------------------------------------------------------------------------------------ the way through


def test_fit_without_a_spec_trains_the_plain_head_and_says_what_to_do_next(encoders, tmp_path):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    done = run("fit", data, "--out", tmp_path / "new" / "model", "--encoder", encoders(), "--limit", 20)
    assert done.code == 0 and "text column: text" in done.err
    assert "accuracy" in done.out and f"headhunt predict {tmp_path / 'new' / 'model'}" in done.out
    assert "model.py" not in {path.name for path in (tmp_path / "new" / "model").iterdir()}


def test_fit_reads_as_much_of_a_text_as_was_asked_for(encoders, tmp_path):
    header, rows = make_rows("single_label_classification", 40, 0)
    data = write_csv(tmp_path / "data.csv", header, rows)
    (tmp_path / "spec.json").write_text(json.dumps(QUICK))
    words = ("--encoder", encoders(), "--spec", tmp_path / "spec.json", "--max-length", 16)
    succeed("fit", data, "--out", tmp_path / "model", *words)
    assert Predictor.load(tmp_path / "model").recipe.max_length == 16


def test_fit_learns_and_keeps_what_it_was_told(models):
    folder, _, facts = models()
    assert facts["out"] == str(folder) and facts["test"]["scores"]["accuracy"]["value"] > 0.8
    card = json.loads((folder / "headhunt.json").read_text())
    assert (
        card["spec"]["recipe"]["learning_rate"] == 0.003 and card["labels"] == ["bad", "good"] and card["schema"] == 1
    )


@pytest.mark.parametrize(
    "problem_type", ["single_label_classification", "pair", "regression", "multi_label_classification"]
)
def test_evaluate_gives_the_scores_that_fit_gave(models, problem_type):
    folder, test, facts = models(problem_type)
    found = json.loads(succeed("evaluate", folder, test, "--json"))
    assert found["rows"] == 32 and found["scores"].keys() == facts["test"]["scores"].keys()
    for name, score in found["scores"].items():
        assert score == pytest.approx(facts["test"]["scores"][name], abs=1e-5), name
    shown = succeed("evaluate", folder, test)
    assert "32 rows" in shown and all(name in shown for name in found["scores"])


def test_evaluate_shows_the_confusion_matrix(models):
    folder, test, facts = models()
    shown = succeed("evaluate", folder, test)
    table = shown[shown.index("true \\ predicted") :].replace("│", " ").splitlines()
    counts = {
        line.split()[0]: [int(cell) for cell in line.split()[1:]] for line in table if line[2:5] in ("bad", "goo")
    }
    assert counts == dict(zip(["bad", "good"], facts["test"]["confusion"], strict=True))


def test_labels_are_shown_as_they_are_written(encoders, tmp_path):
    header, rows = make_rows("single_label_classification", 40, 0)
    data = write_csv(tmp_path / "data.csv", header, [(text, f"[/{label}]") for text, label in rows])
    succeed("fit", data, "--out", tmp_path / "model", "--encoder", encoders())
    shown = succeed("evaluate", tmp_path / "model", data)
    assert shown.count("[/good]") == shown.count("[/bad]") == 3


def test_predict_takes_texts_files_and_pipes_alike(models, tmp_path):
    folder, test, _ = models()
    texts = read_texts(test)
    found = Predictor.load(folder).predict(texts)
    expected = [f"{row.label}\t{row.probability:.4f}" for row in found]
    assert len({row.label for row in found}) == 2
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts) + "\n")
    piped = "\n".join(texts).encode()
    assert succeed("predict", folder, *texts[:5]).splitlines() == expected[:5]
    assert succeed("predict", folder, "--input", test).splitlines() == expected
    assert succeed("predict", folder, "--input", lines).splitlines() == expected
    assert succeed("predict", folder, stdin=piped).splitlines() == expected
    assert succeed("predict", folder, "--input", "-", stdin=piped.replace(b"\n", b"\r\n")).splitlines() == expected
    assert succeed("predict", folder, stdin=b"") == ""


def test_predict_writes_csv_and_json_lines(models, tmp_path):
    folder, test, _ = models()
    texts = read_texts(test)
    found = Predictor.load(folder).predict(texts)
    assert succeed("predict", folder, "--input", test, "--out", tmp_path / "a.csv") == ""
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["text", "input_label", "label", "probability"]  # its own label column keeps its cells
    assert [row["text"] for row in rows] == texts and [row["label"] for row in rows] == [row.label for row in found]
    assert [float(row["probability"]) for row in rows] == pytest.approx([row.probability for row in found], abs=1e-5)
    succeed("predict", folder, "--input", test, "--out", tmp_path / "a.jsonl")
    printed = succeed("predict", folder, "--input", test, "--json")
    assert (tmp_path / "a.jsonl").read_text() == printed
    first = json.loads(printed.splitlines()[0])
    assert first["text"] == texts[0] and first["probabilities"].keys() == {"bad", "good"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "a.jsonl"}


def test_predict_takes_over_all_columns_of_a_file(models, tmp_path):
    folder, _, _ = models()
    data = write_csv(tmp_path / "new.csv", "id,review,probability", [("007", "a good film", "x, y"), ("8", "bad", "")])
    succeed("predict", folder, "--input", data, "--text", "review", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "review", "input_probability", "label", "probability"]
    assert [(row["id"], row["review"], row["input_probability"]) for row in rows] == [
        ("007", "a good film", "x, y"),
        ("8", "bad", ""),
    ]
    printed = succeed("predict", folder, "--input", data, "--text", "review", "--json")
    first = json.loads(printed.splitlines()[0])
    assert list(first) == ["id", "review", "input_probability", "label", "probability", "probabilities"]
    succeed("predict", folder, "--out", tmp_path / "none.csv", stdin=b"")
    assert (tmp_path / "none.csv").read_text().strip() == "text,label,probability"


def test_predict_pairs(models, tmp_path):
    folder, test, _ = models("pair")
    with test.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, second = [row["text"] for row in rows], [row["text_b"] for row in rows]
    expected = [f"{row.label}\t{row.probability:.4f}" for row in Predictor.load(folder).predict(first, second)]
    assert succeed("predict", folder, first[0], second[0], first[1], second[1]).splitlines() == expected[:2]
    assert succeed("predict", folder, "--input", test).splitlines() == expected
    piped = "\n".join(map("\t".join, zip(first, second, strict=True))).encode()
    assert succeed("predict", folder, stdin=piped).splitlines() == expected
    succeed("predict", folder, "--input", test, "--out", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("text,text_b,input_label,label,probability")
    refuse("predict", folder, "one", "two", "three", saying=["even number", "found 3"])
    refuse("predict", folder, saying=["one tab between", "line 2 has 1"], stdin=b"a\tb\nonly one\n")


def test_predict_numbers_and_several_labels(models):
    folder, test, _ = models("regression")
    texts = read_texts(test)
    numbers = [float(line) for line in succeed("predict", folder, "--input", test).splitlines()]
    assert numbers == pytest.approx(Predictor.load(folder).outputs(texts).tolist(), abs=1e-5)
    folder, test, _ = models("multi_label_classification")
    rows = [json.loads(line) for line in succeed("predict", folder, "--input", test, "--json").splitlines()]
    assert all(row["label"] == [name for name, p in row["probabilities"].items() if p >= 0.5] for row in rows)
    plain = succeed("predict", folder, "--input", test).splitlines()
    assert [line.split("\t")[0] for line in plain] == ["|".join(row["label"]) for row in rows]
    assert any("|" in line for line in plain)


def test_a_candidate_drawn_from_a_space_can_be_fitted(encoders, tmp_path):
    drawn = succeed("space", "paper", "--sample", 1, "--layers", 2, "--encoder", encoders())
    spec = json.loads(drawn)
    spec["recipe"] |= {"epochs": 1, "batch_size": 16}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    succeed("fit", data, "--out", tmp_path / "model", "--spec", tmp_path / "spec.json")
    kept = json.loads((tmp_path / "model" / "headhunt.json").read_text())["spec"]
    assert kept["encoder"] == encoders() and kept["head"] == spec["head"]


# ------------------------------------------------------------------------------------------------ refusals

OPTIONS = {"text", "text_b", "label", "problem_type", "test", "limit"}


@pytest.mark.parametrize(("name", "make", "fragments"), BAD_INPUTS, ids=[name for name, _, _ in BAD_INPUTS])
def test_bad_data_is_refused(name, make, fragments, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    path, options = make(tmp_path)
    if options.get("problem_type") not in (
        None,
        "single_label_classification",
        "multi_label_classification",
        "regression",
    ):
        pytest.skip("the command line offers only the kinds there are")
    assert options.keys() <= OPTIONS
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    done = run("fit", path, "--out", tmp_path / "out", *words)
    assert done.code == 2 and done.err.startswith("error: ") and "Traceback" not in done.err and not done.out
    assert all(fragment in done.err for fragment in fragments), done.err
    assert not (tmp_path / "out").exists()


def test_out_must_be_new_or_empty_and_writable(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refuse("fit", "x.csv", "--out", tmp_path / "full", saying=["--out", "new or empty", "full"])
    refuse("fit", "x.csv", "--out", tmp_path / "full" / "thesis.txt", saying=["new or empty"])
    refuse("fit", "x.csv", "--out", tmp_path / "full" / "thesis.txt" / "deeper", saying=["cannot be written", "thesis"])
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        (None, ["spec.json", "not there"]),
        ("{not json", ["spec.json", "not JSON"]),
        ("[]", ["spec", "table"]),
        ('{"recipe": {"learning_rat": 1e-4}}', ["'learning_rat'", "Did you mean 'learning_rate'"]),
        ('{"head": {"poling": "mean"}}', ["'poling'", "Did you mean 'pooling'"]),
        ('{"recipe": {"epochs": "many"}}', ["spec.recipe.epochs", "a number", "'many'"]),
        ('{"recipe": {"batch_size": 1.5}}', ["spec.recipe.batch_size", "a whole number", "1.5"]),
        ('{"head": {"pooling": "meen"}}', ["pooling", "Did you mean 'mean'"]),
        ('{"head": {"siamese": "dot", "pooling": "mean"}}', ["siamese", "two texts", "has one"]),
    ],
)
def test_a_bad_spec_is_refused(content, saying, encoders, tmp_path):
    if content is not None:
        (tmp_path / "spec.json").write_text(content)
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 20, 0))
    words = ["fit", data, "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", "--encoder", encoders()]
    refuse(*words, saying=saying)
    assert not (tmp_path / "out").exists()


def test_a_spec_needs_an_encoder_from_somewhere(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    refuse("fit", "x.csv", "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", saying=["spec.encoder"])


def test_a_bad_encoder_is_refused(encoders, tmp_path):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 20, 0))
    words = ["fit", data, "--out", tmp_path / "out", "--encoder"]
    refuse(*words, "no-such/encoder", saying=["The encoder must be", "no-such/encoder", "Check the name"])
    (tmp_path / "empty").mkdir()
    refuse(*words, tmp_path / "empty", saying=["The encoder must be", "empty"])
    shutil.copytree(encoders(), tmp_path / "mute")
    for file in (tmp_path / "mute").glob("tokenizer*"):
        file.unlink()
    refuse(*words, tmp_path / "mute", saying=["tokenizer", "missing"])


DAMAGES = {
    "missing": (lambda folder: shutil.rmtree(folder), "Headhunt saved"),
    "empty": (lambda folder: [file.unlink() for file in folder.iterdir()], "Headhunt saved"),
    "card is no JSON": (lambda folder: (folder / "headhunt.json").write_text("{"), "cannot be loaded"),
    "card is a list": (lambda folder: (folder / "headhunt.json").write_text("[]"), "one JSON object"),
    "card of the future": (lambda folder: (folder / "headhunt.json").write_text('{"schema": 99}'), "schema 1"),
    "card lacks most": (lambda folder: (folder / "headhunt.json").write_text('{"schema": 1}'), "'problem_type'"),
    "weights cut": (lambda folder: os.truncate(folder / "model.safetensors", 1000), "cannot be loaded"),
    "weights missing": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "configuration missing": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "tokenizer missing": (lambda folder: [f.unlink() for f in folder.glob("tokenizer*")], "tokenizer"),
    "tokenizer broken": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be loaded"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_refused(models, damage, tmp_path):
    folder, test, _ = models()
    shutil.copytree(folder, tmp_path / "model")
    break_it, fragment = DAMAGES[damage]
    break_it(tmp_path / "model")
    refuse("predict", tmp_path / "model", "a text", saying=[str(tmp_path / "model"), fragment])
    refuse("evaluate", tmp_path / "model", test, saying=[str(tmp_path / "model"), fragment])


def test_predict_refuses_what_it_cannot_do(models, tmp_path):
    folder, test, _ = models()
    refuse("predict", folder, "text", "--input", test, saying=["not both"])
    refuse("predict", folder, "text", "--out", tmp_path / "a.xlsx", saying=[".csv or .jsonl", "a.xlsx"])
    refuse("predict", folder, "text", "--out", tmp_path / "no" / "a.csv", saying=["--out", "No such file"])
    refuse("predict", folder, "--input", tmp_path / "no.csv", "--out", tmp_path / "a.csv", saying=["Check the path"])
    refuse("predict", folder, saying=["UTF-8"], stdin=b"caf\xe9\n")
    assert not list(tmp_path.iterdir()), "a failed run leaves nothing behind"


def test_evaluate_names_labels_the_model_does_not_know(models, tmp_path):
    data = write_csv(tmp_path / "new.csv", "text,label", [("a b c", "good"), ("c d e", "bad"), ("d e f", "awful")] * 4)
    refuse("evaluate", models()[0], data, saying=["'awful'", "row"])


@pytest.mark.parametrize(
    "words",
    [["predict", "m", "--colour"], ["nonsense"], ["fit"], ["fit", "x.csv"], ["fit", "x", "--out", "y", "--limit", "z"]],
)
def test_a_wrong_command_line_is_refused(words):
    done = run(*words)
    assert done.code == 2 and "Usage" in done.err and "Traceback" not in done.err and not done.out


# ------------------------------------------------------------------------------------------------ spaces


def test_space_prints_what_may_be_chosen():
    shown = succeed("space", "paper")
    assert "architectures" in shown and "pooling" in shown
    found = json.loads(succeed("space", "paper", "--json"))
    assert f"{found['architectures']:,} architectures" in shown


def test_space_draws_candidates():
    drawn = succeed("space", "paper", "--sample", 5).splitlines()
    assert len(set(drawn)) == 5 and all(Spec.from_json(line).to_json() == line for line in drawn)
    assert succeed("space", "paper", "--sample", 5).splitlines() == drawn
    assert set(succeed("space", "paper", "--sample", 5, "--seed", 1).splitlines()).isdisjoint(drawn)
    pairs = [Spec.from_json(line) for line in succeed("space", "default", "--sample", 30, "--pair").splitlines()]
    assert any(spec.head.siamese for spec in pairs)
    assert not any(Spec.from_json(line).head.siamese for line in drawn)


def test_an_unknown_space_is_refused(tmp_path):
    refuse("space", tmp_path / "nothing.toml", saying=["nothing.toml"])


# ------------------------------------------------------------------------------------------------ processes


@pytest.mark.parametrize(
    ("command", "default"), [("search", "a new one in runs/"), ("search", "10m"), ("resume", "what was left")]
)
def test_help_shows_defaults_that_are_said_in_words(command, default, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(succeed(command, "--help").replace("│", " ").split())
    assert "╭" in shown  # Rich's boxes, for which brackets in a help text are markup
    assert f"[default: ({default})]" in shown or f"[default: {default}]" in shown


def test_importing_and_asking_for_help_load_nothing_heavy():
    heavy = "[name for name in ('torch', 'transformers', 'pandas', 'pyarrow', 'scipy') if name in sys.modules]"
    code = f"import sys, headhunt; assert 'fit' in dir(headhunt); print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    ask = f"import sys, atexit; atexit.register(lambda: print({heavy}, file=sys.stderr)); sys.argv[1:] = sys.argv[2:]"
    code = f"{ask}; from headhunt.cli import main; main()"
    for words in (["--help"], ["fit", "--help"], ["predict", "--help"]):
        found = subprocess.run([sys.executable, "-c", code, "", *words], capture_output=True, text=True)
        assert found.returncode == 0 and "Usage: headhunt" in found.stdout, found.stderr
        assert found.stderr.strip() == "[]"


def test_the_installed_script_ends_with_two_and_no_traceback(tmp_path):
    script = shutil.which("headhunt", path=str(Path(sys.executable).parent))
    assert script, "pip install -e ."
    found = subprocess.run(
        [script, "fit", "nothing.csv", "--out", "m"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert found.returncode == 2 and found.stderr.startswith("error: nothing.csv") and not list(tmp_path.iterdir())


WATCHED = """
import contextlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
import headhunt.report.terminal
from headhunt.cli import main

@contextlib.contextmanager
def tell(name):
    yield lambda report: print("report", file=sys.stderr, flush=True)

headhunt.report.terminal.training_bar = tell
main()
"""


def test_control_c_stops_a_training_at_once_and_leaves_nothing_behind(encoders, tmp_path):
    data = write_csv(tmp_path / "data.csv", *make_rows("single_label_classification", 40, 0))
    (tmp_path / "spec.json").write_text(json.dumps({"recipe": {"epochs": 1000, "batch_size": 1}}))
    words = ["fit", data, "--out", tmp_path / "out", "--spec", tmp_path / "spec.json", "--encoder", encoders()]
    command = [sys.executable, "-c", WATCHED, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if line.startswith("report"):
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "stopped" in err and "Traceback" not in err and not out
    assert not (tmp_path / "out").exists()


def test_a_reader_who_has_seen_enough_is_no_error(models, tmp_path):
    folder, test, _ = models()
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(read_texts(test) * 80))
    with (
        lines.open("rb") as source,
        subprocess.Popen(
            [*COMMAND, "predict", str(folder), "--json"], stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        first = process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(60) == 0, err
    assert json.loads(first)["text"] == read_texts(test)[0]
    assert err == ""
