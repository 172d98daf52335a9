"""What the files of runs say, as plain-text tables: milestones, refinements, walks, skills, sub-agents, memory.

    python -m tools.report RUN...      a second or two a run; no key, no ROM, no cost: it only reads the run's files

Walks are measured in walks.py: deficit = presses / shortest - 1, over the walks that arrived on the same map; the
presses of failed ones are "wasted" ("with failed" adds them to the deficit); those that changed the map, or that a
battle or a text broke off, are "left out".
Presses at a milestone are those after the step that reached it. An entry is inherited when the run started with it.
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
        edits, refinements = read_edits(folder / "edits.jsonl"), read_rows(folder / "refinements.jsonl")
        return Log(sorted(steps, key=lambda s: s.t), edits, refinements)
    except (TypeError, KeyError, AttributeError) as e:
        raise BadInput(f"{folder} is no run of this version: a row of its logs does not fit ({e})") from None


def table(title: str, head: str, rows: Iterable[Iterable]) -> str:
    """Columns as wide as their widest value; the last one, a text, is left as it is."""
    cells = [head.split("|"), *([str(v) for v in row] for row in rows)]
    if len(cells) == 1:
        return f"{title}: none"
    wide = [max(map(len, column)) for column in list(zip(*cells))[:-1]]
    line = lambda row: "  " + "  ".join([v.ljust(w) for v, w in zip(row, wide)] + [row[-1]]).rstrip()
    return "\n".join([title, *map(line, cells)])


def milestones(log: Log) -> str:
    at: dict[str, Step] = {}
    # subtle: a sub-agent's turn and the step that called it both name a milestone; the later one, the turn, is exact
    for step in reversed(log.steps):
        at |= {m: step for m in step.milestones if m not in at}
    return table("Milestones", "step|presses|milestone", ([s.t, s.presses, m] for m, s in reversed(at.items())))


def refinements(log: Log) -> str:
    sign = {"create": "+", "update": "~", "delete": "-"}             # subtle: a guarded candidate is many edits of one version
    made = lambda p: " ".join(sign[e.op] + (e.id or e.part) for e in log.edits if e.version in p["edits"] and e.part == p["part"])
    did = lambda p: f"{p['status']}: {p['part']}" if p["status"] in ("failed", "refused") else made(p)
    rows = ([r["step"], r["cause"], ", ".join(dict.fromkeys(s["name"] for s in r["signatures"])) or "-",
             " ".join(filter(None, map(did, r["passes"]))) or "nothing"] for r in log.refinements)
    return table("Refinements (+ created, ~ updated, - deleted)", "step|cause|signatures|changed", rows)


def walks(log: Log) -> str:
    since = {e.version: e.step for e in log.edits}
    deficit = lambda n, extra=0: f"{100 * ((n['presses'] + extra) / n['shortest'] - 1):.1f} %" if n["shortest"] else "-"
    rows = ([id, v, since.get(v, "-"), n["walks"], n["arrived"], n["presses"], n["shortest"], deficit(n),
             n["failed"], n["wasted"], deficit(n, n["wasted"]), n["left out"]] for (id, v), n in sorted(measure(log.steps, log.edits).items()))
    head = "skill|version|step|walks|arrived|presses|shortest|deficit|failed|wasted|with failed|left out"
    return table("Walks by version of the skill's code", head, rows)


# -- what became of the entries of H

def succeeded(result: dict) -> bool:
    """As the agent counts it: a skill may say itself that it failed."""
    said = result.get("result")
    failed = isinstance(said, dict) and said.get("success") is False or str(said).lower().startswith("error")
    return bool(result.get("success")) and not failed


def skills(log: Log) -> str:
    mine = [e for e in log.edits if e.part == "skills"]
    first = {e.id: e for e in reversed(mine) if e.op == "create"}
    called = Counter(c.args.get("skill_id") for _, c, _ in log.calls("run_skill"))
    good = Counter(c.args.get("skill_id") for _, c, r in log.calls("run_skill") if succeeded(r))
    fixed = Counter(e.id for e in mine if e.op == "update" and "code" in e.after)
    gone = {e.id: e.step for e in mine if e.op == "delete"}
    rows = [[id, e.by, e.step, called[id], good[id], fixed[id], gone.get(id, "-"), e.after["name"]]
            for id, e in sorted(first.items())]
    used = [id for id in first if called[id]]
    some = lambda count: sum(count[id] > 0 for id in first)
    funnel = (f"  {len(first)} created, {len(used)} called, {some(good)} succeeded, {some(fixed)} repaired, "
              f"{len(first) - len(used)} never called, {len(set(gone) & set(first))} deleted")
    head = "skill|by|step|calls|succeeded|repaired|deleted at|name"
    return table("Skills", head, rows) + ("\n" + funnel if first else "")


def subagents(log: Log) -> str:
    out: dict[str, Counter] = defaultdict(Counter)
    for _, call, r in log.calls("execute_custom_subagent"):
        how = "failed" if not r.get("success") else "cap" if r["hit_safety_cap"] else "returned"
        id = str(call.args.get("subagent_id") or "inline")
        out[id].update({"calls": 1, "turns": r.get("turns_taken", 0), how: 1})
    keys = ("calls", "turns", "returned", "cap", "failed")
    rows = ([id, *(n[k] for k in keys)] for id, n in sorted(out.items()))
    return table("Sub-agents", "sub-agent|" + "|".join(keys), rows)


def memory(log: Log) -> str:
    ops, kept = Counter(e.op for e in log.edits if e.part == "memory"), len(fold(log.edits).memory)
    reads = [r for _, c, r in log.calls("process_memory") if c.args.get("action") == "read"]
    found = [x for r in reads for x in r.get("results", [])]
    one = sum("content" in x for x in found)
    lists = sum("content" not in x and "error" not in x for x in found)
    return (f"Memory: {kept} entries ({ops['create']} created, {ops['update']} updated, {ops['delete']} deleted), "
            f"{one} read, the list read {lists} times")


def inherited(log: Log) -> str:
    ids = {e.id for e in log.edits if e.by == "import" and e.op == "create"}
    calls = log.calls("run_skill", "execute_custom_subagent")
    to = [c.args.get("skill_id") or c.args.get("subagent_id") for _, c, _ in calls]
    n = sum(id in ids for id in to)
    return f"Calls that go to inherited entries: {n} of {len(to)}" + (f" ({100 * n / len(to):.0f} %)" if to else "")


def report(folder: Path) -> str:
    log = read_log(folder)
    presses, version = max((s.presses for s in log.steps), default=0), log.edits[-1].version if log.edits else 0
    head = f"== {folder}: {len(log.steps)} steps, {presses} presses, H version {version}"
    parts = (milestones, refinements, walks, skills, subagents, memory, inherited)
    return "\n\n".join([head, *(part(log) for part in parts)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
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
