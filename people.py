"""People in the loop: the Refiner's edits shown as diffs (--review), H edited by hand while a run is paused, `python harness.py`.

A person is one more model: the answer y, n or an edited Δ is a logged reply, so --resume and --replay need nobody. By hand
means in runs/NAME/harness.json: --resume takes what differs from the fold of the log as edits by "human", checked as any.
Not in the paper, where nobody looks at an edit before it is live.
"""
import argparse
import copy
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from harness import PARTS, Edit, EditError, Harness, Uses, changes, diff, fold, label, problems, read_edits
from harness import __doc__ as USAGE
from models import Message, ModelError, Reply, Usage
from runlog import BadInput, append_row, locked, read_rows

PERSON, PEOPLE = "(a person)", ("human", "undo")          # as a model; as the authors of edits
DELTA = {"type": "array", "maxItems": 40, "items": {
    "type": "object", "additionalProperties": False, "required": ["op", "part"], "properties": {
        "op": {"enum": ["create", "update", "delete"]}, "part": {"enum": ["prompt", *PARTS]}, "id": {"type": "string"},
        "value": {}, "why": {"type": "string"}}}}


class Person:
    """A model whose replies are typed. The prompt goes to stderr; the last message is what `e` edits."""

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        for m in messages[:-1]:
            print(m["content"], file=sys.stderr)
        while True:
            print("y: take it; n: leave it; e: edit it > ", end="", file=sys.stderr, flush=True)
            answer = self.line().strip()
            if answer in ("y", "n"):
                return Reply(answer, usage=Usage(dollars=0.0))
            if answer in ("e", "edit"):
                return Reply(self.edited(messages[-1]["content"]), usage=Usage(dollars=0.0))

    def edited(self, text: str) -> str:
        """In $EDITOR; without one the JSON is typed as one line."""
        if not os.environ.get("EDITOR"):
            print(f"{text}\nthe list of edits as one line of JSON > ", end="", file=sys.stderr, flush=True)
            return self.line()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "delta.json")
            path.write_text(text, encoding="utf-8")
            try:
                subprocess.run([*shlex.split(os.environ["EDITOR"]), str(path)], check=True)
            except (OSError, ValueError, subprocess.CalledProcessError) as e:
                raise ModelError(f"--review: $EDITOR failed ({e})") from None
            return path.read_text(encoding="utf-8")

    def line(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise ModelError("--review: nobody answers (end of input)")
        return line


def review(harness: Harness, edits: list[Edit], ask: Callable[[str, list, list], Reply]) -> list[Edit]:
    """The edits that a person lets through: all, none, or their own version of them."""
    trial = copy.deepcopy(harness)
    for edit in edits:
        trial.apply(edit)
    delta = [{"op": e.op, "part": e.part, "id": e.id, "value": e.after, "why": e.why} for e in edits]
    shown = "\n".join([diff(harness, trial), "", *(f"{e.op} {e.part} {e.id}: {e.why}" for e in edits)])
    messages = [{"role": "user", "content": text} for text in (shown, json.dumps(delta, indent=1, ensure_ascii=False))]
    while True:
        text = ask("review", messages, []).text.strip()
        if text in ("y", "n"):
            return edits if text == "y" else []
        try:
            rows = json.loads(text)
            if wrong := problems(rows, DELTA):
                raise EditError(wrong)
            trial, how = copy.deepcopy(harness), {"by": "review", "step": edits[0].step}
            return [trial.edit(row["op"], row["part"], row.get("id", ""), row.get("value"), why=row.get("why", ""), **how)
                    for row in rows]
        except (ValueError, EditError) as e:
            messages = [messages[0], {"role": "user", "content": f"Not accepted, nothing has changed: {e}"}, messages[-1]]


def by_hand(folder: Path) -> list[Edit]:
    """What a person changed in a stopped run's harness.json, as edits that are not yet in its log. Raises BadInput."""
    path, log = folder / "harness.json", read_edits(folder / "edits.jsonl")
    if not path.exists():
        return []
    tools = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["tools"]
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        version = row.pop("version")
        if row.get("tools") != tools or not all(Uses(**use) for use in row.get("uses", {}).values()):
            raise EditError("tools are fixed for a run")
        old, why = fold(e for e in log if e.version <= version), "edited by hand in harness.json"
        step = max((row["t"] for row in read_rows(folder / "trajectory.jsonl")), default=0)
        return changes(row, old, fold(log), by="human", step=step, why=why)
    except (ValueError, KeyError, TypeError, AttributeError, EditError) as e:
        raise BadInput(f"{path}, edited by hand, is not accepted: {e}; correct it, or delete it and it is written anew") from None


def pending(folder: Path, head: dict) -> list[Edit]:
    """Edits that a person made while the run was stopped and that are not in its checkpoint `head`: they come after the log."""
    kept = len(read_rows(folder / "edits.jsonl", head.get("sizes", {}).get("edits.jsonl", 0)))
    late = [asdict(e) for e in read_edits(folder / "edits.jsonl")[kept:] if e.by in PEOPLE]
    unique = {json.dumps(row | {"version": 0}, sort_keys=True): row for row in head.get("people", []) + late}
    return [Edit(**row) for row in unique.values()]


def add(folder: Path, edits: list[Edit]) -> None:
    """Bring edits into a stopped run: its log, and its harness.json, which keeps tools and use counts."""
    for edit in edits:
        append_row(folder / "edits.jsonl", asdict(edit))
    path = folder / "harness.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    made = fold(read_edits(folder / "edits.jsonl"), saved.get("tools", []))
    made.uses = {id: Uses(**use) for id, use in saved.get("uses", {}).items()}
    made.save(path)


def take_up(folder: Path) -> None:
    """Log what a person changed in a stopped run's harness.json. Raises BadInput; then nothing has been written."""
    if edits := by_hand(folder):
        add(folder, edits)


def undo(run: Path, version: int) -> Edit:
    """Undo a version of a run that is stopped: one edit, or all of a guard's candidate. The run takes it up at --resume.

    Returns the last edit made. Raises BadInput.
    """
    with locked(run):
        try:
            edited = by_hand(run)
        except BadInput:
            edited = True
        if edited:
            raise EditError(f"{run}/harness.json was edited by hand: --resume takes that up first")
        log = read_edits(run / "edits.jsonl")
        harness, step = fold(log), max((row["t"] for row in read_rows(run / "trajectory.jsonl")), default=0)
        made = [harness.undo([e], version, step) for e in reversed(log) if e.version == version]
        add(run, made or [harness.undo(log, version, step)])         # the latter says that there is no such version
    return made[-1]


# -- python harness.py log | show | diff | undo | export | import

def describe(edit: Edit) -> str:
    size = lambda v: f"{len(v)} characters" if isinstance(v, str) else ", ".join(v)
    what = f"{edit.op} {edit.part} {edit.id}".strip() + (f" ({size(edit.after)})" if edit.op == "update" else "")
    return f"{edit.version:4d}  step {edit.step:<5d} {edit.by:8s} {what:48s} {edit.why[:100]}"


def show(harness: Harness, id: str) -> str:
    """One entry whole, or, without an id, the prompt and the list of the others."""
    stores = {part: getattr(harness, part) for part in PARTS}
    if not id:
        lists = ["\n".join([f"\n# {part} ({len(store)})", *(f"{id}: {label(entry)}" for id, entry in store.items())])
                 for part, store in stores.items()]
        return "\n".join([f"version {harness.version}\n\n# prompt\n{harness.prompt}", *lists])
    if not (found := [store[id] for store in stores.values() if id in store]):
        raise EditError(f"no entry {id!r}; `python harness.py show RUN` lists what there is")
    return "\n".join(f"{k}: {v}" for k, v in asdict(found[0]).items())


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["export"], ["import"]):
        from tools import bootstrap          # an entry point may look up
        return bootstrap.main(argv)
    parser = argparse.ArgumentParser(description=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, more in (("log", []), ("show", ["entry"]), ("diff", ["v1", "v2"]), ("undo", ["version"])):
        sub = commands.add_parser(name)
        sub.add_argument("run", type=Path, help="a run's folder")
        for arg in more:
            sub.add_argument(arg, **({"nargs": "?", "default": ""} if arg == "entry" else {"type": int}))
    args = parser.parse_args(argv)
    try:
        if not (args.run / "edits.jsonl").exists():
            raise EditError(f"{args.run} holds no edits.jsonl: give the folder of a run")
        edits = read_edits(args.run / "edits.jsonl")
        at = lambda version: fold(e for e in edits if e.version <= version)
        print({"log": lambda: "\n".join(map(describe, edits)),
               "show": lambda: show(fold(edits), args.entry),
               "diff": lambda: diff(at(args.v1), at(args.v2)) or "no difference",
               "undo": lambda: describe(undo(args.run, args.version))}[args.command]())
    except (BadInput, OSError) as e:
        print(f"harness.py: {f'{e.filename}: {e.strerror}' if isinstance(e, OSError) else e}", file=sys.stderr)
        return 2
    return 0
