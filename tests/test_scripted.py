"""The offline model: a pure function of its messages, plain about what it can't do, and moved by what H says."""
import json

import pytest

from ch import Agent
from conftest import Canned
from env import open_env
from harness import Harness
from models import ModelError, open_model
from models.scripted import Scripted
from refiner import PASSES, question

SKILL = {"name": "walk_to", "description": "walks to the cell args x, y", "code": "result = 1"}


def first_messages(harness=None, game="lantern"):
    """What the agent's model is sent at the first step."""
    model = Canned()
    env = open_env(game)
    agent = Agent(env, harness or Harness(prompt="go"), model.ask)
    with pytest.raises(IndexError):
        agent.step()
    getattr(env, "close", lambda: None)()
    return model.sent[0][1], model.sent[0][2]


def test_it_has_no_state():
    messages, tools = first_messages()
    assert Scripted(1)(messages, tools) == Scripted(1)(messages, tools)
    model = Scripted(1)
    assert model(messages, tools) == model(messages, tools)


def test_h_decides_what_it_does():
    messages, tools = first_messages()
    assert Scripted()(messages, tools).calls[0].name == "press_buttons"
    harness = Harness(prompt="go")
    harness.edit("create", "skills", "", SKILL, by="agent", step=0)
    messages, tools = first_messages(harness)
    assert Scripted()(messages, tools).calls[0].name == "run_skill"


def test_it_acts_in_each_games_own_vocabulary():
    messages, tools = first_messages(game="toy")
    call = Scripted()(messages, tools).calls[0]
    assert call.name == "move" and call.args["direction"] in ("north", "south", "east", "west")


def test_it_fails_loudly_without_a_rule():
    with pytest.raises(ModelError, match="no rule for this prompt"):
        Scripted()([{"role": "system", "content": "Translate this."}], [{}])
    messages = [{"role": "system", "content": "You play a game"}, {"role": "user", "content": "Game State: title\nLocation: nowhere"}]
    _, tools = first_messages()
    assert "no rule for this screen" in Scripted()(messages, tools).text


def test_every_pass_gets_an_answer_that_fits():
    for part in PASSES:
        text = question(Harness(prompt="go"), part, [], [], "Game State: overworld", ["press_buttons"])
        assert isinstance(json.loads(Scripted()([{"role": "user", "content": text}], []).text), dict)


def test_open_model_needs_a_provider(monkeypatch):
    assert isinstance(open_model("scripted"), Scripted)
    for name, words in (("gpt-5-mini", "set OPENAI_API_KEY"), ("a/b", "set OPENROUTER_API_KEY"), ("hal", "--base-url")):
        for variable in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
            monkeypatch.delenv(variable, raising=False)
        with pytest.raises(ModelError, match=words):
            open_model(name)
