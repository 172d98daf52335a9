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

from harness import PARTS, Edit, EditError, Harness, Uses, diff, fold, label, problems, read_edits
from harness import __doc__ as USAGE
from models import Message, ModelError, Reply, Usage
from runlog import BadInput, append_row, locked, read_rows

PERSON = "(a person)"
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


def by_hand(row: dict, old: Harness, now: Harness, step: int) -> list[Edit]:
    """What a person changed in a harness.json, as edits of `now`. old: H as the file had it. Raises EditError."""
    was, edits, now = old.to_json(), [], copy.deepcopy(now)
    if unknown := set(row) - {*was, "uses"}:
        raise EditError(f"unknown part of a harness: {', '.join(sorted(unknown))}")
    why = "edited by hand in harness.json"
    make = lambda op, part, id, value: edits.append(now.edit(op, part, id, value, by="human", step=step, why=why))
    if row.get("prompt", was["prompt"]) not in (was["prompt"], now.prompt):
        make("update", "prompt", "", row["prompt"])
    for part in PARTS:
        before, after, store = was[part], row.get(part, was[part]), getattr(now, part)
        if not isinstance(after, dict) or not all(isinstance(entry, dict) for entry in after.values()):
            raise EditError(f"{part}: it must be an object of entries")
        for id in (id for id in before if id not in after and id in store):
            make("delete", part, id, None)
        for id, entry in after.items():
            changed = {k: v for k, v in entry.items() if before.get(id, {}).get(k, ...) != v}
            if id not in before and id not in store:
                make("create", part, id, entry)
            elif id in store and any(asdict(store[id]).get(k, ...) != v for k, v in changed.items()):
                make("update", part, id, changed)
    return edits


def take_up(folder: Path) -> None:
    """Log what a person changed in a paused run's harness.json. Raises BadInput; then nothing has been written."""
    path, log = folder / "harness.json", read_edits(folder / "edits.jsonl")
    if not path.exists():
        return
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        version, tools, uses = row.pop("version"), row.get("tools", []), {k: Uses(**v) for k, v in row.get("uses", {}).items()}
        old, now = fold((e for e in log if e.version <= version), tools), fold(log, tools)
        if tools != json.loads((folder / "settings.json").read_text(encoding="utf-8"))["tools"]:
            raise EditError("tools are fixed for a run")
        steps = read_rows(folder / "trajectory.jsonl")
        edits = by_hand(row, old, now, max((s["t"] for s in steps), default=0))
    except (ValueError, KeyError, TypeError, AttributeError, EditError) as e:
        raise BadInput(f"{path}, edited by hand, is not accepted: {e}; correct it, or delete it and it is written anew") from None
    for edit in edits:
        append_row(folder / "edits.jsonl", asdict(edit))
    if edits:
        made = fold([*log, *edits], tools)
        made.uses = uses
        made.save(path)


def undo(run: Path, version: int) -> Edit:
    """Undo a version of a run that is stopped: one edit, or all of a guard's candidate. The run takes it up at --resume.

    Returns the last edit made. Raises BadInput."""
    with locked(run):
        edits, steps = read_edits(run / "edits.jsonl"), read_rows(run / "trajectory.jsonl")
        harness = fold(edits)
        try:
            saved = json.loads((run / "harness.json").read_text(encoding="utf-8")) if (run / "harness.json").exists() else {}
            was = fold((e for e in edits if e.version <= saved.get("version", 0)), saved.get("tools", []))
            by_hand = saved and {**was.to_json(), "uses": 0} != {**saved, "uses": 0}
        except (ValueError, TypeError, AttributeError):
            by_hand = True
        if by_hand:
            raise EditError(f"{run}/harness.json was edited by hand: --resume takes that up first")
        last = max((row["t"] for row in steps), default=0)
        for edit in [harness.undo(old, version, last) for old in [[e] for e in reversed(edits) if e.version == version] or [edits]]:
            append_row(run / "edits.jsonl", asdict(edit))
        harness.tools, harness.uses = saved.get("tools", []), {k: Uses(**v) for k, v in saved.get("uses", {}).items()}
        harness.save(run / "harness.json")
    return edit


# -- python harness.py log | show | diff | undo | export | import

def describe(edit: Edit) -> str:
    what = f"{edit.op} {edit.part}" + (f" {edit.id}" if edit.id else "")
    if edit.op == "update":
        size = lambda v: f"{len(v)} characters" if isinstance(v, str) else ", ".join(v)
        what += f" ({size(edit.after)})"
    return f"{edit.version:4d}  step {edit.step:<5d} {edit.by:8s} {what:48s} {edit.why[:100]}"


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
    log = args.run / "edits.jsonl"
    try:
        if not log.exists():
            raise EditError(f"{args.run} holds no edits.jsonl: give the folder of a run")
        edits = read_edits(log)
        harness = fold(edits)
        if args.command == "log":
            print("\n".join(describe(e) for e in edits))
        elif args.command == "diff":
            at = lambda v: fold(e for e in edits if e.version <= v)
            print(diff(at(args.v1), at(args.v2)) or "no difference")
        elif args.command == "undo":
            print(describe(undo(args.run, args.version)))
        elif args.entry:
            found = [getattr(harness, p)[args.entry] for p in PARTS if args.entry in getattr(harness, p)]
            if not found:
                raise EditError(f"no entry {args.entry!r}; `python harness.py show {args.run}` lists them")
            print("\n".join(f"{k}: {v}" for k, v in asdict(found[0]).items()))
        else:
            print(f"version {harness.version}\n\n# prompt\n{harness.prompt}")
            for part in PARTS:
                store = getattr(harness, part).items()
                print("\n".join([f"\n# {part} ({len(store)})", *(f"{id}: {label(entry)}" for id, entry in store)]))
    except (BadInput, OSError) as e:
        print(f"harness.py: {f'{e.filename}: {e.strerror}' if isinstance(e, OSError) else e}", file=sys.stderr)
        return 2
    return 0
