"""The Refiner: schedule, failure signatures (windows where they fire, look-alikes where they don't), the four passes."""
import doctest
import json

import pytest

import refiner
from conftest import Canned, step
from harness import Harness
from models import Call
from refiner import Schedule, refine, signatures


def test_schedule():
    assert doctest.testmod(refiner).failed == 0
    assert Schedule().due(20, 31) and Schedule().due(195, 230) and not Schedule().due(200, 299) and Schedule().due(280, 330)
    assert [t for t in range(1, 50) if Schedule(10, 5, 20, 15).due(t - 1, t)] == [10, 15, 20, 30, 45]


def press(t, *lines, **more):
    return step(t, {"success": True, "presses": len(lines), "trace": list(lines)}, **more)


def failing(t, error="no such skill", args=None):
    return step(t, {"success": False, "error": error}, calls=[Call("c", "run_skill", args or {"skill_id": "walk"})], place=f"Town ({t}, 1)", key=str(t))


WALK = [press(t, f"UP '.' (1, {t}) -> (1, {t + 1})", place=f"Town (1, {t})", key=str(t)) for t in range(1, 30)]
FIRES = {
    "blocked_moves": [press(t, "UP '#' (1, 1) blocked", key=str(t)) for t in range(4)],
    "navigation_loop": [press(t, "x", place=f"Town ({t % 2}, 1)", key=str(t)) for t in range(10)],
    "tool_errors": [failing(1), failing(2, args={"skill_id": "run"})],
    "repeated_failing_call": [failing(t) for t in range(3)],
    "stall": [press(t, "A: nothing changed") for t in range(10)],
    "repeated_dialogue": [press(t, "A at 'N' (2, 2): text: COME BACK", key=str(t)) for t in range(3)],
    "unexplored_exits": [press(1, "x", obs="Doors: (4, 4) to House; (9, 9) to Town")],
    "code_without_skill": [step(t, {"success": True, "result": 1}, calls=[Call("c", "run_code", {"code": "x"})], key=str(t), place=f"T ({t}, 1)") for t in range(3)],
}
SILENT = {
    "blocked_moves": [press(t, "A at 'N' (2, 2): text: HELLO", "A: text closed", key=str(t), place=f"Town ({t}, 1)") for t in range(2)] + WALK,
    "navigation_loop": [press(t, "x", place=f"Town ({t % 2}, 1)", key=str(t), milestones=["m"] if t == 8 else []) for t in range(10)],
    "tool_errors": [failing(1), *WALK],
    "repeated_failing_call": [failing(t, args={"skill_id": str(t)}) for t in range(5)],
    "stall": WALK,
    "repeated_dialogue": [press(t, f"A: text: PAGE {t}", key=str(t)) for t in range(5)],
    "unexplored_exits": [press(1, "x", obs="Doors: (4, 4) to House", place="House (1, 1)"), *WALK],
    "code_without_skill": [step(t, {"success": True}, calls=[Call("c", "run_code" if t else "run_skill", {})], key=str(t)) for t in range(4)],
}


@pytest.mark.parametrize("name", FIRES)
def test_signature_fires_with_evidence(name):
    found = [s for s in signatures(FIRES[name]) if s.name == name]
    assert found and found[0].steps and found[0].text and 1 <= found[0].severity <= 3


@pytest.mark.parametrize("name", SILENT)
def test_signature_is_silent_on_a_look_alike(name):
    assert name not in [s.name for s in signatures(SILENT[name])]


def test_no_signature_in_a_good_window_or_an_empty_one():
    assert signatures(WALK) == [] and signatures([]) == []


NONE = '{"analysis": "fine"}'
KEEP = '{"prompt": null}'


def run(*replies, harness=None, window=WALK):
    model, edits = Canned(*replies), []
    harness = harness or Harness(prompt="go north")
    row = refine(harness, window, "Game State: overworld", model.ask, step=25, cause="schedule", tools=["press_buttons"], on_edit=edits.append)
    return harness, row, edits, model


def test_four_passes_in_order_each_with_what_it_edits():
    harness = Harness(prompt="go north")
    harness.edit("create", "skills", "walk", {"name": "walk", "code": "result = 1"}, by="agent", step=1)
    harness.used("walk", False, 9, "ZeroDivisionError: at line 3")
    skill = json.dumps({"update": [{"id": "walk", "code": "result = 2", "why": "repair"}], "create": [{"name": "talk", "code": "result = 0"}]})
    memory = json.dumps({"create": [{"title": "sign at (1, 1)"}]})
    harness, row, edits, model = run('{"prompt": "go south"}', NONE, skill, memory, harness=harness)
    assert [role for role, _, _ in model.sent] == ["refine_prompt", "refine_subagents", "refine_skills", "refine_memory"]
    asked = [m[0]["content"] for _, m, _ in model.sent]
    assert "go north" in asked[0] and "code: result = 1" in asked[2] and "ZeroDivisionError: at line 3" in asked[2] and "used 1 times" in asked[2]
    assert all("UP '.' (1, 5) -> (1, 6)" in text for text in asked)
    assert harness.prompt == "go south" and harness.skills["walk"].code == "result = 2" and harness.skills["skill_0001"].code == "result = 0"
    assert harness.skills["skill_0001"].source == "evolved" and [e.by for e in edits] == ["refiner"] * 4
    assert [p["status"] for p in row["passes"]] == ["edited", "unchanged", "edited", "edited"] and row["version"] == harness.version == 5


@pytest.mark.parametrize("bad", ["I'm sorry, I can't help", "", "{\"prompt\": \"cut off he", "[]", "{}", '{"prompt": ""}', '{"prompt": "I\'m sorry, but"}',
                                 '{"prompt": "Sorry, something went wrong"}', '{"prompt": 5}', '{"policy": "x"}', json.dumps({"prompt": "x" * 24_001})])
def test_a_bad_reply_is_asked_for_once_more_then_changes_nothing(bad):
    harness, row, edits, model = run(bad, bad, NONE, NONE, NONE)
    assert harness.prompt == "go north" and not edits
    assert row["passes"][0]["status"] == "failed" and len(row["passes"][0]["errors"]) == 2
    retry = model.sent[1][1]
    assert len(retry) == 3 and "Not accepted, nothing has changed" in retry[2]["content"] and row["passes"][0]["errors"][0] in retry[2]["content"]


def test_a_repaired_reply_is_taken():
    harness, row, _, _ = run("```json\n{oops", '```json\n{"prompt": "IMPROVED BASE PROMPT: go west"}\n```', NONE, NONE, NONE)
    assert harness.prompt == "go west" and row["passes"][0]["status"] == "edited" and len(row["passes"][0]["errors"]) == 1


@pytest.mark.parametrize("part, bad", [
    (1, {"create": [{"name": "ok"}, {"name": "x", "available_tools": ["fly"]}]}),
    (1, {"create": [{"name": "ok", "max_turns": 51}]}),
    (2, {"create": [{"name": "fine", "code": "1"}], "update": [{"id": "none", "code": "2"}]}),
    (2, {"create": [{"code": "nameless"}]}),
    (3, {"create": [{"title": "t"}], "delete": [{"id": "mem_0042"}]}),
    (3, {"create": [{"title": str(i)} for i in range(6)]}),
    (3, {"add": [{"title": "t"}]}),
])
def test_a_pass_is_all_or_nothing_and_alone(part, bad):
    replies = [KEEP, NONE, NONE, json.dumps({"create": [{"title": "the last pass still runs"}]})]
    replies[part:part + 1] = [json.dumps(bad)] * 2
    if part == 3:
        replies = replies[:5]
    harness, row, edits, _ = run(*replies)
    assert row["passes"][part]["status"] == "failed" and not [e for e in edits if e.part == ("prompt", "subagents", "skills", "memory")[part]]
    assert len(harness.memory) == (0 if part == 3 else 1)
