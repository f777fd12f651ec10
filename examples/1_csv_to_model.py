"""From a CSV to a model: search for two minutes, look at the result, predict.

pip install "headhunt[all] @ git+https://github.com/headhunt-ml/headhunt"
"""

import shutil

import headhunt

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # any encoder of the Hugging Face Hub, or a folder

shutil.copyfile(headhunt.datasets.DEMO, "reviews.csv")  # or your own: a text and a label column
search = headhunt.search("reviews.csv", encoder=ENCODER, time="2m", out="run")

print(search.result.verdict.sentence)
for row in search.leaderboard()[:3]:
    print(f"{row.score:.3f}  {row.origin}  {row.spec.head}")

model = search.load()  # also: headhunt.load("run/model")
for prediction in model.predict(["My new card has not come yet", "Why was my payment declined?"]):
    print(prediction.label, round(prediction.probability, 2))
