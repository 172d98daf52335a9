"""The agent's turn: what it is sent, what is carried out, what comes back."""
import re

import pytest

import ch
from ch import NUDGE
from conftest import ROOT, Canned, call
from env import open_env
from harness import Harness
from models import Call, Reply, fill

MOVE = ("move", {"direction": "east"})


def user_texts(messages):
    return [m["content"] for m in messages if m["role"] == "user"]


def check_protocol(messages):
    """Every tool call is answered, directly and in order, by a named message with string content."""
    for i, m in enumerate(messages):
        for j, c in enumerate(m.get("tool_calls", [])):
            answer = messages[i + 1 + j]
            assert (answer["role"], answer["tool_call_id"], answer["name"]) == ("tool", c["id"], c["function"]["name"])
            assert isinstance(answer["content"], str)


def test_a_turn_is_observe_think_act(toy_agent):
    model = Canned(MOVE)
    agent = toy_agent(model)
    step = agent.step()
    role, messages, tools = model.sent[0]
    assert role == "agent" and messages[0]["content"].endswith("Policy\ngo") and "Position: x=1, y=1" in messages[-1]["content"]
    assert {t["function"]["name"] for t in tools} == {"move", *ch.TOOLS}
    assert step.results == [{"success": True, "presses": 1, "trace": ["east '.' (1, 1) -> (2, 1)"]}]
    assert (step.t, step.presses, step.place) == (1, 1, "room (1, 1)")


def test_the_observation_is_sent_again_only_after_acting(toy_agent):
    look = ("process_memory", {"action": "read", "entries": [], "reasoning": ""})
    model = Canned(MOVE, look, look, MOVE)
    agent = toy_agent(model)
    steps = [agent.step() for _ in range(4)]
    assert [s.obs is not None for s in steps] == [True, True, False, False]
    sent = [len(user_texts(messages)) for _, messages, _ in model.sent]
    assert sent == [1, 2, 2, 2]
    check_protocol(model.sent[-1][1])


def test_history_is_append_only(toy_agent):
    model = Canned(*[MOVE] * 6)
    agent = toy_agent(model)
    for _ in range(6):
        agent.step()
    for (_, before, _), (_, after, _) in zip(model.sent, model.sent[1:]):
        assert after[:len(before) - 1] == before[:-1]
        assert before[-1]["content"].startswith(after[len(before) - 1]["content"])   # the last one loses its overview only


def test_history_is_cut_in_blocks(toy_agent):
    model = Canned(*[MOVE] * 60)
    agent = toy_agent(model)
    for _ in range(60):
        agent.step()
    lengths = [len(user_texts(messages)) for _, messages, _ in model.sent]
    assert max(lengths) == ch.KEEP + ch.BLOCK and lengths[-1] >= ch.KEEP and lengths.count(ch.KEEP + 1) >= 1


@pytest.mark.parametrize("name, args, words", [
    ("fly", {}, "no such tool: fly; the tools are move"),
    ("move", {"direction": "up"}, "'up' is not one of"),
    ("move", {"direction": "east", "speed": 3}, "speed"),
    ("move", '{"direction": "ea', "not a JSON object"),
    ("run_skill", {"skill_id": "skill_0001"}, "'reasoning' is a required property"),
    ("run_skill", {"skill_id": "skill_0001", "reasoning": ""}, "no skill 'skill_0001'; there are none"),
    ("execute_custom_subagent", {"reasoning": "", "config": {"name": "x", "max_turns": 99}}, "max_turns"),
    ("process_trajectory_history", {"window_range": [5, 9], "directive": "?"}, "no steps 5 to 9"),
])
def test_a_bad_call_is_answered_and_not_carried_out(toy_agent, name, args, words):
    agent = toy_agent(Canned((name, args), MOVE))
    before = agent.env.observe().key
    step = agent.step()
    assert step.results[0]["success"] is False and words in step.results[0]["error"]
    assert agent.env.observe().key == before and agent.harness.version == 0
    agent.step()


def test_text_without_a_call_gets_one_corrective_message(toy_agent):
    model = Canned("I think...", "", MOVE)
    agent = toy_agent(model)
    for _ in range(3):
        agent.step()
    messages = model.sent[-1][1]
    assert user_texts(messages).count(NUDGE) == 2 and [m["content"] for m in messages if m["role"] == "assistant"] == ["I think..."]


def test_one_failing_call_does_not_lose_the_others(toy_agent):
    reply = Reply("", [Call("a", *MOVE), Call("b", "move", {}), Call("c", *MOVE)] + [Call(str(i), *MOVE) for i in range(8)])
    model = Canned(reply, MOVE)
    agent = toy_agent(model)
    results = agent.step().results
    assert [r["success"] for r in results] == [True, False] + [True] * 6 + [False] * 3
    agent.step()
    check_protocol(model.sent[-1][1])


def test_harness_tools_edit_h_entry_by_entry(toy_agent):
    entries = [{"title": "door"}, {"title": "x", "importance": 9}, {"title": "key", "content": "east"}]
    model = Canned(("process_memory", {"action": "add", "entries": entries, "reasoning": "seen"}),
                   ("process_memory", {"action": "read", "entries": [{"id": "mem_0002"}], "reasoning": ""}),
                   ("process_memory", {"action": "update", "entries": [{"id": "mem_0001", "content": "north"}], "reasoning": ""}),
                   ("process_memory", {"action": "delete", "entries": [{"id": "mem_0002"}, {"id": "mem_0009"}], "reasoning": ""}))
    edits = []
    agent = toy_agent(model)
    agent.on_edit = edits.append
    add, read, update, delete = [agent.step().results[0] for _ in range(4)]
    assert [r["success"] for r in add["results"]] == [True, False, True] and "importance" in add["results"][1]["error"]
    assert read["results"][0]["content"] == "east" and update["success"] and [r["success"] for r in delete["results"]] == [True, False]
    assert [(e.op, e.id, e.by) for e in edits] == [("create", "mem_0001", "agent"), ("create", "mem_0002", "agent"),
                                                   ("update", "mem_0001", "agent"), ("delete", "mem_0002", "agent")]
    assert agent.harness.uses["mem_0002"].calls == 1


SKILLS = {
    "good": "tools['move'](direction='east')\nresult = tools['get_game_state']()['player_position']",
    "broken": "tools['move']('east')\nx = 1\nresult = x / 0",
    "says_no": "result = {'success': False, 'why': 'no way'}",
    "endless": "while True: tools['move'](direction='east')",
    "look": "result = tools['get_map_data']()['grid'][1][1]",
    "bad_args": "result = tools['move'](direction='up')",
    "peek": "result = sorted(tools['get_game_state']())",
}


@pytest.fixture
def skilled(toy_agent):
    harness = Harness(prompt="go")
    for name, code in SKILLS.items():
        harness.edit("create", "skills", name, {"name": name, "code": code}, by="agent", step=0)

    def run(name, tool="run_skill"):
        args = {"skill_id": name, "reasoning": ""} if tool == "run_skill" else {"code": SKILLS[name], "reasoning": ""}
        agent = toy_agent(Canned((tool, args)), harness)
        return agent.step().results[0], harness.uses.get(name)

    return run


def test_skills_act_and_are_counted(skilled):
    result, use = skilled("good")
    assert result["success"] and result["result"] == {"x": 2, "y": 1} and result["presses"] == 1 and (use.calls, use.successes) == (1, 1)


def test_a_failing_skill_says_where_and_what_was_done(skilled):
    result, use = skilled("broken")
    assert (result["success"], result["presses"], result["line"]) == (False, 1, 3) and "x / 0" in result["traceback"]
    assert result["trace"] == ["east '.' (1, 1) -> (2, 1)"] and use.successes == 0 and "ZeroDivisionError" in use.last_error
    result, use = skilled("says_no")
    assert result["success"] and use.successes == 0                        # it ran, but by its own word it failed


def test_skill_limits_and_hidden_state(skilled):
    result, _ = skilled("endless")
    assert result["presses"] == ch.SKILL_PRESSES and "limit of 200 presses" in result["error"]
    assert skilled("bad_args")[0]["result"]["success"] is False
    assert "progress" not in skilled("peek")[0]["result"]


def test_run_code_may_look_but_not_act(skilled):
    assert skilled("look", "run_code")[0] == {"success": True, "result": "P"}
    result, _ = skilled("good", "run_code")
    assert not result["success"] and "may look, not act" in result["error"]


@pytest.mark.parametrize("code, args, wrong", [
    ("result = tools['move'](direction='east')", {}, ""),
    ("result = 1 +", {}, "SyntaxError"),
    ("x = 1\nresult = x / 0", {}, "division by zero at line 2: result = x / 0"),
    ("result = args['y']", {}, "KeyError"), ("result = args['y']", {"y": 1}, ""),
    ("tools['move'](direction='up')", {}, "'up' is not one of"),
    ("class A(B): pass", {}, "class inheritance"),
    ("tools['fly']()", {}, "KeyError"),
    ("while tools['get_game_state']()['player_position']['x'] < 3: tools['move'](direction='east')", {}, ""),         # waits for a move
])
def test_a_dry_run_finds_what_is_wrong_and_does_nothing(toy_agent, code, args, wrong):
    agent = toy_agent(Canned())
    before = agent.env.save()
    found = agent.dry_run(code, args)
    assert (wrong in found if wrong else found == "") and agent.env.save() == before


def test_code_that_does_not_parse_is_not_saved_and_a_near_duplicate_is_an_update(toy_agent):
    add = lambda code: ("process_skill", {"action": "add", "entries": [{"name": "go east", "code": code}], "reasoning": ""})
    agent = toy_agent(Canned(add("x ="), add("result = 1"), add("result = 2")))
    bad, new, again = [agent.step().results[0]["results"][0] for _ in range(3)]
    assert "does not parse" in bad["error"] and new["id"] == again["id"] and agent.harness.skills[new["id"]].code == "result = 2"


@pytest.mark.parametrize("game", ["toy", "lantern"])
def test_every_code_example_of_the_prompts_runs_and_names_only_what_is_there(game):
    """The prompts and the sandbox take the skill API from one table."""
    env = open_env(game)
    agent = ch.Agent(env, Harness(prompt="go"), Canned().ask)
    texts = [path.read_text() for path in (ROOT / "prompts").glob("*.md")]
    examples = [code for text in texts for code in re.findall(r"```python\n(.*?)```", text, re.S)]
    assert examples
    for code in examples:
        assert agent.dry_run(code, {}) == "" and agent.execute(code, {}, 1, may_act=True)["success"]
    told = re.findall(r"^- `tools\['(\w+)'\]", ch.skill_api(env.tools), re.M)
    assert set(told) == set(agent.game_tools(None)) == {*env.tools, "get_game_state", "get_map_data"}
    assert all(name in told for text in texts for name in re.findall(r"tools\[['\"](\w+)", text))
    agent.sandbox.close()
    getattr(env, "close", lambda: None)()


def sub(**fields):
    harness = Harness(prompt="go")
    harness.edit("create", "subagents", "scout", {"name": "scout", "system_instructions": "look around", **fields}, by="agent", step=0)
    return harness


RUN = ("execute_custom_subagent", {"subagent_id": "scout", "task": "find the key", "reasoning": "r"})


def test_a_looping_sub_agent_has_its_own_context_and_tools(toy_agent):
    model = Canned(MOVE, RUN, ("run_code", {"code": "", "reasoning": ""}), MOVE, ("return_control", {"reasoning": "no key here"}), MOVE)
    agent = toy_agent(model, sub(return_condition="key found"))
    agent.step()
    step = agent.step()
    assert step.results[0] == {"success": True, "subagent_name": "scout", "turns_taken": 3, "hit_safety_cap": False, "final_reasoning": "no key here"}
    role, messages, tools = model.sent[3]
    assert role == "subagent" and {t["function"]["name"] for t in tools} == {"move", "return_control"}
    assert "look around" in messages[0]["content"] and "find the key" in messages[0]["content"] and "key found" in messages[0]["content"]
    assert len(user_texts(messages)) == 1                                  # nothing of the orchestrator's history
    rows = sorted(agent.steps, key=lambda s: s.t)
    assert [(s.t, s.agent) for s in rows] == [(1, "orchestrator"), (2, "orchestrator"), (3, "scout@2"), (4, "scout@2"), (5, "scout@2")]
    assert "no such tool: run_code" in rows[2].results[0]["error"]
    agent.step()
    check_protocol(model.sent[-1][1])


def test_sub_agents_end_at_their_cap_and_one_step_takes_one(toy_agent):
    agent = toy_agent(Canned(RUN, *[MOVE] * 4), sub(max_turns=4))
    assert agent.step().results[0] | {"final_reasoning": ""} == {
        "success": True, "subagent_name": "scout", "turns_taken": 4, "hit_safety_cap": True, "final_reasoning": ""}
    agent = toy_agent(Canned(RUN, MOVE), sub(handler_type="one_step"))
    assert agent.step().results[0]["turns_taken"] == 1


def test_sub_agents_nest_to_a_limit(toy_agent):
    agent = toy_agent(Canned(RUN, RUN, RUN, ("return_control", {"reasoning": "a"}), ("return_control", {"reasoning": "b"})),
                      sub(available_tools=["execute_custom_subagent"]))
    agent.step()
    assert any("may not call another" in str(r) for s in agent.steps for r in s.results)


def test_history_question_and_refine_request(toy_agent):
    model = Canned(MOVE, ("process_trajectory_history", {"window_range": [1, 1], "directive": "where was I?"}), "at the left",
                   ("evolve_harness", {"reasoning": "stuck", "num_steps": 30}))
    agent = toy_agent(model)
    agent.step()
    assert agent.step().results[0] == {"success": True, "analysis": "at the left"}
    assert model.sent[2][0] == "history" and "where was I?" in model.sent[2][1][0]["content"] and "(1, 1) -> (2, 1)" in model.sent[2][1][0]["content"]
    agent.step()
    assert agent.refine_asked == 30


def test_min_harness_shows_only_its_tools(toy_agent):
    model = Canned(MOVE)
    toy_agent(model, Harness(prompt="go", tools=["move"])).step()
    assert [t["function"]["name"] for t in model.sent[0][2]] == ["move"] and "Your harness" not in model.sent[0][1][-1]["content"]


def test_long_results_are_cut_and_a_picture_goes_with_the_last_observation():
    assert len(ch.clip("x" * 9_000)) < 2_100 and ch.clip({"a": ["y" * 9_000]})["a"][0].count("cut") == 1
    env = open_env("lantern")
    model = Canned(call("press_buttons", {"buttons": ["DOWN"], "reasoning": ""}), call("process_memory", {"action": "read", "entries": [], "reasoning": ""}))
    agent = ch.Agent(env, Harness(prompt="go"), model.ask, vision=True)
    agent.step()
    agent.step()
    parts = [m["content"] for m in model.sent[1][1] if m["role"] == "user"]
    assert isinstance(parts[0], str) and parts[1][1]["image_url"]["url"].startswith("data:image/png;base64,")
    env.close()


def test_prompt_files_are_filled_strictly():
    with pytest.raises(KeyError):
        fill("system", policy="x")
    with pytest.raises(KeyError):
        fill("seed_policy", extra="x")
