"""H from any form, and as a workspace tree: our run or harness.json, the released reference's bootstrap folder, a tree.

    python harness.py export H DIR [--force]
    python harness.py import RUN H         into a run that is stopped, as a person's edits; --resume takes them up

The reference's folder: memory.json, skills.json, subagents.json ({"next_id", "entries"}), EVOLVED_ORCHESTRATOR_POLICY.md.
Real ones hold what our schema has no room for: it is brought into range or dropped (mutation_history, timestamps).
"""
import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ID, PARTS, SCHEMAS, Edit, Harness, changes, fold, imported, read_edits
from people import describe
from runlog import BadInput, append_row, command, locked, read_rows
from tools.workspace import POLICY, TITLE, check, parse, read_tree, slug, to_files, write_tree

STORES = {"memory": "memory.json", "skills": "skills.json", "subagents": "subagents.json"}
EVOLVED = "EVOLVED_ORCHESTRATOR_POLICY.md"


def fit(value: Any, rules: dict) -> Any:
    """A value of the reference's stores as our schema wants it; None: leave the field out."""
    if value is None or value not in rules.get("enum", [value]):
        return None
    if rules["type"] == "integer":
        try:
            return max(rules["minimum"], min(rules["maximum"], int(float(value))))
        except (TypeError, ValueError, OverflowError):
            return None
    if rules["type"] == "array":
        return [str(v)[:80] for v in (value if isinstance(value, list) else re.split(r",\s*", str(value)))][:rules["maxItems"]]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_reference(folder: Path) -> dict:
    """The reference's folder -> a row for `harness.imported`; a file that is missing is an empty store. Raises ValueError."""
    policy = (folder / EVOLVED).read_bytes().decode() if (folder / EVOLVED).exists() else ""
    row: dict = {"prompt": re.sub(r"^\s*IMPROVED BASE PROMPT:\s*", "", policy).removesuffix("\n")}
    for part, file in STORES.items():
        rules, row[part] = {k: r for k, r in SCHEMAS[part]["properties"].items() if k != "protected"}, {}
        store = json.loads((folder / file).read_bytes()) if (folder / file).exists() else {"entries": {}}
        entries = store.get("entries") if isinstance(store, dict) else None
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            raise ValueError(f"{file} is no store: {{\"next_id\", \"entries\": {{id: {{...}}}}}}")
        for id, entry in entries.items():
            new = {k: v for k in rules if (v := fit(entry.get(k), rules[k])) is not None}
            new[TITLE[part]] = new.get(TITLE[part]) or new.get("content", "")[:80].strip() or id
            row[part][id if ID.fullmatch(id) else f"{PARTS[part][1]}-{slug(id)}"] = new
    return row


def read_any(path: Path) -> dict:
    """The row of whatever H stands at `path`, for `harness.imported`. Raises BadInput, OSError."""
    path = path / "harness.json" if (path / "harness.json").exists() else path
    try:
        if not path.is_dir():
            row = json.loads(path.read_bytes())
        elif any((path / name).exists() for name in (*STORES.values(), EVOLVED)):
            row = read_reference(path)
        elif POLICY in (tree := read_tree(path))[0]:
            row, _, wrong = parse(tree[0])
            if wrong:
                raise ValueError(wrong[0])
        else:
            raise ValueError(next((line for line in tree[1] if line.startswith(POLICY)), "it is a run's folder, a harness.json, "
                             f"a folder of the reference ({', '.join(STORES.values())}), or a workspace with {POLICY}"))
        kinds = {"prompt": str, "tools": list, **dict.fromkeys(PARTS, dict)}
        if not isinstance(row, dict) or not all(isinstance(row.get(k, kind()), kind) for k, kind in kinds.items()):
            raise ValueError("it must be an object with prompt (a text), subagents, skills and memory (objects)")
        return row
    except (ValueError, RecursionError) as e:
        raise BadInput(f"no harness at {path}: {e}") from None


def export(source: Path, folder: Path, force: bool = False) -> str:
    """Write H as a tree. Where a file is there and differs nothing is written, unless `force`. Raises BadInput, OSError."""
    harness = fold(*imported(read_any(source)))
    folder.mkdir(parents=True, exist_ok=True)
    old, odd = read_tree(folder)
    new = to_files(harness.to_json(), old)
    if not force and (lost := [p for p in old if new.get(p) != old[p]]):
        raise BadInput(f"{folder / lost[0]} is there and differs; nothing was written; --force overwrites it")
    return "\n".join([f"{len(write_tree(folder, new, old))} files written in {folder}", *check(new, odd)])


def merge(harness: Harness, row: dict, by: str, why: str, step: int = 0) -> list[Edit]:
    """Bring the prompt and the entries of `row` into H; what H has besides stays. Returns the edits. Raises EditError."""
    edits = changes(row, Harness(), harness, by=by, step=step, why=why)
    for edit in edits:
        harness.apply(edit)
    return edits


def import_into(run: Path, source: Path) -> str:
    """H at `source` into a stopped run, as edits by "human"; a line for each. Raises BadInput; then nothing has changed."""
    row = read_any(source)
    if not (run / "edits.jsonl").exists():
        raise BadInput(f"{run} holds no edits.jsonl: give the folder of a run")
    with locked(run):
        step = max((r["t"] for r in read_rows(run / "trajectory.jsonl")), default=0)
        edits = merge(fold(read_edits(run / "edits.jsonl")), row, "human", f"import of {source.name}", step)
        for edit in edits:
            append_row(run / "edits.jsonl", asdict(edit))
    return "\n".join(map(describe, edits)) or "no difference"


def main(argv: list[str]) -> int:
    """The two commands of harness.py that know other forms."""
    parser = argparse.ArgumentParser(prog="harness.py", description=__doc__)
    parser.add_argument("command", choices=["export", "import"])
    parser.add_argument("first", type=Path, help="the H to export, or the run that takes it")
    parser.add_argument("second", type=Path, help="the folder of the tree, or the H to import")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    return command(parser, argv, lambda args: print(
        export(args.first, args.second, args.force) if args.command == "export" else import_into(args.first, args.second)))
