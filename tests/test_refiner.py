"""The Refiner: schedule, failure signatures (windows where they fire, look-alikes where they don't), the four passes."""
import doctest
import copy
import json
import sys

import pytest

import refiner
from conftest import Canned, step
from games.red import Red
from harness import Harness
from models import Call
from refiner import Schedule, contents, refine
from reuse import overview, upkeep
from signatures import DETECTORS, lost, signatures


def test_schedule():
    assert doctest.testmod(refiner).failed == 0
    assert Schedule().due(20, 31) and Schedule().due(195, 230) and not Schedule().due(200, 299) and Schedule().due(280, 330)
    assert [t for t in range(1, 50) if Schedule(10, 5, 20, 15).due(t - 1, t)] == [10, 15, 20, 30, 45]


def press(t, *lines, **more):
    return step(t, {"success": True, "presses": len(lines), "trace": list(lines)}, **more)


def failing(t, error="no such skill", args=None):
    return step(t, {"success": False, "error": error}, calls=[Call("c", "run_skill", args or {"skill_id": "walk"})], place=f"Town ({t}, 1)", key=str(t))


def skill(t, error="", line=0, id="walk", **more):
    result = {"skill_id": id, "success": not error, "presses": 0, "trace": []} | ({"error": error, "line": line, "traceback": f'  File "skill", line {line}\n{error}'} if error else {})
    return step(t, result, calls=[Call("c", "run_skill", {"skill_id": id, "args": {"x": 3}, "reasoning": ""})], key=f"s{t}", place=f"Town ({t}, 2)", **more)


def helper(t, capped):
    return step(t, {"success": True, "turns_taken": 9, "hit_safety_cap": capped}, calls=[Call("c", "execute_custom_subagent", {"subagent_id": "sa"})], key=str(t))


def malformed(t, **more):
    """What the paper's case study sent 842 times: the buttons as one string."""
    error = "press_buttons was not carried out: buttons: 'A' is not of type 'array'"
    return step(t, {"success": False, "error": error, "takes": {"buttons": {"type": "array"}}},
                calls=[Call("c", "press_buttons", {"buttons": "A", "reasoning": f"the text goes on, {t}"})], **more)


def moving(t, *lines, **more):
    return press(t, *lines, **{"key": f"k{t}", "place": f"Town (1, {t})"} | more)


WALK = [press(t, f"UP '.' (1, {t}) -> (1, {t + 1})", place=f"Town (1, {t})", key=str(t)) for t in range(1, 30)]
TALK = "A at 'N' (2, 2): text: COME BACK"
BATTLE = [press(t, "A on FIGHT: text: EMBER / MEND", "A on EMBER: text: EMBER hits [enemy BAT (BUG) 40->30/48]", "A: text: ▶FIGHT PAL / ITEM  RUN", key=f"hp{t // 2}")
          for t in range(1, 25)]
HEALER = [press(t, [TALK, "A: text closed", "DOWN '.' (2, 3) -> (2, 4)", "UP '.' (2, 4) -> (2, 3)"][t % 4], key=f"h{t % 4}", place=f"Healer (2, {3 + (t % 4 == 3)})")
          for t in range(1, 17)]
FIRES = {
    "blocked_moves": {"a wall, pressed on": [press(t, "UP '#' (1, 1) blocked", key=str(t)) for t in range(4)],
                      "inside a skill": [press(1, *["north '#' (1, 1) blocked"] * 5)]},
    "navigation_loop": {"to and fro": [press(t, "x", place=f"Town ({t % 2}, 1)", key=str(t)) for t in range(10)],
                        "the healer and back": HEALER},
    "tool_errors": {"two calls": [failing(1), failing(2, args={"skill_id": "run"})]},
    "repeated_failing_call": {"three times the same": [failing(t) for t in range(3)],
                              "each time for another reason": [failing(t, args={"skill_id": "x", "reasoning": str(t)}) for t in range(3)]},
    "schema_mismatch": {"believed to be progress": [malformed(t) for t in range(3)], "among walks": [malformed(31), *WALK, malformed(32)]},
    "broken_skill": {"an exception": [*WALK, skill(40, "ZeroDivisionError: division by zero", 3)]},
    "stall": {"nothing changes": [press(t, "A: nothing changed") for t in range(10)], "a healer's loop": HEALER,
              "a menu opened and closed": [press(t, "START: text: MENU", key=f"m{t % 2}") for t in range(10)]},
    "repeated_dialogue": {"asked three times": [press(t, TALK, key=str(t)) for t in range(3)], "the healer": HEALER},
    "lost_battle": {"carried to the healer": [*BATTLE, press(30, "A: text: you fall [the battle is lost]")]},
    "no_tool_call": {"only words": [step(t) for t in range(3)]},
    "capped_subagent": {"twice": [helper(1, True), helper(2, True)]},
    "unexplored_exits": {"a door in view": [press(1, "x", obs="Doors: (4, 4) to House; (9, 9) to Town")]},
    "code_without_skill": {"run_code only": [step(t, {"success": True, "result": 1}, calls=[Call("c", "run_code", {"code": "x"})], key=str(t), place=f"T ({t}, 1)") for t in range(3)]},
}
SILENT = {
    "blocked_moves": {"mashing A in dialogue": [moving(t, "A at 'N' (2, 2): text: HELLO", "A: text: PAGE", "A: text closed") for t in range(9)] + WALK,
                      "turning to people and signs": [moving(t, "UP 'N' (1, 1) blocked", "A at 'N' (1, 0): text: HI") for t in range(9)],
                      "a battle": BATTLE},
    "navigation_loop": {"it led somewhere": [press(t, "x", place=f"Town ({t % 2}, 1)", key=str(t), milestones=["m"] if t == 8 else []) for t in range(10)],
                        "a long talk in one place": [press(t, f"A: text: PAGE {t}", key=str(t)) for t in range(20)], "a battle": BATTLE},
    "tool_errors": {"one": [failing(1), *WALK]},
    "repeated_failing_call": {"put right since": [*(skill(t, "KeyError: x", 2) for t in range(5)), skill(9)], "each another": [failing(t, args={"skill_id": str(t)}) for t in range(5)], "one that worked later": [skill(1), skill(2), skill(3)]},
    "schema_mismatch": {"one slip, put right": [malformed(1), *WALK], "well-formed calls that fail": [failing(t) for t in range(5)]},
    "broken_skill": {"repaired since": [skill(1, "KeyError: x", 2), skill(2)], "it says itself that it failed": [skill(1), *WALK]},
    "stall": {"a walk": WALK, "a long battle": BATTLE, "pages of a text": [press(t, f"A: text: PAGE {t}", key=f"p{t}") for t in range(20)],
              "a milestone on the spot": [press(t, "A: x", milestones=["m"] if t == 9 else []) for t in range(1, 11)]},
    "repeated_dialogue": {"pages": [press(t, f"A: text: PAGE {t}", key=str(t)) for t in range(5)], "a battle's menu": BATTLE,
                          "several people": [press(t, f"A at 'N' (2, {t}): text: HELLO", key=str(t)) for t in range(5)]},
    "lost_battle": {"won": BATTLE, "a text about losing": [press(1, "A at 'N' (1, 1): text: The battle is lost, they say")]},
    "no_tool_call": {"two": [step(1), step(2), *WALK]},
    "capped_subagent": {"they return": [helper(t, False) for t in range(5)]},
    "unexplored_exits": {"taken": [press(1, "x", obs="Doors: (4, 4) to House", place="House (1, 1)"), *WALK]},
    "code_without_skill": {"a skill too": [step(t, {"success": True}, calls=[Call("c", "run_code" if t else "run_skill", {})], key=str(t)) for t in range(4)]},
}
PAIRS = lambda table: [(name, what) for name, windows in table.items() for what in windows]


@pytest.mark.parametrize("name, what", PAIRS(FIRES))
def test_signature_fires_with_evidence(name, what):
    window = FIRES[name][what]
    found = [s for s in signatures(window) if s.name == name]
    assert found and found[0].steps and found[0].text and found[0].places and 1 <= found[0].severity <= 3
    assert found[0].calls or name == "no_tool_call"
    assert signatures(copy.deepcopy(window)) == signatures(window)


@pytest.mark.parametrize("name, what", PAIRS(SILENT))
def test_signature_is_silent_on_a_look_alike(name, what):
    assert name not in [s.name for s in signatures(SILENT[name][what])]


def test_each_detector_has_windows_of_both_kinds():
    assert set(FIRES) == set(SILENT) == {d.__name__ for many in DETECTORS.values() for d in many}


def test_the_schema_trap_is_named_with_call_schema_and_difference():
    """842 times the same malformed call, each with another reasoning, believed to be progress."""
    [found] = [s for s in signatures([malformed(t) for t in range(842)]) if s.name == "schema_mismatch"]
    assert found.severity == 3 and len(found.steps) == 842 and found.calls == ("press_buttons",)
    assert all(word in found.text for word in ("842 calls did nothing", '"buttons": "A"', '{"type": "array"}', "'A' is not of type 'array'"))


def test_the_environment_says_once_that_a_battle_is_lost():
    wild, over = {"kind": "wild", "enemy": None}, {"kind": "lost", "enemy": None}
    said = Red.hurt(None, wild, over)
    assert lost([press(3, "A: text: you fall" + said)]) == [3] and Red.hurt(None, over, over) == Red.hurt(None, wild, wild) == ""


def test_no_signature_in_a_good_window_or_an_empty_one():
    assert signatures(WALK) == [] and signatures([]) == []


NONE = '{"analysis": "fine"}'
KEEP = '{"prompt": null}'


def run(*replies, harness=None, window=WALK, **more):
    model, edits = Canned(*replies), []
    harness = harness or Harness(prompt="go north")
    row = refine(harness, window, "Game State: overworld", model.ask, step=25, cause="schedule", tools=["press_buttons"], on_edit=edits.append, **more)
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


WALKER = """grid = tools['get_map_data']()['grid']
for turn in range(20):
    at = tools['get_game_state']()['player_position']
    if at['x'] == args['x']:
        break
    tools['press_buttons'](buttons=['RIGHT' if at['x'] < args['x'] else 'LEFT'], reasoning='walk')
result = {'success': at['x'] == args['x']}"""


def one_skill(code="result = args['x'] / 0", **fields):
    harness = Harness(prompt="go north")
    harness.edit("create", "skills", "walk", {"name": "walk_to", "code": code, **fields}, by="agent", step=0)
    return harness


def test_a_skill_that_broke_is_shown_with_traceback_line_and_arguments():
    text = contents(one_skill(), "skills", [skill(9, "ZeroDivisionError: division by zero", 1)])
    assert all(word in text for word in ('last run failed: args {"x": 3}, line 1', "ZeroDivisionError", 'File "skill", line 1', "code: result = args['x'] / 0"))
    assert "last run failed" not in contents(one_skill(), "skills", [skill(9, "ZeroDivisionError", 1), skill(10)])


def test_a_repair_that_fails_its_dry_run_keeps_the_old_code_and_says_why():
    tried = []
    dry_run = lambda code, args: tried.append((code, args)) or ("NameError: y at line 1: y" if code == "y" else "")
    bad, good = [json.dumps({"update": [{"id": "walk", "code": code}]}) for code in ("y", "result = 1")]
    window = [skill(9, "ZeroDivisionError", 1)]
    harness, row, edits, model = run(KEEP, NONE, bad, bad, NONE, harness=one_skill(), window=window, dry_run=dry_run)
    assert harness.skills["walk"].code == "result = args['x'] / 0" and not edits and tried == [("y", {"x": 3})] * 2
    assert row["passes"][2]["status"] == "failed" and "the old code stays: its dry run ended with NameError: y at line 1" in row["passes"][2]["errors"][0]
    assert "NameError" in model.sent[3][1][2]["content"]
    harness, row, _, _ = run(KEEP, NONE, bad, good, NONE, harness=one_skill(), window=window, dry_run=dry_run)
    assert harness.skills["walk"].code == "result = 1" and row["passes"][2]["status"] == "edited"
    example = json.dumps({"create": [{"name": "new", "code": "z", "example": {"x": 7}}]})
    run(KEEP, NONE, example, NONE, dry_run=dry_run)
    assert tried[-1] == ("z", {"x": 7})


@pytest.mark.parametrize("fields, same", [
    ({"name": "walkTo", "code": "result = args['x']"}, True),                                            # the name
    ({"name": "stroll", "code": WALKER.replace("turn", "i").replace("at[", "here[").replace("at =", "here =") + "  # a copy"}, True),    # its shape
    ({"name": "stroll", "code": WALKER.replace("args['x']", "args['y']")}, False),                       # other arguments
    ({"name": "flee", "code": WALKER.replace("'RIGHT'", "'B'").replace("'LEFT'", "'A'").replace("20", "3").replace("walk", "flee").replace("==", "!=")}, False),
    ({"name": "look", "code": "result = tools['get_map_data']()"}, False),
])
def test_a_near_duplicate_becomes_an_update(fields, same):
    new = json.dumps({"create": [fields]})
    harness, _, [edit], _ = run(KEEP, NONE, new, NONE, harness=one_skill(WALKER))
    assert (edit.op, edit.id) == (("update", "walk") if same else ("create", "skill_0001")) and harness.skills["walk"].name == "walk_to"
    harness = one_skill(WALKER)
    harness.reuse = False
    assert run(KEEP, NONE, new, NONE, harness=harness)[2][0].op == "create"                                # --no-reuse


def test_the_skills_pass_sees_what_led_to_a_milestone_and_the_skill_api():
    window = [*WALK[:3], press(40, "A: x", milestones=["took the key"])]
    asked = run(KEEP, NONE, NONE, NONE, window=window, api="- `tools['fly']()`: up")[3].sent[2][1][0]["content"]
    assert "- took the key: [1] press_buttons" in asked and "[40] press_buttons" in asked and "`tools['fly']()`: up" in asked


def test_the_same_again_is_no_edit():
    harness, row, edits, _ = run(KEEP, NONE, json.dumps({"create": [{"name": "walk_to", "code": WALKER}]}), NONE, harness=one_skill(WALKER))
    assert not edits and row["passes"][2]["status"] == "unchanged"


def known(**fields):
    harness = Harness(prompt="go north")
    harness.edit("create", "memory", "", {"title": "t", "location": "Town", **fields}, by="agent", step=5)
    return harness


SAYS, LEADS = {"content": "'N' says: Come back / later", "coordinates": "(2, 2)"}, {"content": "leads to House", "coordinates": "4,4"}


@pytest.mark.parametrize("fact, line, t, confidence", [
    (SAYS, TALK, 9, 3), (SAYS, "A at 'N' (2, 2): text: Go away", 9, 1), (SAYS, TALK, 4, 2), (SAYS, "A at 'N' (2, 3): text: Go away", 9, 2),
    (LEADS, "UP 'D' (4, 5) -> House (1, 1)", 9, 3), (LEADS, "UP 'D' (4, 5) -> Houses (1, 1)", 9, 2), (LEADS, "UP 'D' (4, 5) -> (4, 4)", 9, 1),
    ({"content": "a healer", "coordinates": "2, 2"}, TALK, 9, 2)])
def test_confidence_moves_with_what_was_seen_since(fact, line, t, confidence):
    harness, row, edits, _ = run(KEEP, NONE, NONE, NONE, harness=known(**fact), window=[press(t, line)])
    assert harness.memory["mem_0001"].confidence == confidence and f"[confidence {confidence}]" in overview(harness)
    assert row["upkeep"] == [e.version for e in edits] and all(str(t) in e.why for e in edits)


def test_a_fact_contradicted_at_the_least_confidence_is_retired():
    window = [press(9, "A at 'N' (2, 2): text: Go away")]
    assert not run(KEEP, NONE, NONE, NONE, harness=known(**SAYS, confidence=1), window=window)[0].memory
    assert run(KEEP, NONE, NONE, NONE, harness=known(**SAYS, confidence=1), window=window, retire=False)[0].memory


@pytest.mark.parametrize("fields, uses, now, gone", [
    ({}, [False] * 8, 30, "it failed 8 times in a row; the last error: no way"), ({}, [False] * 7, 30, ""), ({}, [False] * 7 + [True], 30, ""),
    ({}, [True] * 9 + [False] * 8, 30, ""),
    ({}, [], 300, "not used once in the 300 steps"), ({}, [], 150, ""), ({"source": "bootstrapped"}, [], 300, ""), ({"protected": True}, [False] * 9, 300, ""),
    ({"source": "bootstrapped"}, [False] * 8, 30, "8 times in a row")])
def test_what_fails_or_is_never_used_is_retired_with_the_reason(fields, uses, now, gone):
    for retire in (True, False):
        harness = Harness(prompt="p")
        harness.edit("create", "skills", "walk", {"name": "walk", "code": "1", **fields}, by="human", step=0)
        for ok in uses:
            harness.used("walk", ok, 20, "no way")
        edits = upkeep(harness, [], now, retire)
        assert [gone in e.why and e.op == "delete" for e in edits] == [True] * bool(gone and retire)


def test_a_change_gives_a_failing_skill_another_chance():
    harness = one_skill()
    for t in range(8):
        harness.used("walk", False, t)
    harness.edit("update", "skills", "walk", {"code": "result = 2"}, by="refiner", step=9)
    assert not upkeep(harness, [], 10) and harness.uses["walk"].calls == 8


if __name__ == "__main__":
    print(f"{'signature':22s} severity  fires on / silent on")
    for name in FIRES:
        severity = next(s.severity for s in signatures(next(iter(FIRES[name].values()))) if s.name == name)
        print(f"{name:22s} {severity}  {'; '.join(FIRES[name])} / {'; '.join(SILENT[name])}  ({len(FIRES[name])} + {len(SILENT[name])} tests)")
    sys.exit(0)
