"""The process reward model: what is counted, what is judged, how pairs become rewards; its ranking against an outside truth."""
import json
import random
from collections import deque

import numpy as np
import pytest

import games.toy
import prm
from env import Step
from models import Call, Reply
from prm import both_orders, bradley_terry, middle, model_judge, reward, rule_judge, score, valid, windows
from conftest import Canned, step

OK = {"success": True, "presses": 1, "trace": ["A '.' (1, 1) -> (2, 1)"]}
STUCK = {"success": True, "presses": 1, "trace": ["A '#' (1, 1) blocked"]}
BAD = {"success": False, "error": "press_buttons was not carried out: arguments: 'reasoning' is a required property"}
HALF = {"progress": 0.5, "action": 0.5, "reasoning": 0.5}


def going(first, n=8, result=OK):
    return [step(t, result, key=f"k{t}", place=f"Town ({t}, 1)") for t in range(first, first + n)]


def idle(first, n=8, result=STUCK):
    return [step(t, result, key="same") for t in range(first, first + n)]


def test_windows_tile_all_decisions_and_the_short_last_one_is_scored():
    pool = windows(list(reversed(going(1, 19))))
    assert [[s.t for s in w.steps] for w in pool] == [list(range(1, 9)), list(range(9, 17)), [17, 18, 19]]
    rows, _ = score(pool, anchor=pool[0])
    assert [r["steps"] for r in rows] == [[1, 8], [9, 16], [17, 19]] and all(0 <= r["reward"] <= 1 for r in rows)


def test_the_weights_are_the_papers_and_equal_windows_get_the_middle():
    assert prm.WEIGHTS == {"progress": 0.4, "action": 0.3, "reasoning": 0.2, "format": 0.1}
    row = reward(windows(going(1))[0], {"progress": 1.0, "action": 0.5, "reasoning": 0.0})
    assert row["reward"] == pytest.approx(0.4 * 1 + 0.3 * 0.5 + 0.2 * 0 + 0.1 * 1)
    assert reward(windows(going(1))[0], HALF)["reward"] == pytest.approx(0.55)


def test_an_invalid_call_caps_the_reward_whatever_the_judge_says():
    best = dict.fromkeys(HALF, 1.0)
    steps = going(1, 7) + [step(8, BAD, key="k8")]
    assert not valid(steps[-1]) and valid(steps[0])
    assert reward(windows(steps)[0], best)["reward"] == pytest.approx(0.5 * 7 / 8)
    assert reward(windows(going(1, 8, BAD))[0], best)["reward"] == 0
    assert reward(windows(going(1))[0], best)["reward"] == 1


def test_no_change_of_the_world_is_no_progress():
    row = reward(windows(idle(1))[0], dict.fromkeys(HALF, 1.0))
    assert row["progress"] == 0 and row["changed"] == 0 and row["reward"] == pytest.approx(0.5 * 0.6)


def test_a_missing_dimension_is_left_out_and_named_not_read_as_nothing():
    row = reward(windows(going(1))[0], {"action": 1.0, "reasoning": 1.0})
    assert row["missing"] == ["progress"] and row["reward"] == 1


def test_asking_in_both_orders_cancels_a_liking_for_the_first_place():
    a, b = windows(going(1) + idle(9))
    fair = both_orders(rule_judge, a, b)[0]
    biased = lambda x, y: {d: p + (0.1 if p < 0.9 else 0) for d, p in rule_judge(x, y).items() if d == "reasoning"}
    votes, flipped = both_orders(biased, a, b)
    assert votes == pytest.approx({"reasoning": fair["reasoning"]}) and flipped == [True]              # both said: the first
    assert not any(both_orders(rule_judge, a, b)[1])


def test_the_same_window_has_the_same_reward_in_any_pool():
    pool = windows(going(1) + idle(9) + going(17))
    anchor = middle(pool)
    assert score(pool, anchor=anchor)[0][1] == score(pool[1:2], anchor=anchor)[0][0]


def test_a_judges_reply_is_checked_and_asked_for_once_more():
    a, b = windows(going(1) + idle(9))
    model = Canned("no verdict", ("verdict", {"progress": 90, "action": 80, "reasoning": 50, "why": "it moves"}))
    assert model_judge(model.ask)(a, b) == {"progress": 0.9, "action": 0.8, "reasoning": 0.5}
    assert [role for role, *_ in model.sent] == ["judge", "judge"] and "not accepted: not one call" in model.sent[1][1][-1]["content"]
    assert "Town (3, 1)" in model.sent[0][1][0]["content"]
    assert model_judge(Canned(("verdict", {"progress": 101}), ("verdict", "cut {")).ask)(a, b) == {}
    assert model_judge(Canned(("verdict", {"action": 0})).ask)(a, b) == {"action": 0}
    rows, _ = score([a, b], model_judge(Canned(*["?"] * 8).ask), anchor=b)
    assert rows[0]["missing"] == ["progress", "action", "reasoning"] and rows[0]["reward"] == 1      # format is all that is known


def test_bradley_terry_finds_the_order_of_known_strengths():
    true = np.array([-1.5, 0.0, 0.4, 2.0])
    pairs = [(i, j, 1 / (1 + np.exp(true[j] - true[i]))) for i in range(4) for j in range(i)]
    assert list(np.argsort(bradley_terry(4, pairs))) == [0, 1, 2, 3]
    assert np.isfinite(bradley_terry(2, [(0, 1, 1.0)])).all()            # never beaten, and still finite
    pool = windows(going(1) + idle(9) + going(17) + idle(25))
    rows, _ = score(pool)
    assert min(rows[0]["reward"], rows[2]["reward"]) > max(rows[1]["reward"], rows[3]["reward"])


# -- an outside truth: the shortest way, which the judge can't see

ROOM = ["###############", "#.....#.......#", "#.###.#.#####.#", "#.#...#.#...#.#", "#.#.###.#.#.#.#", "#...#...#.#...#",
        "#.###.###.###.#", "#.....#......k#", "#.###.#.#####.#", "#.#.#...#...#.#", "#.#.#####.#.#.#", "#.........#...#",
        "###############"]


def distances(goal):
    steps, queue = {goal: 0}, deque([goal])
    while queue:
        x, y = queue.popleft()
        for dx, dy in games.toy.MOVES.values():
            cell = (x + dx, y + dy)
            if cell not in steps and ROOM[cell[1]][cell[0]] != "#":
                steps[cell] = steps[(x, y)] + 1
                queue.append(cell)
    return steps


def tau(a, b):
    """Kendall's tau-b."""
    a, b = np.sign(np.subtract.outer(a, a)), np.sign(np.subtract.outer(b, b))
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


def agreement(seed):
    """tau of the rule judge's rewards with the true approach to the key, over 40 windows of players of every skill."""
    rng, key = random.Random(seed), (13, 7)
    left, pool, truth = distances(key), [], []
    for n in range(40):
        env, steps, skill = games.toy.Toy(), [], n / 39
        env.x, env.y = rng.choice([c for c, d in sorted(left.items()) if 8 <= d and ROOM[c[1]][c[0]] == "."])
        start = left[(env.x, env.y)]
        for t in range(8):
            seen, at = env.observe(), f"room ({env.x}, {env.y})"
            near = lambda d: left.get((env.x + games.toy.MOVES[d][0], env.y + games.toy.MOVES[d][1]), 999)
            way = min(games.toy.MOVES, key=near) if rng.random() < skill else rng.choice(list(games.toy.MOVES))
            call = Call("c", "move", {"direction": way, "reasoning": "on"})
            result = env.act("move", call.args)
            steps.append(Step(t, "orchestrator", 1, seen.text, seen.key, at, "", Reply("", [call]), [result], t, []))
        pool += windows(steps)
        truth.append(start - left[(env.x, env.y)])
    return tau([r["reward"] for r in score(pool, anchor=middle(pool))[0]], truth)


def test_the_rule_judge_ranks_windows_as_the_true_progress_does(monkeypatch):
    monkeypatch.setattr(games.toy, "ROOM", ROOM)
    taus = [agreement(seed) for seed in range(5)]
    print("Kendall tau, 40 windows, 5 seeds:", [round(t, 2) for t in taus])
    assert np.median(taus) >= 0.7


def test_the_command_writes_a_row_a_window_and_refuses_a_folder_without_a_run(tmp_path, capsys):
    (tmp_path / "trajectory.jsonl").write_text("".join(json.dumps(s.to_json()) + "\n" for s in going(1) + idle(9)))
    assert prm.main([str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert [r["steps"] for r in rows] == [[1, 8], [9, 16]] and "2 windows" in capsys.readouterr().out
    assert prm.main([str(tmp_path / "none")]) == 2
    assert "at least 2" in capsys.readouterr().err
