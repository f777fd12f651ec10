"""`headhunt demo` and the data set that comes with the package."""

from __future__ import annotations

import filecmp

from command_line import refuse, run, succeed
from huggingface_hub import constants

import headhunt
from headhunt.data.datasets import DEMO


def test_demo_data_is_clean_and_written_once(tmp_path):
    task = headhunt.datasets.load_demo()
    assert sum(map(len, task.splits.values())) == 400 and len(task.labels) == 10
    assert "CC BY" in headhunt.datasets.load_demo.__doc__ and "BANKING77" in (DEMO.parent / "LICENSE.md").read_text()
    assert f"headhunt search {tmp_path / 'a.csv'}" in succeed("demo", "--csv", tmp_path / "a.csv")
    assert filecmp.cmp(DEMO, tmp_path / "a.csv", shallow=False)
    refuse("demo", "--csv", tmp_path / "a.csv", fragments=["must be a new file"])


def test_demo_without_an_encoder_says_in_one_sentence_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    refuse(
        "demo", "--out", tmp_path / "run", fragments=["connect to the network once", "headhunt demo --encoder FOLDER"]
    )
    assert not (tmp_path / "run").exists()


def test_demo_searches_and_ends_with_the_report_and_what_to_try(tmp_path, encoders):
    done = run("demo", "--out", tmp_path / "run", "--encoder", encoders(), "--time", "6s")
    assert done.code == 0 and f"headhunt predict {tmp_path / 'run' / 'model'}" in done.out, done
    assert (tmp_path / "run" / "report.html").is_file()
