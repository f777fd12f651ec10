# install · fix · check · test · docs · site · audit. An active virtual environment is expected.
.PHONY: install fix check test docs site audit
COVERAGE = --cov --cov-report=term

install:  ## torch first: a build that is already installed is kept, for example one for CPUs
	python -m pip install --upgrade "pip>=25.1"
	python -c "import torch" 2>/dev/null || pip install "torch==2.13.0"
	pip install -e ".[all]" --group dev

fix:  ## format the code and apply automatic fixes
	ruff format .
	ruff check --fix .

check:  ## format, lint, types, layers, structure
	ruff format --check .
	ruff check .
	mypy
	lint-imports
	python scripts/check_structure.py

test:  ## PYTEST="-m 'not slow'" leaves out the slow tests; COVERAGE= leaves out coverage
	pytest -n 2 --dist loadgroup $(COVERAGE) $(PYTEST)

audit:  ## known vulnerabilities of the installed packages; needs the network, so it is no part of check
	python -m pip_audit --version > /dev/null 2>&1 || pip install pip-audit
	python -m pip_audit --local --skip-editable

docs:  ## generate docs/reference/commands/ from the commands
	python docs/make_commands.py

site:  ## spelling, links and the documentation site in site/; needs pip install --group docs
	codespell README.md CHANGELOG.md CONTRIBUTING.md CODE_OF_CONDUCT.md docs examples
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
