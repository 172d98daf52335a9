"""H in other forms, coding agents' logs, and the four passes over a workspace. The Codex log in data/ has two planted failures:
a command that is not there, tried three times, and one script written by hand three times."""
import json
import re
import tracemalloc

import pytest

import harness as h
import refiner
import run
from conftest import ROOT, Canned, call
from env import Step
from models import Call, Reply, Usage
from runlog import BadInput, read_rows
from sandbox import Sandbox
from settings import Settings, start_edits
from signatures import signatures
from tools import bootstrap, evolve, foreign
from tools import workspace as w

CODEX = ROOT / "tests" / "data" / "codex.jsonl"


def load(path):
    return h.fold(*h.imported(bootstrap.read_any(path))).to_json()


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    return root


def skill(description="Adds up a column. Use it for reports.", body="Run `scripts/add.py FILE`.", name="add-up", more=""):
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n{body}\n"


GOOD = {
    "AGENTS.md": "Sums of reports.\n\n- Be brief.\n",
    ".agents/skills/add-up/SKILL.md": skill(),
    ".agents/skills/add-up/scripts/add.py": "print(1)\n",
    "sub_agents/reader/AGENT.md": "---\ndescription: reads long files\nmodel: small\n---\nRead and sum up.\n",
    "memory/NOTES.md": "# What we know\n\n## tests\nRun them with `make test`.\n\n## data\nreports/ holds CSV.\n",
}


# -- H <-> files

NASTY = {
    "prompt": "---\nharness: {\"tools\": [1]}\n---\nodd\n",
    "tools": ["move"],
    "memory": {
        "mem_0001": {"title": "two\nlines", "content": "## not a topic\n\\## nor this\n<!-- x -->\n", "tags": ["a,b", "-"]},
        "mem_0007": {"title": "same", "content": "\n  edges  \n", "importance": 5},
        "here": {"title": "same", "content": '<!-- {"id": "x"} -->'},
        "mem_0009": {"title": " --> ", "content": "\r\nwindows\r\n\u2028", "source": "human"},
    },
    "skills": {
        "skill_0001": {"name": "Walk to", "code": "\nresult = 1\n", "description": ""},
        "walk-to": {"name": "Walk to", "description": "x\ny" * 500},
        "s3": {"name": "no", "instructions": "Use scripts/tool.py\n", "code": "print('''\n---\n''')", "effectiveness": "high",
               "protected": True},
    },
    "subagents": {
        "sa_0001": {
            "name": "1: 'q' \"d\"",
            "directive": "a\n---\nb",
            "system_instructions": "\n\n# x\n",
            "available_tools": ["move"],
            "max_turns": 3,
        }
    },
}


@pytest.mark.parametrize("name", ["nasty", "expert-lantern", "expert-red", "min"])
def test_h_to_a_tree_and_back_is_no_difference(tmp_path, name):
    source = ROOT / "harnesses" / f"{name}.json" if name != "nasty" else tmp_path / "h.json"
    if name == "nasty":
        source.write_text(json.dumps(NASTY))
    bootstrap.export(source, tmp_path / "out")
    assert load(tmp_path / "out") == load(source)
    bootstrap.export(tmp_path / "out", tmp_path / "again")
    texts = lambda folder: {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert texts(tmp_path / "again") == texts(tmp_path / "out")


def test_what_people_wrote_keeps_its_form_when_something_else_changes(tmp_path):
    old, _ = w.read_tree(tree(tmp_path, GOOD))
    row = w.parse(old)[0]
    assert w.check(old) == [] and w.to_files(row, old) == old
    assert row["skills"]["add-up"]["code"] == "print(1)" and row["skills"]["add-up"]["source"] == "human"
    row["memory"]["data"]["content"] = "reports/ holds CSV with a header."
    row["subagents"]["reader"]["max_turns"] = 9
    new = w.to_files(row, old)
    assert {p for p in new if new[p] != old.get(p)} == {"memory/NOTES.md", "sub_agents/reader/AGENT.md"}
    assert "model: small" in new["sub_agents/reader/AGENT.md"] and '"max_turns": 9' in new["sub_agents/reader/AGENT.md"]
    assert new["memory/NOTES.md"].startswith("# What we know\n\n## tests\nRun them with `make test`.\n\n## data\n<!--")
    assert w.parse(new)[0] == row
    del row["skills"]["add-up"]
    assert not [p for p in w.to_files(row, old) if "add-up" in p]


@pytest.mark.parametrize("raw, value", [
    ("plain words", "plain words"), ('"a\\nb"', "a\nb"), ("'it''s'", "it's"), ("true", "true"),
    (">\n  folded\n  text", "folded text")])
def test_front_matter_as_people_write_it(raw, value):
    assert w.value(f"name: x\ndescription: {raw}\nlicense: MIT\n", "description") == value


@pytest.mark.parametrize("files, words", [
    ({"AGENTS.md": ""}, "AGENTS.md: missing or empty"),
    ({"AGENTS.md": "x" * 8_001}, "the limit is 8000"),
    ({"AGENTS.md": "See memory/PLAN.md"}, "names memory/PLAN.md, which does not exist"),
    ({"AGENTS.md": "See ../secret/key"}, "leaves the tree with ../secret/key"),
    ({"memory/other.md": "x"}, "memory/other.md: not a part"),
    ({".agents/plugins/x.md": "x"}, ".agents/plugins/x.md: not a part"),
    ({"memory/NOTES.md": "## a\n1\n## a\n2\n"}, "topic 'a' stands there twice"),
    ({"memory/NOTES.md": "## \nno topic\n"}, "title: "),
    ({".agents/skills/add-up/SKILL.md": skill(name="Add-Up")}, "name 'Add-Up' must be its folder's"),
    ({".agents/skills/add--up/SKILL.md": skill(name="add--up", body="")}, "name 'add--up' must be"),
    ({".agents/skills/add-up/SKILL.md": skill(description="")}, "description must have"),
    ({".agents/skills/add-up/SKILL.md": skill(description="x" * 1_025)}, "description must have"),
    ({".agents/skills/add-up/SKILL.md": skill(more='harness: {"importance": 9}\n')}, "importance: 9 is greater"),
    ({".agents/skills/add-up/SKILL.md": skill(more="harness: 7\n")}, "harness must be an object"),
    ({".agents/skills/other/notes.md": "x"}, "no SKILL.md beside it"),
    ({".agents/skills/add-up/scripts/add.py": "def f(:\n"}, "add.py: does not compile"),
    ({".agents/skills/add-up/scripts/add.py": "x = 1\0"}, "add.py: does not compile"),
    ({"sub_agents/reader/AGENT.md": "Read.\n"}, "reader/AGENT.md: description"),
    ({"AGENTS.md": "half \ud83d"}, "half a character"),
])
def test_check_names_every_violation(files, words):
    found = w.check({**GOOD, **files})
    assert len(found) == 1 and words in found[0]


def test_check_lists_them_all_at_once():
    assert len(w.check({**GOOD, ".agents/skills/add-up/SKILL.md": "no front matter"})) == 2
    assert len(w.check({"memory/x": "", ".agents/skills/a/scripts/b.py": "(", "sub_agents/y/AGENT.md": ""})) == 5


def test_links_are_never_followed_nor_written_through(tmp_path):
    tree(tmp_path, {"out/secret.md": "secret", **{f"t/{p}": t for p, t in GOOD.items()}})
    root = tmp_path / "t"
    (root / "sub_agents/leak").symlink_to(tmp_path / "out")
    (root / "memory/link.md").symlink_to(tmp_path / "out/secret.md")
    files, odd = w.read_tree(root)
    assert files == GOOD and len(odd) == 2 and all("links are not followed" in line for line in odd)
    with pytest.raises(BadInput, match="a link is in the way"):
        w.write_tree(root, files | {"sub_agents/leak/AGENT.md": "x"}, files)
    with pytest.raises(BadInput, match="a link is in the way"):
        w.write_tree(root, files | {"../up.md": "x"}, files)
    (root / "AGENTS.md").rename(tmp_path / "real.md")
    (root / "AGENTS.md").symlink_to(tmp_path / "real.md")
    with pytest.raises(BadInput, match="AGENTS.md: a link"):
        bootstrap.read_any(root)
    (root / ".agents").rename(tmp_path / "moved")
    (root / ".agents").symlink_to(tmp_path / "moved")
    assert not [p for p in w.read_tree(root)[0] if p.startswith(".agents")]


def test_files_that_are_not_text_or_too_long_are_not_read(tmp_path):
    tree(tmp_path, GOOD)
    (tmp_path / "memory/NOTES.md").write_bytes(b"\xff\xfe")
    (tmp_path / ".agents/skills/add-up/scripts/big.py").write_bytes(b" " * (w.SIZE + 1))
    files, odd = w.read_tree(tmp_path)
    assert "memory/NOTES.md" not in files and ["big.py" in odd[0], "UTF-8" in odd[1]] == [True, True]


def test_nothing_of_people_is_overwritten_without_being_asked(tmp_path, capsys):
    tree(tmp_path, {"AGENTS.md": "mine\n"})
    source = str(ROOT / "harnesses" / "expert-lantern.json")
    assert h.main(["export", source, str(tmp_path)]) == 2
    assert "AGENTS.md is there and differs" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["AGENTS.md"]
    assert h.main(["export", source, str(tmp_path), "--force"]) == 0
    old = w.read_tree(tmp_path)[0]
    (tmp_path / "AGENTS.md").write_text("changed meanwhile\n")
    with pytest.raises(BadInput, match="changed meanwhile; nothing was written"):
        w.write_tree(tmp_path, old | {"AGENTS.md": "new", "memory/NOTES.md": "new"}, old)
    assert (tmp_path / "memory/NOTES.md").read_text() == old["memory/NOTES.md"]


# -- the reference's folder

REFERENCE = {
    "EVOLVED_ORCHESTRATOR_POLICY.md": "\nIMPROVED BASE PROMPT:\nExplore.\n",
    "memory.json": {
        "next_id": 3,
        "entries": {
            "mem_0001": {
                "id": "mem_0001",
                "title": "Door",
                "content": "leads on",
                "coordinates": [3, 4],
                "importance": 5.0,
                "tags": "a, b",
                "source": "orchestrator",
                "created_at": "2026",
                "mutation_history": [{"x": 1}] * 50,
            },
            "mem_0002": {"title": None, "content": "a fact", "importance": 99, "tags": None},
        },
    },
    "skills.json": {
        "next_id": 1,
        "entries": {
            "move_to_coords": {
                "name": "move",
                "code": r"def go(n):\n    def inner():\n        return n + step\n    return inner()\nstep = 1\nresult = go(1)",
                "effectiveness": "great",
            },
            "walk": {
                "name": "walk",
                "code": "try:\n    x = int(args.get('x', 5.0))\nexcept Exception as e:\n    x = 0\n"
                "state = tools['get_game_state']()\n"
                "grid = tools['get_map_data']()['grid']\ntools['press_buttons'](buttons=['WAIT'], reasoning='w')\n"
                "result = [x, state['player_position']['x'], grid[0][0]]",
            },
        },
    },
    "subagents.json": {
        "next_id": 1,
        "entries": {
            "1st": {"name": "fighter", "max_turns": 400.0, "available_tools": ["press_buttons", "execute_custom_subagent"]}
        },
    },
}


def test_the_references_folder_with_its_hazards(tmp_path):
    tree(tmp_path, {p: t if isinstance(t, str) else json.dumps(t) for p, t in REFERENCE.items()})
    edits, _ = start_edits(Settings(bootstrap=str(tmp_path)))
    made = h.fold(edits)
    assert (
        made.prompt == "Explore."
        and made.memory["mem_0001"].coordinates == "[3, 4]"
        and made.memory["mem_0001"].tags == ["a", "b"]
    )
    assert (made.memory["mem_0002"].title, made.memory["mem_0002"].importance) == ("a fact", 5)
    assert made.subagents["sa-1st"].max_turns == 50 and made.skills["walk"].source == "bootstrapped"
    api = {
        "get_game_state": lambda: {"player_position": {"x": 7}},
        "get_map_data": lambda: {"grid": ["#."]},
        "press_buttons": lambda **_: {"success": True},
    }
    box = Sandbox()
    assert box.run(made.skills["move_to_coords"].code, {}, api).result == 2          # one line with literal \n, nested functions
    assert box.run(made.skills["walk"].code, {"x": 5.0}, api).result == [5, 7, "#"]
    box.close()
    (tmp_path / "skills.json").write_text('{"entries": {"a": 1}}')
    with pytest.raises(BadInput, match="no harness at .*skills.json is no store"):
        bootstrap.read_any(tmp_path)


def test_bootstrap_takes_every_form(tmp_path):
    source = ROOT / "harnesses" / "expert-lantern.json"
    bootstrap.export(source, tmp_path / "tree")
    first = h.fold(start_edits(Settings(bootstrap=str(source)))[0]).to_json()
    assert h.fold(start_edits(Settings(bootstrap=str(tmp_path / "tree")))[0]).to_json() == first
    with pytest.raises(BadInput, match="no harness at"):
        start_edits(Settings(bootstrap=str(tmp_path)))


def test_import_into_a_stopped_run_is_taken_up_and_replayed(tmp_path, capsys):
    folder, source = tmp_path / "run", tmp_path / "h.json"
    source.write_text(json.dumps({"prompt": "go east", "memory": {"mem_0001": {"title": "a fact"}}}))
    flags = ["--game", "toy", "--run", str(folder), "--json"]
    assert run.main([*flags, "--steps", "3"]) == 0
    assert h.main(["import", str(folder), str(source)]) == 0 and h.main(["import", str(folder), str(source)]) == 0
    assert "no difference" in capsys.readouterr().out
    assert run.main(["--run", str(folder), "--resume", "--steps", "6", "--json"]) == 0
    assert json.loads((folder / "harness.json").read_text())["memory"]["mem_0001"]["title"] == "a fact"
    assert run.main(["--run", str(folder), "--replay"]) == 0


# -- logs: one session told in every format

LONG = "word " * 2_000
SAID = [
    ("I look.", "shell", {"command": "ls"}, "a.py", False),
    ("", "shell", {"command": "make"}, "Exit code: 2\nno rule", True),
    ("Done.", None, None, None, None),
]


TURNS = [(f"c{n}", *turn) for n, turn in enumerate(SAID)]
ASK = {"role": "user", "content": "Fix it."}


def codex():
    yield {"type": "thread.started", "thread_id": "t"}
    yield {"type": "turn.started"}
    for id, text, name, args, out, bad in TURNS:
        if text:
            yield {"type": "item.completed", "item": {"id": f"t{id}", "type": "agent_message", "text": text}}
        if name:
            item = {"id": id, "type": "command_execution", **args, "status": "in_progress"}
            over = {"aggregated_output": out, "exit_code": 2 * bad, "status": "failed" if bad else "completed"}
            yield {"type": "item.started", "item": item}
            yield {"type": "item.completed", "item": item | over}
    yield {"type": "turn.completed", "usage": {"input_tokens": 9}}


def rollout():
    yield {"timestamp": "", "type": "session_meta", "payload": {"id": "x"}}
    item = lambda kind, **more: {"timestamp": "", "type": "response_item", "payload": {"type": kind, **more}}
    yield item("message", **ASK)
    for id, text, name, args, out, bad in TURNS:
        if text:
            yield item("message", role="assistant", content=[{"type": "output_text", "text": text}])
        if name:
            yield item("function_call", call_id=id, name=name, arguments=json.dumps(args))
            output = json.dumps({"output": out, "metadata": {"exit_code": 2 * bad}})
            yield item("function_call_output", call_id=id, output=output)
    yield {"timestamp": "", "type": "event_msg", "payload": {"type": "task_complete"}}


def openai():
    yield {"role": "system", "content": "You code."}
    yield {**ASK}
    for id, text, name, args, out, bad in TURNS:
        function = {"name": name, "arguments": json.dumps(args)}
        calls = {"tool_calls": [{"id": id, "type": "function", "function": function}]} if name else {}
        yield {"role": "assistant", "content": text or None, **calls}
        if name:
            yield {"role": "tool", "tool_call_id": id, "content": out}


def anthropic():
    yield {**ASK}
    for id, text, name, args, out, bad in TURNS:
        said, use = {"type": "text", "text": text}, {"type": "tool_use", "id": id, "name": name, "input": args}
        yield {"role": "assistant", "content": [said] * bool(text) + [use] * bool(name)}
        if name:
            answer = {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": out}], "is_error": bad}
            yield {"role": "user", "content": [answer]}


def claude():
    yield {"type": "system", "subtype": "init"}
    yield from ({"type": message["role"], "message": message} for message in anthropic())
    yield {"type": "result", "subtype": "success", "is_error": False}


def told(form):
    return list(globals()[form]())


def put(path, rows, whole=False):
    path.write_text(json.dumps(rows) if whole else "".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("form", ["codex", "rollout", "claude", "openai", "anthropic"])
def test_every_format_tells_the_same_session(tmp_path, form, whole):
    log = foreign.Log("s")
    got = list(foreign.steps(put(tmp_path / "s.json", told(form), whole and form in ("openai", "anthropic")), log))
    assert [(s.reply.text, [(c.name, c.args) for c in s.reply.calls], [r["success"] for r in s.results]) for s in got] == [
        (text, [(name, args)] * bool(name), [not bad] * bool(name)) for text, name, args, _, bad in SAID]
    assert "no rule" in got[1].results[0]["error"] and got[1].results[0]["exit"] == 2 and got[0].results[0]["output"] == "a.py"
    assert (log.final, log.end, log.task) == ("Done.", "", "" if form == "codex" else "Fix it.")
    names = {s.name for s in foreign.read_log(tmp_path / "s.json").found}
    assert names == {"nonzero_exit"}


def test_our_own_trajectory_is_a_log_too(tmp_path):
    assert run.main(["--game", "toy", "--run", str(tmp_path / "r"), "--json", "--steps", "4"]) == 0
    log = foreign.read_log(tmp_path / "r" / "trajectory.jsonl")
    assert (
        log.steps == 4 and len(re.findall(r"^\[\d\] trajectory at work says .*: move \{.*-> .*east '.'", log.trace(), re.M)) == 4
    )


# -- signatures

def turn(t, *pairs, key=None, usage=0):
    return Step(
        t,
        "s",
        0,
        None,
        key or str(t),
        "work",
        "",
        Reply("", [Call(f"c{i}", n, a) for i, (n, a, _) in enumerate(pairs)], Usage(usage)),
        [r for *_, r in pairs],
        0,
        [],
    )


OK, BAD = {"success": True, "output": "1"}, {"success": False, "error": "no", "exit": 1}
sh = lambda command, result=OK: ("shell", {"command": command}, result)
heredoc = lambda n: (
    f"python3 - <<EOF\nimport csv\nprint(sum(float(row['amount']) for row in csv.DictReader(open('r{n}.csv'))))\nEOF"
)
CASES = {
    "nonzero_exit": ([turn(1, sh("make", BAD))], [turn(1, sh("make", {"success": True, "output": "exit 1", "exit": 0}))]),
    "tool_error": (
        [turn(1, ("edit", {}, {"success": False, "error": "no match"}))],
        [turn(1, ("edit", {}, {"success": True, "output": "error: none"}))],
    ),
    "invalid_call": (
        [turn(1, ("edit", {}, {"success": False, "error": "InputValidationError: path is missing"}))],
        [turn(1, ("edit", {}, {"success": False, "error": "no match"}))],
    ),
    "repeated_failing_call": ([turn(t, sh("make", BAD)) for t in (1, 2, 3)], [turn(t, sh(f"make {t}", BAD)) for t in (1, 2, 3)]),
    "same_result": (
        [turn(t, sh("ls")) for t in (1, 5, 9)],
        [turn(t, sh("date", {"success": True, "output": str(t)})) for t in (1, 5, 9)],
    ),
    "cycle": (
        [turn(t, sh("ab"[t % 2], {"success": True, "output": str(t)})) for t in range(6)],
        [turn(t, sh("abc"[t % 3], {"success": True, "output": str(t)})) for t in range(6)],
    ),
    "stall": ([turn(t, sh(f"x{t}"), key="k") for t in range(12)], [turn(t, sh(f"x{t}"), key=str(t)) for t in range(12)]),
    "repeated_script": (
        [turn(t, sh(heredoc(t))) for t in (1, 2, 3)],
        [turn(t, sh(heredoc(t))) for t in (1, 2, 3)] + [turn(4, sh("python .agents/skills/add-up/scripts/add.py"))],
    ),
    "token_blowup": (
        [turn(t, usage=10_000) for t in range(5)] + [turn(6, usage=90_000)],
        [turn(t, usage=80_000 + t) for t in range(6)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_signature_fires_and_its_look_alike_does_not(name):
    names = lambda window: (
        {s.name for detect in foreign.DETECTORS for s in detect(window)} | {s.name for s in signatures(window)}
    )
    fires, silent = CASES[name]
    assert name in names(fires) and name not in names(silent)


@pytest.mark.parametrize("change, name", [
    (lambda rows: rows[:-1], "cut_session"),                                              # no turn.completed
    (lambda rows: rows[:-2] + rows[-1:], "no_final_message"),
    (lambda rows: rows[:-1] + [{"type": "turn.failed", "error": {"message": "time is up"}}], "failed_session"),
    (lambda rows: [*rows[:3], {"type": "error", "message": "stream closed"}, *rows[3:]], "session_error"),
    (lambda rows: rows[:-3] + rows[-2:], "tool_error")])                                  # begun and never ended
def test_signatures_of_a_whole_session(tmp_path, change, name):
    names = {s.name for s in foreign.read_log(put(tmp_path / "s.jsonl", change(told("codex")))).found}
    assert name in names and name not in {s.name for s in foreign.read_log(put(tmp_path / "s.jsonl", told("codex"))).found}


# -- logs that are not as they should be

@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "no log of a known format"),
        (b"hello\nworld\n", "no log of a known format"),
        (b'{"a": 1}\n[1]\n"x"\n', "no log of a known format"),
        (b"[1, 2", "the JSON is damaged"),
        (b"[" * 20_000, "the JSON is damaged"),
        (b"\x89PNG\r\n\x1a\n\0\0", "no log of a known format"),
    ],
)
def test_a_log_of_another_format_is_one_clear_line(tmp_path, data, words, capsys):
    (tmp_path / "x.log").write_bytes(data)
    assert refiner.main([str(tree(tmp_path / "t", GOOD)), str(tmp_path / "x.log"), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and words in err and "x.log" in err


def test_bad_lines_are_skipped_and_counted(tmp_path):
    rows = [json.dumps(r) for r in told("codex")]
    odd = [
        '{"type": "item.completed", "item": 7}',
        "[" * 9_000,
        "npm warn",
        '{"type": "item.completed", "item": {"id": [], "type": "new_kind"}}',
        "null",
    ]
    (tmp_path / "s.jsonl").write_text("\n".join([*rows[:3], *odd, *rows[3:], rows[0][:10]]))       # the last line is cut
    log = foreign.read_log(tmp_path / "s.jsonl")
    assert log.skipped == 5 and log.steps == 4 and log.final == "Done."


def test_a_long_log_takes_little_memory(tmp_path):
    with open(tmp_path / "s.jsonl", "w") as out:
        for n in range(300):
            item = {"id": f"i{n}", "type": "command_execution", "command": f"cat {n}", "exit_code": n % 9 == 0}
            out.write(json.dumps({"type": "item.completed", "item": item | {"aggregated_output": f"{n} {LONG * 6}"}}) + "\n")
    tracemalloc.start()
    log = foreign.read_log(tmp_path / "s.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.steps == 300 and len(log.trace()) < 13_000 and "characters cut" in log.trace() and len(log.found) < 30
    assert (tmp_path / "s.jsonl").stat().st_size > 15e6 and peak < 4e6


def test_a_json_list_that_is_too_big_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "LIST", 100)
    with pytest.raises(BadInput, match="a JSON list of more than"):
        foreign.read_log(put(tmp_path / "s.json", told("openai"), whole=True))


SECRETS = ["sk-" "abcdefghijklmnop1234", "hunter2-hunter2", "AKIA" "ABCDEFGHIJKLMNOP", "ghp_" "0123456789abcdefABCD",
           "eyJhbGciOiJIUzI1" ".eyJzdWIiOiIx" ".abcdef", "MIIEvQIBADANBg"]
LEAK = ("OPENAI_API_KEY={} password: {}, id {} {}\n Authorization: Bearer {}\n"
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----").format(*SECRETS)


def test_no_model_sees_a_secret_of_a_log(tmp_path, monkeypatch):
    rows = told("openai")
    rows[1]["content"] += LEAK
    rows[3]["content"] = LEAK + LONG + LEAK
    rows[-1]["content"] += LEAK
    rows[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"command": LEAK})
    (tmp_path / "NOTES.md").write_text(f"## key\n{LEAK}\n")
    model = Canned(*['{"prompt": null}', *["{}"] * 3])
    monkeypatch.setattr(evolve, "open_model", lambda *a, **k: lambda m, t: model.ask("", m, t))
    log = put(tmp_path / "s.jsonl", rows)
    assert (
        refiner.main([str(tree(tmp_path / "t", GOOD)), str(log), str(tmp_path / "NOTES.md"), "--out", str(tmp_path / "o")]) == 0
    )
    sent = json.dumps(model.sent) + "".join(
        p.read_text() for p in tmp_path.rglob("*") if p.is_file() and p not in (log, tmp_path / "NOTES.md")
    )
    assert len(model.sent) == 4 and not [s for s in SECRETS if s in sent] and "[secret]" in sent
    assert re.search(r"s: 3 steps, .* (\d\d) secrets", (tmp_path / "o" / "report.md").read_text())


# -- the four passes over a workspace

def refine(folder, *flags, log=CODEX):
    return refiner.main([str(folder), str(log), *map(str, flags)])


def test_the_scripted_model_writes_down_both_planted_failures(tmp_path, capsys):
    root = tree(tmp_path / "t", GOOD)
    assert refine(root, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert w.read_tree(root)[0] == GOOD and not (ROOT / "runs" / "refine-t").exists()
    assert refine(root, "--out", tmp_path / "o") == 0
    assert capsys.readouterr().out.startswith(shown)
    new, odd = w.read_tree(root)
    assert w.check(new, odd) == [] and {p for p in new if new[p] != GOOD.get(p)} == {"AGENTS.md", "memory/NOTES.md"}
    assert new["AGENTS.md"].startswith(GOOD["AGENTS.md"]) and "save it as a skill" in new["AGENTS.md"]
    assert "pytest: command not found" in new["memory/NOTES.md"] and new["memory/NOTES.md"].startswith(GOOD["memory/NOTES.md"])
    report = (tmp_path / "o" / "report.md").read_text()
    assert "shell bash -lc 'pytest -q' gave the same result 3 times" in report and shown.strip() in report
    statuses = [r["status"] for r in read_rows(tmp_path / "o" / "refinements.jsonl")]
    assert statuses == ["edited", "unchanged", "unchanged", "edited"]
    assert refine(root, "--out", tmp_path / "o2") == 0 and capsys.readouterr().out.startswith("no difference")


def answers(monkeypatch, **parts):
    """A model that answers the passes named with that, twice; the others with no change."""
    def reply(messages, tools):
        part = next(p for p, name in evolve.NAMES.items() if f"you edit the {name}:" in messages[0]["content"])
        answer = parts.get(part, {"prompt": None} if part == "prompt" else {})
        return Reply(answer if isinstance(answer, str) else json.dumps(answer))
    monkeypatch.setattr(evolve, "open_model", lambda *a, **k: reply)


def test_a_pass_that_breaks_the_specification_is_dropped_alone(tmp_path, monkeypatch, capsys):
    root = tree(tmp_path / "t", GOOD)
    answers(
        monkeypatch,
        prompt={"prompt": "x" * 8_001},
        skills={"create": [{"name": "Sum!", "description": "sums", "code": "def f(:"}]},
        subagents={"create": [{"name": "/x: y", "description": "tests", "system_instructions": "Test."}]},
        memory={"create": [{"title": f"fact {n}"} for n in range(3)]},
    )
    assert refine(root, "--out", tmp_path / "o", "--memory-max-changes", 2) == 0
    rows = {r["part"]: r for r in read_rows(tmp_path / "o" / "refinements.jsonl")}
    assert {p: r["status"] for p, r in rows.items()} == {
        "prompt": "dropped",
        "subagents": "edited",
        "skills": "dropped",
        "memory": "dropped",
    }
    assert (
        "8000" in rows["prompt"]["errors"][-1]
        and "does not compile" in rows["skills"]["errors"][-1]
        and "the limit is 2" in rows["memory"]["errors"][-1]
    )
    new = w.read_tree(root)[0]
    assert {p for p in new if new[p] != GOOD.get(p)} == {"sub_agents/x-y/AGENT.md"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish {",
        '{"prompt": 7}',
        "I'm sorry",
        '{"prompt": "I\'m sorry, I cannot"}',
        '{"create": [{"title": "half \\ud83d"}]}',
        "[" * 9_000,
    ],
)
def test_a_reply_that_is_rubbish_changes_nothing_and_leaves_a_trace(tmp_path, monkeypatch, text):
    root = tree(tmp_path / "t", GOOD)
    answers(monkeypatch, **dict.fromkeys(refiner.PASSES, text))
    assert refine(root, "--out", tmp_path / "o") == 0
    assert w.read_tree(root)[0] == GOOD
    assert {r["status"] for r in read_rows(tmp_path / "o" / "refinements.jsonl")} <= {"failed", "dropped"}


def test_what_a_person_wrote_is_changed_only_when_asked(tmp_path, monkeypatch):
    answers(monkeypatch, skills={"update": [{"id": "add-up", "instructions": "Run `scripts/add.py FILE COLUMN`."}]})
    for flags, changed in (
        (["--out", tmp_path / "a"], []),
        (["--handwritten", "--out", tmp_path / "b"], [".agents/skills/add-up/SKILL.md"]),
    ):
        root = tree(tmp_path / "t", GOOD)
        assert refine(root, *flags) == 0
        assert [p for p, t in w.read_tree(root)[0].items() if t != GOOD.get(p)] == changed
    assert "a person" in (tmp_path / "a" / "report.md").read_text()


def test_an_entry_that_h_cannot_hold_stays_as_it_is(tmp_path, capsys):
    long, note = skill(name="long", body="x" * 12_001), f"## long\n{'x' * 12_001}\n"
    files = {**GOOD, ".agents/skills/long/SKILL.md": long, "memory/NOTES.md": note + GOOD["memory/NOTES.md"]}
    root = tree(tmp_path / "t", files)
    assert refine(root, "--out", tmp_path / "o") == 0
    new = w.read_tree(root)[0]
    assert new[".agents/skills/long/SKILL.md"] == long and new["memory/NOTES.md"].startswith(files["memory/NOTES.md"])
    assert new["memory/NOTES.md"] != files["memory/NOTES.md"]
    assert (tmp_path / "o" / "report.md").read_text().count("too long") == 2
    with pytest.raises(BadInput, match="too long"):      # to leave it out without a word would be a loss
        bootstrap.read_any(root)


def test_a_sessions_notes_are_folded_in_and_a_new_skill_gets_its_files(tmp_path, monkeypatch):
    root = tree(tmp_path / "t", GOOD)
    (tmp_path / "left.md").write_text("## data\nreports/ holds TSV.\n\n## new\nA rumour.\n## new\nA fact.\n")
    answers(
        monkeypatch,
        skills={
            "create": [{"name": "Sum reports", "description": "sums", "instructions": "Run scripts/sum.py.", "code": "print(2)"}]
        },
    )
    assert refine(root, tmp_path / "left.md", "--out", tmp_path / "o") == 0
    new, odd = w.read_tree(root)
    row = w.parse(new)[0]
    assert {m["title"]: m["content"] for m in row["memory"].values()} == {
        "tests": "Run them with `make test`.",
        "data": "reports/ holds TSV.",
        "new": "A fact.",
    }
    assert new[".agents/skills/sum-reports/scripts/sum.py"] == "print(2)\n" and w.check(new, odd) == []


def test_ctrl_c_leaves_the_tree_as_it_was(tmp_path, monkeypatch, capsys):
    def stop(messages, tools):
        raise KeyboardInterrupt
    monkeypatch.setattr(evolve, "open_model", lambda *a, **k: stop)
    assert refine(tree(tmp_path / "t", GOOD), "--out", tmp_path / "o") == 130
    assert w.read_tree(tmp_path / "t")[0] == GOOD and len(capsys.readouterr().err.splitlines()) == 1


def test_a_text_skill_gives_its_instructions(toy_agent):
    agent = toy_agent(
        Canned(call("run_skill", {"skill_id": "s", "reasoning": ""})),
        h.Harness(prompt="go", skills={"s": h.Skill("s", instructions="Do it.")}),
    )
    assert agent.step().results[0]["result"] == "Do it."


def test_feedback_and_the_other_switches(tmp_path, capsys, monkeypatch):
    root, sent = tree(tmp_path / "t", GOOD), Canned(*["{}"] * 9)
    monkeypatch.setattr(evolve, "open_model", lambda *a, **k: lambda m, t: sent.ask("", m, t))
    (tmp_path / "f.jsonl").write_text(
        '{"log": "codex", "score": 0.5, "feedback": "the sums are wrong"}\n{"log": "codex2", "score": 1}\n'
    )
    assert refine(root, "--dry-run", "--components", "memory", "--feedback", tmp_path / "f.jsonl", "--trace-chars", 400) == 0
    asked = sent.sent[0][1][0]["content"]
    assert len(sent.sent) == 1 and "scored 0.5: the sums are wrong" in asked and "characters cut" in asked
    assert refine(root, "--dry-run", "--components", "memory") == 0 and "scored" not in sent.sent[1][1][0]["content"]
    assert refine(root, "--dry-run", "--min-signals", 99) == 0 and len(sent.sent) == 2
    capsys.readouterr()
    (tmp_path / "bad.jsonl").write_text('{"log": "codex"}\n')
    for flags, words in (
        (["--components", "weights"], "weights"),
        (["--feedback", tmp_path / "bad.jsonl"], "--feedback"),
        (["--feedback", tmp_path / "none"], "none"),
        ([tmp_path / "no.jsonl"], "no.jsonl: No such file"),
        (["--min-signals", "x"], "invalid int value"),
    ):
        try:
            assert refine(root, "--dry-run", *flags) == 2
        except SystemExit as e:                          # from argparse
            assert e.code == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1 and words in err


def test_a_second_call_with_the_same_out_asks_no_model_again(tmp_path, monkeypatch):
    assert refine(tree(tmp_path / "t", GOOD), "--out", tmp_path / "o", "--components", "prompt") == 0
    monkeypatch.setattr(evolve, "open_model", lambda *a, **k: lambda m, t: pytest.fail("asked again"))
    assert refine(tree(tmp_path / "t2", GOOD), "--out", tmp_path / "o", "--components", "prompt") == 0
    assert (tmp_path / "t2/AGENTS.md").read_text() == (tmp_path / "t/AGENTS.md").read_text()
