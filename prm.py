"""The process reward model (paper section 4, co-learning): R(s, a, tau) in [0, 1] for windows of a trajectory.

    python prm.py RUN [--judge-model M] [--pool]       seconds with the rule judge, no key; writes RUN/rewards.jsonl

R = 0.4 progress + 0.3 action correctness + 0.2 reasoning quality + 0.1 format compliance, over windows of 8 decisions. A judge
compares each window with one fixed anchor window, blind and in both orders; the two soft votes are averaged, so a liking for
the first place cancels. `--pool` compares neighbours instead and fits Bradley-Terry, which ranks within one pool only.

What can be counted is not judged: format, and whether the world changed. A window with an invalid call is capped, and one in
which nothing changed gets half, so that good words don't buy it back. A dimension that the judge left out is not read as 0: the
other weights are scaled up, and it is named.
"""
import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, fsum
from pathlib import Path
from statistics import mean

import numpy as np

from env import Step
from harness import problems
from models import Reply, digest, fill, open_model
from runlog import BadInput, Recorder, command, read_rows, write_rows

WEIGHTS = {"progress": 0.4, "action": 0.3, "reasoning": 0.2, "format": 0.1}
SIZE, CAP = 8, 0.5                   # decisions a window; most that a window with an invalid call can get, times its valid share
JUDGED = ("progress", "action", "reasoning")
# Whole percents: more servers enforce an integer's range than a number's. The reason comes first, or it would be made up.
SCHEMA = {"type": "object", "additionalProperties": False, "properties": {
    "why": {"type": "string", "maxLength": 300}, **{d: {"type": "integer", "minimum": 0, "maximum": 100} for d in JUDGED}}}
VERDICT = [{"type": "function", "function": {"name": "verdict", "description": "How the two windows compare.",
            "parameters": SCHEMA | {"required": list(SCHEMA["properties"])}}}]       # one that lacks a number is taken, too
INVALID = re.compile(r"was not carried out|^no such tool|^not carried out")


@dataclass(frozen=True)
class Window:
    steps: list[Step]                # in the order of their t
    changed: list[bool]              # did the world change between this decision and the next


Judge = Callable[[Window, Window], dict[str, float]]     # P(the first is better), a dimension


def windows(steps: list[Step]) -> list[Window]:
    """Non-overlapping windows over all decisions, sub-agents' too; the last one may be short."""
    steps = sorted(steps, key=lambda s: s.t)
    changed = [bool(a.milestones) or b is not None and a.key != b.key for a, b in zip(steps, [*steps[1:], None])]
    return [Window(steps[i:i + SIZE], changed[i:i + SIZE]) for i in range(0, len(steps), SIZE)]


# -- what can be counted

def valid(step: Step) -> bool:
    """Whether the decision held a call, and every call named a tool with arguments that fit."""
    return bool(step.reply.calls) and not any(INVALID.search(str(r.get("error", ""))) for r in step.results)


def reasons(reply: Reply) -> str:
    """All that it says of why, in lower case."""
    stated = (str(c.args.get("reasoning", "")) for c in reply.calls if isinstance(c.args, dict))
    return " ".join([reply.text, *stated]).lower()


def grounded(reply: Reply, obs: str | None) -> bool:
    """Whether the stated reason names something that the agent could see: a word or a cell of its observation."""
    words = set(re.findall(r"\(\d+, \d+\)|[a-z]{4,}", reasons(reply)))
    return bool(words) and (obs is None or any(w in obs.lower() for w in words))


def measures(window: Window) -> dict[str, float]:
    """The rule judge's view of a window, a number a dimension: where it got to, what its calls did, what its words were about."""
    steps, places = window.steps, {s.place for s in window.steps}
    lines = [line for s in steps for r in s.results for line in r.get("trace", [])]
    fine = [valid(s) and all(r.get("success") is not False for r in s.results) for s in steps]
    new = len({p.split(" (")[0] for p in places}) / 2 + 2 * len(places) / SIZE
    read, free = len({x for x in lines if ": text: " in x}) / SIZE, mean([not x.endswith("blocked") for x in lines] or [1])
    return {"progress": sum(len(s.milestones) for s in steps) + new + read + sum(window.changed) / SIZE,
            "action": mean(ok * (1 + moved) / 2 for ok, moved in zip(fine, window.changed)) * free,
            "reasoning": mean(grounded(s.reply, s.obs) for s in steps)}


def rule_judge(first: Window, second: Window) -> dict[str, float]:
    a, b = measures(first), measures(second)
    return {d: 1 / (1 + exp(-3 * (a[d] - b[d]))) for d in JUDGED}


def model_judge(ask: Callable[[str, list, list], Reply]) -> Judge:
    """A model as the judge. A reply that holds no fitting verdict is asked for once more and then judges nothing."""
    def judge(first: Window, second: Window) -> dict[str, float]:
        text = lambda window: "\n".join(s.line() for s in window.steps)
        asked = fill("judge", first=text(first), second=text(second))
        for _ in range(2):
            calls = ask("judge", [{"role": "user", "content": asked}], VERDICT).calls
            wrong = problems(calls[0].args, SCHEMA) if [c.name for c in calls] == ["verdict"] else "not one call of verdict"
            if not wrong:
                return {d: calls[0].args[d] / 100 for d in JUDGED if d in calls[0].args}
            asked += f"\n\nYour last answer was not accepted: {wrong}"
        return {}
    return judge


# -- pairs -> rewards

def both_orders(judge: Judge, a: Window, b: Window) -> tuple[dict[str, float], list[bool]]:
    """(P(a is better), whether the verdict flipped with the order), for the dimensions answered in both orders."""
    ab, ba = judge(a, b), judge(b, a)
    both = [d for d in JUDGED if d in ab and d in ba]
    return {d: (ab[d] + 1 - ba[d]) / 2 for d in both}, [(ab[d] - 0.5) * (0.5 - ba[d]) < 0 for d in both]


def bradley_terry(n: int, pairs: list[tuple[int, int, float]], prior: float = 1.0) -> np.ndarray:
    """(n,) P(better than the pool's mean) from soft wins (i, j, P(i beats j)). The prior keeps an unbeaten window finite."""
    t, wins = np.zeros(n), np.zeros((n, n))
    for i, j, p in pairs:
        wins[i, j] += p
        wins[j, i] += 1 - p
    games = wins + wins.T
    for _ in range(300):
        slope = (wins - games / (1 + np.exp(t - t[:, None]))).sum(1) - prior * t
        t += slope / (prior + games.sum(1) / 2)          # never steeper than that: no step goes too far
    return 1 / (1 + np.exp(t.mean() - t))


def reward(window: Window, votes: dict[str, float]) -> dict:
    """A row of rewards.jsonl: the window's dimensions and R."""
    ok, moved = mean(map(valid, window.steps)), any(window.changed)
    dims = {**votes, "format": ok} | ({} if moved or "progress" not in votes else {"progress": 0.0})
    total = fsum(WEIGHTS[d] * v for d, v in dims.items()) / fsum(WEIGHTS[d] for d in dims)
    capped = min(total, (1.0 if ok == 1 else CAP * ok) if moved else CAP * total)
    numbers = {"reward": capped, **dims, "changed": mean(window.changed)}
    return {"steps": [window.steps[0].t, window.steps[-1].t], **{k: round(v, 6) for k, v in numbers.items()},
            "missing": [d for d in WEIGHTS if d not in dims]}


def middle(pool: list[Window]) -> Window:
    """The pool's window of middling progress: an anchor that is neither always beaten nor never."""
    return sorted(pool, key=lambda w: (measures(w)["progress"], w.steps[0].t))[len(pool) // 2]


def score(pool: list[Window], judge: Judge = rule_judge, anchor: Window | None = None) -> tuple[list[dict], float]:
    """Rewards of all windows, against the anchor or, without one, within the pool; and the share of verdicts that flipped."""
    n = len(pool)
    near = sorted({tuple(sorted((i, (i + d) % n))) for d in (1, 2) for i in range(n) if d % n})
    pairs = [(w, anchor) for w in pool] if anchor else [(pool[i], pool[j]) for i, j in near]
    asked = [both_orders(judge, a, b) for a, b in pairs]
    votes = [vote for vote, _ in asked] if anchor else [{} for _ in pool]
    for d in () if anchor else JUDGED:
        if wins := [(i, j, vote[d]) for (i, j), (vote, _) in zip(near, asked) if d in vote]:
            for vote, p in zip(votes, bradley_terry(n, wins)):
                vote[d] = float(p)
    return [reward(w, v) for w, v in zip(pool, votes)], mean([f for _, flipped in asked for f in flipped] or [0.0])


def table(rows: list[dict], flips: float) -> str:
    columns = (*WEIGHTS, "changed", "reward")
    cells = [["steps", *columns]]
    cells += [["{}-{}".format(*r["steps"]), *(f"{r[d]:.2f}" if d in r else "-" for d in columns)] for r in rows]
    return "\n".join("".join(f"{c:>11}" for c in row) for row in cells) + (
        f"\n{len(rows)} windows, mean reward {mean(r['reward'] for r in rows):.3f}; {flips:.0%} of the verdicts flipped with the "
        f"order; {sum(bool(r['missing']) for r in rows)} windows with a dimension missing")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="prm.py", description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--judge-model", default="scripted", help="a model's name; scripted judges by rule (scripted)")
    parser.add_argument("--base-url", default="", help="its server")
    parser.add_argument("--pool", action="store_true", help="Bradley-Terry within the run instead of a fixed anchor")
    return command(parser, argv, judge_run)


def judge_run(args: argparse.Namespace) -> None:
    pool, judge = windows([Step.from_json(row) for row in read_rows(args.run / "trajectory.jsonl")]), rule_judge
    if len(pool) < 2:
        raise BadInput(f"{args.run} holds {len(pool)} windows of {SIZE} decisions; at least 2 are needed")
    if args.judge_model != "scripted":
        model = open_model(args.judge_model, base_url=args.base_url)
        judge = model_judge(Recorder(args.run / f"judge-{digest(args.judge_model, args.pool)}.jsonl", lambda role: model).ask)
    rows, flips = score(pool, judge, None if args.pool else middle(pool))
    write_rows(args.run / "rewards.jsonl", rows)
    print(table(rows, flips))


if __name__ == "__main__":
    sys.exit(main())
