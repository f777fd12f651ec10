"""Your own space: say what a search may try, and search it with random draws.

pip install "headhunt[all] @ git+https://github.com/headhunt-ml/headhunt"
"""

from pathlib import Path

import headhunt

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # any encoder of the Hugging Face Hub, or a folder

Path("mine.toml").write_text("""
[head]
pooling = ["mean", "attention", "mean_max"]

[head.mlp]
optional = true
width = [64, 128]

[recipe]
learning_rate = { log = [5e-5, 1e-3] }
freeze = ["embeddings", "all"]
""")
space = headhunt.Space.load("mine.toml")
print(space.size(), "architectures")

search = headhunt.search(
    headhunt.datasets.load_demo(), encoder=ENCODER, space=space, strategy="random", trials=8, time="2m", out="mine"
)
for row in search.leaderboard():
    print(f"{row.score:.3f}  {row.origin:8} {row.spec.head.pooling}")
