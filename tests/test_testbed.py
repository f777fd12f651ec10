"""The testbed: draws, candidates, the table and its files, collection, replayed searches and rankings."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks" / "testbed"
sys.path += [str(FOLDER), str(FOLDER.parent)]
sets, specs, table, collect, replay, rank = map(import_module, ("sets", "specs", "table", "collect", "replay", "rank"))
portfolio, weight_sharing, ensemble_size = map(import_module, ("portfolio", "weight_sharing", "ensemble_size"))
averages, one_fold, few_epochs, claims = map(import_module, ("averages", "one_fold", "few_epochs", "claims"))

ROWS, TEST_ROWS = 210, 60  # more rows than the recipes for few rows are for


def noisy_outputs(quality: float, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return probabilities of two classes that are right more often the higher the quality is."""
    right = np.clip(quality + rng.normal(0, 0.2, len(targets)), 0.01, 0.99)
    outputs = np.empty((len(targets), 2))
    outputs[np.arange(len(targets)), targets] = right
    outputs[np.arange(len(targets)), 1 - targets] = 1 - right
    return outputs


def made_up_set(items, name: str = "subj", pair: bool = False) -> table.SetTable:
    """Return a set whose candidates get better from the first to the last."""
    rng = np.random.default_rng(0)
    info = table.SetInfo(
        name, name, "single_label_classification", "accuracy", pair, ROWS, TEST_ROWS, 2, 3, "abc", specs.ENCODER
    )
    targets, test_targets = rng.integers(0, 2, ROWS), rng.integers(0, 2, TEST_ROWS)
    folds = np.repeat(np.arange(3), ROWS // 3).astype(np.int8)
    shared = {"rows": np.arange(ROWS), "folds": folds, "targets": targets, "test_targets": test_targets}
    made = table.SetTable(info, {}, shared)
    for place, item in enumerate(items):
        quality = 0.5 + 0.3 * place / len(items)
        outputs = noisy_outputs(quality, targets, rng)
        rungs = []
        for fraction in (1 / 9, 1 / 3, 2 / 3, 1.0):
            kept = slice(0, max(ROWS // 3, round(fraction * ROWS)))
            score = float((outputs[kept].argmax(1) == targets[kept]).mean())
            rungs.append(table.Rung(fraction, "ok", score, 9.0, 3.0 + place % 3))
        rungs = rungs[1:] if item.origin == "solved" else rungs
        arrays = {
            "out_of_fold": outputs,
            "early": outputs[: ROWS // 3],
            "test": np.stack([noisy_outputs(quality, test_targets, rng) for _ in range(3)]),
        }
        made = made.with_entry(table.Entry(item.hash, "ok", tuple(rungs), 500.0), arrays)
    return made


@pytest.fixture(scope="module")
def items():
    return specs.list_specs(False, 24)


@pytest.fixture(scope="module")
def made_up(items):
    return made_up_set(items)


@pytest.fixture
def data(tmp_path):
    """A data directory with one set of two classes."""
    rng = np.random.default_rng(0)
    words = np.array(["sun", "moon", "star", "rain", "wind", "snow", "leaf", "tree", "bird", "fish", "stone", "river"])
    for split, rows in (("train", 300), ("test", 80)):
        labels = rng.choice(["subjective", "objective"], rows)
        texts = [" ".join([label, *rng.choice(words, 6), str(row)]) for row, label in enumerate(labels)]
        folder = tmp_path / "data" / "subj"
        folder.mkdir(parents=True, exist_ok=True)
        frame = pandas.DataFrame({"text": [f"{split} {text}" for text in texts], "text_b": None, "label": labels})
        frame.to_parquet(folder / f"{split}.parquet")
    return tmp_path / "data"


def test_sets_are_kept_apart_from_the_scoreboard():
    used = {chosen.folder for chosen in sets.SETS.values()}
    assert not used & {*sets.SCOREBOARD, "cs224n_sts"}
    assert sum(chosen.specs is None for chosen in sets.SETS.values()) == 6


def test_draw_set_refuses_a_set_of_the_scoreboard(tmp_path):
    with pytest.raises(ValueError, match="kept apart"):
        sets.draw_set(sets.TuningSet("trec6"), tmp_path, tmp_path)


def test_draw_set_is_deterministic_and_has_no_training_text_among_the_test_rows(data, tmp_path):
    first, second = (sets.draw_set(sets.SETS["subj"], data, tmp_path / name, rows=50) for name in "ab")
    assert first.fingerprint == second.fingerprint
    train, test = pandas.read_parquet(first.train), pandas.read_parquet(first.test)
    assert len(train) == 50 and not set(train.text) & set(test.text)


@pytest.mark.parametrize("pair", [False, True])
def test_list_specs_has_65_different_candidates_with_the_baselines_first(pair):
    listed = specs.list_specs(pair)
    assert len({item.hash for item in listed}) == 65
    assert [item.origin for item in listed[:3]] == ["solved", "plain", "plain"]
    assert [item.hash for item in specs.list_specs(pair, 80)][:65] == [item.hash for item in listed]


def test_set_table_survives_saving_and_loading(made_up, items, tmp_path):
    made_up.save(tmp_path)
    loaded = table.load_set(tmp_path, "subj")
    assert loaded.info == made_up.info and loaded.entries == made_up.entries
    assert loaded.arrays.keys() == made_up.arrays.keys()
    assert all(np.array_equal(loaded.arrays[key], made_up.arrays[key]) for key in loaded.arrays)
    assert loaded.arrays[f"{items[0].hash}.test"].dtype == np.float16
    assert loaded.score(items[5].hash) == pytest.approx(made_up.entries[items[5].hash].rungs[-1].score)
    assert loaded.score(items[5].hash, 1) == pytest.approx(made_up.entries[items[5].hash].rungs[1].score)


def test_load_set_refuses_an_entry_without_predictions(made_up, items, tmp_path):
    arrays = {key: value for key, value in made_up.arrays.items() if key != f"{items[1].hash}.out_of_fold"}
    replace(made_up, arrays=arrays).save(tmp_path)
    with pytest.raises(ValueError, match=items[1].hash):
        table.load_set(tmp_path, "subj")


def test_seconds_are_processor_seconds_times_the_ratio_of_the_calibration(made_up, items, tmp_path):
    made_up.save(tmp_path)
    (tmp_path / table.CALIBRATION).write_text(json.dumps({"schema": 1, "ratios": {items[0].hash: 1.5}}))
    loaded = table.Table(tmp_path).sets["subj"]
    assert loaded.seconds(items[0].hash) == [pytest.approx(1.5 * 3.0)] * 3
    assert loaded.seconds(items[1].hash)[0] == pytest.approx(1.5 * 4.0)  # the median of the ratios


def test_mean_loss_of_classes_labels_and_numbers():
    assert table.mean_loss("single_label_classification", np.array([[0.5, 0.5]]), np.array([1])) == pytest.approx(
        np.log(2)
    )
    halves = np.full((1, 2), 0.5)
    assert table.mean_loss("multi_label_classification", halves, np.array([[1, 0]])) == pytest.approx(np.log(2))
    assert table.mean_loss("regression", np.array([[1.0], [3.0]]), np.array([1.0, 1.0])) == pytest.approx(2.0)


def test_stored_candidates_stay_when_the_list_of_the_code_changes(tmp_path):
    stored = {pair: specs.list_specs(pair, 5) for pair in (False, True)}
    table.write_specs(tmp_path, stored)
    opened = collect.open_specs(tmp_path, more=0, quick=False)
    assert [item.hash for item in opened[False]] == [item.hash for item in stored[False]]
    longer = collect.open_specs(tmp_path, more=3, quick=False)
    assert len(longer[True]) == 8 and table.read_specs(tmp_path)[True] == longer[True]


def test_jobs_leave_out_what_is_in_the_table_and_begin_with_the_first_candidates(made_up, items, tmp_path):
    by_kind = {False: items, True: specs.list_specs(True, 24)}
    partial = replace(made_up, entries={item.hash: made_up.entries[item.hash] for item in items[:2]})
    partial.save(tmp_path)
    jobs = list(collect.Collection(tmp_path, by_kind, list(sets.SETS)).jobs())
    assert not {item.hash for item in items[:2]} & {job.item.hash for job in jobs if job.set_name == "subj"}
    assert len({job.set_name for job in jobs[: len(sets.SETS) - 1]}) == len(sets.SETS) - 1
    assert len(jobs) == 6 * 24 - 2 + 3 * 17 + 3 * 16


def test_refits_are_those_of_the_best_candidates_without_one(made_up, items, tmp_path):
    best = made_up.best(collect.REFITTED)
    refitted = made_up.with_entry(made_up.entries[best[0]], {"refit": np.zeros((TEST_ROWS, 2))})
    refitted.save(tmp_path)
    jobs = list(collect.Collection(tmp_path, {False: items, True: []}, ["subj"]).refits())
    assert [job.item.hash for job in jobs] == best[1:]


def test_collection_refuses_other_rows(made_up, items, tmp_path):
    made_up.save(tmp_path)
    collection = collect.Collection(tmp_path, {False: items, True: []}, ["subj"])
    other = replace(made_up.info, fingerprint="other")
    with pytest.raises(ValueError, match="same data"):
        collection.add(collect.Result(collect.Job("subj", items[0]), other, {}, None, {}, 1.0))


def test_run_job_evaluates_a_candidate_as_a_search_does(data, encoders, own_cache, tmp_path):
    settings = collect.Settings(data, encoders("bert"), tmp_path, rows=60, test_rows=30)
    item = specs.list_specs(False, 4)[1].with_epochs(1.0)
    result = collect.run_job(collect.Job("subj", item), settings)
    assert result.entry is not None and result.entry.complete
    assert [round(rung.fraction, 2) for rung in result.entry.rungs] == [0.11, 0.33, 0.67, 1.0]
    assert all(rung.training_gflops and rung.training_gflops > 0.1 for rung in result.entry.rungs)
    assert result.arrays["out_of_fold"].shape == (60, 2) and result.arrays["test"].shape == (3, 30, 2)
    made = table.SetTable(result.info, {}, result.shared).with_entry(result.entry, result.arrays)
    assert made.score(item.hash) == pytest.approx(result.entry.rungs[-1].score, abs=0.02)
    quiet = collect.run_job(collect.Job("subj", item, "calibrate"), settings)
    assert quiet.entry is not None and quiet.entry.rungs[0].score == result.entry.rungs[0].score
    refit = collect.run_job(collect.Job("subj", item, "refit"), settings)
    assert refit.arrays["refit"].shape == (30, 2)


@pytest.mark.parametrize(
    "speed", [{"gflops": table.REFERENCE_GFLOPS / 2}, {"training_gflops": table.REFERENCE_TRAINING_GFLOPS / 2}]
)
def test_costs_are_those_of_a_machine_with_the_speed_of_the_reference(made_up, items, speed):
    entry = made_up.entries[items[4].hash]
    slow = replace(entry, rungs=tuple(replace(rung, **speed) for rung in entry.rungs))
    slower = made_up.with_entry(slow, {})
    assert slower.seconds(entry.spec) == pytest.approx([each / 2 for each in made_up.seconds(entry.spec)])


def test_replay_costs_only_what_a_trial_has_not_trained_yet(made_up, items):
    evaluate = replay.Replay(made_up)
    request = replay.EvaluateTrial(trial=1, spec=items[4].spec, seed=0, rung=0, fraction=1 / 3)
    seconds = made_up.entries[items[4].hash].rungs[0].cpu_seconds
    assert evaluate(request).seconds == pytest.approx(2 * seconds)
    assert evaluate(replace(request, rung=1, fraction=1.0)).seconds == pytest.approx(2 * seconds)


@pytest.mark.parametrize("strategy", [name for name in replay.EXACT if name != replay.KNOWN_ONLY])
def test_replayed_search_tries_candidates_of_the_table_only_and_repeats(made_up, items, strategy):
    search = replay.Search(strategy, 2_000.0, seed=1)
    first, second = (replay.replay(made_up, items, search) for _ in range(2))
    assert first == second
    assert first.trials == len(items) - 3  # all but the solved heads that the space cannot express
    assert first.test_score == made_up.test_score(first.spec)


def test_replayed_search_of_known_recipes_tries_no_others(made_up, items):
    known = sum(item.origin == "known" for item in items)
    solved_and_plain = 3
    assert replay.replay(made_up, items, replay.Search(replay.KNOWN_ONLY, 5_000.0)).trials == known + solved_and_plain


def test_replayed_search_uses_the_given_rungs(made_up, items):
    whole = replay.Ladder((1.0,), brackets=1)
    default, without_rungs = (
        replay.replay(made_up, items, replay.Search("random", 200.0, ladder=ladder)) for ladder in (None, whole)
    )
    assert without_rungs.trials < default.trials


def test_replayed_search_delivers_a_better_candidate_with_more_time(made_up, items):
    short, long = (replay.replay(made_up, items, replay.Search("random", seconds)) for seconds in (30.0, 2_000.0))
    assert short.trials < long.trials
    assert made_up.score(long.spec) > made_up.score(short.spec)
    assert long.spec in made_up.best(5)  # the best one may not be promoted


def test_strategies_are_ranked_by_the_mean_over_sets(made_up, items, tmp_path):
    made_up.save(tmp_path)
    table.write_specs(tmp_path, {False: items, True: []})
    chosen = {"strategies": ["prior", "random"], "seconds": [100.0], "seeds": 3, "workers": 2}
    args = Namespace(**chosen, without_known=False, nearest=True, learn=False, ladder=None)
    sets = replay.compare(table.Table(tmp_path), ["subj"], args)
    ranking = replay.rank({"one": sets["subj"], "two": sets["subj"]})["100"]
    scores = [row["score"] for row in ranking.values()]
    assert set(ranking) == {"prior", "random"} and scores == sorted(scores, reverse=True)
    assert ranking["prior"] == {key: sets["subj"]["strategies"]["prior"]["100"][key] for key in ranking["prior"]}


def test_replayed_search_tries_early_what_was_best_on_other_sets(made_up, items, tmp_path):
    other = made_up_set([*items[:4], *items[:3:-1]], "cr")
    for stored in (made_up, other):
        stored.save(tmp_path)
    table.write_specs(tmp_path, {False: items, True: []})
    learned = replay.learn_from_others(table.Table(tmp_path), "subj")
    trained = [spec for spec in other.best(len(items)) if not items_by_hash(items)[spec].recipe.is_solved]
    assert sorted(learned) == sorted([spec for spec in trained if not items_by_hash(items)[spec].head.plain][:2])
    known = [spec.hash for spec, _ in replay.TableCandidates(made_up, items).known_recipes()]
    tried = [spec.hash for spec, _ in replay.TableCandidates(made_up, items, learned).known_recipes()]
    assert tried[0] == known[0] and set(tried) == set(known) | set(learned)
    assert all(tried.index(spec) < 5 for spec in learned)


def items_by_hash(items):
    return {item.hash: item.spec for item in items}


def test_portfolio_begins_with_the_candidate_that_saves_most_per_second(made_up, items):
    regrets = portfolio.Regrets(made_up, items)
    chosen = portfolio.choose([regrets], size=3)
    saved = {spec: (regrets.after([]) - regrets.after([spec])) / regrets.seconds[spec] for spec in regrets.others}
    assert len(set(chosen)) == 3 and saved[chosen[0]] == max(saved.values()) > 0
    assert regrets.after(chosen) <= regrets.after(chosen[:1]) < regrets.after([])
    assert regrets.always == [items[0].hash, items[1].hash]


def test_portfolio_is_tested_on_a_set_it_was_not_chosen_on(made_up, items):
    one, two = portfolio.Regrets(made_up, items), portfolio.Regrets(made_up_set(items[::-1]), items)
    rows = portfolio.compare({"one": one, "two": two})
    for name, seen, held_out in (("one", two, one), ("two", one, two)):
        regret = held_out.at(portfolio.choose([seen]), 150.0)
        assert rows[name]["portfolio"]["150"] == pytest.approx(regret, abs=0.01)
    assert portfolio.choose([one]) != portfolio.choose([two])


@pytest.mark.parametrize("kept", [slice(2, None), slice(0, 3)], ids=["no plain head", "nothing to propose"])
def test_replay_refuses_a_table_that_is_too_small(made_up, items, kept):
    entries = {item.hash: made_up.entries[item.hash] for item in items[kept]}
    with pytest.raises(ValueError, match="others of subj"):
        replay.replay(replace(made_up, entries=entries), items, replay.Search())


def test_nearest_candidate_of_a_table_candidate_is_itself(made_up, items):
    candidates = replay.TableCandidates(made_up, items)
    assert candidates.nearest(candidates.pool[7]) == candidates.pool[7]
    candidates.tried = {candidates.spec(candidates.pool[7]).hash}
    assert candidates.nearest(candidates.pool[7]) != candidates.pool[7]


def test_variations_are_near_the_varied_candidate_and_untried(made_up, items):
    candidates = replay.TableCandidates(made_up, items)
    base = candidates.pool[3]
    rng = replay.random.Random(0)
    drawn = [candidates.variation(base, rng, 0.3, 0.2) for _ in range(200)]
    assert all(each in candidates.pool for each in drawn) and drawn.count(base) > 150
    candidates.tried = {candidates.spec(base).hash}
    drawn = [candidates.variation(base, rng, 0.3, 0.2) for _ in range(200)]
    mean = np.mean([candidates._distance(base, each) for each in drawn])
    assert base not in drawn and mean < np.mean([candidates._distance(base, each) for each in candidates.untried()])


def test_weighted_tau_equals_kendalls_tau():
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 30).astype(float), rng.random(30)
    own = rank.weighted_tau(rank.signs(first), rank.signs(second), np.ones(30))
    assert own == pytest.approx(kendalltau(first, second).statistic)


def test_rank_set_finds_the_perfect_and_the_reversed_criterion():
    test = np.linspace(0.5, 0.9, 20)
    rows = rank.rank_set({"perfect": test * 2, "reversed": -test, "constant": np.zeros(20)}, test, samples=50)
    assert rows["perfect"]["tau"] == 1.0 and rows["perfect"]["regret"] == 0.0
    assert rows["perfect"]["tau_interval"] == [1.0, 1.0]
    assert rows["reversed"]["tau"] == -1.0 and rows["reversed"]["regret_of_all"] == pytest.approx(0.4)
    assert rows["constant"]["tau"] == 0.0 and rows["constant"]["regret_of_all"] == pytest.approx(0.2)


def test_rank_of_a_made_up_table_orders_the_criteria(made_up, items, tmp_path):
    made_up.save(tmp_path)
    result = rank.rank(table.Table(tmp_path), samples=50)
    facts = result["sets"]["subj"]
    assert facts["training_runs"] == 3 * len(items) and facts["scored"] == len(items)
    tau = {name: row["tau"] for name, row in result["main"].items()}
    assert tau["score"] > 0.7 and tau["score"] >= tau["score_one_fold"] - 0.05
    assert "| out-of-fold score |" in rank.markdown(result)


def test_jobs_with_smart_come_after_the_others(items, tmp_path):
    jobs = list(collect.Collection(tmp_path, {False: items, True: items}, ["subj"]).jobs())
    smart = [job.item.spec.recipe.smart is not None for job in jobs]
    assert any(smart) and smart == sorted(smart)


def test_shared_candidates_train_the_encoder(made_up, items):
    shared = weight_sharing.shared_candidates(made_up, items)
    assert 5 < len(shared) < len(items)
    assert all(item.spec.recipe.freeze != "all" and item.spec.recipe.smart is None for item in shared)
    assert weight_sharing.shared_candidates(made_up_set(items[:3]), items) == items[1:3]


def test_heads_that_are_trained_together_learn(encoders, items, made_up, monkeypatch):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 90)
    texts = [("good good" if target else "bad bad") for target in targets]
    fold = weight_sharing.FirstFold(texts, targets, np.arange(60), np.arange(60, 90), 2)
    monkeypatch.setattr(weight_sharing, "LEARNING_RATE", 3e-3)  # the encoder is tiny
    chosen = weight_sharing.shared_candidates(made_up, items)[:4]
    recipes = [replace(item.spec.recipe, learning_rate=3e-3) for item in chosen]
    chosen = [replace(item, spec=replace(item.spec, recipe=each)) for item, each in zip(chosen, recipes, strict=True)]
    runs = weight_sharing.train_together(fold, chosen, encoders(), [1.0, 40.0])
    assert [run.epochs for run in runs] == [1.0, 40.0] and runs[0].cpu_seconds < runs[1].cpu_seconds
    assert np.mean(runs[1].scores) > 0.9


def test_weight_sharing_is_compared_with_one_fold_at_equal_cost(made_up, items):
    shared = weight_sharing.shared_candidates(made_up, items)
    test = [made_up.test_score(item.hash) for item in shared]
    fold = [sum(rung.cpu_seconds for rung in made_up.entries[item.hash].rungs[:2]) for item in shared]
    runs = [weight_sharing.SharedRun(1.0, 2.1 * np.mean(fold), test), weight_sharing.SharedRun(9.0, 1e6, test[::-1])]
    result = weight_sharing.compare(made_up, shared, runs, samples=100)
    perfect, wrong = result["shared"]
    assert perfect["tau"] == 1.0 and perfect["chosen"] == result["test_best"] > perfect["one_fold_chosen"]
    assert perfect["one_fold_candidates"] == 2 and wrong["one_fold_candidates"] == len(shared)
    assert wrong["one_fold_chosen"] == pytest.approx(result["one_fold"]["chosen"], abs=1e-4) and wrong["tau"] < 0


def test_ensembles_of_more_members_are_compared_with_the_best_candidate(made_up):
    result = ensemble_size.compare_rules(made_up, candidates=6, rows=60, samples=4)
    assert result["best candidate"]["members"] == 1 and result["best candidate"]["gain"] == [0, 0, 0]
    assert [result[f"at least {least}"]["members"] >= least for least in ensemble_size.MIN_MEMBERS] == [True] * 5
    assert all(0 <= rule["score"] <= 100 for rule in result.values())


def test_claimed_gains_are_checked_on_the_other_half_of_the_test_rows(made_up, items):
    result = claims.simulate(made_up, items, searches=20, candidates=6)
    assert (
        result["claims"] > 5 and result["claimed"] == result["claims"] / 20 and result["held"] >= 0.8 * result["claims"]
    )
    assert result["mean_claimed_gain"] > 5 and result["mean_gain_on_other_rows"] > 5
    plain = next(item.hash for item in items if item.origin == "plain")
    same = {f"{item.hash}.test": made_up.arrays[f"{plain}.test"] for item in items}
    level = replace(made_up, arrays=dict(made_up.arrays) | same)
    assert claims.simulate(level, items, searches=20, candidates=6)["claims"] == 0
    assert claims.simulate(made_up, items[:6], searches=20, candidates=6) is None


def test_averages_are_compared_with_single_training_runs_on_all_rows():
    single = {"all-0": 80.0, "all-1": 82.0, "all-2": 84.0, "fold-0": 10.0}
    scores = [{"weights": 83.0, "predictions": 81.0, "accepted": True}]
    scores += [{"weights": 85.0, "predictions": 81.0, "accepted": False}]
    summary = averages.summarize([{"single": single, **dict.fromkeys(averages.AVERAGES, each)} for each in scores])
    assert summary["one run"] == 82.0 and summary["folds"]["accepted"] == 1
    assert summary["folds"]["weights"] == {"gain": 2.0, "standard_error": 1.0}
    assert summary["three runs"]["predictions"] == {"gain": -1.0, "standard_error": 0.0}


def test_rules_for_one_fold_choose_between_the_complete_candidate_and_the_others(made_up, items):
    origins = {item.hash: item.origin for item in items}
    for complete in ("solved", "tuned"):
        scores = one_fold.compare_rules(made_up, origins, complete, candidates=3, rows=60, samples=20)
        assert len(scores) == 3 + len(one_fold.STANDARD_ERRORS)
    # The solved head is the worst candidate of this table: every rule is between never and always leaving it.
    scores = one_fold.compare_rules(made_up, origins, "solved", candidates=3, rows=60, samples=20)
    assert scores["complete"] < scores["ahead by 0"] <= scores["one fold"]


def test_recipes_for_few_epochs_are_compared_on_equal_sets():
    records = [
        {"set": name, "start": start, "epochs": 2.0, "rate": 1e-4, "batch": 32, "test": test}
        for name, start, test in (("cr", "random", 80.0), ("cr", "solved", 84.0), ("mpqa", "random", 10.0))
    ]
    variant = few_epochs.summarize(records)["variants"]["2 epochs, 0.0001"]
    assert variant["sets"] == ["cr"] and variant["mean"] == {"random": 80.0, "solved": 84.0}


def test_batch_sizes_are_compared_with_the_largest_one():
    records = [
        {"set": name, "start": "random", "epochs": 4.0, "rate": 1e-4, "batch": size, "test": test}
        for name, size, test in (("cr", 32, 80.0), ("cr", 8, 84.0), ("mpqa", 32, 85.0), ("mpqa", 8, 86.0))
    ]
    sizes = few_epochs.summarize(records)["batch_sizes"]
    assert list(sizes) == ["32", "8"] and sizes["8"]["gain"] == 2.5 and sizes["8"]["standard_error"] == 1.5
