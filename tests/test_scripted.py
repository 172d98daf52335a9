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
from models.scripted import Scripted, Turn
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


def test_what_was_inherited_is_to_be_seen_again():
    """Where things are is believed; that they were done, explored or out of reach is not."""
    lines = ["places/mem_1: ROOM (3, 1): 'N' says: Go on!", "places/mem_2: ROOM: explored", "places/mem_3: HUT (0, 1): leads to ROOM",
             "places/mem_4: HUT (5, 5): no way there yet", "milestones/mem_5: ROOM (3, 1): met them by 'N'"]
    own = read_context(context(overview="\n".join(f"- {line}" for line in lines)))
    assert own.explored == {"ROOM"} and own.shut == {("HUT", 5, 5)} and not own.objectives and not own.heard
    view = read_context(context(overview="\n".join(f"- {line}: hint (inherited)" for line in lines)))
    assert not view.explored and not view.shut and view.objectives == [("mem_5", "ROOM", (3, 1), "N")]
    assert view.leads == own.leads == {("HUT", 0, 1): "ROOM"} and view.heard == {("ROOM", 3, 1), ("HUT", 0, 1)}
    both = read_context(context(overview="- places/mem_1: ROOM (3, 1): 'N' says: old (inherited)\n- places/mem_2: ROOM (3, 1): 'N' says: new"))
    assert both.texts[("ROOM", 3, 1)] == "new"


def test_a_milestone_that_is_not_where_it_was_is_looked_for():
    """The ball of another game's maze lay where this one has floor."""
    _, tools = first_messages()
    room = ROOM.replace("N person)", "N person, O ball)")
    here = context((room, "walk", "press_buttons", {"buttons": ["UP"]}, {"trace": []}), overview="- milestones/mem_5: ROOM (2, 2): found it by 'O': (inherited)")
    entry = Scripted()(here, tools).calls[0].args["entries"][0]
    assert entry["id"] == "mem_5" and entry["title"] == "ROOM: look for O" and entry["path"] == "objectives"


def test_the_refiner_notes_where_progress_was_made():
    window = """[7] orchestrator at ROOM (2, 2): press_buttons -> {"trace": ["UP '.' (2, 2) -> (2, 1)", "A at 'N' (3, 1): text: Go on!"]} MILESTONES met them
[8] orchestrator at ROOM (2, 1): press_buttons -> {"trace": ["DOWN 'D' (2, 1) -> HUT (0, 2)"]} MILESTONES left the room
[9] orchestrator at HUT (0, 2): press_buttons -> {"trace": ["UP '~' (0, 1): a battle begins: A"]}
[10] orchestrator at HUT (0, 2): press_buttons -> {"trace": ["A: text closed"]} MILESTONES won"""
    made = [e["title"] for e in refine_memory(window, "(none yet)")["create"] if e["path"] == "milestones"]
    assert made == ["ROOM (3, 1): met them by 'N'", "HUT (0, 2): left the room on arrival"]          # a wild battle has no place
    old = "### mem_1 (never used)\ntitle: ROOM (3, 1): 'N' says: Go on!\npath: places\nsource: bootstrapped"
    assert [(e["id"], e["source"]) for e in refine_memory(window, old)["update"]] == [("mem_1", "evolved")]


def test_a_hand_on_the_wall_comes_past_every_dead_end():
    """No memory: the reply follows from the one observation. Against a maze's map, where every cell of floor is to be reached."""
    maze = ["#########", "#...#...#", "#.#.#.#.#", "#.#...#.#", "#.#######", "#.......#", "###.#.###", "#...#...#", "#########"]
    _, tools = first_messages(Harness(prompt="go", tools=["press_buttons"]))
    x, y, facing, been = 1, 1, "up", set()
    for _ in range(120):
        been.add((x, y))
        near = lambda i, j: "P" if (i, j) == (x, y) else maze[j][i] if abs(i - x) < 2 and abs(j - y) < 2 else " "
        drawn = "\n".join("".join(near(i, j) for i in range(9)) for j in range(9))
        obs = f"Game State: overworld\nLocation: CAVE\nPosition: x={x}, y={y}, facing {facing}\nIt is dark\nASCII Map:\n{drawn}\n" \
              "(top-left cell is x=0, y=0; map 9x9; P you, . floor, # wall)"
        button = Scripted()([{"role": "system", "content": "You play a game"}, {"role": "user", "content": obs}], tools).calls[0].args["buttons"][0]
        dx, dy = {"UP": (0, -1), "DOWN": (0, 1), "LEFT": (-1, 0), "RIGHT": (1, 0)}[button]
        facing = button.lower()
        if maze[y + dy][x + dx] == ".":
            x, y = x + dx, y + dy
    assert been == {(i, j) for j, row in enumerate(maze) for i, c in enumerate(row) if c == "."}


@pytest.mark.parametrize("points, said, goes", [(9, "I can mend you.", True), (20, "I can mend you.", False), (9, "Nice day.", False)])
def test_hurt_it_looks_for_help(points, said, goes):
    _, tools = first_messages()
    messages = context(overview=f"- places/mem_1: ROOM (3, 1): 'N' says: {said}")
    messages[-1]["content"] = messages[-1]["content"].replace("\n\nYour", f"\nParty: A (A) level 5 HP {points}/27 ok\n\nYour")
    turn = Turn(0, messages, {t["function"]["name"]: t["function"]["parameters"] for t in tools})
    assert (turn.healer() == (3, 1)) == goes and (turn.healer() is None) == (not goes)


@pytest.mark.parametrize("order", ["ABC", "BCA", "CBA"])
def test_an_order_that_nothing_tells_is_found_by_trial(order):
    """Against the puzzle itself: the right one clicks, a wrong one resets all."""
    _, tools = first_messages(Harness(prompt="go", tools=["press_buttons"]))
    hall = "Game State: overworld\nLocation: HALL\nPosition: x=2, y=2, facing up\nASCII Map:\n#######\n#..B..#\n#.P...#\n#!.!.!#\n#######\n" \
           "(top-left cell is x=0, y=0; map 7x5; P you, . floor, # wall, ! sign, B boulder)"
    cells, turns, held, pressed = {"A": (1, 3), "B": (3, 3), "C": (5, 3)}, [], "", "A"
    for _ in range(12):
        held = held + pressed if (held + pressed) == order[:len(held) + 1] else ""
        if held == order:
            break
        said = {"trace": [f"A at '!' {cells[pressed]}: text: {'Click!' if held else 'Reset!'}"]}
        turns.append((hall, "use", "press_buttons", {"buttons": ["A"]}, said))
        messages = context(*turns)
        messages[-1] = {"role": "user", "content": hall}
        target = Turn(0, messages, {t["function"]["name"]: t["function"]["parameters"] for t in tools}).in_order()
        pressed = next(name for name, cell in cells.items() if cell == target)
    assert held == order


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
