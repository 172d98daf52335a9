"""Nothing is canned: the offline model learns a world whose symbols and types are exchanged just as well as the one it is given."""
import json
import re

import pytest
from conftest import ROOT

import env
from games.lantern import Lantern
from harness import fold, read_edits
from models.learner import refine_memory, refine_skills, table
from run import main
from sandbox import Sandbox

NORMAL = {}
EXCHANGED = {".": "%", "#": ".", "~": "W", "W": "$", "!": "#", "D": "~", "%": "!", "↓": "D"}      # floor looks like %, walls like floor ...


def exchanged(symbols):
    """A lantern whose map is drawn with other symbols; its legend says so, as ever."""
    class Other(Lantern):
        def map(self, mem):
            world = super().map(mem)
            swap = lambda text: "".join(symbols.get(c, c) for c in text)
            return world | {"grid": [swap(row) for row in world["grid"]], "grid_legend": {symbols.get(s, s): what for s, what in world["grid_legend"].items()}}
    return Other


def learned(folder, symbols, monkeypatch, capsys):
    """(presses, milestones, the walking skill's tables) after 130 steps of a run with these symbols."""
    monkeypatch.setattr("games.lantern.Game", exchanged(symbols))
    assert main(["--run", str(folder), "--json", "--steps", "130", "--seed", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    skills = fold(read_edits(folder / "edits.jsonl")).skills.values()
    code = next(s.code for s in skills if s.name == "walk_to")
    return row["presses"], row["milestones"], {name: table(code, name) for name in ("OPEN", "LEAP", "AWAY", "SHUT")}


def test_another_alphabet_is_learned_just_as_well(tmp_path, monkeypatch, capsys):
    presses, milestones, tables = learned(tmp_path / "a", NORMAL, monkeypatch, capsys)
    again, same, other = learned(tmp_path / "b", EXCHANGED, monkeypatch, capsys)
    assert (presses, milestones) == (again, same) and len(milestones) >= 5
    assert other == {name: {EXCHANGED.get(s, s): ways for s, ways in t.items()} for name, t in tables.items()}
    assert set(tables["OPEN"]) >= {"."} and "%" in other["OPEN"] and env.GAMES


def fought(move, foe, before, after):
    return f'[1] orchestrator at ROUTE (1, 1): press_buttons {{}} -> {{"trace": ["A on {move}: text: X / Y [enemy MON ({foe}) {before}->{after}/48]"]}}'


@pytest.mark.parametrize("strong, weak", [("KINDLE", "DEWDROP"), ("DEWDROP", "KINDLE")])
def test_the_type_chart_is_learned_from_what_moves_took(strong, weak):
    """With the chart turned round the other move is preferred: what counts is what the bar lost."""
    window = "\n".join([fought(strong, "STONE", 48, 10), fought(weak, "STONE", 48, 44), fought(weak, "STONE", 44, 41)])
    made = refine_skills(window, "(none yet)")["create"]
    worth = table(next(s["code"] for s in made if s["name"] == "fight"), "WORTH")
    assert worth["STONE"][strong] == 0.79 and worth["STONE"][weak] == 0.07


def step(*lines, place="TOWN"):
    return f'[1] orchestrator at {place} (1, 1): press_buttons {{}} -> {{"trace": {json.dumps(list(lines), ensure_ascii=False)}}}'


def test_walking_is_induced_from_moves_alone():
    window = step("UP '^' (1, 1) -> (1, 0)", "LEFT '^' (1, 0) -> (0, 0)", "UP '=' (0, 0) blocked", "LEFT '=' (0, 0) blocked",
                  "DOWN 'v' (3, 3) -> (3, 5)", "DOWN 'o' (4, 4) -> CAVE (9, 9)", "DOWN '^' (5, 5): a battle begins: A / B")
    code = refine_skills(window, "(none yet)")["create"][0]["code"]
    ways = ["DOWN", "LEFT", "RIGHT", "UP"]
    assert table(code, "OPEN") == {"^": ways, "o": ["DOWN"]} and table(code, "SHUT") == {"=": ways}
    assert table(code, "LEAP") == {"v": "DOWN"} and table(code, "AWAY") == {"o": 1} and table(code, "COST")["^"] > 0
    compile(code, "skill", "exec")


def test_the_thin_walker_is_replaced_once_walks_fail():
    assert refine_skills(step("UP '.' (1, 1) -> (1, 0)"), "(none yet)")["create"] == []        # a walk one way only would trap it
    window, current = step("UP '.' (1, 1) -> (1, 0)", "LEFT '.' (1, 0) -> (0, 0)"), ""
    thin = refine_skills(window, "(none yet)")["create"][0]["code"]
    assert "heapq" not in thin
    current = f"### skill_0001 (used 4 times, 2 with success, last at step 9)\nname: walk_to\ncode: {thin}"
    repaired = refine_skills(window, current)["update"][0]
    assert repaired["id"] == "skill_0001" and "heapq" in repaired["code"] and repaired["why"] == "2 of 4 walks succeeded: search instead"
    current = f"### skill_0001 (used 4 times, 4 with success, last at step 9)\nname: walk_to\ncode: {thin}"
    assert not refine_skills(window, current)["update"]                                     # it works: left alone


def test_memory_holds_what_was_read_and_where_doors_lead():
    window = step("A at '!' (3, 4): text: NORTH / ▼", "A: text: the cave", place="TOWN") + "\n" + step("DOWN 'D' (5, 5) -> HUT (2, 2)", place="TOWN")
    titles = [e["title"] for e in refine_memory(window, "(none yet)")["create"]]
    assert titles[0] == "TOWN (3, 4): '!' says: NORTH / / the cave" and "TOWN (5, 6): leads to HUT" in titles and "HUT (2, 2): leads to TOWN" in titles
    assert not any(re.search("NORTH", e["title"]) for e in refine_memory(window, "\n".join(f"### m (never used)\ntitle: {t}" for t in titles))["create"])


def test_a_battle_that_cannot_be_left_is_fought_with_nothing():
    """A trainer refuses RUN: with no PP the skill tries that three times and then fights on."""
    pressed, own = [], {"name": "W", "hp": 9, "max_hp": 9, "moves": [{"name": "HIT", "pp": 0}]}

    def state():
        menu = {"kind": "battle menu", "options": ["FIGHT", "ITEM", "FRIEND", "RUN"], "cursor": "FIGHT"}
        battle = {"active": 0, "enemy": {"types": ["WATER"], "hp_bar": 48}} if len(pressed) < 8 else None
        return {"menu": menu, "battle": battle, "party": [own], "context": "battle"}

    def press(buttons, reasoning):
        pressed.append(buttons)

    box = Sandbox()
    done = box.run((ROOT / "models" / "skills" / "fight.py.txt").read_text(), {}, {"get_game_state": state, "press_buttons": press})
    box.close()
    assert not done.error and pressed == [["DOWN", "RIGHT", "A"]] * 3 + [["A"]] * 5
