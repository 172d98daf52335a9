"""The tools: a report of rows whose deficit and funnel were worked by hand, a small sweep, bad input."""
import json
import re
from dataclasses import asdict

import pytest

from conftest import call, step
from harness import Harness
from models import Call
from tools import report, sweep
from tools.report import Atlas

# Walls around a pillar; L is a ledge that carries from (1, 2) over (1, 3) to (1, 4), and never back up.
MAP = "ASCII Map:\n#####\n#...#\n#.#.#\n#L..#\n#...#\n#####\n(top-left cell is x=0, y=0; map 5x6; P you, . floor)"


def walk(path, symbols=None, **said):
    """A run_skill result for the cells of `path`: one press each."""
    name = {(0, 1): "DOWN", (0, -1): "UP", (1, 0): "RIGHT", (-1, 0): "LEFT"}
    sign = lambda n: (n > 0) - (n < 0)
    steps = zip(path, path[1:], symbols or "." * 99)
    trace = [f"{name[sign(b[0] - a[0]), sign(b[1] - a[1])]} '{s}' {a} -> {b}" for a, b, s in steps]
    end = {"success": True, "from": list(path[0]), "at": list(path[-1]), "goal": list(path[-1]), "in": "overworld"}
    return {"success": True, "skill_id": "skill_0001", "presses": len(trace), "trace": trace, "result": end | said}


def write(folder, steps, edits, refinements=()):
    folder.mkdir(exist_ok=True)
    rows = {"trajectory.jsonl": [s.to_json() for s in steps], "edits.jsonl": [asdict(e) for e in edits],
            "refinements.jsonl": refinements}
    for name, lines in rows.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "settings.json").write_text("{}")
    return folder


def at(t, place, *results, skill="skill_0001", version=3, **more):
    calls = [Call("c", "run_skill", {"skill_id": skill, "args": {}, "reasoning": ""})] * len(results)
    made = step(t, *results, place=place, obs=MAP, calls=calls, **more)
    return type(made)(**{**made.__dict__, "version": version})


@pytest.fixture
def run(tmp_path):
    """Version 3 of the walker goes round, version 4 takes the ledge. One skill is inherited, one is never called."""
    h, code = Harness(), {"description": "", "code": "1"}
    edits = [h.edit("create", "skills", "old", {"name": "old", **code}, by="import", step=0),
             h.edit("create", "skills", "idle", {"name": "idle", **code}, by="refiner", step=1),
             h.edit("create", "skills", "skill_0001", {"name": "walk_to", **code}, by="refiner", step=1),
             h.edit("update", "skills", "skill_0001", {"code": "2"}, by="refiner", step=5),
             h.edit("delete", "skills", "idle", by="refiner", step=5),
             h.edit("create", "memory", "", {"title": "a sign"}, by="agent", step=6)]
    around = [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (3, 4), (2, 4), (1, 4)]
    steps = [
        at(1, "Town (1, 1)", walk(around)),                    # 7 presses; over the ledge it would be 2 ...
        at(2, "Town (1, 1)", walk(around[:4])),                                   # 3 presses, and 3 are the least
        at(3, "Town (3, 2)", walk([(3, 2), (3, 3)], success=False, goal=[1, 1])), # failed: 1 press wasted
        at(4, "Town (1, 1)", walk([(1, 1), (2, 1)], success=False, goal=[3, 1], **{"in": "battle"})),
        at(6, "Town (1, 1)", walk([(1, 1), (1, 2), (1, 4)], ".L"), version=4, milestones=["jumped"]),
        at(7, "Town (1, 4)", walk([(1, 4), (2, 4), (3, 4), (3, 3), (2, 3)]), version=4),     # 4 for 2
        at(8, "Town (2, 3)", {"success": True, "skill_id": "old", "presses": 0, "trace": [], "result": None},
           skill="old", version=6),
        step(9, {"success": True, "turns_taken": 3, "hit_safety_cap": True},
             calls=call("execute_custom_subagent", {"subagent_id": "sa_1"}).calls),
        step(10, {"success": True, "results": [{"id": "mem_0001", "content": "x"}]},
             calls=call("process_memory", {"action": "read"}).calls)]
    passes = [{"part": "skills", "status": "edited", "edits": [4, 5]},
              {"part": "memory", "status": "failed", "edits": []}]
    refined = {"step": 5, "cause": "schedule", "signatures": [{"name": "stall"}], "passes": passes}
    return write(tmp_path / "r", steps, edits, [refined])


def test_the_deficit_is_the_one_worked_by_hand(run):
    log = report.read_log(run)
    got = report.measure(log)
    # The ledge is known to lead down from step 6 on, but that it can be jumped is learned from the whole run: (1, 1) to
    # (1, 4) is 2 presses. Version 3: 7 + 3 presses for 2 + 3; version 4: 2 + 4 for 2 + 2.
    assert dict(got["skill_0001", 3]) == {"walks": 4, "arrived": 2, "presses": 10, "shortest": 5,
                                             "failed": 1, "wasted": 1, "left out": 1, "other": 1}
    assert [got["skill_0001", 4][k] for k in ("walks", "arrived", "presses", "shortest")] == [2, 2, 6, 4]
    rows = [line.split() for line in report.walks(log).splitlines()]
    assert rows[2][7] == "100.0" and rows[3][7] == "50.0"


def test_a_ledge_is_not_climbed(run):
    log = report.read_log(run)
    atlas = Atlas(log.steps)
    for s in log.steps:
        atlas.look(s)
    assert atlas.shortest("Town", (1, 1), (1, 4)) == 2
    assert atlas.shortest("Town", (1, 4), (1, 1)) == 7   # round by (2, 4), (2, 3), (3, 3), (3, 2), (3, 1), (2, 1)
    assert atlas.shortest("Town", (1, 1), (4, 4)) is None and atlas.shortest("Elsewhere", (1, 1), (1, 2)) is None


def test_the_funnel_and_the_other_tables(run, capsys):
    assert report.main([str(run)]) == 0
    out = capsys.readouterr().out
    assert "3 created, 2 called, 2 succeeded, 1 repaired, 1 never called, 1 deleted" in out
    assert ["skill_0001", "refiner", "1", "6", "4", "1", "-", "walk_to"] in [line.split() for line in out.splitlines()]
    assert "Memory: 1 entries (1 created, 0 updated, 0 deleted), 1 read, the list read 0 times" in out
    assert "Calls that go to inherited entries: 1 of 8 (12 %)" in out
    assert any(line.split() == ["sa_1", "1", "3", "0", "1", "0"] for line in out.splitlines())
    assert "5     schedule  stall       ~skill_0001 -idle failed: memory" in out
    assert any(line.split() == ["6", "6", "jumped"] for line in out.splitlines())


def test_a_small_sweep(tmp_path, capsys):
    out = tmp_path / "s"
    args = ["--game", "toy", "--harness", "min,ch", "--seeds", "2", "--steps", "40", "--out", str(out)]
    assert sweep.main(args) == 0
    first = capsys.readouterr().out
    assert {p.name for p in out.glob("*.json")} == {"min-0.json", "min-1.json", "ch-0.json", "ch-1.json"}
    rows = [json.loads(p.read_text()) for p in out.glob("*.json")]
    done = [sum(r["stopped"] == "finished" for r in rows if f"/{h}-" in r["run"]) for h in ("min", "ch")]
    assert first.splitlines()[0].split() == ["min", "ch"]
    assert first.splitlines()[-2].split()[2:] == [str(done[0]), "of", "2", str(done[1]), "of", "2"]
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert sweep.main(args) == 0 and capsys.readouterr().out == first             # nothing is run again
    assert sweep.main(["--table", str(out)]) == 0 and capsys.readouterr().out == first
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*")}


def test_runs_that_did_not_finish_are_counted(tmp_path):
    row = {"presses": 10, "milestones": {"a": 4}, "refinements": 1, "seconds": 2, "stopped": "finished"}
    slow = row | {"presses": 30, "milestones": {"a": 8}}
    lines = sweep.table({"ch": [row, slow], "min": [row, {"error": "x"}]}).splitlines()
    cells = {line[:26].strip(): line[26:].split("  ") for line in lines}
    flat = {k: [c.strip() for c in v if c.strip()] for k, v in cells.items()}
    assert flat["presses: a"] == ["6 [4..8]", "- (1 of 2)"]
    assert flat["presses to the end"] == ["20 [10..30]", "- (1 of 2)"]
    assert flat["runs finished"] == ["2 of 2", "1 of 2"] and flat["runs failed or broken off"][-1] == "1"


@pytest.mark.parametrize("tool, args", [
    (report, ["{tmp}"]), (report, ["{tmp}/none"]), (report, []), (sweep, ["--table", "{tmp}"]),
    (sweep, ["--seeds", "x"]),
    (sweep, ["--game", "nope", "--out", "{tmp}/o"]),
    (sweep, ["--game", "toy", "--harness", "bootstrap", "--out", "{tmp}/o"]),
    (sweep, ["--game", "toy", "--harness", "min,none", "--out", "{tmp}/o"]),
    (sweep, ["--game", "toy", "--jobs", "0", "--out", "{tmp}/o"])])
def test_a_mistake_gets_one_line_and_status_2(tool, args, tmp_path, capsys):
    try:
        status = tool.main([a.format(tmp=tmp_path) for a in args])
    except SystemExit as e:
        status = e.code
    said = capsys.readouterr()
    assert status == 2 and said.err.count("\n") == 1 and not said.out and not (tmp_path / "o").exists()


def test_a_sweep_of_co_learnings_controls_with_equal_steps(tmp_path, capsys):
    out = tmp_path / "sweep"
    args = ["--game", "toy", "--harness", "neither,both", "--seeds", "1", "--colearn", "2", "--iteration", "16", "--out", str(out)]
    assert sweep.main(args) == 0
    said = capsys.readouterr().out
    assert re.search(r"iteration 2 \(32 steps\) +\d", said)
    for name in ("neither-0", "both-0"):
        assert json.loads((out / f"{name}.json").read_text())["steps"] == 32
    assert json.loads((out / "neither-0" / "settings.json").read_text())["frozen"] and (out / "both-0" / "theta_2" / "theta.npz").exists()
