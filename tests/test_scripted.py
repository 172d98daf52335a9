"""The offline model: a pure function of its messages, plain about what it can't do, and moved by what H says."""
import json
from pathlib import Path

import pytest

from ch import Agent
from conftest import Canned
from env import open_env
from harness import Harness, imported
from models import ModelError, open_model
from models.learner import refine_memory
from models.reading import read_context
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


def context(*turns, overview=""):
    """A conversation: (observation, reply's text, call's name, arguments, result), the last one an observation only."""
    messages = [{"role": "system", "content": "You play a game"}]
    for obs, text, name, args, result in turns:
        call = {"id": "c1", "function": {"name": name, "arguments": json.dumps(args)}}
        messages += [{"role": "user", "content": obs}, {"role": "assistant", "content": text, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "c1", "name": name, "content": json.dumps(result)}]
    return [*messages, {"role": "user", "content": f"{ROOM}\n\nYour harness\n{overview}"}]


ROOM = "Game State: overworld\nLocation: ROOM\nPosition: x=2, y=2, facing up\nASCII Map:\n#####\n#..N#\n#.P.#\n#####\n" \
       "(top-left cell is x=0, y=0; map 5x4; P you, . floor, # wall, N person)"
FAILED = {"result": {"success": False, "from": [2, 2], "at": [2, 2], "goal": [1, 1], "in": "overworld", "things": []}}
TALK = {"trace": ["A at 'N' (3, 1): text: Go on!"]}


def test_what_was_used_makes_failures_void():
    walk = (ROOM, "walk", "run_skill", {"skill_id": "s", "args": {"x": 1, "y": 1}}, FAILED)
    assert read_context(context(walk)).failed == {("ROOM", 1, 1): 1}
    talk = (ROOM, "use", "press_buttons", {"buttons": ["A"]}, TALK)
    assert not +read_context(context(walk, talk)).failed


def test_it_asks_for_a_refinement_before_it_forgets():
    _, tools = first_messages()
    talk = (ROOM, "use", "press_buttons", {"buttons": ["A"]}, {"trace": ["A at 'N' (3, 1): text: Go on!", "A at '#' (2, 1): text: Well."]})
    assert Scripted()(context(talk), tools).calls[0].name == "evolve_harness"
    known = "- places/mem_1: ROOM (3, 1): 'N' says: Go on!\n- places/mem_2: ROOM (2, 1): '#' says: Well."
    assert Scripted()(context(talk, overview=known), tools).calls[0].name != "evolve_harness"


def test_an_objective_that_is_done_becomes_a_fact():
    _, tools = first_messages()
    todo = "- objectives/o1: ROOM (3, 1): talk to them"
    call = Scripted()(context((ROOM, "use", "press_buttons", {"buttons": ["A"]}, TALK), overview=todo), tools).calls[0]
    assert call.name == "process_memory" and call.args["entries"][0]["title"] == "ROOM (3, 1): 'N' says: Go on!"
    assert Scripted()(context(overview=todo), tools).calls[0].name == "press_buttons"


def test_a_text_that_goes_on_updates_its_entry():
    current = "### mem_1 (never used)\ntitle: ROOM (3, 1): 'N' says: First,\ncontent: 'N' says: First,\npath: places"
    window = '[7] orchestrator at ROOM (2, 1): press_buttons -> {"trace": ["A at \'N\' (3, 1): text: First,"]}\n' \
             '[8] orchestrator at ROOM (2, 1): press_buttons -> {"trace": ["A: text: then LEAF."]}'
    assert [e["id"] for e in refine_memory(window, current)["update"]] == ["mem_1"]
    assert not refine_memory(window.splitlines()[0], current)["update"]


def test_the_expert_harness_is_accepted():
    row = json.loads((Path(__file__).parent.parent / "harnesses" / "expert-lantern.json").read_text(encoding="utf-8"))
    edits, _ = imported(row)
    assert {e.part for e in edits} == {"prompt", "subagents", "skills", "memory"}
