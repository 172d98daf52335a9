"""What the README says of the code is true: file map and sizes; and the house rules: who imports whom, how long a file is.

`python tests/test_readme.py` writes the sizes into the README.
"""
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = {
    "harness.py": "H: dataclasses, validated edits, `H ⊕ Δ`, versions, undo",
    "env.py": "the `Env` contract, Observation, Step, the PyBoy environment",
    "ch.py": "one turn: context → model → calls → results; tools, sub-agents",
    "signatures.py": "window → failure signatures",
    "refiner.py": "the schedule, the four passes: window → Δ",
    "reuse.py": "near-duplicates, confidence, retirement",
    "people.py": "edits reviewed as diffs, H edited by hand",
    "cases.py": "situations out of the run, and what is to come of them",
    "guard.py": "a candidate H against live H on forks; commit or not",
    "prm.py": "the process reward model: windows → rewards in [0, 1]",
    "sft.py": "low-reward windows → teacher labels → a shard → the next θ",
    "rebuild.py": "what the model was sent, rebuilt from the log",
    "run.py": "the loop, checkpoint, resume, replay",
    "settings.py": "a field is a flag; what the flags open",
    "runlog.py": "a run's files: append-only logs, the reply log, the lock",
    "sandbox.py": "model-written Python, run without the power to do harm",
    "models/__init__.py": "the seam: `model(messages, tools) -> Reply`",
    "models/scripted.py": "the offline model as the agent",
    "models/reading.py": "what it makes of its messages",
    "models/learner.py": "the offline model as the Refiner: a rule learner",
    "models/student.py": "the numpy student: the calls that a state offers",
    "models/theta.py": "its θ: a low-rank softmax; soft SFT, offline GRPO",
    "models/api.py": "any OpenAI-compatible server: retries, budgets, money",
    "models/wire.py": "how servers differ: messages, replies, faults, prices",
    "models/vision.py": "frames as message parts; does the model see them?",
    "models/local.py": "a tiny real model on llama.cpp's server",
    "games/toy.py": "a grid world: the template for a fork",
    "games/red.py": "Pokémon Red's memory → text map, text, battle, state",
    "games/red_data.py": "what it knows of the cartridge: tiles, names, identity",
    "games/lantern.py": "the open cartridge: only what differs from Red",
    "games/cartridge/build.py": "builds lantern.gb from its source",
    "tools/workspace.py": "H ⇄ a coding agent's workspace tree; its specification",
    "tools/bootstrap.py": "H from any form: run, reference's folder, tree; export, import",
    "tools/foreign.py": "coding agents' logs → steps and failure signatures",
    "tools/evolve.py": "the four passes over a workspace and its logs",
    "tools/lora.py": "theta as a LoRA: run the trainer, load, canary",
    "tools/lora_trainer.py": "the trainer's own process: soft SFT, GRPO",
    "tools/lora_demo.py": "the whole chain on a real model, on a CPU",
    "tools/report.py": "a run as tables; press cost of walks against a shortest path",
    "tools/sweep.py": "many runs, one table",
    "tools/stream.py": "a stream of tasks under guards: what is learned and forgotten",
}
CARD = ["run.py", "ch.py", "env.py", "harness.py", "refiner.py", "prm.py", "sft.py"]
FLOORS = [["runlog", "models", "models.api", "models.wire", "models.vision", "models.local", "models.scripted", "models.reading", "models.learner",
           "models.student", "models.theta", "sandbox", "games.red", "games.red_data", "games.lantern", "games.cartridge", "tools.lora_trainer"],
          ["harness", "tools.lora"], ["env", "people", "tools.workspace"],
          ["games.toy", "reuse", "signatures", "prm", "tools.bootstrap"], ["refiner", "ch", "settings"], ["tools.foreign", "rebuild", "cases"],
          ["tools.evolve", "sft", "guard"], ["run"], ["tools.report"], ["tools.sweep", "tools.stream", "tools.lora_demo"]]


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, text=True)
    names = out.stdout.split() if out.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if ".venv" not in p.parts]
    return [n for n in names if not n.startswith("tests/") and (ROOT / n).exists() and (ROOT / n).stat().st_size]


def lines(name):
    return len((ROOT / name).read_text().splitlines())


def table():
    rows = [f"| [{name}]({name}) | {lines(name)} | {what} |" for name, what in FILES.items()]
    total = sum(map(lines, FILES))
    return "\n".join(["| file | lines | concept |", "|---|---|---|", *rows, f"| all | {total} | |"])


def block(name):
    return re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", (ROOT / "README.md").read_text(), re.S)[1]


def test_the_file_map_is_complete_and_its_sizes_are_true():
    assert set(FILES) == set(tracked())
    assert block("files") == table(), "run `python tests/test_readme.py`"


def test_every_path_and_flag_that_the_readme_names_exists():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"`((?:tests|games|prompts|harnesses)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path
    source = (ROOT / "settings.py").read_text()
    for flag in set(re.findall(r"--([a-z][a-z-]+)", re.sub(r"<!--.*?-->", "", text))) - {"help", "game", "table", "seeds", "jobs"}:
        assert f"{flag.replace('-', '_')}: " in source, flag


def test_the_budget():
    card = [n for n in CARD if (ROOT / n).exists()]
    assert sum(map(lines, card)) <= 1_940 and sum(map(lines, tracked())) <= 9_000
    assert all(lines(n) <= 400 for n in tracked())
    for name in tracked():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{name}: {node.name}"


def test_a_file_imports_only_lower_floors():
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    for name in tracked():
        module = name[:-3].replace("/", ".").removesuffix(".__init__")
        if module.startswith("games.cartridge"):
            continue
        whole = ast.parse((ROOT / name).read_text())
        whole.body = [n for n in whole.body if getattr(n, "name", "") != "main"]           # an entry point may look up
        for node in ast.walk(whole):
            found = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for used in found:
                if used in floor:
                    lower = floor[used] < floor[module] or floor[used] == floor[module] == 0
                    assert lower, f"{name} imports {used}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(readme.read_text().replace(block("files"), table()) if block("files") else
                      readme.read_text().replace("<!-- files -->\n", f"<!-- files -->\n{table()}\n"))
    sys.exit(0)
