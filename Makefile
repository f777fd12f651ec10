# install · fix · check · test · docs. An active virtual environment is expected.
.PHONY: install fix check test docs

install:  ## torch first: a CPU build where one is at hand, before a range could pull in another
	python -c "import torch" 2>/dev/null || pip install "torch==2.13.0"
	pip install -e ".[dev]"

fix:  ## what a machine can mend
	ruff format .
	ruff check --fix .

check:  ## what a machine can judge
	ruff format --check .
	ruff check .
	mypy
	lint-imports

test:  ## add PYTEST="-m 'not slow'" for a quick look
	pytest -n 2 --dist loadgroup $(PYTEST)

docs:  ## docs/commands.md from the commands themselves
	python docs/make_commands.py
