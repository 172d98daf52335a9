"""H and its edits: one validator, the fold of the log, undo."""
import copy
import json
from dataclasses import asdict

import pytest

import harness as h
from harness import EditError, Harness, fold
from reuse import SHOWN, overview
from runlog import append_row


@pytest.fixture
def full():
    made, edits = Harness(), []
    add = lambda *a, **k: edits.append(made.edit(*a, by="agent", step=len(edits), **k))
    add("update", "prompt", "", "be brave")
    add("create", "memory", "", {"title": "sign", "content": "north"})
    add("create", "skills", "walk", {"name": "walk", "code": "result = 1"})
    add("update", "memory", "mem_0001", {"content": "south", "importance": 5})
    add("create", "subagents", "", {"name": "fighter", "max_turns": 50, "available_tools": ["press_buttons"]}, known_tools=["press_buttons"])
    add("delete", "skills", "walk")
    return made, edits


def test_fold_of_the_log_is_h_at_every_version(full):
    made, edits = full
    assert fold(edits).to_json() == made.to_json() and made.version == 6
    replayed = [h.Edit(**json.loads(json.dumps(asdict(e)))) for e in edits]
    assert fold(replayed).to_json() == made.to_json()
    assert fold(edits[:3]).memory["mem_0001"].content == "north"


@pytest.mark.parametrize("op, part, id, value, words", [
    ("create", "memory", "", {"title": "x", "colour": "red"}, "colour"),
    ("create", "memory", "", {"content": "no title"}, "title"),
    ("create", "memory", "", {"title": "x", "importance": 6}, "importance"),
    ("create", "memory", "", {"title": "x", "importance": "high"}, "importance"),
    ("create", "memory", "", {"title": "x", "content": "y" * 12_001}, "content"),
    ("create", "subagents", "", {"name": "x", "max_turns": 51}, "max_turns"),
    ("create", "subagents", "", {"name": "x", "available_tools": ["fly"]}, "unknown tools fly"),
    ("create", "skills", "../../etc", {"name": "x"}, "id"),
    ("create", "skills", "walk2", ["name"], "object"),
    ("create", "memory", "mem_0001", {"title": "again"}, "exists already"),
    ("update", "memory", "mem_0009", {"title": "x"}, "mem_0001"),
    ("update", "memory", "mem_0001", {"importance": 0}, "importance"),
    ("update", "memory", "mem_0001", {"content": "south"}, "nothing would change"),
    ("delete", "prompt", "", None, "only be updated"),
    ("update", "prompt", "", "  \n", "not empty"),
    ("update", "prompt", "", "x" * 24_001, "24000"),
    ("create", "tools", "", {"name": "x"}, "no such part"),
])
def test_a_bad_edit_says_why_and_changes_nothing(full, op, part, id, value, words):
    made, _ = full
    before = copy.deepcopy(made)
    with pytest.raises(EditError, match=words):
        made.edit(op, part, id, value, by="agent", step=9, known_tools=["press_buttons"])
    assert made == before


def test_falsy_values_can_be_set_and_floats_become_integers(full):
    made, _ = full
    made.edit("update", "memory", "mem_0001", {"content": "", "importance": 4.0}, by="agent", step=9)
    assert made.memory["mem_0001"].content == "" and made.memory["mem_0001"].importance == 4


def test_ids_are_never_used_twice(full):
    made, _ = full
    made.edit("delete", "memory", "mem_0001", by="agent", step=9)
    assert made.edit("create", "memory", "", {"title": "new"}, by="agent", step=9).id == "mem_0002"


def test_entry_limit(full):
    made, _ = full
    for i in range(h.ENTRIES - 1):
        made.edit("create", "memory", "", {"title": str(i)}, by="agent", step=1)
    with pytest.raises(EditError, match="limit"):
        made.edit("create", "memory", "", {"title": "one more"}, by="agent", step=1)


def test_undo_of_every_edit(full):
    made, edits = full
    edits.append(made.undo(edits, 6, 10))                                   # a delete
    assert made.skills["walk"].code == "result = 1"
    made.edit("update", "memory", "mem_0001", {"importance": 1}, by="agent", step=11)
    edits.append(made.undo(edits, 4, 12))                                   # an update: the later change of another field stays
    assert (made.memory["mem_0001"].content, made.memory["mem_0001"].importance) == ("north", 1)
    edits.append(made.undo(edits, 2, 13))                                   # a create
    assert not made.memory
    made.edit("update", "prompt", "", "be careful", by="refiner", step=14)
    with pytest.raises(EditError, match="later edit"):
        made.undo(edits, 1, 15)
    with pytest.raises(EditError, match="no edit 99"):
        made.undo(edits, 99, 15)
    with pytest.raises(EditError, match="nothing of edit 4 is left"):
        made.undo(edits, 4, 15)


def test_undo_of_an_undo(full):
    made, edits = full
    edits.append(made.undo(edits, 4, 10))
    edits.append(made.undo(edits, edits[-1].version, 11))
    assert made.memory["mem_0001"].content == "south"


def test_overview_has_titles_and_use_counts_but_no_contents(full):
    made, _ = full
    made.used("mem_0001", True, 3)
    text = overview(made)
    assert "mem_0001: sign [confidence 2] [used 1, ok 1]" in text and "south" not in text and "sa_0001: fighter" in text


def test_the_overview_is_ranked_and_bounded():
    made = Harness()
    for id, fields in {"a_new": {}, "b_proven": {}, "c_inherited": {"source": "bootstrapped"}, "d_dear": {"importance": 5}, "e_failing": {}}.items():
        made.edit("create", "skills", id, {"name": id, **fields}, by="import", step=0)
    for t in range(4):
        made.used("b_proven", True, t)
        made.used("e_failing", False, t)
    listed = lambda: [line.split(": ")[1].split()[0] for line in overview(made).splitlines() if line.startswith("- ") and ": " in line]
    assert listed() == ["b_proven", "c_inherited", "d_dear", "a_new", "e_failing"]
    made.reuse = False
    assert listed() == ["d_dear", "a_new", "b_proven", "c_inherited", "e_failing"]
    for i in range(190):
        made.edit("create", "memory", "", {"title": f"{i} " + "x" * 190}, by="agent", step=1)
    assert len(overview(made)) < 3 * SHOWN and "and more that are worth less: read memory" in overview(made)


@pytest.mark.parametrize("by", ["agent", "refiner"])
def test_a_protected_entry_is_a_persons(by):
    made = Harness()
    made.edit("create", "skills", "walk", {"name": "walk", "protected": True}, by="human", step=0)
    for op, value in (("update", {"code": "1"}), ("delete", None), ("update", {"protected": False})):
        with pytest.raises(EditError, match="walk is protected: only a person"):
            made.edit(op, "skills", "walk", value, by=by, step=1)
    with pytest.raises(EditError, match="only a person may set protected"):
        made.edit("create", "skills", "run", {"name": "run", "protected": True}, by=by, step=1)
    made.edit("update", "skills", "walk", {"protected": False}, by="human", step=2)
    made.edit("delete", "skills", "walk", by=by, step=3)


def test_import_validates_and_round_trips(full):
    made, _ = full
    edits, tools = h.imported({**made.to_json(), "uses": {}})
    assert {**fold(edits, tools).to_json(), "version": 0} == {**made.to_json(), "version": 0}
    with pytest.raises(EditError, match="unknown part of a harness: weights"):
        h.imported({"weights": []})
    with pytest.raises(EditError, match="importance"):
        h.imported({"memory": {"m": {"title": "x", "importance": 9}}})


def test_command_line(full, tmp_path, capsys):
    made, edits = full
    for edit in edits:
        append_row(tmp_path / "edits.jsonl", asdict(edit))
    assert h.main(["log", str(tmp_path)]) == 0 and "update memory mem_0001 (content, importance)" in capsys.readouterr().out
    assert h.main(["diff", str(tmp_path), "3", "4"]) == 0 and '+   "content": "south",' in capsys.readouterr().out
    assert h.main(["show", str(tmp_path), "mem_0001"]) == 0 and "content: south" in capsys.readouterr().out
    assert h.main(["undo", str(tmp_path), "4"]) == 0
    assert json.loads((tmp_path / "harness.json").read_text())["memory"]["mem_0001"]["content"] == "north"
    assert h.read_edits(tmp_path / "edits.jsonl")[-1].by == "undo"
    capsys.readouterr()
    for bad in (["log", str(tmp_path / "none")], ["undo", str(tmp_path), "77"], ["show", str(tmp_path), "mem_0077"]):
        assert h.main(bad) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
