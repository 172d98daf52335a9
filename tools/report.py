"""What the files of runs say, as plain-text tables: milestones, refinements, walks, skills, sub-agents, memory.

    python -m tools.report RUN...      a second or two for each run; no key, no ROM, no cost: it only reads the run's files

Walks are measured in walks.py: deficit = presses / shortest - 1, over the walks that arrived on the same map; the presses of
failed ones are "wasted"; those that changed the map, or that a battle or a text broke off, are "left out". Presses at a
milestone are those after the step that reached it. An entry is inherited when the run started with it.
"""
import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from env import Step
from harness import Edit, fold, read_edits
from models import Call
from runlog import BadInput, read_rows
from tools.walks import measure


@dataclass(frozen=True)
class Log:
    """A run's files. Steps by turn: a sub-agent's turns are written before the step that called it."""

    steps: list[Step]
    edits: list[Edit]
    refinements: list[dict]

    def calls(self, *names: str) -> Iterator[tuple[Step, Call, dict]]:
        return ((s, c, r) for s in self.steps for c, r in zip(s.reply.calls, s.results)
                if c.name in names and isinstance(c.args, dict))


def read_log(folder: Path) -> Log:
    if missing := [n for n in ("settings.json", "trajectory.jsonl", "edits.jsonl") if not (folder / n).is_file()]:
        raise BadInput(f"{folder} is no run: it holds no {missing[0]}; give the folder of a run")
    try:
        steps = [Step.from_json(row) for row in read_rows(folder / "trajectory.jsonl")]
        return Log(sorted(steps, key=lambda s: s.t), read_edits(folder / "edits.jsonl"), read_rows(folder / "refinements.jsonl"))
    except (TypeError, KeyError, AttributeError) as e:
        raise BadInput(f"{folder} is no run of this version: a row of its logs does not fit ({e})") from None


def table(title: str, head: str, rows: Iterable[Iterable]) -> str:
    """Columns as wide as their widest value; the last one, a text, is left as it is."""
    cells = [head.split("|"), *([str(v) for v in row] for row in rows)]
    if len(cells) == 1:
        return f"{title}: none"
    wide = [max(map(len, column)) for column in list(zip(*cells))[:-1]]
    return "\n".join([title, *("  " + "  ".join([v.ljust(w) for v, w in zip(row, wide)] + [row[-1]]).rstrip() for row in cells)])


def milestones(log: Log) -> str:
    at: dict[str, Step] = {}
    for step in reversed(log.steps):     # both a sub-agent's turn and the step that called it name it: the later one is exact
        at |= {m: step for m in step.milestones if m not in at}
    return table("Milestones", "step|presses|milestone", ([s.t, s.presses, m] for m, s in reversed(at.items())))


def refinements(log: Log) -> str:
    edit = {e.version: "+~-"[("create", "update", "delete").index(e.op)] + (e.id or e.part) for e in log.edits}
    did = lambda p: "failed: " + p["part"] if p["status"] == "failed" else " ".join(edit.get(v, "?") for v in p["edits"])
    rows = ([r["step"], r["cause"], ", ".join(dict.fromkeys(s["name"] for s in r["signatures"])) or "-",
             " ".join(filter(None, map(did, r["passes"]))) or "nothing"] for r in log.refinements)
    return table("Refinements (+ created, ~ updated, - deleted)", "step|cause|signatures|changed", rows)


def walks(log: Log) -> str:
    since = {e.version: e.step for e in log.edits}
    deficit = lambda n: f"{100 * (n['presses'] / n['shortest'] - 1):.1f} %" if n["shortest"] else "-"
    rows = ([id, v, since.get(v, "-"), n["walks"], n["arrived"], n["presses"], n["shortest"], deficit(n), n["failed"], n["wasted"], n["left out"]]
            for (id, v), n in sorted(measure(log.steps, log.edits).items()))
    return table("Walks by version of the skill's code", "skill|version|step|walks|arrived|presses|shortest|deficit|failed|wasted|left out", rows)


# -- what became of the entries of H

def succeeded(result: dict) -> bool:
    """As the agent counts it: a skill may say itself that it failed."""
    said = result.get("result")
    return bool(result.get("success")) and not (isinstance(said, dict) and said.get("success") is False or str(said).lower().startswith("error"))


def skills(log: Log) -> str:
    mine = [e for e in log.edits if e.part == "skills"]
    first = {e.id: e for e in reversed(mine) if e.op == "create"}
    called = Counter(c.args.get("skill_id") for _, c, _ in log.calls("run_skill"))
    good = Counter(c.args.get("skill_id") for _, c, r in log.calls("run_skill") if succeeded(r))
    fixed = Counter(e.id for e in mine if e.op == "update" and "code" in e.after)
    gone = {e.id: e.step for e in mine if e.op == "delete"}
    rows = [[id, e.by, e.step, called[id], good[id], fixed[id], gone.get(id, "-"), e.after["name"]] for id, e in sorted(first.items())]
    used = [id for id in first if called[id]]
    funnel = (f"  {len(first)} created, {len(used)} called, {sum(good[id] > 0 for id in first)} succeeded, {sum(fixed[id] > 0 for id in first)} repaired, "
              f"{len(first) - len(used)} never called, {len(set(gone) & set(first))} deleted")
    return table("Skills", "skill|by|step|calls|succeeded|repaired|deleted at|name", rows) + ("\n" + funnel if first else "")


def subagents(log: Log) -> str:
    out: dict[str, Counter] = defaultdict(Counter)
    for _, call, r in log.calls("execute_custom_subagent"):
        how = "failed" if not r.get("success") else "cap" if r["hit_safety_cap"] else "returned"
        out[str(call.args.get("subagent_id") or "inline")].update({"calls": 1, "turns": r.get("turns_taken", 0), how: 1})
    keys = ("calls", "turns", "returned", "cap", "failed")
    return table("Sub-agents", "sub-agent|" + "|".join(keys), ([id, *(n[k] for k in keys)] for id, n in sorted(out.items())))


def memory(log: Log) -> str:
    ops, kept = Counter(e.op for e in log.edits if e.part == "memory"), len(fold(log.edits).memory)
    found = [x for _, c, r in log.calls("process_memory") if c.args.get("action") == "read" for x in r.get("results", [])]
    one = sum("content" in x for x in found)
    lists = sum("content" not in x and "error" not in x for x in found)
    return f"Memory: {kept} entries ({ops['create']} created, {ops['update']} updated, {ops['delete']} deleted), {one} read, the list read {lists} times"


def inherited(log: Log) -> str:
    ids = {e.id for e in log.edits if e.by == "import" and e.op == "create"}
    to = [c.args.get("skill_id") or c.args.get("subagent_id") for _, c, _ in log.calls("run_skill", "execute_custom_subagent")]
    n = sum(id in ids for id in to)
    return f"Calls that go to inherited entries: {n} of {len(to)}" + (f" ({100 * n / len(to):.0f} %)" if to else "")


def report(folder: Path) -> str:
    log = read_log(folder)
    last = log.steps[-1] if log.steps else None
    head = f"== {folder}: {last.t if last else 0} steps, {max((s.presses for s in log.steps), default=0)} presses, H version {log.edits[-1].version if log.edits else 0}"
    return "\n\n".join([head, *(part(log) for part in (milestones, refinements, walks, skills, subagents, memory, inherited))])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: (print(f"report.py: {message}", file=sys.stderr), sys.exit(2))
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder")
    try:
        print("\n\n".join([report(folder) for folder in parser.parse_args(argv).run]))
    except BadInput as e:
        print(f"report.py: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
