"""scikit-learn: cross-validation, and a classifier among other steps.

pip install "headhunt[all] @ git+https://github.com/headhunt-ml/headhunt"
"""

from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import headhunt
from headhunt.sklearn import HeadClassifier

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # any encoder of the Hugging Face Hub, or a folder

task = headhunt.datasets.load_demo()
texts = task.splits["train"].texts()
labels = [task.labels[target] for target in task.splits["train"].targets]

for name, model in {
    "most frequent": DummyClassifier(),
    "TF-IDF": make_pipeline(TfidfVectorizer(), LogisticRegression()),
    "solved head": HeadClassifier(ENCODER, random_state=0),
}.items():
    print(f"{name:15} {cross_val_score(model, texts, labels, cv=3).mean():.3f}")
