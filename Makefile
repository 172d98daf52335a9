# make play: watch an agent play lantern (no key, no ROM, no GPU).  make test: the tests.  PYTHON=... picks the interpreter.
PYTHON ?= python3

.venv/done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; this is $$($(PYTHON) --version). Use make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check ".[dev]"
	touch .venv/done

play: .venv/done
	.venv/bin/python run.py

test: .venv/done
	.venv/bin/python -m pytest

.PHONY: play test
