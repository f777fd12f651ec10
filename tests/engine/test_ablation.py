"""Ablations: one thing changed at a time, paired by seed, no claim without training noise."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from searches import run_search

import headhunt
from headhunt.data.splitting import TASK_TARGETS
from headhunt.engine import ablation
from headhunt.engine.ablation import NAMES, run_ablation, variants
from headhunt.engine.view import View
from headhunt.errors import HeadhuntError
from headhunt.evaluation import Score
from headhunt.run.directory import RunDirectory, write_arrays
from headhunt.spec import Blocks, Convolutions, Head, Mlp, Recipe, Smart, Spec, plain
from headhunt.study.budget import TimeBudget

pytestmark = pytest.mark.usefixtures("own_cache")


def test_variants_change_one_thing_each():
    recipe = Recipe(learning_rate=3e-4, freeze=2, smart=Smart(), layer_decay=0.9)
    spec = Spec(encoder="any", head=Head(pooling="mean", blocks=Blocks(), mlp=Mlp()), recipe=recipe)
    changed = variants(spec, 500)
    assert {name.split(":")[0] for name in changed} == {
        "pooling", "encoder blocks", "MLP", "learning rate", "freezing", "SMART", "layer-wise rates",
    }  # fmt: skip
    assert changed["encoder blocks: on → none"].head.blocks is None
    assert changed["encoder blocks: on → none"].recipe == spec.recipe
    assert len({variant.hash for variant in changed.values()} | {spec.hash}) == len(changed) + 1
    assert variants(plain("any"), 500) == {}


def test_variants_remove_nested_parts_alone():
    """Issue: a skip connection was never removed by itself."""
    spec = Spec(encoder="any", head=Head(convolutions=Convolutions(layers=2)), recipe=plain("any").recipe)
    changed = variants(spec, 500)
    skip = changed["convolutions, skip: yes → no"]
    assert skip.head.convolutions == Convolutions(layers=2, skip=False)
    assert changed["convolutions, layers: 2 → 1"].head.convolutions == Convolutions(layers=1)
    assert changed["convolutions: on → none"].head.convolutions is None


def test_every_part_and_recipe_item_has_a_name():
    known = {field.name for field in (*fields(Head), *fields(Recipe))}
    assert set(NAMES) == known - {"max_length"}


def test_ablation_of_a_search_is_stored_and_repeats_nothing(tmp_path, encoders):
    search = run_search(tmp_path, encoders())
    before = search.state
    result = headhunt.ablate(tmp_path / "run", workers=0, callbacks=[])
    after = search.state
    assert (after.ended, after.elapsed) == (before.ended, before.elapsed), "an ablation is no searching"
    assert result.items and all(item.low <= item.difference <= item.high for item in result.items)
    assert search.directory.read_ablation() == result
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "ablation").iterdir()}
    assert headhunt.ablate(tmp_path / "run", workers=0, callbacks=[]) == result
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "ablation").iterdir()}
    assert len(after.settled) == len(search.state.settled)


@pytest.mark.parametrize("seeds", [0, -1])
def test_ablation_needs_at_least_one_seed(tmp_path, seeds):
    with pytest.raises(HeadhuntError, match="seeds= must be at least 1"):
        headhunt.ablate(tmp_path, seeds=seeds)


NO_WORK = SimpleNamespace(run=lambda batch: None)


def stored_final(folder, outputs: dict[tuple[str, int], np.ndarray], targets: np.ndarray, metric: str, task: dict):
    """A final evaluation whose variants are all on disk; `outputs` by name of the variant and seed."""
    spec = Spec(encoder="any", head=Head(pooling="mean"))
    directory = RunDirectory(folder)
    specs = {"": spec, **variants(spec, 500)}
    for (name, seed), values in outputs.items():
        key = next(key for key in specs if key.startswith(name) and (name or not key))
        path = directory.ablation_predictions(specs[key].hash, seed)
        write_arrays(path, rows=np.arange(len(targets)), outputs=values)
    final = SimpleNamespace(
        state=SimpleNamespace(trials=[None, SimpleNamespace(spec=spec)]),
        task=SimpleNamespace(rows={"train": 500}, tasks=(), **task),
        directory=directory,
        metric=metric,
        validation_targets=targets,
        study=SimpleNamespace(
            budget=TimeBudget(None),
            ladder=SimpleNamespace(top=0),
            seed_of=lambda number: number,
            rows_of=lambda trial, rung: None,
        ),
        request=lambda job, trial, seed, **fields: job(trial=1, seed=seed, **fields),
    )
    final.groups_of = lambda rows: None
    final.evaluate = partial(View.evaluate, final)
    return final


REGRESSION = {"problem_type": "regression", "labels": ()}


def test_ablation_of_an_error_adds_the_loss_to_it(tmp_path):
    """Issue: a higher-is-better gain was added to the mean squared error."""
    targets = np.linspace(0, 1, 50)
    outputs = {("", 0): targets + 0.1, ("pooling", 0): targets + 0.3}
    result = run_ablation(stored_final(tmp_path, outputs, targets, "mse", REGRESSION), NO_WORK, 1)
    item = next(item for item in result.items if item.name.startswith("pooling"))
    assert result.base.value == pytest.approx(0.01)
    assert item.difference == pytest.approx(-0.08) and item.score == pytest.approx(0.09)


def test_ablation_pairs_the_same_seeds(tmp_path):
    """Issue: if a variant lacked seed 0, its seed 1 was compared with the winner's seed 0."""
    targets = np.linspace(0, 1, 50)
    outputs = {("", 0): targets + 0.5, ("", 1): targets + 0.1, ("pooling", 1): targets + 0.1}
    result = run_ablation(stored_final(tmp_path, outputs, targets, "mse", REGRESSION), NO_WORK, 1, seeds=2)
    item = next(item for item in result.items if item.name.startswith("pooling"))
    assert item.difference == pytest.approx(0.0) and item.seeds == 1


def test_ablation_claims_nothing_from_one_seed(tmp_path):
    """Issue: intervals over rows alone were shown as if they included chance in training."""
    targets = np.linspace(0, 1, 50)
    outputs = {("", seed): targets + 0.01 * seed for seed in range(2)}
    outputs |= {("pooling", seed): targets + 0.5 + 0.01 * seed for seed in range(2)}
    for seeds, significant in ((1, False), (2, True)):
        result = run_ablation(stored_final(tmp_path, outputs, targets, "mse", REGRESSION), NO_WORK, 1, seeds=seeds)
        item = next(item for item in result.items if item.name.startswith("pooling"))
        assert item.high < 0 and item.significant is significant


def test_ablation_without_a_task_scores_the_others(tmp_path):
    targets = np.zeros(60, TASK_TARGETS)
    targets["task"], targets["value"] = np.repeat([0, 1, 2], 20), np.tile([0, 1], 30)
    right = np.eye(2)[targets["value"].astype(int)]
    wrong = right.copy()
    wrong[40:50] = right[40:50, ::-1]  # half of the third task
    wrong[:20] = right[:20, ::-1]  # all of the first, which is left out
    task = {"problem_type": "multi_task", "labels": ()}
    final = stored_final(tmp_path, {("", 0): right}, targets, "accuracy,accuracy,accuracy", task)
    final.task.tasks = [SimpleNamespace(name=name) for name in ("a", "b", "c")]
    spec = final.state.trials[1].spec
    path = final.directory.ablation_predictions(f"{spec.hash}-without-0", 0)
    write_arrays(path, rows=np.arange(60), outputs=wrong)
    sent = []
    loop = SimpleNamespace(run=lambda batch: sent.extend(iter(batch.next, None)))
    final.evaluate = lambda *_: SimpleNamespace(scores={final.metric: Score(1.0, 1.0, 1.0)})
    result = run_ablation(final, loop, 1)
    (item,) = result.items
    assert item.name == "without task a: score of the others"
    assert item.score == pytest.approx(0.75) and item.difference == pytest.approx(-0.25)
    assert {request.left_out for request in sent} == {None, 1, 2}
    changed = {name for name in result.failed if name.startswith(("layers of each task", "choice of tasks"))}
    assert changed == {
        "layers of each task: 0 → all",
        "choice of tasks: proportional → sqrt",
        "choice of tasks: proportional → sum",
    }


def test_ablation_refuses_plain_head(tmp_path):
    final = stored_final(tmp_path, {}, np.zeros(3), "mse", REGRESSION)
    final.state.trials[1] = SimpleNamespace(spec=plain("any"))
    with pytest.raises(HeadhuntError, match="nothing to remove"):
        ablation.run_ablation(final, NO_WORK, 1)
