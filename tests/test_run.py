"""Whole runs: repeatable byte for byte, killable at any moment, replayable, and plain about a user's mistakes."""
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

import harness as h
import people
import run
import settings
from conftest import PYTHON, ROOT, step

WHOLE = ("--json", "--steps", 60, "--schedule", "10,10,30,900")             # enough steps to refine, learn a skill and use it
LOGS = ("trajectory.jsonl", "edits.jsonl", "refinements.jsonl")


def start(*flags, **more):
    env = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and k != "CH_ROM"}
    # A shell's background job ignores Ctrl-C and so would everything that it starts: here it must count.
    return subprocess.Popen([PYTHON, ROOT / "run.py", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            cwd="/", env=env | more, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def play(*flags, **more):
    process = start(*flags, **more)
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def logs(folder):
    return {name: (folder / name).read_bytes() for name in LOGS if (folder / name).exists()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of lantern that other tests compare with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    status, out, err = play("--run", folder, *WHOLE)
    assert status == 0, err
    return folder, json.loads(out)


def test_a_run_ends_with_one_json_line(finished):
    folder, row = finished
    assert {"run", "game", "steps", "presses", "milestones", "refinements", "version", "dollars", "tokens", "stopped"} <= set(row)
    assert row["stopped"] in ("finished", "steps") and row["milestones"] and row["refinements"] >= 1 and row["dollars"] == 0
    assert {p.name for p in folder.iterdir()} == {"settings.json", "replies.jsonl", *LOGS, "harness.json", "checkpoint", "frames"}


def test_the_newcomers_run_ends_with_the_table_of_the_readme(tmp_path):
    status, out, err = play("--run", tmp_path / "run")
    shown = (ROOT / "README.md").read_text().split("<!-- play -->")[1].split("<!-- /play -->")[0]
    assert status == 0 and "finished: " in out, err
    for line in shown.strip("\n").splitlines():
        assert line.strip() == "..." or line.strip() in out


def test_the_fold_of_the_edits_is_harness_json(finished):
    folder, row = finished
    saved = json.loads((folder / "harness.json").read_text())
    assert h.fold(h.read_edits(folder / "edits.jsonl")).to_json() == {k: v for k, v in saved.items() if k != "uses"}
    assert saved["version"] == row["version"]


def test_the_refiners_skill_is_called_by_the_next_step(finished):
    rows = h.read_rows(finished[0] / "trajectory.jsonl")
    made = min(e.step for e in h.read_edits(finished[0] / "edits.jsonl") if e.part == "skills")
    used = [r["t"] for r in rows if any(c["name"] == "run_skill" for c in r["reply"]["calls"])]
    assert used[0] == made + 1 and all(t > made for t in used)


@pytest.mark.parametrize("game", ["toy", "lantern"])
def test_same_seed_same_bytes(game, tmp_path, finished):
    whole = finished[0]
    if game == "toy":
        whole = tmp_path / "a"
        assert play("--game", game, "--run", whole, *WHOLE)[0] == 0
    assert play("--game", game, "--run", tmp_path / "b", *WHOLE)[0] == 0
    assert logs(whole) == logs(tmp_path / "b")


def wait_for_rows(folder, count, process):
    end = time.monotonic() + 60
    while len(h.read_rows(folder / "trajectory.jsonl")) < count and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


@pytest.mark.parametrize("rows", [2, 11, 24])
def test_kill_at_any_moment_and_resume(rows, tmp_path, finished):
    folder = tmp_path / "run"
    process = start("--run", folder, *WHOLE)
    wait_for_rows(folder, rows, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(h.read_rows(folder / "trajectory.jsonl")) < finished[1]["steps"]
    with open(folder / "trajectory.jsonl", "ab") as out:
        out.write(b'{"t": 99, "agent": "orch')                              # what a kill inside a write leaves
    paid = len(h.read_rows(folder / "replies.jsonl"))
    status, out, err = play("--run", folder, "--resume", "--json")
    assert status == 0, err
    assert json.loads(out) == finished[1] | {"run": str(folder)}
    assert logs(folder) == logs(finished[0])
    replies = h.read_rows(folder / "replies.jsonl")
    assert [r["sha"] for r in replies] == [r["sha"] for r in h.read_rows(finished[0] / "replies.jsonl")] and len(replies) >= paid


def test_a_cut_reply_log_and_a_lost_checkpoint_cost_nothing(tmp_path, finished):
    folder = tmp_path / "run"
    assert play("--run", folder, *WHOLE, "--steps", 20)[0] == 0
    with open(folder / "replies.jsonl", "ab") as out:
        out.write(b'{"role": "agent", "sha')
    (folder / "checkpoint").write_bytes(b"damaged" + (folder / "checkpoint").read_bytes())
    status, _, err = play("--run", folder, "--resume")
    assert status == 2 and "is damaged; delete it and --resume again" in err
    (folder / "checkpoint").unlink()
    assert play("--run", folder, "--resume", *WHOLE[:3])[0] == 0
    assert logs(folder) == logs(finished[0])
    assert play("--run", folder, "--replay")[0] == 0


def test_replay_compares_every_step(finished, tmp_path):
    status, out, _ = play("--run", finished[0], "--replay")
    assert status == 0 and out.startswith(f"replayed {finished[1]['steps']} steps") and "equal" in out
    rows = h.read_rows(finished[0] / "trajectory.jsonl")
    (tmp_path / "run").mkdir()
    for path in finished[0].glob("*.json*"):
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    rows[4]["key"] = "0" * 16
    (tmp_path / "run" / "trajectory.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    status, out, _ = play("--run", tmp_path / "run", "--replay")
    assert status == 1 and out.startswith("step 5: key was '0000000000000000' and is now")


def test_undo_takes_effect_and_stays_in_the_replay(tmp_path):
    """The walking skill is undone while the run is paused: from the next step on the agent presses again."""
    folder = tmp_path / "run"
    assert play("--run", folder, "--json", "--steps", 12, "--schedule", "10,10,10,900")[0] == 0
    skill = next(e for e in h.read_edits(folder / "edits.jsonl") if e.part == "skills")
    assert h.main(["undo", str(folder), str(skill.version)]) == 0
    status, out, err = play("--run", folder, "--resume", "--json", "--steps", 20)
    assert status == 0, err
    used = [r["t"] for r in h.read_rows(folder / "trajectory.jsonl") for c in r["reply"]["calls"] if c["args"].get("skill_id") == skill.id]
    assert used and max(used) <= 12
    assert [e.by for e in h.read_edits(folder / "edits.jsonl")][-1] == "undo"
    status, out, _ = play("--run", folder, "--replay")
    assert status == 0, out


def test_undo_after_a_kill_is_not_lost(tmp_path):
    folder = tmp_path / "run"
    process = start("--run", folder, "--json", "--schedule", "10,10,10,900")
    wait_for_rows(folder, 17, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    edits = h.read_edits(folder / "edits.jsonl")
    skill = next(e for e in edits if e.part == "skills")
    undone = people.undo(folder, skill.version)
    status, out, err = play("--run", folder, "--resume", "--json", "--steps", undone.step + 8)
    assert status == 0, err
    assert [e for e in h.read_edits(folder / "edits.jsonl") if e.by == "undo" and e.id == skill.id]
    late = [c for r in h.read_rows(folder / "trajectory.jsonl") if r["t"] > undone.step for c in r["reply"]["calls"]]
    assert late and not any(c["args"].get("skill_id") == skill.id for c in late)            # ids are never used twice
    assert play("--run", folder, "--replay")[0] == 0


@pytest.mark.parametrize("wait", [0, 0.13])                                  # most of the time is spent inside the emulator
def test_ctrl_c_saves_everything(wait, tmp_path, finished):
    folder = tmp_path / "run"
    process = start("--run", folder, *WHOLE)
    wait_for_rows(folder, 5, process)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and json.loads(out)["stopped"] == "interrupted" and "Traceback" not in err
    if wait:
        assert play("--run", folder, "--resume", "--json")[0] == 0 and logs(folder) == logs(finished[0])


def test_limits_end_a_run_normally(tmp_path):
    for flag, value, stopped in (("--steps", 5, "steps"), ("--presses", 6, "presses"), ("--seconds", 0.001, "seconds")):
        status, out, _ = play("--run", tmp_path / stopped, "--json", flag, value)
        assert (status, json.loads(out)["stopped"]) == (0, stopped)


def test_bootstrap_and_frozen(finished, tmp_path):
    status, out, err = play("--run", tmp_path / "frozen", "--bootstrap", finished[0], "--frozen", "--json", "--steps", 12)
    row = json.loads(out)
    assert status == 0 and row["refinements"] == 0, err
    first = h.read_rows(tmp_path / "frozen" / "trajectory.jsonl")[:3]
    assert any(c["name"] == "run_skill" for r in first for c in r["reply"]["calls"])              # the inherited skill is used at once
    assert {e.by for e in h.read_edits(tmp_path / "frozen" / "edits.jsonl")} <= {"import", "agent"}       # its own notes are the agent's
    status, out, _ = play("--run", tmp_path / "min", "--harness", "min", "--steps", 30, "--json")
    assert status == 0 and json.loads(out)["refinements"] == 0


def test_the_schema_trap_of_the_papers_case_study(tmp_path, monkeypatch, capsys):
    """One malformed call again and again, believed to be progress: the stall guard has it named to the Refiner within 20 steps."""
    from models import Call, Reply

    class Trapped:
        def __call__(self, messages, tools):
            if tools:
                return Reply("good, on we go", [Call("c", "press_buttons", {"buttons": "A", "reasoning": f"page {len(messages)}"})])
            return Reply('{"prompt": null}' if "edit the policy" in messages[0]["content"] else "{}")

    monkeypatch.setattr(settings, "open_model", lambda *_, **__: Trapped())
    assert run.main(["--run", str(tmp_path / "run"), "--json", "--schedule", "900,900,900,900", "--steps", "41"]) == 0
    rows = h.read_rows(tmp_path / "run" / "refinements.jsonl")
    assert [(r["step"], r["cause"]) for r in rows] == [(20, "stall"), (40, "stall")]
    worst = next(s for s in rows[0]["signatures"] if s["name"] == "schema_mismatch")
    assert worst["severity"] == 3 and len(worst["steps"]) == 20 and worst["calls"] == ["press_buttons"]
    assert all(word in worst["text"] for word in ('"buttons": "A"', '"type": "array"', "'A' is not of type 'array'"))
    capsys.readouterr()


def test_a_skill_that_breaks_is_diagnosed_repaired_and_works(finished, tmp_path):
    """A fault is put into the walking skill that a run has learned; nothing but the Refiner's own rules repairs it."""
    skill = next(e for e in h.read_edits(finished[0] / "edits.jsonl") if e.part == "skills").after
    bad = skill | {"code": skill["code"].replace("state['player_position']", "state['position']")}
    (tmp_path / "bad.json").write_text(json.dumps({"skills": {"skill_0001": bad}}))
    folder = tmp_path / "run"
    assert play("--run", folder, "--bootstrap", tmp_path / "bad.json", "--json", "--steps", 24)[0] == 0
    row = h.read_rows(folder / "refinements.jsonl")[0]
    named = next(s for s in row["signatures"] if s["name"] == "broken_skill")
    assert row["cause"] == "stall" and "skill_0001" in named["text"] and "KeyError: position" in named["text"]
    [repair] = [e for e in h.read_edits(folder / "edits.jsonl") if e.part == "skills" and e.step == row["step"]]
    assert (repair.op, repair.id, repair.by) == ("update", "skill_0001", "refiner") and "it broke at line" in repair.why
    ran = {s["t"]: r["success"] for s in h.read_rows(folder / "trajectory.jsonl") for r in s["results"] if r.get("skill_id")}
    assert not any(ok for t, ok in ran.items() if t <= row["step"]) and any(ok for t, ok in ran.items() if t > row["step"])


@pytest.mark.parametrize("on, before, event", [("", 1, ""), ("loss", 1, "loss"), ("milestone", 1, "milestone"), ("loss", 2, ""), ("milestone,loss", 0, "milestone")])
def test_events_of_the_last_turn_only(on, before, event):
    steps = [step(1), step(2, {"success": True, "trace": ["A: text: you fall [the battle is lost]"]}, milestones=["m"]), step(3)]
    seen = SimpleNamespace(agent=SimpleNamespace(steps=steps), settings=settings.Settings(refine_on=on))
    assert run.Run.event(seen, before) == event


def test_refine_on_events(tmp_path):
    flags = ("--json", "--schedule", "900,900,900,900", "--steps", 40)
    causes = {}
    for on in ("", "milestone"):
        assert play("--run", tmp_path / f"run{on}", "--refine-on", on, *flags)[0] == 0
        rows = h.read_rows(tmp_path / f"run{on}" / "trajectory.jsonl")
        causes[on] = [r["step"] for r in h.read_rows(tmp_path / f"run{on}" / "refinements.jsonl") if r["cause"] == "milestone"]
    reached = [r["t"] for r in rows if r["milestones"]]
    assert causes[""] == [] and causes["milestone"]
    assert all(any(c - 20 <= t <= c for t in reached) for c in causes["milestone"])                  # a sub-agent takes several steps
    assert play("--run", tmp_path / "runmilestone", "--replay")[0] == 0


def test_the_stall_guard_and_format_errors(tmp_path, monkeypatch, capsys):
    from models import Call, Reply

    class Stuck:
        """Presses against a wall in the middle of the room; as the refiner it finds nothing to change."""

        def __call__(self, messages, tools):
            if not tools:
                return Reply('{"prompt": null}' if "edit the policy" in messages[0]["content"] else "{}")
            if len(messages) > 50:
                return Reply("hm")
            return Reply("", [Call("c", "move", {"direction": "north"})])

    monkeypatch.setattr(settings, "open_model", lambda *_, **__: Stuck())
    assert run.main(["--game", "toy", "--run", str(tmp_path / "run"), "--json", "--stall", "8", "--schedule", "900,900,900,900", "--steps", "60"]) == 0
    row = json.loads(capsys.readouterr().out)
    causes = [r["cause"] for r in h.read_rows(tmp_path / "run" / "refinements.jsonl")]
    assert row["stopped"] == "format errors" and causes[0] == "stall"


MISTAKES = {
    "an unknown flag": (["--gmae", "toy"], "unrecognized arguments: --gmae"),
    "a bad value": (["--steps", "many"], "invalid int value: 'many'"),
    "an unknown game": (["--game", "chess"], "no such game; choose one of"),
    "a missing rom": (["--game", "lantern", "--rom", "/nowhere/x.gb"], "/nowhere/x.gb"),
    "a wrong rom": (["--game", "lantern", "--rom", str(ROOT / "LICENSE")], "LICENSE"),
    "no rom": (["--game", "red"], "--rom"),
    "a missing key": (["--model", "gpt-5-mini"], "set OPENAI_API_KEY"),
    "an unknown model": (["--model", "hal9000"], "--base-url"),
    "a server that is not there": (["--model", "m", "--base-url", "http://127.0.0.1:9/v1"], "does not answer"),
    "an unknown harness": (["--harness", "best"], "--harness takes"),
    "a damaged harness": (["--harness", str(ROOT / "LICENSE") + ".json"], "no harness at"),
    "a bad schedule": (["--schedule", "25,0"], "--schedule"),
    "an unknown event": (["--refine-on", "lunch"], "--refine-on lunch: it takes milestone, loss"),
    "nothing to resume": (["--resume"], "--run"),
    "a folder that can't be made": (["--run", "/dev/null/x"], "can't be written"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_status_2(name, tmp_path):
    flags, words = MISTAKES[name]
    status, out, err = play(*([] if "--run" in flags or "--resume" in flags else ["--run", tmp_path / "run"]), *flags)
    assert status == 2 and words in err, err
    assert len([line for line in err.splitlines() if line.strip()]) == 1 and "Traceback" not in err


def test_a_run_that_exists_is_not_touched(finished):
    before = logs(finished[0])
    status, _, err = play("--run", finished[0])
    assert status == 2 and "exists already: --resume goes on with it" in err
    status, _, err = play("--run", finished[0], "--resume", "--game", "toy")
    assert status == 2 and "--game can't change" in err
    (finished[0] / "x").mkdir()
    assert logs(finished[0]) == before
    (finished[0] / "x").rmdir()


def test_a_damaged_line_in_the_middle_is_named(finished, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in finished[0].glob("*"):
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    lines = (folder / "replies.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "replies.jsonl").write_bytes(b"".join(lines[:3]) + b"{oops\n" + b"".join(lines[4:]))
    status, _, err = play("--run", folder, "--resume")
    assert status == 2 and "replies.jsonl, line 4 is damaged" in err


def test_one_process_a_run(finished):
    from runlog import locked
    with locked(finished[0]):
        status, _, err = play("--run", finished[0], "--resume")
    assert status == 2 and "is in use by another process" in err
