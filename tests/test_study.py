"""The search with toy functions in place of training: who is tried, who goes on, what is written, when it stops."""

from __future__ import annotations

import math
import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headhunt.errors import HeadhuntError
from headhunt.run.directory import Run
from headhunt.run.events import STOPPED
from headhunt.run.state import Outcome, replay
from headhunt.spec import NAMED, Choice, Int, Log, Maybe, Space, Spec
from headhunt.study.candidates import Candidates, along, at, within
from headhunt.study.executors import Inline, guarded
from headhunt.study.ladder import Ladder, Rung, Rungs
from headhunt.study.runtime_estimates import RuntimeEstimates
from headhunt.study.strategies import STRATEGIES, make
from headhunt.study.study import Limits, Study

SLOW = {"gp"}  # loads torch, and thinks for half a second and more
EVERY = pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in STRATEGIES]
)
TINY = Space(
    "tiny",
    {
        "head": {"pooling": Choice(("cls", "mean", "max")), "mlp": Maybe({"width": Int(8, 64)})},
        "recipe": {"learning_rate": Log(1e-5, 1e-3), "freeze": Choice(("none", "embeddings"))},
    },
)
LADDER = Ladder((1 / 9, 1 / 3, 1.0))


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    """Durability is tested with the ledger; here it would only take time."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def true(spec: dict) -> float:
    loss = 0.05 * math.log(spec["recipe"]["learning_rate"] / 8e-5) ** 2 + 0.05 * (spec["head"]["pooling"] != "mean")
    return 0.9 - loss - 0.04 * (spec["head"]["mlp"] is None) - 0.04 * (spec["recipe"]["freeze"] == "all")


def toy(request: Request) -> Outcome:
    noise = random.Random(f"{request.seed}/{request.rung}").gauss(0, 0.005)
    return Outcome("ok", true(request.spec) - 0.05 * (1 - request.fraction) + noise, request.fraction, 100)


def study_of(folder, evaluate=toy, *, space=TINY, executor=None, **given) -> Study:
    given = {"limits": Limits(trials=14), **given}
    return Study(Run(folder, write=True), Candidates(space, encoder="toy"), executor or Inline(evaluate), **given)


def search(folder, evaluate=toy, **given) -> Study:
    study = study_of(folder, evaluate, **given)
    try:
        study.go()
    finally:
        study.run.close()
    return study


def leaderboard(study: Study) -> list:
    return [(one.number, one.hash, one.best) for one in study.state.leaderboard()]


class Several:
    """Four workers that end in any order."""

    def __init__(self, evaluate, seed=0, workers=4):
        self.workers, self.evaluate, self.rng, self.under_way = workers, evaluate, random.Random(seed), []

    def submit(self, request):
        self.under_way.append(request)
        assert len(self.under_way) <= self.workers

    def wait(self, timeout=None):
        request = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        return [(request, guarded(self.evaluate, request))]

    def stop(self):
        self.under_way.clear()


# --- parameters and candidates


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("pair", [False, True])
def test_what_is_drawn_is_a_candidate_that_can_be_expressed(name, pair):
    candidates = Candidates(Space.load(name), encoder="toy", pair=pair)
    for seed in range(30):
        params = candidates.draw(random.Random(seed))
        spec = candidates.spec(params)
        assert all(within(candidates.leaves[path], value) for path, value in params.items())
        again = candidates.express(spec)
        assert again is not None and candidates.spec(again).hash == spec.hash


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("rows", [500, 50_000])
@pytest.mark.parametrize("name", NAMED)
def test_every_space_has_known_recipes_of_its_own(name, rows, pair):
    candidates = Candidates(Space.load(name), encoder="toy", pair=pair, rows=rows)
    known = list(candidates.known())
    assert known
    assert all(candidates.spec(params) == spec.canonical() for spec, params in known)
    assert any(spec.head.siamese for spec, _ in known) == (pair and name == "default")


@pytest.mark.parametrize("length", [64, 256])
def test_every_candidate_reads_as_much_of_a_text_as_was_asked_for(length):
    candidates = Candidates(Space.load("default"), encoder="toy", max_length=length)
    drawn = candidates.spec(candidates.draw(random.Random(0)))
    known = list(candidates.known())
    assert candidates.plain().recipe.max_length == drawn.recipe.max_length == length
    assert known and all(spec.recipe.max_length == length for spec, _ in known)
    assert all(candidates.spec(params) == spec.canonical() for spec, params in known)


def test_a_space_that_says_how_much_is_read_has_its_way():
    for own in (32, Choice((32, 48))):
        space = Space("own", {"recipe": {"max_length": own, "learning_rate": Log(1e-5, 1e-4)}})
        candidates = Candidates(space, encoder="toy", max_length=64)
        assert candidates.spec(candidates.draw(random.Random(0))).recipe.max_length in (32, 48)
        assert candidates.plain().recipe.max_length == (own if isinstance(own, int) else 48)  # as much as anybody


def test_the_plain_head_is_expressed_where_the_space_has_it():
    assert Candidates(Space.load("default"), encoder="toy").express(Spec(encoder="toy")) is not None
    assert Candidates(Space.load("paper"), encoder="toy").express(Spec(encoder="toy")) is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_a_place_along_a_leaf_and_its_value_agree(share):
    for leaf in dict(Space.load("default").leaves()).values():
        value = at(leaf, share)
        assert within(leaf, value)
        assert at(leaf, min(along(leaf, value), 1 - 1e-12)) == pytest.approx(value)


# --- rungs


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.booleans()), max_size=60),
    st.integers(2, 4),
)
def test_only_the_best_of_a_rung_go_on_and_none_twice(steps, eta):
    rung, scores, gone = Rung(eta), {}, set()
    for trial, (score, look) in enumerate(steps):
        rung.add(trial, None if score is None else score / 10)
        if score is not None:
            scores[trial] = score
        best = sorted(scores, key=lambda one: (-scores[one], one))[: (trial + 1) // eta]
        waiting = [one for one in best if one not in gone]
        entry = rung.ready()
        assert (None if entry is None else -entry[1]) == (waiting[0] if waiting else None)
        assert {-entry[1] for entry in rung.staying()} == scores.keys() - gone
        if look and waiting:
            rung.gone(waiting[0])
            gone.add(waiting[0])


def test_brackets_take_turns_by_hyperbands_shares():
    ladder = Ladder((1 / 9, 1 / 3, 1.0), brackets=3)
    assert ladder.weights() == [9, 5, 3]
    assert Counter(map(ladder.bracket, range(170))) == {0: 90, 1: 50, 2: 30}
    assert Ladder((1.0,)).bracket(7) == 0


@pytest.mark.parametrize("wrong", [(), (0.5,), (0.5, 0.3, 1.0), (-1.0, 1.0)])
def test_rungs_must_rise_to_one(wrong):
    with pytest.raises(ValueError, match="rise to 1"):
        Ladder(wrong)


def test_the_highest_rung_is_served_first():
    rungs = Rungs(Ladder((0.1, 0.3, 1.0), eta=2))
    for trial in range(4):
        rungs.add(trial, 0, 0, trial / 10)
        rungs.add(trial + 10, 1, 1, trial / 10)
    assert rungs.ready() == (13, 2)
    rungs.started(13, 1, 2)
    rungs.started(12, 1, 2)
    assert rungs.ready() == (3, 1)
    assert rungs.promising()[:2] == [(11, 1), (10, 1)]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_search_promotes_only_who_earned_it(tmp_path, workers):
    study = search(tmp_path, executor=Several(toy, workers=workers), ladder=LADDER, limits=Limits(trials=60))
    records, _ = read(study.run.ledger)
    results: dict[tuple[int, int], dict[int, float]] = {}
    seen = set()
    promotions = 0
    state = replay([])
    for record in records:
        state.apply(record)
        if record["kind"] == "result":
            bracket = state.trials[record["trial"]].bracket
            results.setdefault((bracket, record["rung"]), {})[record["trial"]] = record["score"]
        if record["kind"] == "start":
            number, rung = record["trial"], record["rung"]
            assert (number, rung) not in seen
            seen.add((number, rung))
            bracket = state.trials[number].bracket
            if rung > bracket and number > 0:  # the plain head goes on whatever it earned
                below = results[bracket, rung - 1]
                best = sorted(below, key=lambda one: (-below[one], one))[: len(below) // LADDER.eta]
                assert number in best
                promotions += 1
    assert promotions > 10


# --- the loop


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("strategy", ["bohb", "random", "evolution"])
def test_no_candidate_is_trained_twice(tmp_path, strategy, workers):
    space = Space(
        "few", {"head": {"pooling": Choice(("cls", "mean", "max", "attention"))}, "recipe": {"learning_rate": 1e-4}}
    )
    study = search(tmp_path, space=space, strategy=strategy, executor=Several(toy, workers=workers))
    assert study.state.ended == "exhausted"
    assert len({one.hash for one in study.state.trials}) == len(study.state.trials) == 4


def test_trial_0_is_the_plain_head_in_full_and_known_recipes_follow(tmp_path):
    study = search(tmp_path, space=Space.load("default"))
    first, *others = study.state.trials
    assert first.spec == Candidates(Space.load("default"), encoder="toy").plain().to_dict()
    assert first.origin == "plain" and first.reached == LADDER.top
    assert [one.origin for one in others[:5]] == ["known"] * 4 + ["random"]


def test_a_search_by_many_workers_is_what_its_ledger_says(tmp_path):
    study = search(tmp_path, executor=Several(toy), limits=Limits(trials=50))
    assert study.state == Run(tmp_path).state
    assert {one.origin for one in study.state.trials} >= {"plain", "random", "model"}


def flaky(request: Request) -> Outcome:
    """Fails in every way there is, depending on the candidate alone; a lost worker comes back."""
    problem_type = request.seed % 7
    if problem_type == 0:
        return Outcome("collapsed")
    if problem_type == 1 and request.attempt == 0:
        return Outcome("lost")
    if problem_type == 2:
        raise RuntimeError("something else")
    if problem_type == 3 and request.gradient_accumulation_steps == 1:
        raise MemoryError
    return toy(request)


@pytest.mark.parametrize("evaluate", [toy, flaky])
@pytest.mark.parametrize("strategy", ["bohb", "grid", "evolution", "reinforce"])
def test_a_search_cut_off_at_any_record_ends_as_if_undisturbed(tmp_path, strategy, evaluate):
    trials = 16 if strategy == "bohb" else 9
    given = {"strategy": strategy, "limits": Limits(trials=trials), "ladder": LADDER}
    if strategy == "evolution":
        given["options"] = {"population": 4, "tournament": 2}
    whole = search(tmp_path / "whole", evaluate, **given)
    lines = whole.run.ledger.read_bytes().splitlines(keepends=True)
    expected = leaderboard(whole)
    assert strategy == "grid" or {"model"} <= {one.origin for one in whole.state.trials}
    for cut in range(0, len(lines)):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[:cut]))
        resumed = search(folder, evaluate, **given)
        assert leaderboard(resumed) == expected
        assert [one.hash for one in resumed.state.trials] == [one.hash for one in whole.state.trials]
        shutil.rmtree(folder)


def test_many_workers_cut_off_lose_no_result_and_repeat_none(tmp_path):
    given = {"limits": Limits(trials=25), "ladder": LADDER}
    whole = search(tmp_path / "whole", flaky, executor=Several(flaky), **given)
    lines = whole.run.ledger.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines), 7):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[:cut]))
        before = Run(folder).state
        after = search(folder, flaky, executor=Several(flaky, seed=cut), **given).state
        assert after.settled[: len(before.settled)] == before.settled
        assert len(set(after.settled)) == len(after.settled) and len(after.hashes) == 25
        assert not after.running and not after.waiting


def test_a_finished_search_goes_on_when_given_more(tmp_path):
    search(tmp_path / "a", limits=Limits(trials=10))
    more = search(tmp_path / "a", limits=Limits(trials=20))
    assert leaderboard(more) != [] and len(more.state.trials) == 20
    assert [one.hash for one in more.state.trials[:10]] == [
        one.hash for one in search(tmp_path / "b", limits=Limits(trials=10)).state.trials
    ]


def test_a_lost_worker_is_forgiven_three_times(tmp_path):
    seen = []

    def evaluate(request):
        seen.append((request.trial, request.attempt))
        return Outcome("lost") if request.trial == 1 else toy(request)

    study = search(tmp_path, evaluate, strategy="random", limits=Limits(trials=4))
    assert [attempt for trial, attempt in seen if trial == 1] == [0, 1, 2, 3]
    assert study.state.trials[1].results[0].outcome == "lost"
    assert len(study.state.leaderboard()) == 3
    records, _ = read(study.run.ledger)
    assert sum(record.get("outcome") == "lost" for record in records) == 4


def test_out_of_memory_is_tried_once_more_with_half_the_micro_batch(tmp_path):
    out_of_memory: dict[int, list[int]] = {}

    def evaluate(request):
        out_of_memory.setdefault(request.trial, []).append(request.gradient_accumulation_steps)
        if request.trial == 1 or (request.trial == 2 and request.gradient_accumulation_steps == 1):
            raise MemoryError("too large")
        return toy(request)

    study = search(tmp_path, evaluate, strategy="random", limits=Limits(trials=4))
    assert out_of_memory == {0: [1], 1: [1, 2], 2: [1, 2], 3: [1]}
    assert study.state.trials[1].results[0].outcome == "memory"
    assert study.state.trials[2].results[0].outcome == "ok"


def test_an_exception_is_an_outcome_with_its_message(tmp_path):
    def evaluate(request):
        raise ValueError("broken")

    study = search(tmp_path, evaluate, limits=Limits(trials=3))
    assert len(study.state.trials) == 3 and study.state.best is None
    assert "ValueError: broken" in study.state.trials[0].results[LADDER.top - 1].extra["message"]


def test_a_score_that_is_no_number_is_a_collapse(tmp_path):
    study = search(tmp_path, lambda request: Outcome("ok", math.nan), limits=Limits(trials=2))
    assert [one.outcome for one in study.state.trials[0].results.values()] == ["collapsed"]


@pytest.mark.parametrize("strategy", ["bohb", "tpe", "gp"])
def test_failures_are_shown_to_the_model_as_the_worst_value_seen(strategy):
    candidates = Candidates(TINY, encoder="toy")
    model = make(strategy, candidates)
    for number, score in enumerate([None, 0.5, None, 0.3, 0.7]):
        model.tell(number, candidates.draw(random.Random(number)), 0, score)
    assert [trial.value for trial in model._trials(0)] == [0.3, 0.5, 0.3, 0.3, 0.7]
    model.tell(5, candidates.draw(random.Random(5)), 0, 0.2)
    assert [trial.value for trial in model._trials(0)] == [0.2, 0.5, 0.2, 0.3, 0.7, 0.2]


def test_a_proposal_is_asked_of_the_highest_rung_with_enough_results():
    candidates = Candidates(TINY, encoder="toy")
    model = make("bohb", candidates, random_fraction=0.0)
    enough = len(candidates.leaves) + 2
    for number in range(2 * enough):
        assert model.rung() == (None if number < enough else 0)
        assert model.ask(number).origin == ("random" if number < enough else "model")
        model.tell(number, candidates.draw(random.Random(number)), 0, number / 100)
    for number in range(enough):
        model.tell(number, candidates.draw(random.Random(number)), 1, number / 100)
    assert model.rung() == 1


def test_the_model_is_shown_the_best_and_the_latest_and_no_more():
    candidates = Candidates(TINY, encoder="toy")
    model = make("bohb", candidates, cap=20)
    for number in range(200):
        score = 1.0 if number in (3, 50) else 0.1
        model.tell(number, candidates.draw(random.Random(number)), 0, score)
    shown = [trial.number for trial in model._trials(0)]
    assert len(shown) <= 20 and {3, 50, 199} <= set(shown) and shown == sorted(shown)


def test_a_fixed_share_is_drawn_at_random(tmp_path):
    study = search(tmp_path, limits=Limits(trials=120), options={"random_fraction": 0.25}, known=False)
    origins = Counter(one.origin for one in study.state.trials[30:])
    assert 0.1 < origins["random"] / origins.total() < 0.45


def predicting(request: Request) -> Outcome:
    path = Path(request.predictions)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * 1000)
    return toy(request)


def test_of_a_trial_the_predictions_of_its_highest_rung_are_kept(tmp_path):
    study = search(tmp_path, predicting)
    highest = {(trial.number, max(trial.results)) for trial in study.state.trials}
    assert study.run.predicted().keys() == highest


def test_predictions_keep_to_their_share_of_the_disk(tmp_path):
    study = search(tmp_path, predicting, limits=Limits(trials=60), disk=80_000)
    kept = study.run.predicted()
    best = [trial.number for trial in study.state.leaderboard() if trial.best[0] == LADDER.top][:4]
    assert 4 <= len(kept) <= 11 and (0, LADDER.top) in kept
    assert {(number, LADDER.top) for number in best} <= kept.keys()


# --- limits


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_time_ends_a_search_and_requests_know_when(tmp_path):
    clock, deadlines = Clock(), set()

    def evaluate(request):
        deadlines.add(request.deadline)
        clock.now += 10
        return toy(request)

    study = search(tmp_path, evaluate, limits=Limits(time=95), clock=clock)
    assert study.state.ended == "time" and deadlines == {1095.0} and len(study.state.settled) == 10


def test_what_the_deadline_cut_off_is_no_result_and_is_taken_up_again(tmp_path):
    clock, cut = Clock(), []

    def evaluate(request):
        clock.now += 10
        if request.deadline and clock.now > request.deadline:
            cut.append((request.trial, request.rung))
            return Outcome(STOPPED)
        return toy(request)

    study = search(tmp_path, evaluate, limits=Limits(time=95), clock=clock)
    assert cut == list(study.state.running.items()) and len(cut) == 1
    resumed = search(tmp_path, evaluate, limits=Limits(trials=12), clock=clock)
    assert not resumed.state.running and cut[0] in resumed.state.settled


def slow(clock: Clock, price, begun: dict):
    """A toy that takes its time: `price` seconds for a whole training. Notes when each trial was begun."""

    def evaluate(request):
        begun.setdefault(request.trial, clock.now)
        below = max((one for one in LADDER.fractions[: request.rung] if request.resume), default=0.0)
        taken = price(request.spec) * (request.fraction - below)
        clock.now += taken
        if request.deadline and clock.now > request.deadline:
            return Outcome(STOPPED)
        Path(request.checkpoint).mkdir(parents=True)
        (Path(request.checkpoint) / "state").write_text("here")
        return Outcome("ok", toy(request).score, taken, 100)

    return evaluate


@pytest.mark.parametrize("seed", range(4))
def test_the_last_of_the_time_goes_to_those_on_the_way(tmp_path, seed):
    """Newcomers could not get to the top any more, so the best that stand below it do."""
    clock, begun = Clock(), {}
    evaluate, limits = slow(clock, lambda spec: 9.0, begun), Limits(time=300, trials=999)
    space = Space("alike", {**TINY.tree, "recipe": {"learning_rate": Log(1e-5, 1e-3)}})
    study = search(tmp_path, evaluate, space=space, limits=limits, clock=clock, seed=seed)
    assert study.state.ended == "time" and not study.state.running  # nothing was begun that could not be ended
    assert max(begun.values()) <= 1300 - 9 < clock.now
    # Who stands below the top at the end did worse there than the plain head, or there was no time for him.
    plain = study.state.trials[0].results
    for rung in (0, 1):
        rest = 9.0 * (1 - LADDER.fractions[rung])
        for _, score in study.rungs.standing(rung):
            assert (rung in plain and score < plain[rung].score) or clock.now + 1.1 * rest > 1300


def test_what_cannot_be_ended_in_time_is_not_begun(tmp_path):
    """A candidate that trains everything takes ten times as long here: only the others are begun towards the end."""
    clock, begun = Clock(), {}
    space = Space("two", {**TINY.tree, "recipe": {"learning_rate": Log(1e-5, 1e-3), "freeze": Choice(("none", 5))}})
    price = {"none": 40.0, 5: 4.0}
    evaluate = slow(clock, lambda spec: price[spec["recipe"]["freeze"]], begun)
    study = search(tmp_path, evaluate, space=space, limits=Limits(time=200, trials=999), clock=clock)
    kinds = {trial.number: trial.spec["recipe"]["freeze"] for trial in study.state.trials}
    assert study.state.ended == "time"
    assert {kinds[number] for number, at in begun.items() if at > 1160} == {5}
    assert {kinds[number] for number, at in begun.items() if at < 1100} == {"none", 5}


def test_what_a_candidate_will_take_is_learned_from_the_others():
    prices, candidates = RuntimeEstimates(layers=6), Candidates(Space.load("default"), encoder="toy")
    plain = candidates.plain()
    half = replace(plain, recipe=replace(plain.recipe, freeze=3)).to_dict()
    alone = replace(plain, recipe=replace(plain.recipe, freeze="all")).to_dict()
    assert prices.of(half) is None and prices.usual is None
    prices.add(plain.to_dict(), 143.0)
    assert prices.of(plain.to_dict()) == pytest.approx(143.0) and prices.of(half) == pytest.approx(53.0)
    assert prices.of(alone) is None  # nothing like it was seen
    prices.add(alone, 3.0)
    assert prices.of(alone) == pytest.approx(3.0) and prices.usual == 143.0


def test_a_worker_that_hangs_does_not_keep_the_search_from_ending(tmp_path):
    clock = Clock()

    class Hanging(Several):
        def wait(self, timeout=None):
            clock.now += timeout or 1
            return []

    study = search(tmp_path, executor=Hanging(toy), limits=Limits(time=30), clock=clock)
    assert study.state.ended == "time" and clock.now < 1034 and len(study.state.running) == 4


def test_a_target_ends_a_search_and_only_full_training_counts(tmp_path):
    study = search(tmp_path, limits=Limits(target=0.87, trials=200))
    assert study.state.ended == "target"
    last = study.state.settled[-1]
    assert last[1] == LADDER.top and study.state.trials[last[0]].results[last[1]].score >= 0.87


def test_the_number_of_trials_ends_a_search_after_the_last_promotion(tmp_path):
    study = search(tmp_path, limits=Limits(trials=30))
    assert study.state.ended == "trials" and len(study.state.trials) == 30
    assert study.rungs.ready() is None


def test_a_search_can_be_told_to_stop(tmp_path):
    def evaluate(request):
        if request.trial == 3:
            study.stop()
        return toy(request)

    study = study_of(tmp_path, evaluate, limits=Limits())
    assert study.go() == "stopped"
    study.run.close()
    assert Run(tmp_path).state.ended == "stopped" and len(study.state.trials) <= 5


@pytest.mark.parametrize("name", ["time", "trials"])
def test_limits_must_be_above_nothing(name):
    with pytest.raises(HeadhuntError, match=name):
        Limits(**{name: 0})


# --- checkpoints


def saving(request: Request) -> Outcome:
    folder = Path(request.checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_bytes(b"x" * 1000)
    return toy(request)


def test_who_goes_on_starts_from_the_rung_below(tmp_path):
    resumed = {}

    def evaluate(request):
        resumed[request.trial, request.rung] = request.resume
        return saving(request)

    study = search(tmp_path, evaluate, limits=Limits(trials=40))
    for (trial, rung), path in resumed.items():
        bracket = study.state.trials[trial].bracket
        assert path == (str(study.run.checkpoint(trial, rung - 1)) if rung > bracket else None)
    held = study.run.checkpoints()
    assert held.keys() <= set(study.rungs.promising())


def test_checkpoints_stay_within_the_budget_and_the_best_are_kept(tmp_path):
    study = search(tmp_path, saving, limits=Limits(trials=60), disk=12_000)
    held = study.run.checkpoints()
    assert sum(held.values()) <= 12_000
    best = study.state.best
    assert best is not None and (best.number, LADDER.top) in held


# --- one contract for every strategy


@EVERY
@pytest.mark.parametrize("space", NAMED)
def test_a_strategy_asks_for_valid_candidates_and_is_decided_by_its_seed(strategy, space):
    candidates = Candidates(Space.load(space), encoder="toy", pair=True)
    options = {"startup": 10} if strategy == "bohb" else {}

    def asked(seed: int) -> list:
        one, found = make(strategy, candidates, seed, **options), []
        for number in range(12):
            proposal = one.ask(number)
            assert proposal is not None and proposal.params.keys() == candidates.leaves.keys()
            assert all(within(candidates.leaves[path], value) for path, value in proposal.params.items())
            spec = candidates.spec(proposal.params)
            one.started(number, proposal.params)
            if number != 8:  # the last are asked for while this one runs
                one.tell(number, proposal.params, 0, None if number == 4 else true(spec.to_dict()))
            found.append(proposal.params)
        return found

    first = asked(1)
    assert first == asked(1)
    assert first != asked(2)


@EVERY
def test_a_strategy_improves_on_its_first_draws(tmp_path, strategy):
    trials = {"gp": 25, "bohb": 80}.get(strategy, 60)
    study = search(tmp_path, strategy=strategy, limits=Limits(trials=trials), known=False, seed=1)
    scores = [true(one.spec) for one in study.state.trials[1:]]
    if strategy in ("random", "grid"):
        assert max(scores[10:]) >= max(scores[:10])  # they learn nothing; they only see more
    else:
        assert mean(scores[-10:]) > mean(scores[:10]) + 0.02


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(HeadhuntError, match="bohb, random, grid"):
        make("magic", Candidates(TINY, encoder="toy"))


def test_a_grid_visits_every_point_once_and_ends(tmp_path):
    space = Space("small", {"head": {"pooling": Choice(("cls", "mean")), "dropout": Choice((0.0, 0.1, 0.2))}})
    study = search(tmp_path, space=space, strategy="grid", limits=Limits())
    assert study.state.ended == "exhausted" and len(study.state.trials) == 2 * 3 + 1


def test_the_study_needs_no_torch():
    import subprocess

    code = "import sys, headhunt.study.study, headhunt.study.optuna_strategies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
