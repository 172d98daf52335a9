"""Refine a coding agent's workspace from its logs: the Refiner's four passes over a tree that is not ours.

    python refiner.py TREE LOG... [--dry-run]     a LOG that ends in .md is a session's own NOTES.md: it is folded in first

One model call a pass, in order; each is checked against the tree's specification and dropped alone when it fails. There is
no score and no selection. The defaults are the evolver's, but --feedback is off, as in the paper. report.md says what
changed and why; replies.jsonl holds the model's answers: after a kill the same command with --out goes on from them.
"""
import argparse
import contextlib
import copy
import json
import sys
import tempfile
import time
from pathlib import Path

from harness import Edit, Harness, fold, imported
from models import fill, open_model
from refiner import PASSES, answer_schema, contents, run_pass
from runlog import BadInput, Recorder, append_line, append_row, command, read_rows, write_atomic
from signatures import Signature
from tools.bootstrap import merge
from tools.foreign import Log, read_log
from tools.workspace import Files, check, diff, notes, parse, read_note, read_tree, to_files, write_tree

NAMES = {"prompt": "policy", "subagents": "sub-agents", "skills": "skills", "memory": "memory"}


def question(harness: Harness, part: str, logs: list[Log], found: list[str]) -> str:
    tasks = [f"## {log.name}\n{log.task or '(the log has no task)'}\nEnd: {'cut' if log.end is None else log.end or 'regular'}; "
             f"last words: {log.final or '(none)'}" for log in logs]
    return fill("refine_tree", part=NAMES[part], tasks="\n\n".join(tasks), signatures="\n".join(found) or "- none",
                window="\n\n".join(log.trace() for log in logs), current=contents(harness, part),
                schema=json.dumps(answer_schema(part)))


def verdicts(path: Path) -> dict[str, Signature]:
    """A judge's verdicts, {"log", "score" 0..1, "feedback"} a line: log -> a signature for a score below 1. Raises BadInput."""
    if not path.is_file():
        raise BadInput(f"--feedback {path}: there is no such file")
    try:
        return {r["log"]: Signature("judged_below_1", 2, [], f"scored {float(r['score']):g}: {str(r.get('feedback', ''))[:300]}")
                for r in read_rows(path) if float(r["score"]) < 1}
    except (LookupError, TypeError, ValueError) as e:
        raise BadInput(f'--feedback {path}: a line must be {{"log": name, "score": 0..1, "feedback": text}} ({e!r})') from None


def fold_notes(harness: Harness, path: Path) -> str:
    """The notes that a session left: a known topic is replaced, a new one appended. Returns a line of the report."""
    ids, log, row = {e.title: id for id, e in harness.memory.items()}, Log(path.stem), {}
    for n, chunk in enumerate(notes(path.read_text(encoding="utf-8", errors="replace"))[1]):
        entry, _ = read_note(chunk)
        title = log.clip(entry["title"], 200)
        id = ids.setdefault(title, f"mem_{harness.counts.get('memory', 0) + n + 1:04d}")
        if id not in harness.memory or not harness.memory[id].protected:
            row[id] = {"title": title, "content": log.clip(entry["content"], 12_000), "source": "orchestrator"}
    done = merge(harness, {"memory": row}, "agent", f"a note of the session in {path.name}")
    return f"- {path.name}: {len(done)} notes folded in, {log.secrets} secrets taken out"


def refused(before: Harness, edits: list[Edit], args: argparse.Namespace) -> str:
    """Why a pass's edits may not stand; '' when they may."""
    if edits and edits[0].part == "memory" and len(edits) > args.memory_max_changes:
        return f"{len(edits)} changes of the memory; the limit is {args.memory_max_changes}"
    theirs = [e.id for e in edits if e.part in ("subagents", "skills") and e.op != "create"
              and getattr(before, e.part)[e.id].source == "human"]
    return f"{theirs[0]} was written by a person; --handwritten allows to change it" if theirs and not args.handwritten else ""


def evolve(args: argparse.Namespace, out: Path) -> tuple[Files, Files, str]:
    """-> (the tree as it was, as it is to be, the report). Writes logs in `out` only. Raises BadInput, ModelError, OSError."""
    old, odd = read_tree(args.tree)
    harness = fold(*imported(parse(old)[0]))         # what H can't hold stays as it is
    judged = verdicts(args.feedback) if args.feedback else {}
    logs = [read_log(path, args.trace_chars, args.task_info_chars) for path in args.logs if path.suffix != ".md"]
    words = lambda s: f"{', '.join(map(str, s.steps[-12:]))}): {' '.join(s.text.split())}"
    found = [f"- {s.name} (severity {s.severity}, {log.name} steps {words(s)}" for log in logs
             for s in [*log.found, *filter(None, [judged.get(log.name)])]]
    lines = [f"# {args.tree.resolve().name}: what changed and why", "", *(
        f"- {log.name}: {log.steps} steps, {len(log.found)} signatures, {log.secrets} secrets taken out, "
        f"{log.skipped} lines skipped" for log in logs)]
    lines += [fold_notes(harness, path) for path in args.logs if path.suffix == ".md"] + found
    lines += [*(f"- before: {fault}" for fault in check(old, odd)), ""]
    model = open_model(args.model, 0, args.base_url, log=lambda line: append_line(out / "model.log", line))
    new = to_files(harness.to_json(), old)
    out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(out / "replies.jsonl", lambda role: model)
    with contextlib.closing(model) if hasattr(model, "close") else contextlib.nullcontext():
        for part in [p for p in PASSES if p in args.components and len(found) >= args.min_signals]:
            asked, trial = question(harness, part, logs, found), copy.deepcopy(harness)
            edits, entry = run_pass(harness, part, asked, recorder.ask, sum(log.steps for log in logs), ())
            for edit in edits:
                trial.apply(edit)
            files, known = to_files(trial.to_json(), new), check(new, odd)
            wrong = refused(harness, edits, args) or "; ".join(fault for fault in check(files, odd) if fault not in known)
            if wrong:
                entry |= {"status": "dropped", "errors": [*entry["errors"], wrong]}
            else:
                harness, new = trial, files
            append_row(out / "refinements.jsonl", entry)
            lines += [f"## {NAMES[part]}: {entry['status']}", "", *(f"- {e}" for e in entry["errors"]),
                      *(f"- {e.op} {e.id or e.part}: {e.why}" for e in edits if not wrong), ""]
    return old, new, "\n".join([*lines, f"{recorder.count} model calls, {recorder.total().money()}"])


FLAGS = {                            # flag -> its default and its help
    "model": ("scripted", "any model that run.py knows"), "base-url": ("", "an OpenAI-compatible server"),
    "components": (",".join(PASSES), "the passes"), "trace-chars": (12_000, "of a session's steps; the middle is cut"),
    "task-info-chars": (3_000, "of a session's task"), "memory-max-changes": (5, "in one refinement"),
    "min-signals": (0, "fewer signatures: no pass")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="refiner.py", description=__doc__)
    parser.add_argument("tree", type=Path, help="the agent's workspace")
    parser.add_argument("logs", type=Path, nargs="+", help="logs of its sessions (and NOTES.md files that they left)")
    for name, (default, what) in FLAGS.items():
        parser.add_argument("--" + name, default=default, type=type(default), help=f"{what} ({default})")
    parser.add_argument("--feedback", type=Path, help='a judge\'s verdicts, {"log", "score", "feedback"} a line (off)')
    parser.add_argument("--handwritten", action="store_true", help="sub-agents and skills that people wrote may be changed, too")
    parser.add_argument("--dry-run", action="store_true", help="print the diff and write nothing")
    parser.add_argument("--out", type=Path, help="where report.md and the logs go (a new folder in runs/)")
    return command(parser, argv, do)


def do(args: argparse.Namespace) -> int:
    args.components = args.components.split(",")
    if odd := set(args.components) - set(PASSES):
        raise BadInput(f"--components {sorted(odd)[0]}: there are {', '.join(PASSES)}")
    name = f"refine-{args.tree.resolve().name}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = args.out or Path(__file__).parent.parent / "runs" / name
    try:
        with tempfile.TemporaryDirectory() as tmp:
            old, new, report = evolve(args, Path(tmp) if args.dry_run else out)
    except KeyboardInterrupt:
        print(f"refiner.py: stopped; the tree is as it was. The same command with --out {out} goes on", file=sys.stderr)
        return 130
    change = diff(old, new)
    print(change or "no difference")
    if not args.dry_run:
        write_atomic(out / "report.md", f"{report}\n~~~~diff\n{change}~~~~\n".encode())
        write_tree(args.tree, new, old)
        print(f"why: {out / 'report.md'}; `patch -R -p1` with its diff takes it back")
    return 0
