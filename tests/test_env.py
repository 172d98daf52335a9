"""The contract, over every environment; the Game Boy reader against the cartridge's own map data."""
import json
import random

import pytest

from env import GAMES, open_env
from games.cartridge import build
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
    env.act("press_buttons", {"buttons": ["DOWN"] * 4, "reasoning": ""})
    before = env.observe()
    assert env.act("press_buttons", {"buttons": ["DOWN"], "reasoning": ""})["trace"] == ["DOWN '#' (3, 6) blocked"]
    assert env.observe().key == before.key
    env.close()


def test_unknown_game_and_rom():
    with pytest.raises(BadInput, match="no such game; choose one of"):
        open_env("chess")
    assert set(GAMES.values()) <= {"red"}


# -- lantern against its own data

MAPS, TILESETS = build.load_maps(), build.load_tilesets()
LEDGES = {0x37: "↓", 0x27: "←", 0x0D: "→", 0x1D: "→"}


def expected(number, x, y):
    """The symbol that the cartridge's source gives a cell, people aside."""
    m = MAPS[number]
    rules = TILESETS[m["tileset"]]
    tile = rules["cells"][m["rows"][y][x]][2]                                # bottom left decides
    if [y, x] in [w[:2] for w in m["warps"]]:
        return "S" if m["tileset"] == 17 else "D"
    if [y, x] in [s[:2] for s in m["signs"]]:
        return "!"
    if m["tileset"] == 0 and tile in LEDGES:
        return LEDGES[tile]
    if tile in rules["passable"]:
        return "~" if tile in rules["grass"] else "."
    return "C" if tile in rules["counters"] else "W" if (m["tileset"], tile) == (0, 0x14) else "#"


def compare(env):
    """The whole map that the reader gives against the source; the player and people hide the cell they stand on."""
    state = env.observe().state
    number = [m["name"] for m in MAPS].index(state["location"])
    if not state["map"]["dark"]:
        for y, row in enumerate(state["map"]["grid"]):
            for x, symbol in enumerate(row):
                assert symbol in "PNOB" or symbol == expected(number, x, y), (state["location"], x, y)
    assert state["map"]["dark"] or [[w["y"], w["x"], w["dest_map"]] for w in state["map"]["warps"]] == [w[:3] for w in MAPS[number]["warps"]]
    return state["location"]


def test_text_map_agrees_with_the_cartridge_on_a_random_walk():
    """2,000 presses, with what comes in between: texts, menus and battles; the map is right under all of them."""
    env, rng, seen = open_env("lantern"), random.Random(4), set()
    for i in range(2000):
        state = env.observe().state
        heading = ["DOWN"] * 3 + ["RIGHT"] * 2 if state["location"] == "HOUSE" else ["UP"] * 3 + ["RIGHT"]
        busy = state["context"] != "overworld"
        env.act("press_buttons", {"buttons": [rng.choice(["A", "A", "B", "DOWN"] if busy else ["UP", "DOWN", "LEFT", "RIGHT", "A", *heading])], "reasoning": ""})
        if i % 4 == 0:
            seen.add(compare(env))
    assert {"HOUSE", "VILLAGE", "ROUTE"} <= seen
    env.close()


def test_text_is_read_page_by_page():
    env = open_env("lantern")
    press = lambda *buttons: env.act("press_buttons", {"buttons": list(buttons), "reasoning": ""})["trace"]
    assert press("DOWN", "RIGHT", "RIGHT", "A")[-1] == "A at 'N' (6, 4): text: Awake at last! / The village is   ▼"
    observation = env.observe()
    assert observation.state["context"] == "dialogue" and "Game State: dialogue" in observation.text and "  The village is   ▼" in observation.text
    assert compare(env) == "HOUSE"
    assert press("A", "A", "A", "A") == ["A: text: dark. The great / lamp went out.   ▼", "A: text: Someone must climb / to the shrine and▼",
                                         "A: text: light it again. / Take WICKIT too. ▼", "A: text closed"]
    assert env.observe().state["context"] == "overworld"
    env.close()


def test_a_fixed_frame_count_plays_too():
    env = open_env("lantern", frames=120)
    result = env.act("press_buttons", {"buttons": ["DOWN", "DOWN", "RIGHT", "DOWN", "DOWN"], "reasoning": ""})
    assert result["milestones"] == ["left the house"]
    env.close()


def test_the_seed_makes_another_game():
    mazes = []
    for seed in (0, 1, 0):
        env = open_env("lantern", seed=seed)
        mazes.append((env.mem[0xD359], env.mem[0xD35A]))
        env.close()
    assert mazes == [(0, 0), (1, 0), (0, 0)]
