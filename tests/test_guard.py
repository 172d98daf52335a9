"""The guard: cases out of the run, the three checks, whole candidates or nothing, the last known good, task streams."""
import copy
import doctest
import hashlib
import json
import random
from dataclasses import asdict, replace

import pytest
from conftest import ROOT, Canned, call, step

import harness as h
import people
import run
from cases import SPAN, Case, brief, goals, hindsight, reached, sample
from ch import Agent
from env import open_env
from guard import VALID, Guard, commit, invalid, rollback, verdict
from harness import Harness, fold
from models import Reply, open_model
from refiner import question, signatures
from runlog import BadInput
from settings import Settings, parse, start_edits
from tools import stream as streams

NONE, KEEP = "{}", '{"prompt": null}'
MARK = "ZYZZYVA"                     # in a planted anchor; no model may ever read it
GO = """WAYS = {"n": "north", "s": "south", "w": "west", "e": "east"}
for way in args["way"]:
    tools["move"](direction=WAYS[way])
result = 1"""
# One step more for the shortest way, one step back for long ones: the case at hand gets better, two that worked do not.
HARMFUL = GO.replace('args["way"]:', 'args["way"] + ("" if len(args["way"]) < 3 else "w"):')
HARMFUL += '\nif len(args["way"]) == 1:\n    tools["move"](direction="east")'


def world(*moves):
    """The toy world after these moves, as text, and its key."""
    env = open_env("toy")
    for way in moves:
        env.act("move", {"direction": way})
    now = Case.of(env)
    return now.state, now.key


def replay(way, x, y, solved=True, place="room"):
    state, key = world()
    return Case(state, key, ["cell", [place, x, y]], 50, solved, call={"skill_id": "skill_0001", "args": {"way": way}})


def skilled(code=GO):
    harness = Harness(prompt="go")
    harness.edit("create", "skills", "", {"name": "go", "code": code}, by="import", step=0)
    return harness


@pytest.fixture
def guard():
    made = []

    def make(ask, bound=0.0, **more):
        made.append(Guard(open_env("toy"), ask, bound=bound, **{"alternatives": 1, **more}))
        return made[-1]

    yield make
    for g in made:
        g.close()


def refine(g, harness, model, **more):
    edits = []
    more = {"step": 9, "cause": "schedule", "tools": ["move", "run_skill"], "on_edit": edits.append, **more}
    return g.refine(harness, [], "You are in a room.", model.ask, **more), edits


def rewrite(code):
    return [KEEP, NONE, json.dumps({"update": [{"id": "skill_0001", "code": code}]}), NONE]


# -- cases

def test_a_goal_holds_or_does_not():
    now = brief({"location": "Town", "player_position": {"x": 1, "y": 2}, "context": "overworld",
                 "bag": [{"name": "KEY", "quantity": 1}], "progress": {"reached": {"met": 3}, "presses": 9}})
    holds = {"milestone": "met", "item": ["KEY", 1], "place": "Town", "cell": ["Town", 1, 2], "text": "", "battle": "Town"}
    not_yet = {"milestone": "won", "item": ["KEY", 2], "place": "Cave", "cell": ["Town", 2, 1], "battle": "Cave"}
    assert all(reached(list(goal), now) for goal in holds.items())
    assert not any(reached(list(goal), now) for goal in not_yet.items())
    assert not reached(["text", "Town"], now | {"text": True}) and not reached(["battle", "Town"], now | {"battle": True})


TOWN = {"place": "Town", "x": 1, "y": 1, "text": False, "battle": False, "items": {}, "milestones": [], "presses": 0}


def test_what_a_step_came_to():
    old = TOWN
    assert goals(old, old) == []
    assert goals(old, old | {"x": 2}) == [["cell", ["Town", 2, 1]]]
    assert goals(old, old | {"place": "Cave", "milestones": ["in"]}) == [["milestone", "in"], ["place", "Cave"]]
    assert goals(old | {"battle": True}, old) == [["battle", "Town"]]
    assert goals(old | {"battle": True}, old | {"place": "Home"}) == []
    assert goals(old | {"text": True}, old | {"items": {"KEY": 1}}) == [["item", ["KEY", 1]], ["text", "Town"]]


def test_cases_begin_where_their_goal_did_not_hold_yet():
    at = lambda x, **more: {**TOWN, "x": x, **more}
    snaps = [Case("", f"k{x}", [], now=at(x, place="Cave" if x < 3 else "Town", presses=x)) for x in range(1, SPAN + 6)]
    end = at(99, place="Shop", presses=50)
    near, far = hindsight(snaps, step(50, {"success": True}), end, random.Random(0))
    assert near.goal == far.goal == ["place", "Shop"] and near.solved and not far.solved
    assert int(near.key[1:]) > len(snaps) - SPAN >= int(far.key[1:])
    back = hindsight(snaps, step(50, {"success": True}), at(98, place="Cave"), random.Random(0))      # it was there before
    assert all(int(c.key[1:]) >= 3 for c in back)
    skill = lambda args, result: [(c.goal, c.solved) for c in hindsight(
        snaps, step(50, result, calls=call("run_skill", args).calls), at(98), random.Random(0)) if c.call]
    asked = {"skill_id": "s", "args": {"x": 7, "y": 8}}
    assert skill(asked, {"success": True, "presses": 9, "result": {"success": False}}) == [(["cell", ["Town", 7, 8]], False)]
    assert skill(asked, {"success": True, "presses": 9, "result": 1}) == [(["cell", ["Town", 98, 1]], True)]
    for odd in ("x", {"skill_id": 7, "args": "x"}, {}):                       # refused by the tool's schema: not carried out
        assert skill(odd, {"success": False, "error": "not carried out"}) == []
    assert skill(asked | {"args": {"x": "7", "y": None}}, {"success": False, "presses": 1, "error": "x"}) == []
    assert near.objective().title == "Shop: go there"
    assert replace(near, goal=["milestone", "won"]).objective().title == "Shop (99, 1): won"
    assert Case(**json.loads(json.dumps(asdict(near)))) == near


@pytest.mark.parametrize("good, bad, want", [(20, 20, (4, 1)), (20, 0, (5, 0)), (1, 20, (1, 4)), (2, 1, (2, 1)), (0, 0, (0, 0))])
def test_anchors_are_drawn_at_the_ratio_and_filled_from_the_other_side(good, bad, want):
    pool = [Case("", str(i), ["place", ""], 1, i < good) for i in range(good + bad)]
    drawn = sample(pool, 5, random.Random(1))
    assert (sum(c.solved for c in drawn), sum(not c.solved for c in drawn)) == want
    assert len({c.id for c in drawn}) == len(drawn)


# -- the three checks

@pytest.mark.parametrize("wrong, changed, delta, lost, need, bound, words", [
    ("", True, 0.0, 0, 0.0, 0.0, ""), ("", True, 0.5, 3, 0.0, 3.0, ""), ("", True, 0.5, 99, 0.0, float("inf"), ""),
    ("", True, -0.25, 0, 0.0, 0.0, "improvement: -0.25"), ("", True, 0.25, 0, 0.5, 9.0, "improvement"),
    ("", True, 0.5, 0, 0.5, 0.0, ""), ("", True, 1.0, 1, 0.0, 0.0, "retention: 1"), ("", True, 0.5, 4, 0.0, 3.0, "retention: 4"),
    ("", False, 0.0, 0, 0.0, 9.0, "no change"), ("its code", True, 1.0, 0, 0.0, 9.0, "validity: its code"),
    ("its code", False, -1.0, 9, 0.0, 0.0, "validity")])
def test_the_gate(wrong, changed, delta, lost, need, bound, words):
    said = verdict(wrong, changed, delta, lost, need, bound)
    assert said.startswith(words) and bool(said) == bool(words)


@pytest.mark.parametrize("op, part, value, words", [
    ("create", "skills", {"name": "x", "code": "result = ("}, "does not compile"),
    ("create", "skills", {"name": "x", "code": "tools['fly']()"}, "unknown tools: fly"),
    ("create", "skills", {"name": "x", "code": "tools['move'](direction='north')"}, ""),
    ("update", "prompt", "tools['fly']() is no skill", "")])
def test_validity(op, part, value, words):
    harness = skilled()
    edit = harness.edit(op, part, "", value, by="refiner", step=1)
    said = invalid(harness, [edit], {"move"})
    assert words in said and bool(said) == bool(words)
    assert not invalid(harness, [], {"move"})                                 # what was broken before is no reason


# -- propose, evaluate, commit

@pytest.mark.parametrize("bound, lives", [(0.0, False), (1.0, False), (2.0, True), (float("inf"), True)])
def test_a_harmful_rewrite_goes_live_only_where_that_much_may_be_lost(guard, bound, lives):
    """It solves the case at hand and breaks two anchors; both are told by replays, with no model call."""
    harness, model, g = skilled(), Canned(*rewrite(HARMFUL)), guard(None, bound)
    g.valid.append(replay("e", 3, 1))
    g.anchors = [replay("eee", 4, 1), replay("eeee", 5, 1), replay("ee", 3, 1)]
    row, edits = refine(g, harness, model)
    decision, = row["guard"]
    assert decision["by"] == "replays" and decision["delta"] == 1 and decision["lost"] == 2
    assert set(decision["anchors_lost"]) == {c.id for c in g.anchors[:2]} and decision["taken"] == lives
    assert decision["refused"] == ("" if lives else f"retention: 2 situations that H masters are lost, {bound:g} are allowed")
    assert (harness.skills["skill_0001"].code == HARMFUL) == lives and len(edits) == lives
    assert row["version"] == harness.version == 1 + lives and row["passes"][2]["status"] == ("edited" if lives else "refused")
    assert g.count["forks"] == 0 and g.count["replays"] == 8


def test_a_candidate_is_one_version_and_is_undone_as_one(guard, tmp_path):
    create = json.dumps({"create": [{"title": "a"}, {"title": "b"}]})
    agent = Canned(*[call("move", {"direction": d}) for d in ("east", "south") * 50])       # other replies, other behaviour
    harness, g = skilled(), guard(agent.ask, float("inf"))
    first = [h.Edit(1, 0, "import", "update", "prompt", "", "", "go", ""),
             h.Edit(1, 0, "import", "create", "skills", "skill_0001", None, {"name": "go", "code": GO}, "")]
    state, key = world()
    g.valid.append(Case(state, key, ["cell", ["room", 9, 9]], 5))
    row, edits = refine(g, harness, Canned('{"prompt": "go on"}', NONE, NONE, create))
    assert [e.version for e in edits] == [2, 2, 2] == [harness.version] * 3
    assert [p["edits"] for p in row["passes"]] == [[2], [], [], [2, 2]]
    assert fold(first + edits).to_json() == harness.to_json()
    (tmp_path / "edits.jsonl").write_text("".join(json.dumps(e.__dict__) + "\n" for e in first + edits))
    people.undo(tmp_path, 2)
    back = fold(h.read_edits(tmp_path / "edits.jsonl"))
    assert back.prompt == "go" and not back.memory and back.skills.keys() == {"skill_0001"}


def test_nothing_changes_when_the_agent_does_the_same(guard):
    harness, g = skilled(), guard(None, float("inf"))
    g.valid.append(replay("e", 2, 1))
    row, edits = refine(g, harness, Canned(*rewrite(GO + "  # prettier")))
    assert not edits and row["guard"][0]["refused"].startswith("no change") and harness.version == 1


def test_the_better_alternative_is_taken_and_the_next_part_builds_on_it(guard):
    worse, better = GO.replace('args["way"]:', 'args["way"][:1]:'), GO + '\ntools["move"](direction="east")'
    answer = lambda code: json.dumps({"update": [{"id": "skill_0001", "code": code}]})
    model = Canned(*[KEEP] * 3, *[NONE] * 3, answer(worse), answer(better), answer(better), *[NONE] * 3)
    harness, g = skilled(), guard(None, float("inf"), alternatives=3)
    g.valid.extend([replay("e", 2, 1), replay("e", 3, 1), replay("ee", 4, 1), replay("eee", 9, 9)])
    row, _ = refine(g, harness, model)
    assert [d["taken"] for d in row["guard"]] == [False, True]                # the third is the second again
    assert harness.skills["skill_0001"].code == better
    assert [d["delta"] for d in row["guard"]] == [0.0, 0.25]
    memory = [m for role, m, _ in model.sent if role == "refine_memory"]
    assert len(memory) == 3 and row["passes"][2]["status"] == "edited"


def test_the_optimizer_learns_why_it_was_refused_and_never_sees_an_anchor(guard):
    """A marked anchor is planted; everything that any model was sent is searched."""
    harness, g = skilled(), guard(None, 0.0)
    agent = Canned(*[call("move", {"direction": "east"})] * 60)
    g.ask = agent.ask
    g.valid.append(replay("e", 3, 1))
    state, key = world("south")
    g.anchors = [replay("eee", 4, 1), replay("eeee", 5, 1), Case(state, key, ["cell", [MARK, 1, 1]], 3, where=[MARK, 1, 1])]
    g.anchors.append(replace(g.anchors[0], goal=["milestone", MARK], key=MARK))
    model = Canned(*rewrite(HARMFUL), *rewrite(HARMFUL))
    refine(g, harness, model)
    row, _ = refine(g, harness, model)
    assert row["guard"] == [] and row["passes"][2]["status"] == "refused"     # it is not evaluated twice
    assert harness.version == 1
    told = model.sent[6][1][0]["content"]
    assert "# Edits that were tried and refused" in told and "retention: 2 situations" in told and "skill_0001" in told
    seen = json.dumps([[role, m, t] for role, m, t in model.sent])
    assert MARK not in seen and not any(c.key in seen or c.id in seen for c in g.anchors)
    position = "x=1, y=2"                                                     # what the third anchor looks like to a player
    assert position not in seen and any(position in json.dumps(m) for role, m, t in agent.sent)
    assert {role for role, *_ in agent.sent} == {"guard"}
    # The model that plays an anchor is told its goal, as any player is; the Optimizer's prompt is what it is without a guard.
    plain = question(skilled(), "prompt", [], signatures([]), "You are in a room.", ["move", "run_skill"])
    assert model.sent[0][1][0]["content"] == plain


def test_live_h_is_not_paid_for_twice(guard):
    agent = Canned(*[call("move", {"direction": "east"})] * 40)
    harness, g = skilled(), guard(agent.ask, 0.0)
    state, key = world()
    g.valid.append(Case(state, key, ["cell", ["room", 5, 1]], 50))
    refine(g, harness, Canned(KEEP, NONE, NONE, NONE))
    paid = len(agent.sent)
    harness.used("skill_0001", True, 3)                                       # use counts are not part of H
    refine(g, harness, Canned(KEEP, NONE, NONE, NONE))
    g.memo.clear()
    refine(g, harness, Canned(KEEP, NONE, NONE, NONE))
    assert paid == 4 == len(agent.sent)
    g.forget(3)                                                               # a new theta answers for itself
    refine(g, harness, Canned(KEEP, NONE, NONE, NONE))
    assert len(agent.sent) == 8
    again, row = guard(None), {"role": "guard", "reply": Reply("x").to_json()}
    again.restore(json.loads(json.dumps(g.to_json())), [row | {"sha": str(i)} for i in range(5)])
    assert again.replies.keys() == {"3", "4"} and [c.id for c in again.valid] == [c.id for c in g.valid]


def test_a_reply_that_is_no_edit_changes_nothing(guard):
    harness, g = skilled(), guard(None, float("inf"))
    before = copy.deepcopy(harness.to_json())
    row, edits = refine(g, harness, Canned("hm", "hm", '{"create": [{"name": "x", "max_turns": 99}]}', "{}}", "[1]", "", NONE))
    assert [p["status"] for p in row["passes"]] == ["failed", "unchanged", "failed", "unchanged"]
    assert not edits and harness.to_json() == before


def test_a_person_has_the_last_word(guard):
    harness, g = skilled(), guard(None, float("inf"))
    g.valid.append(replay("e", 3, 1))
    row, edits = refine(g, harness, Canned(*rewrite(HARMFUL)), review=lambda harness, edits: [])
    assert not edits and harness.version == row["version"] == 1 and row["passes"][2]["status"] == "refused"
    assert row["guard"][0]["taken"] and row["passes"][2]["edits"] == []


# -- in a run

def lantern(flags=()):
    settings, _ = parse("", ["--guard", "0", *flags])
    model, env = open_model("scripted", 0), open_env("lantern")
    edits, tools = start_edits(settings)
    return env, Agent(env, fold(edits, tools), lambda role, messages, tools: model(messages, tools))


def test_the_live_emulator_is_not_touched_and_the_cases_are_disjoint():
    env, agent = lantern()
    g = Guard(open_env("lantern"), agent.ask, bound=0.0)
    for _ in range(12):
        g.step(agent)
    ram = lambda: hashlib.sha256(bytes(env.mem[0x8000:0x10000]) + env.save()).hexdigest()
    before = ram()
    window = agent.steps
    row = g.refine(agent.harness, window, env.observe().text, agent.ask, step=agent.t, cause="x", tools=sorted(agent.all_tools))
    assert ram() == before and g.env.boy is not env.boy and g.count["forks"] > 0 and row["guard"]
    ids = [[c.id for c in cases] for cases in (g.valid, g.anchors, g.pool)]
    assert all(ids[:2]) and sum(map(len, ids)) == len({i for some in ids for i in some})
    assert len(g.valid) <= VALID
    for case in [*g.valid, *g.anchors]:                                 # no goal holds at its beginning
        case.load(g.env)
        assert not reached(case.goal, brief(g.env.observe().state)) and g.env.observe().key == case.key
    g.close(), agent.sandbox.close(), env.close()


def main(*flags):
    return run.main([*map(str, flags), "--json"])


def rows(folder, name="trajectory.jsonl"):
    return (folder / name).read_bytes()


TOY = ("--game", "toy", "--schedule", "5,5,60,900")


def test_with_the_guard_a_run_is_resumed_and_replayed_as_any_other(tmp_path, capsys):
    whole, parts, lost = (tmp_path / name for name in ("whole", "parts", "lost"))
    assert main("--run", whole, *TOY, "--guard", 1, "--steps", 26) == 0
    for steps in (7, 12, 26):
        assert main("--run", parts, *([*TOY, "--guard", 1] if steps == 7 else ["--resume"]), "--steps", steps) == 0
    logs = ("trajectory.jsonl", "edits.jsonl", "refinements.jsonl", "replies.jsonl")
    drop = lambda folder, name: [{k: v for k, v in r.items() if k != "seconds"} for r in h.read_rows(folder / name)]
    assert all(drop(whole, name) == drop(parts, name) for name in logs)
    taken = [d for r in h.read_rows(whole / "refinements.jsonl") for d in r["guard"]]
    assert any(d["taken"] for d in taken) and any(d["refused"] for d in taken)
    assert {r["role"] for r in h.read_rows(whole / "replies.jsonl")} >= {"agent", "guard", "refine_skills"}
    main("--run", lost, *TOY, "--guard", 1, "--steps", 12)
    (lost / "checkpoint").unlink()                                            # all of it from the log, which ends inside a fork
    paid = (lost / "replies.jsonl").read_bytes().splitlines(keepends=True)
    cut = max(i for i, line in enumerate(paid) if b'"role": "guard"' in line)
    (lost / "replies.jsonl").write_bytes(b"".join(paid[:cut]))
    assert main("--run", lost, "--resume", "--steps", 26) == 0 and all(drop(whole, name) == drop(lost, name) for name in logs)
    capsys.readouterr()
    assert run.main(["--run", str(whole), "--replay"]) == 0 and "equal" in capsys.readouterr().out


@pytest.mark.parametrize("game, steps", [("toy", 20), ("lantern", 11)])
def test_a_guard_that_commits_nothing_leaves_no_trace_in_the_run(game, steps, tmp_path, capsys):
    flags = ("--game", game, "--schedule", "5,5,60,900", "--steps", steps)
    on, off = tmp_path / "on", tmp_path / "off"
    assert main("--run", on, *flags, "--guard", 0, "--delta", 2) == 0 and main("--run", off, *flags, "--frozen") == 0
    assert rows(on) == rows(off) and len(rows(on)) > 0 and rows(on, "edits.jsonl") == rows(off, "edits.jsonl")
    assert h.read_rows(on / "refinements.jsonl")


@pytest.mark.parametrize("flags", [["--guard", "some"], ["--guard", "-1"], ["--guard", "nan"], ["--alternatives", "0"]])
def test_a_bad_bound_is_named(flags, capsys):
    assert main("--game", "toy", *flags) == 2 and "--guard" in capsys.readouterr().err


# -- the last known good

def stalled(*steps):
    return [{"step": t, "cause": "stall", "signatures": []} for t in steps]


def test_rollback_goes_back_to_the_version_that_last_made_progress():
    harness, edits = Harness(), []
    add = lambda *what: edits.append(harness.edit(*what, by="refiner", step=len(edits)))
    add("update", "prompt", "", "go")
    add("create", "memory", "", {"title": "a door"})
    add("create", "skills", "", {"name": "walk", "code": "result = 1"})
    good = copy.deepcopy(harness)
    add("update", "prompt", "", "I am sorry")
    add("delete", "memory", "mem_0001")
    add("update", "skills", "skill_0001", {"code": "result = 2"})
    add("create", "memory", "", {"title": "nonsense"})
    at = lambda t: step(t, key=str(t), milestones=["left"] if t == 5 else [])
    steps = [replace(at(t), version=3 if t < 7 else 7) for t in range(1, 60)]
    none = lambda refinements: rollback(harness, edits, steps, refinements, 2, 60)
    assert none(stalled(50)) == [] and none(stalled(3, 4)) == []
    assert none([*stalled(50), {"step": 55, "cause": "schedule", "signatures": []}]) == []
    back = none(stalled(40, 50))
    commit(harness, back, edits.append)
    assert harness.to_json() == good.to_json() | {"version": 8}
    assert [(e.version, e.by) for e in edits[7:]] == [(8, "guard")] * 4
    assert "back to version 3, which reached left" in back[0].why and fold(edits).to_json() == harness.to_json()
    assert none(stalled(40, 50)) == []          # counted anew from here
    assert rollback(harness, edits, [step(1)], stalled(40, 50), 2, 60) == []                       # nothing was ever reached


def test_rollback_in_a_run(tmp_path, monkeypatch, capsys):
    """After the key the refiner ruins the policy and the agent bumps into a wall: H comes back, as an edit by the guard."""
    class Ruined:
        def __call__(self, messages, tools):
            if not tools:
                text = messages[0]["content"]
                return Reply(json.dumps({"prompt": f"Bump {len(text)}."}) if "edit the policy" in text else "{}")
            seen = json.dumps(messages[-1]["content"])
            down = "x=1, y=1" in seen or "x=1, y=2" in seen
            return call("move", {"direction": "north" if "keys 1" in seen else "south" if down else "east"})

    monkeypatch.setattr("settings.open_model", lambda *_, **__: Ruined())
    monkeypatch.setattr(run, "open_models", lambda s, f: {s.model: Ruined()})
    flags = ("--game", "toy", "--stall", 4, "--schedule", "900,900,900,900", "--steps", 25, "--rollback", 2)
    assert main("--run", tmp_path / "r", *flags) == 0
    edits = h.read_edits(tmp_path / "r" / "edits.jsonl")
    assert [e.by for e in edits] == ["import", *["refiner", "refiner", "guard"] * 2, "refiner"]
    assert edits[3].after == edits[0].after and "took the key" in edits[3].why
    capsys.readouterr()
    assert run.main(["--run", str(tmp_path / "r"), "--replay"]) == 0


# -- streams

def test_average_and_forgetting_on_a_worked_example():
    """Three tasks. After the last stage they score 1/2, 3/5, 1: Avg = 0.7. The first was 1 at best and has lost 1/2, the
    second 4/5 and has lost 1/5, the last counts for nothing: Fgt = (0.5 + 0.2) / 2 = 0.35."""
    R = [[1.0], [0.25, 0.8], [0.5, 0.6, 1.0]]
    assert streams.average(R) == pytest.approx(0.7) and streams.forgetting(R) == pytest.approx(0.35)
    assert streams.forgetting([[1.0]]) == 0 and streams.forgetting([[0.5], [1.0, 0.0]]) == 0        # better is not forgotten
    assert doctest.testmod(streams).failed == 0


class Pupil:
    """Answers what its policy holds; as the Refiner it writes down what it was told, a forgetful one in the old text's place."""

    def __init__(self, forgetful):
        self.forgetful = forgetful

    def ask(self, role, messages, tools):
        text = messages[0]["content"]
        if not tools:
            if "edit the policy" not in text:
                return Reply("{}")
            told = dict.fromkeys(w.split('"')[0] for w in text.split('"right answer": "')[1:])
            old = [] if self.forgetful else text.split("# What you edit, as it is now\n")[1].split("\n\n")[0].split("|")[1:]
            return Reply(json.dumps({"prompt": "|".join(["answers", *dict.fromkeys([*old, *told])])}))
        asked = messages[-1]["content"].split("Question: ")[1].split("\n")[0]
        known = text.split("Policy\n")[1].split("|")[1:]
        right = next(r["answer"] for r in ROWS if r["input"] == asked)
        return call("answer", {"text": right if right in known else "?"})


ROWS = [{"task": f"t{t}", "input": f"question {t} {i}?", "answer": f"answer {t}", "check": "exact"}
        for t in range(4) for i in range(12)]


def play(bound, forgetful=True, **more):
    guard = Guard(streams.Questions(ROWS), Pupil(forgetful).ask, bound=bound, seed=1, **more)
    out = streams.stream(streams.split(streams.question_cases(ROWS), 1), guard, Settings(), guard.ask)
    guard.close()
    return out


def test_a_stream_of_questions_with_and_without_forgetting():
    free, tight, good, off = play(float("inf")), play(0.0), play(0.0, forgetful=False), play(0.0, parts=["memory"])
    assert (free["Avg"], free["Fgt"], free["accepted"], free["rejected"]) == (0.25, 1.0, 4, 0)     # each task costs the one before
    assert (tight["Avg"], tight["Fgt"], tight["accepted"]) == (0.25, 0.0, 1) and tight["rejected"] == 3
    assert (good["Avg"], good["Fgt"], good["accepted"]) == (1.0, 0.0, 4)
    assert (off["Avg"], off["accepted"]) == (0.0, 0)
    assert [len(r) for r in free["R"]] == [1, 2, 3, 4]


def test_the_cases_of_a_stream_are_disjoint():
    for task in streams.split(streams.question_cases(streams.read_questions(ROOT / "tools" / "questions.jsonl")), 3).values():
        ids = [c.id for cases in task.values() for c in cases]
        assert len(ids) == len(set(ids)) == sum(streams.SPLIT.values())
    with pytest.raises(BadInput, match="'a' has 1 different cases"):
        streams.split(streams.question_cases([ROWS[0] | {"task": "a"}]), 0)


def test_the_sample_has_four_kinds_and_its_checks_can_fail():
    asked = streams.read_questions(ROOT / "tools" / "questions.jsonl")
    assert {r["check"] for r in asked} == set(streams.CHECKS) and len({r["task"] for r in asked}) == 4
    said = {"number": "that makes {0} in all: {0}", "choice": "I say {0}.", "exact": " {0}\n", "regex": "07-{0}"}
    for row in asked:
        answer = row["answer"].removeprefix("[0-9]{2}-")
        assert streams.CHECKS[row["check"]](said[row["check"]].format(answer), row["answer"]), row
        assert not any(streams.CHECKS[row["check"]](wrong, row["answer"]) for wrong in ("", "none", "D", "12345")), row


def test_a_question_is_answered_once_and_its_answer_told_when_it_was_wrong():
    env = streams.Questions(ROWS)
    state = env.save()
    assert not env.act("fly", {})["success"] and not env.act("answer", {"text": 7})["success"] and env.save() == state
    assert env.act("answer", {"text": "no"}) == {"success": True, "right": False, "presses": 1, "right answer": "answer 0"}
    assert env.observe().state["over"] and not env.act("answer", {"text": "answer 0"})["success"]
    env.load(state)
    assert env.act("answer", {"text": "answer 0"})["right"] and env.observe().state["progress"]["reached"]


@pytest.mark.parametrize("text, words", [
    ("", "no questions in it"), ('{"task": "a"}', "question 1"), ("{oops\n{}\n", "line 1 is damaged"),
    ('{"task": "a", "input": "b", "answer": "many", "check": "number"}', "no number"),
    ('{"task": "a", "input": "b", "answer": "(", "check": "regex"}', "no regex"),
    ('{"task": "a", "input": "b", "answer": ".*", "check": "regex"}', "an empty answer is right")])
def test_a_bad_question_file_is_named(text, words, tmp_path, capsys):
    (tmp_path / "q.jsonl").write_text(text)
    assert streams.main([str(tmp_path / "q.jsonl"), "--out", str(tmp_path / "out")]) == 2 and words in capsys.readouterr().err
    for flags in (["--guard", "x"], ["--guard", "0,"], ["--seeds", "0"], ["--without", "all"], []):
        assert streams.main([str(ROOT / "tools" / "questions.jsonl"), *flags]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_lanterns_tasks_come_out_of_one_run():
    pools = streams.lantern_cases(8)
    assert set(pools) == {"walk", "talk", "shop", "fight", "switches", "maze"} and pools["walk"] and pools["talk"]
    assert all(c.call is None and c.goal[0] == "text" for c in pools["talk"])
    assert all(c.goal[0] in ("place", "cell") for c in pools["walk"])
