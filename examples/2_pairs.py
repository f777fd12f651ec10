"""Pairs of texts: train a head that compares two texts, without a search.

pip install "headhunt[all] @ git+https://github.com/headhunt-ml/headhunt"
"""

import random

import headhunt

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # any encoder of the Hugging Face Hub, or a folder

# Two questions are a pair if they have the same intent.
questions = headhunt.datasets.load_demo().splits["train"]
chooser = random.Random(0)
rows = []
for text, intent in zip(questions.texts(), questions.targets, strict=True):
    wanted = chooser.random() < 0.5
    others = [other for other in range(len(questions)) if (questions.targets[other] == intent) == wanted]
    rows.append((text, questions.texts()[chooser.choice(others)], "same" if wanted else "different"))

first, second, labels = (list(column) for column in zip(*rows, strict=True))
task = headhunt.Task.load({"question1": first, "question2": second, "label": labels})
model = headhunt.fit(task, encoder=ENCODER, out="pairs")  # a solved head, in seconds
print(model.facts["test"]["scores"]["accuracy"])
print(model.predict(["Where is my new card?"], ["My card has not come yet"])[0])
