"""Write the files of this version that later versions must still load: `python tests/data/make_saved.py`.

Run it once for each new schema, into a directory named after it; never overwrite an earlier one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from conftest import make_encoder  # noqa: E402
from searches import QUICK, make_task  # noqa: E402

import headhunt  # noqa: E402
from headhunt.run.schema import SCHEMA  # noqa: E402
from headhunt.spec import Head, Mlp, Recipe, Spec  # noqa: E402

TEXTS = ["a good movie", "the plot was awful", "a dog sleeps"]


def main() -> None:
    """Run a tiny search and keep what is worth loading."""
    folder = HERE / "saved" / f"schema-{SCHEMA}"
    folder.mkdir(parents=True)
    os.chdir(folder)  # so that the encoder has a name that is no path of one machine
    os.environ["HEADHUNT_CACHE"] = str(folder / "cache")
    make_encoder("bert", Path("encoder"))
    search = headhunt.search(
        make_task(), encoder="encoder", time=None, trials=12, space=QUICK, workers=0, out="run", callbacks=[]
    )
    headhunt.ablate("run", workers=0, callbacks=[])
    head = Head(pooling="attention", mlp=Mlp(width=8))  # not the plain head: our code is in the folder
    headhunt.fit(make_task(), spec=Spec(encoder="encoder", head=head, recipe=Recipe(epochs=2)), out="model")
    for name in ("checkpoints", "models", "model", "ensemble", "test", "ablation"):
        shutil.rmtree(Path("run") / name, ignore_errors=True)
    for name in ("best", "lock"):
        (Path("run") / name).unlink(missing_ok=True)
    shutil.rmtree("cache")
    spec = search.state.trials[-1].spec
    Path("spec.json").write_text(spec.to_json() + "\n")
    expected = {
        "hash": spec.hash,
        "texts": TEXTS,
        "outputs": headhunt.load("model", device="cpu", precision="fp32").outputs(TEXTS).tolist(),
        "leaderboard": [[row.trial, row.rung, row.score] for row in search.leaderboard()],
        "sentence": search.result.verdict.sentence,
    }
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
