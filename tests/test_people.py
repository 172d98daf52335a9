"""People in the loop: the Refiner's edits reviewed, H edited by hand while a run is paused. Both are in the log."""
import io
import json
import shutil
from pathlib import Path

import pytest

import harness as h
import run
from conftest import Canned
from harness import Edit, Harness
from models import ModelError
from people import Person, review

SHORT = ["--json", "--game", "lantern", "--schedule", "10,10,20,900", "--steps", "14"]


def proposed():
    harness = Harness(prompt="go north")
    return harness, [Edit(1, 9, "refiner", "update", "prompt", "", "go north", "go south", "it is blocked"),
                     Edit(2, 9, "refiner", "create", "memory", "mem_0001", None, {"title": "sign"}, "seen")]


def test_a_review_shows_the_diff_and_takes_yes_no_or_an_edited_delta():
    harness, edits = proposed()
    assert review(harness, edits, (model := Canned("y")).ask) == edits
    shown = model.sent[0][1][0]["content"]
    assert '\n- "prompt": "go north",' in shown and '\n+ "prompt": "go south",' in shown and "update prompt : it is blocked" in shown
    assert review(harness, edits, Canned("n").ask) == [] and harness == proposed()[0]
    own = json.dumps([{"op": "create", "part": "memory", "value": {"title": "a sign at (1, 2)"}, "why": "closer"}])
    bad = json.dumps([{"op": "create", "part": "memory", "value": {"importance": 9}}])
    model = Canned("{oops", bad, own)
    [mine] = review(harness, edits, model.ask)
    assert (mine.by, mine.version, mine.after["title"]) == ("review", 1, "a sign at (1, 2)") and harness == proposed()[0]
    assert "Not accepted, nothing has changed" in model.sent[1][1][1]["content"] and "importance" in model.sent[2][1][1]["content"]
    assert json.loads(model.sent[2][1][-1]["content"])[0]["value"] == "go south"                            # what e edits is the proposal


def test_a_person_types_y_n_or_a_delta(monkeypatch, tmp_path, capsys):
    ask = [{"role": "user", "content": "the diff"}, {"role": "user", "content": "[]"}]
    monkeypatch.delenv("EDITOR", raising=False)
    for typed, text in (("what?\ny\n", "y"), ("n\n", "n"), ('e\n[{"op": "delete"}]\n', '[{"op": "delete"}]\n')):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert Person()(ask, []).text == text
    assert "the diff" in capsys.readouterr().err
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    monkeypatch.setattr("sys.stdin", io.StringIO("edit\n"))
    with pytest.raises(ModelError, match="EDITOR failed"):
        Person()(ask, [])
    monkeypatch.setenv("EDITOR", "sed -i s/^/[1]/")
    monkeypatch.setattr("sys.stdin", io.StringIO("edit\n"))
    assert Person()(ask, []).text == "[1][]"


def test_a_reviewed_run_replays_with_nobody_there(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    own = json.dumps([{"op": "update", "part": "prompt", "value": "be bold", "why": "by a person"}])
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"e\n{own}\nn\n" + "y\n" * 9))
    assert run.main([*SHORT, "--run", str(folder), "--review"]) == 0
    edits, row = h.read_edits(folder / "edits.jsonl"), h.read_rows(folder / "refinements.jsonl")[0]
    assert [e.by for e in edits if e.by != "import"][0] == "review" and any(e.after == "be bold" for e in edits)
    assert [p["edits"] for p in row["passes"] if p["status"] == "refused"] == [[]] and any(e.by == "refiner" for e in edits)
    assert [r["reply"]["text"][:1] for r in h.read_rows(folder / "replies.jsonl") if r["role"] == "review"][:3] == ["[", "n", "y"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run.main(["--run", str(folder), "--replay"]) == 0
    (folder / "checkpoint").unlink()
    assert run.main(["--run", str(folder), "--resume", "--json", "--steps", "14"]) == 0                     # nobody is asked again
    assert h.read_edits(folder / "edits.jsonl") == edits
    capsys.readouterr()


def test_nobody_there_saves_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run.main([*SHORT, "--run", str(tmp_path / "run"), "--review"]) == 2
    assert "--review: nobody answers" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    assert run.main(["--run", str(tmp_path / "run"), "--resume", *SHORT[:1], *SHORT[-2:]]) == 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paused") / "run"
    assert run.main([*SHORT, "--run", str(folder)]) == 0
    return folder


@pytest.fixture
def paused(stopped, tmp_path, capsys):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    capsys.readouterr()
    return folder, json.loads((folder / "harness.json").read_text())


def resume(folder, row, steps=18):
    (folder / "harness.json").write_text(json.dumps(row) if isinstance(row, dict) else row)
    return run.main(["--run", str(folder), "--resume", "--json", "--steps", str(steps)])


def test_entries_edited_by_hand_are_edits_by_human(paused, capsys):
    folder, row = paused
    row["prompt"] = "be bold"
    row["memory"]["by_hand"] = {"title": "the key is in the cave", "protected": True, "source": "human"}
    [skill] = row["skills"]
    row["skills"][skill]["importance"] = 5
    gone = list(row["memory"])[0]
    del row["memory"][gone]
    assert resume(folder, row) == 0
    edits = [e for e in h.read_edits(folder / "edits.jsonl") if e.by == "human"]
    assert {(e.op, e.part, e.id, e.step) for e in edits} == {("update", "prompt", "", 14), ("create", "memory", "by_hand", 14),
                                                            ("update", "skills", skill, 14), ("delete", "memory", gone, 14)}
    assert next(e for e in edits if e.part == "skills").after == {"importance": 5}
    saved = json.loads((folder / "harness.json").read_text())
    assert saved["prompt"] == "be bold" and saved["memory"]["by_hand"]["protected"] and gone not in saved["memory"]
    assert h.fold(h.read_edits(folder / "edits.jsonl"), saved["tools"]).to_json() == {k: v for k, v in saved.items() if k != "uses"}
    assert run.main(["--run", str(folder), "--replay"]) == 0
    assert resume(folder, saved, 20) == 0 and sum(e.by == "human" for e in h.read_edits(folder / "edits.jsonl")) == len(edits)
    capsys.readouterr()


@pytest.mark.parametrize("spoil, words", [
    (lambda row: row["memory"].update(x={"title": "t", "importance": 9}), "importance"),
    (lambda row: row.update(prompt=""), "not empty"),
    (lambda row: row.update(weights=[]), "weights"),
    (lambda row: row.update(tools=["fly"]), "tools are fixed"),
    (lambda row: row.update(skills=[]), "skills"),
    (lambda row: row.pop("version"), "version"),
    ("{oops", "Expecting"),
])
def test_a_bad_edit_by_hand_is_one_line_and_loses_nothing(paused, capsys, spoil, words):
    folder, row = paused
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "harness.json"}
    if not isinstance(spoil, str):
        spoil(row)
    assert resume(folder, row if not isinstance(spoil, str) else spoil) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and words in err and "edited by hand" in err
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "harness.json"}


def test_undo_does_not_write_over_an_edit_by_hand(paused, capsys):
    folder, row = paused
    for text in (json.dumps(row | {"prompt": "be bold"}), "{oops", "[]", json.dumps(row | {"version": "x"})):
        (folder / "harness.json").write_text(text)
        assert h.main(["undo", str(folder), str(row["version"])]) == 2
        assert "edited by hand: --resume takes that up first" in capsys.readouterr().err
        assert (folder / "harness.json").read_text() == text


def test_an_edit_by_hand_that_a_kill_follows_is_taken_up_once(paused, capsys):
    folder, row = paused
    row["prompt"] = "be bold"
    checkpoint = (folder / "checkpoint").read_bytes()
    assert resume(folder, row, 15) == 0
    (folder / "checkpoint").write_bytes(checkpoint)          # as if it had been killed before the next checkpoint
    assert run.main(["--run", str(folder), "--resume", "--json", "--steps", "18"]) == 0
    assert [e.after for e in h.read_edits(folder / "edits.jsonl") if e.by == "human"] == ["be bold"]
    assert run.main(["--run", str(folder), "--replay"]) == 0
    capsys.readouterr()
