"""What the README says of the code is true: file map and sizes; and the house rules: who imports whom, how long a file is.

`python tests/test_readme.py` writes the sizes into the README.
"""
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = {                                                # files of one row -> their concept, in reading order
    "harness.py": "H: dataclasses, validated edits, `H ⊕ Δ`, versions, undo",
    "env.py": "the `Env` contract, Observation, Step, the PyBoy environment",
    "ch.py": "one turn: context → model → calls → results; tools, sub-agents",
    "refiner.py": "the schedule, the four passes: window → Δ",
    "signatures.py": "window → failure signatures",
    "reuse.py": "what H shows first, near-duplicates, confidence, retirement",
    "run.py settings.py": "the loop, checkpoint, resume, replay; a field is a flag",
    "runlog.py": "a run's files: append-only logs, the reply log, the lock",
    "people.py": "edits reviewed as diffs, H edited by hand, `python harness.py`",
    "sandbox.py": "model-written Python, run without the power to do harm",
    "guard.py cases.py": "Harness Continual Learning: a candidate H against live H on forks",
    "prm.py": "the process reward model: windows → rewards in [0, 1]",
    "sft.py rebuild.py": "low-reward windows → teacher labels → a shard → the next θ",
    "models/__init__.py models/vision.py": "the seam: `model(messages, tools) -> Reply`; frames",
    "models/api.py models/wire.py": "any OpenAI-compatible server, and how servers differ",
    "models/local.py": "a tiny real model on llama.cpp's server",
    "models/scripted.py models/reading.py models/learner.py": "the offline model: agent, what it reads, rule learner",
    "models/student.py models/theta.py": "the numpy student: the calls that a state offers, its θ",
    "games/red.py games/red_data.py": "Pokémon Red's memory → text map, text, battle, state",
    "games/lantern.py games/cartridge/build.py": "the open cartridge: what differs from Red; its build",
    "games/toy.py": "a grid world: the template for a fork",
    "tools/workspace.py tools/bootstrap.py": "H ⇄ a coding agent's workspace tree, and other forms",
    "tools/foreign.py tools/evolve.py": "coding agents' logs → steps; the four passes over them",
    "tools/lora.py tools/lora_trainer.py tools/lora_demo.py": "θ as a LoRA: caller, trainer, a real model on a CPU",
    "tools/report.py tools/sweep.py tools/stream.py": "a run as tables; many runs; task streams under guards",
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
    links = lambda names: ", ".join(f"[{name}]({name})" for name in names.split())
    rows = [f"| {links(names)} | {sum(map(lines, names.split()))} | {what} |" for names, what in FILES.items()]
    total = sum(map(lines, " ".join(FILES).split()))
    return "\n".join(["| file | lines | concept |", "|---|---|---|", *rows, f"| all | {total} | |"])


def block(name):
    return re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", (ROOT / "README.md").read_text(), re.S)[1]


def test_the_file_map_is_complete_and_its_sizes_are_true():
    assert set(" ".join(FILES).split()) == set(tracked())
    assert block("files") == table(), "run `python tests/test_readme.py`"


def test_every_path_and_flag_that_the_readme_names_exists():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"`((?:tests|games|prompts|harnesses)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path
    fields, tools = (ROOT / "settings.py").read_text(), "".join((ROOT / name).read_text() for name in tracked())
    for flag in set(re.findall(r"--([a-z][a-z-]+)", re.sub(r"<!--.*?-->", "", text))) - {"help"}:
        assert f"{flag.replace('-', '_')}: " in fields or f'"--{flag}"' in tools or f'("{flag}",' in tools, flag


def test_the_budget():
    card = [n for n in CARD if (ROOT / n).exists()]
    assert sum(map(lines, card)) <= 1_900 and sum(map(lines, tracked())) <= 8_550
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
