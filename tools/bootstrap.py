"""H from and to any form: our run or harness.json, the released reference's bootstrap folder, a workspace tree.

    python harness.py export SOURCE DIR [--form tree|reference] [--force]
    python harness.py import RUN SOURCE        into a run that is stopped, as a person's edits; --resume takes them up

The reference's folder: memory.json, skills.json, subagents.json ({"next_id", "entries"}), EVOLVED_ORCHESTRATOR_POLICY.md.
Real ones hold what our schema has no room for: it is dropped (mutation_history, timestamps), or brought into range.
"""
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ID, PARTS, SCHEMAS, Edit, Harness, fold, imported, read_edits
from runlog import BadInput, append_row, locked, read_rows
from tools.workspace import POLICY, Files, check, parse, read_tree, to_files, write_tree

STORE = {"memory": "memory.json", "skills": "skills.json", "subagents": "subagents.json"}
EVOLVED = "EVOLVED_ORCHESTRATOR_POLICY.md"


def fit(value: Any, rules: dict) -> Any:
    """A value of the reference's stores as our schema wants it; None: leave the field out."""
    kind = rules.get("type")
    if value is None or "enum" in rules and value not in rules["enum"]:
        return None
    if kind == "integer":
        try:
            return max(rules["minimum"], min(rules["maximum"], int(float(value))))
        except (TypeError, ValueError, OverflowError):
            return None
    if kind == "array":
        return [str(v)[:80] for v in (value if isinstance(value, list) else re.split(r",\s*", str(value)))][:rules["maxItems"]]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_reference(folder: Path) -> dict:
    """The reference's folder -> a row for `harness.imported`; a file that is missing is an empty store. Raises BadInput."""
    policy = (folder / EVOLVED).read_bytes().decode() if (folder / EVOLVED).exists() else ""
    row: dict = {"prompt": re.sub(r"^\s*IMPROVED BASE PROMPT:\s*", "", policy).removesuffix("\n")}
    for part, file in STORE.items():
        rules, prefix, title = SCHEMAS[part]["properties"], PARTS[part][1], "title" if part == "memory" else "name"
        try:
            entries = json.loads((folder / file).read_text(encoding="utf-8"))["entries"] if (folder / file).exists() else {}
            row[part] = {}
            for id, entry in entries.items():
                new = {k: v for k in rules if (v := fit(entry.get(k), rules[k])) is not None}
                new[title] = new.get(title) or new.get("content", "")[:80].strip() or id
                row[part][id if ID.fullmatch(id) else f"{prefix}-{re.sub(r'[^A-Za-z0-9_-]', '-', id)}"[:64]] = new
        except (ValueError, LookupError, AttributeError, TypeError) as e:
            raise BadInput(f"{folder / file} is no store of the reference ({{\"next_id\", \"entries\": {{id: {{...}}}}}}): {e}") from None
    return row


def reference(harness: Harness) -> Files:
    """H as the reference's folder. Not kept: which tools the agent has, and a skill's instructions where it has code."""
    files = {EVOLVED: harness.prompt + "\n"}
    for part, file in STORE.items():
        store = {id: {"id": id, **asdict(entry), "mutation_history": []} for id, entry in getattr(harness, part).items()}
        files[file] = json.dumps({"next_id": harness.counts.get(part, 0) + 1, "entries": store}, indent=2, ensure_ascii=False) + "\n"
    return files


def read_any(path: Path) -> dict:
    """The row of whatever H stands at `path`. Raises BadInput, OSError."""
    if path.is_dir() and (path / "harness.json").exists():
        path = path / "harness.json"
    if path.is_file():
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as e:
            raise BadInput(f"{path} is no harness: {e}") from None
    if any((path / name).exists() for name in (*STORE.values(), EVOLVED)):
        return read_reference(path)
    if (path / POLICY).exists():
        files, odd = read_tree(path)
        if POLICY not in files:
            raise BadInput(f"{path}/{odd[0]}")
        return parse(files)[0]
    raise BadInput(f"no harness at {path}: give a run's folder, a harness.json, a folder of the reference ({', '.join(STORE.values())}) "
                   f"or a workspace with {POLICY}")


def export(source: Path, folder: Path, form: str = "tree", force: bool = False) -> str:
    """Write H into `folder`. A file that is there and differs stays, and nothing is written, unless `force`. Raises BadInput."""
    harness = fold(*imported(read_any(source)))
    folder.mkdir(parents=True, exist_ok=True)
    old, odd = read_tree(folder) if form == "tree" else ({p.name: p.read_text(encoding="utf-8") for p in folder.glob("*") if p.name in (*STORE.values(), EVOLVED)}, [])
    new = to_files(harness.to_json(), old) if form == "tree" else reference(harness)
    if lost := [p for p in old if new.get(p) != old[p]]:
        if not force:
            raise BadInput(f"{folder / lost[0]} is there and differs; nothing was written; --force overwrites it")
    done = write_tree(folder, new, old)
    return "\n".join([f"{len(done)} files written in {folder}", *(check(new, odd) if form == "tree" else [])])


def merge(harness: Harness, row: dict, by: str, why: str, step: int = 0) -> list[Edit]:
    """Bring the prompt and the entries of `row` into H; what H has besides stays. Returns the edits. Raises EditError."""
    edits = []
    make = lambda *what: edits.append(harness.edit(*what, by=by, step=step, why=why))
    if row.get("prompt") not in (None, "", harness.prompt):
        make("update", "prompt", "", row["prompt"])
    for part in PARTS:
        for id, entry in row.get(part, {}).items():
            now = getattr(harness, part).get(id)
            if now is None:
                make("create", part, id, entry)
            elif asdict(now) != asdict(now) | entry:
                make("update", part, id, entry)
    return edits


def import_into(run: Path, source: Path) -> list[Edit]:
    """H at `source` into a stopped run, as edits by "human". Raises BadInput; then nothing has changed."""
    row = read_any(source)
    with locked(run):
        harness = fold(read_edits(run / "edits.jsonl"))
        edits = merge(harness, row, "human", f"import of {source.name}", max((r["t"] for r in read_rows(run / "trajectory.jsonl")), default=0))
        for edit in edits:
            append_row(run / "edits.jsonl", asdict(edit))
    return edits
