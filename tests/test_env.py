"""The contract, over every environment; the Game Boy reader against the cartridge's own map data."""
import json
import random
import shutil

import pytest

from conftest import ROOT
from env import GAMES, open_env
from games.cartridge import assets, build
from models.scripted import Presser
from runlog import BadInput

PLAYABLE = ["toy", "lantern"]


@pytest.fixture(scope="module", params=PLAYABLE)
def env(request):
    made = open_env(request.param)
    yield made
    getattr(made, "close", lambda: None)()


def walker(env):
    """A random action of an environment, by its own vocabulary."""
    press = Presser({name: schema for name, (_, schema) in env.tools.items()})
    return lambda rng: press([rng.choice([n for n in press.names if n not in ("START", "SELECT")])], "test")


def test_observation_is_pure_and_complete(env):
    a, b = env.observe(), env.observe()
    assert (a.text, a.state, a.key) == (b.text, b.state, b.key)
    assert json.loads(json.dumps(a.state)) == a.state
    assert "ASCII Map:" in a.text and "Game State: overworld" in a.text
    progress = a.state["progress"]
    assert set(progress) == {"milestones", "reached", "presses"} and not any(m in a.text for m in progress["milestones"])
    assert a.frame is None or (a.frame.shape[2] == 3 and a.frame.dtype == "uint8")


def test_bad_actions_are_results_and_move_nothing(env):
    before = env.observe()
    for name, args in [("fly", {}), (next(iter(env.tools)), {"buttons": ["X"], "direction": "up up"}), (next(iter(env.tools)), {})]:
        result = env.act(name, args)
        assert result["success"] is False and result["error"]
    assert env.observe().key == before.key and env.observe().state == before.state


def test_save_and_load_go_back_exactly(env):
    rng, act = random.Random(3), walker(env)
    state = env.save()
    script = [act(rng) for _ in range(25)]
    first = [env.act(*a) for a in script]
    end = env.observe()
    env.load(state)
    assert [env.act(*a) for a in script] == first
    assert env.observe().key == end.key and env.observe().state == end.state
    env.load(state)


def test_two_instances_agree():
    for game in PLAYABLE:
        keys = []
        for _ in range(2):
            env, rng = open_env(game), random.Random(7)
            act = walker(env)
            keys.append([(env.act(*act(rng)), env.observe().key) for _ in range(40)])
            getattr(env, "close", lambda: None)()
        assert keys[0] == keys[1]


def test_blocked_press_leaves_the_key_and_says_so():
    env = open_env("lantern")
    env.act("press_buttons", {"buttons": ["LEFT"] * 6, "reasoning": ""})
    before = env.observe()
    assert env.act("press_buttons", {"buttons": ["LEFT"], "reasoning": ""})["trace"] == ["LEFT '#' (1, 4) blocked"]
    assert env.observe().key == before.key
    env.close()


def test_unknown_game_and_rom():
    with pytest.raises(BadInput, match="no such game; choose one of"):
        open_env("chess")
    assert set(GAMES.values()) <= {"red"}


# -- lantern against its own data

CELL = {" ": ".", ".": ".", "#": "#", "T": "#", "^": "#", "D": "D", "m": "D", "S": "!", "~": "W", "t": "#"}


def expected_grid(number, player):
    """The text map that the cartridge's source describes, with the player and the people drawn in."""
    data = assets.MAPS[number]
    grid = [[CELL[c] for c in row] for row in data["rows"]]
    for _, y, x, *_ in data["sprites"]:
        grid[y][x] = "N"
    grid[player["y"]][player["x"]] = "P"
    return ["".join(row) for row in grid]


def test_text_map_agrees_with_the_cartridge_on_a_random_walk():
    env, rng, seen = open_env("lantern"), random.Random(1), set()
    for i in range(400):
        heading = ["DOWN"] * 3 if env.observe().state["location"] == "House" else ["UP", "DOWN", "LEFT", "RIGHT", "A", "B"]
        env.act("press_buttons", {"buttons": [rng.choice(heading)], "reasoning": ""})
        state = env.observe().state
        number = [m["name"] for m in assets.MAPS].index(state["location"])
        assert state["map"]["grid"] == expected_grid(number, state["player_position"]), f"press {i}"
        assert state["map"]["warps"] == [{"x": w[1], "y": w[0], "dest_map": assets.MAPS[w[3]]["name"]} for w in assets.MAPS[number]["warps"]]
        seen.add(number)
    assert seen == {0, 1}
    env.close()


def test_text_is_read_page_by_page():
    env = open_env("lantern")
    env.act("press_buttons", {"buttons": ["RIGHT", "RIGHT", "UP", "UP", "RIGHT", "A"], "reasoning": ""})
    observation = env.observe()
    assert observation.state["context"] == "dialogue" and observation.state["screen"] == ["The town is just", "outside the door."]
    assert "Game State: dialogue" in observation.text and "  outside the door." in observation.text
    assert observation.state["map"]["grid"] == expected_grid(0, observation.state["player_position"])     # right under the text box
    env.act("press_buttons", {"buttons": ["A"], "reasoning": ""})
    assert env.observe().state["context"] == "overworld"
    env.close()


def test_a_fixed_frame_count_plays_too():
    env = open_env("lantern", frames=120)
    result = env.act("press_buttons", {"buttons": ["DOWN", "DOWN", "DOWN"], "reasoning": ""})
    assert result["milestones"] == ["left the house"]
    env.close()


@pytest.mark.skipif(shutil.which("sdcc") is None, reason="sdcc is not installed: the committed lantern.gb is used as it is")
def test_cartridge_is_built_from_its_source(tmp_path):
    build.build(tmp_path / "lantern.gb")
    assert (tmp_path / "lantern.gb").read_bytes() == (ROOT / "games" / "lantern.gb").read_bytes()
