"""Soft SFT: prompts rebuilt from the log, who labels what, what a shard holds, the loop with a stop in its middle, the matrix."""
import json
import sys
from types import SimpleNamespace

import pytest

import run
import sft
from conftest import call, step
from env import Step
from models import Call, Reply, digest, open_model
from models.theta import Theta
from rebuild import logged
from runlog import BadInput, Recorder, read_rows
from settings import Settings
from sft import advantages, agreement, evaluate, refused, relabel, shard_row

TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {
    "type": "object", "properties": {"direction": {"enum": ["north", "east"]}}, "required": ["direction"]}}}]
ASKED = [{"role": "user", "content": "where to?"}]


def play(folder, *flags):
    return run.main(["--run", str(folder), "--json", *flags])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A teacher's run on toy, one on lantern with sub-agents and skills, and the toy loop."""
    at = tmp_path_factory.mktemp("runs")
    assert play(at / "toy", "--game", "toy", "--schedule", "5,5,50,50") == 0
    assert play(at / "lantern", "--steps", "60") == 0
    assert play(at / "held", "--steps", "24", "--seed", "3") == 0
    assert play(at / "loop", *LOOP) == 0
    return at


LOOP = ("--game", "toy", "--model", "student", "--colearn", "2", "--iteration", "24")


# -- rebuilding

def test_every_prompt_of_a_run_is_rebuilt_to_its_hash(runs):
    for name in ("toy", "lantern", "loop"):
        steps = read_rows(runs / name / "trajectory.jsonl")
        seen = logged(runs / name)
        assert len(seen) == len(steps) and all(digest(messages, tools) == step.sha for step, messages, tools in seen)
    assert any(s["agent"] != "orchestrator" for s in read_rows(runs / "lantern" / "trajectory.jsonl"))


def test_a_prompt_that_differs_is_never_taught(runs, tmp_path):
    for name in ("settings.json", "edits.jsonl"):
        (tmp_path / name).write_bytes((runs / "toy" / name).read_bytes())
    rows = read_rows(runs / "toy" / "trajectory.jsonl")
    rows[3]["obs"] = rows[3]["obs"].replace("#", "?")
    (tmp_path / "trajectory.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    kept = {s.t for s, *_ in logged(tmp_path)}
    assert kept == {r["t"] for r in rows if r["t"] < 4 or r["t"] > 40}         # the 36 after it hold it in their history


# -- labels

def decisions(n=16):
    calls = [Call("c", "move", {"direction": "north"})]
    return [(step(t, {"success": True}, calls=calls), ASKED, TOOLS) for t in range(1, n + 1)]


def rewards(*values):
    return [{"steps": [8 * i + 1, 8 * i + 8], "reward": r} for i, r in enumerate(values)]


def test_low_windows_get_the_teachers_answer_and_good_ones_keep_their_own_with_their_reward():
    asked = []
    teacher = lambda role, messages, tools: asked.append((role, messages)) or call("move", {"direction": "east"})
    rows, count = relabel(decisions(), rewards(0.9, 0.3), teacher)
    assert count == {"kept": 8, "relabelled": 8} and len(asked) == 8
    said = [(r["weight"], sft.first_call(r).args["direction"]) for r in rows]
    assert said == [(0.9, "north")] * 8 + [(1.0, "east")] * 8
    assert asked[0][0] == "teacher" and asked[0][1][:-1] == ASKED and "teacher" in asked[0][1][-1]["content"]
    assert all(r["prompt"] == ASKED for r in rows)                     # the teacher's instruction is not part of what is learned


@pytest.mark.parametrize("reply", [Reply("no call"), call("move", {"direction": "up"}), call("fly", {}), call("move", "{cut")])
def test_a_teachers_reply_is_checked_like_any_reply(reply):
    rows, count = relabel(decisions(8), rewards(0.1), lambda *what: reply)
    assert not rows and count == {"dropped: the teacher's reply is refused": 8}


def test_rows_are_dropped_whole_and_counted_never_cut():
    bad = step(2, {"success": False, "error": "move was not carried out: x"}, calls=[Call("c", "move", {"direction": "up"})])
    states = [(s, None if s.t == 1 else m, t) for s, m, t in decisions(8)]
    states[1] = (bad, ASKED, TOOLS)
    rows, count = relabel(states, rewards(0.9), lambda *what: pytest.fail("not low"))
    assert count == {"dropped: not rebuilt": 1, "dropped: own call without worth": 1, "kept": 6} and len(rows) == 6


def test_without_a_teacher_a_decision_counts_by_how_far_its_window_is_above_the_mean():
    rows, count = relabel(decisions(24), rewards(0.9, 0.5, 0.1), None)
    assert count == {"kept": 8, "dropped: own call without worth": 16}
    assert [r["id"] for r in rows] == [f"orchestrator-{t}" for t in range(1, 9)]


def test_only_the_completion_of_a_row_is_an_answer_and_its_arguments_are_objects():
    row = shard_row("a", ASKED, call("move", {"direction": "east"}, text="on"), TOOLS, 0.5)
    assert set(row) == {"id", "prompt", "completion", "tools", "images", "weight"}
    assert [m["role"] for m in row["completion"]] == ["assistant"]
    assert row["completion"][0]["tool_calls"][0]["function"]["arguments"] == {"direction": "east"}


def test_weights_are_scaled_to_mean_1_and_what_the_student_can_not_say_is_counted(runs):
    _, messages, tools = logged(runs / "toy")[0]
    east = call("move", {"direction": "east", "reasoning": ""})
    rows = [shard_row(str(w), messages, east, tools, w) for w in (0.2, 0.6)]
    odd = shard_row("odd", messages, call("move", {"direction": "up", "reasoning": ""}), tools, 0.4)
    taught = []
    theta = SimpleNamespace(fit=lambda known, **options: taught.extend(known) or [1.0])
    assert sft.fit(theta, [*rows, odd])["dropped: not among the student's calls"] == 1
    assert [r.weight[0] for r in taught] == pytest.approx([0.5, 1.5])


# -- the loop

def test_the_loop_learns_resumes_anywhere_and_replays(runs, tmp_path, monkeypatch, capsys):
    whole = runs / "loop"
    report = json.loads((whole / "theta_1" / "report.json").read_text())
    assert report["steps"] == [1, 24] and report["relabelled"] + report.get("kept", 0) == 24
    roles = {r["role"] for r in read_rows(whole / "replies.jsonl")}
    assert {"agent", "teacher"} <= roles
    assert run.main(["--run", str(whole), "--replay"]) == 0, capsys.readouterr()

    class Killed(BaseException):
        pass

    left = {"teacher": 5, "agent": 36}                                 # in the midst of relabelling; in the midst of an iteration
    ask = Recorder.ask

    def dying(self, role, messages, tools):
        if not self.pending and role in left:
            left[role] -= 1
            if left[role] == 0:
                raise Killed
        return ask(self, role, messages, tools)

    monkeypatch.setattr(Recorder, "ask", dying)
    flags = LOOP
    for _ in range(3):
        try:
            play(tmp_path / "broken", *flags)
        except Killed:
            flags = ("--resume",)
    for name in ("trajectory.jsonl", "edits.jsonl", "theta_1/shard.jsonl", "theta_1/theta.npz", "theta_2/theta.npz",
                 "theta_2/rewards.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_warm_up_and_earlier_shards_are_learned_again_with_the_last_one(monkeypatch, tmp_path):
    for name, n in (("theta_0.jsonl", 30), ("s1", 30), ("s2", 10)):
        (tmp_path / name).write_text("".join(json.dumps({"id": f"{name} {i}"}) + "\n" for i in range(n)))
    (tmp_path / "theta_0.npz").write_bytes(Theta().dumps())
    taught = []
    monkeypatch.setattr(sft, "fit", lambda theta, rows: taught.extend(r["id"].split()[0] for r in rows))
    sft.train(Settings(model=f"student:{tmp_path / 'theta_0.npz'}"), None, [tmp_path / "s1", tmp_path / "s2"], tmp_path)
    assert [taught.count(name) for name in ("theta_0.jsonl", "s1", "s2")] == [5, 5, 10]


def test_a_language_models_theta_goes_through_the_trainer_from_its_last_adapter(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setitem(sys.modules, "tools.lora", SimpleNamespace(advance=lambda *a, **k: asked.append((a, k)) or "name"))
    out, last = tmp_path / "mine" / "theta_2", tmp_path / "mine" / "theta_1"
    s = Settings(model="gemma", trainer_python="py", weights="weights", base_url="http://localhost/v1", trainer='{"r": 16}')
    assert sft.train(s, last, [tmp_path / "s1", tmp_path / "s2"], out)
    assert asked == [((tmp_path / "s2", out / "mine-theta_2", "weights", "py", "http://localhost/v1", "gemma"),
                      {"r": 16, "init": str(last / "mine-theta_1")})]
    monkeypatch.setitem(sys.modules, "tools.lora", SimpleNamespace(advance=lambda *a, **k: None))
    assert not sft.train(s, None, [tmp_path / "s1"], out)


def test_a_server_that_was_started_again_is_told_of_its_adapter(monkeypatch, tmp_path):
    told = []
    monkeypatch.setitem(sys.modules, "tools.lora", SimpleNamespace(publish=lambda *a: told.append(a)))
    out = tmp_path / "mine" / "theta_2"
    assert sft.served(Settings(model="gemma", base_url="http://localhost/v1"), out) == "mine-theta_2"
    assert told == [("http://localhost/v1", "mine-theta_2", out / "mine-theta_2")]
    assert sft.served(Settings(model="student:x.npz"), out) == f"student:{out / 'theta.npz'}"
    assert sft.served(Settings(model="local"), out) == f"local:{out / 'mine-theta_2'}" and len(told) == 1


def test_a_trainer_that_fails_loses_nothing(monkeypatch, capsys, tmp_path):
    def fails(*what):
        raise BadInput("no new theta (nan): loss nan")
    flags = ["--game", "toy", "--model", "student", "--colearn", "1", "--iteration", "16", "--json"]
    with monkeypatch.context() as m:
        m.setattr(run, "iteration", fails)
        assert play(tmp_path / "x", *flags) == 2
    said = capsys.readouterr().err
    assert "loss nan. All is saved" in said and "--resume" in said and said.count("\n") == 1
    assert run.main(["--run", str(tmp_path / "x"), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "iterations" and (tmp_path / "x" / "theta_1" / "theta.npz").exists()


def test_who_plays_which_role():
    of = lambda role, **more: Settings(**more).model_of(role)
    assert [of(role, model="student") for role in ("agent", "refine_memory", "judge", "teacher", "history")] == ["student"] + ["scripted"] * 4
    assert [of(role, model="a", refiner_model="b", judge_model="c") for role in ("refine_memory", "judge", "teacher", "history")] == [*"bcba"]
    assert of("teacher", model="a") == of("judge", model="a") == "a"


@pytest.mark.parametrize("flags, says", [
    (["--colearn", "2"], "--trainer-python"), (["--trainer", "[1]"], "a JSON object"), (["--trainer", "{r"], "a JSON object"), (["--colearn", "2", "--model", "student", "--iteration", "3"], "at least 16"),
    (["--model", "student:nothing.npz"], "can't be read")])
def test_bad_flags_are_one_line(flags, says, capsys, tmp_path):
    assert play(tmp_path / "x", "--game", "toy", *flags) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "x").exists()


# -- warm-up, GRPO, the matrix

def test_agreement_advantages_and_refusals():
    gold = call("move", {"direction": "east", "reasoning": "a"})
    assert agreement(call("move", {"direction": "east", "reasoning": "b"}), gold) == 1
    assert agreement(call("move", {"direction": "north"}), gold) == 0.5
    assert agreement(Reply("east"), gold) == agreement(call("fly", {}), gold) == 0
    assert advantages([1, 1, 1, 1]) == [0] * 4 and advantages([1.0, 0.4, 0.4, 0.4])[0] == pytest.approx(1.73, abs=0.01)
    assert refused(Reply("hm"), TOOLS) == "no call" and "no such tool" in refused(call("fly", {}), TOOLS)
    assert not refused(gold, TOOLS)


def test_warm_up_grpo_and_the_matrix_on_transitions_that_were_held_out(runs, tmp_path, capsys):
    ask = lambda model: lambda role, *what: model(*what)
    before = evaluate(ask(open_model("student")), runs / "held", 20)
    assert sft.main(["warmup", str(runs / "lantern"), "--epochs", "40", "--out", str(tmp_path / "a.npz")]) == 0
    after = evaluate(ask(open_model(f"student:{tmp_path / 'a.npz'}")), runs / "held", 20)
    assert before["transitions"] == after["transitions"] == 20
    assert before["actionable"] < 0.6 < after["actionable"]            # another cartridge than the one trained on
    perfect = {s.sha: s.reply for s in map(Step.from_json, read_rows(runs / "held" / "trajectory.jsonl"))}
    best = evaluate(lambda role, *what: perfect[digest(*what)], runs / "held", 20)
    assert best["tool format"] == best["actionable"] == best["relevance"] == best["similarity"] == 1
    none = evaluate(lambda role, *what: Reply(""), runs / "held", 20)
    assert not any(v for k, v in none.items() if k != "transitions")
    capsys.readouterr()
    made = tmp_path / "b.npz"
    assert sft.main(["grpo", str(runs / "held"), "--model", f"student:{tmp_path / 'a.npz'}", "--out", str(made)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["groups"] > 0 and said["loss"][1] < said["loss"][0] and Theta.load(str(made)).B.any()
    assert sft.main(["grpo", str(runs / "held"), "--model", "scripted", "--out", str(tmp_path / "c.npz")]) == 0        # a model with weights elsewhere
    said, rows = json.loads(capsys.readouterr().out), read_rows(tmp_path / "c.jsonl")
    assert said["rows"] == len(rows) > 0 and "--mode grpo" in said["next"] and not (tmp_path / "c.npz").exists()
    assert {"group", "reward", "prompt", "completion", "tools"} <= rows[0].keys()
    assert sft.main(["eval", str(tmp_path)]) == 2
