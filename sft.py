"""Soft SFT of theta from the trajectory (paper section 4): low-reward windows -> teacher labels -> a shard -> theta_{k+1}.

    python sft.py warmup RUN... --out theta_0.npz         SFT on a teacher's own trajectories: seconds, no key
    python sft.py grpo RUN --model student:theta_0.npz --out theta_1.npz
    python sft.py eval RUN --model student:theta_1.npz    the evaluation matrix on transitions that it was not trained on
    python run.py --model student --colearn 6             the loop: play, score, relabel, train; game and H go on

The student plays, the teacher answers the states that the student got into (DAgger, arXiv 1011.0686). What the student saw is
rebuilt from the log (rebuild.py). A row of a shard is one decision: {"id", "prompt", "completion", "tools", "images", "weight"};
only the completion is learned. The numpy student is trained here, a language model by tools/lora.py, from the same shards.
"""
import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, pstdev

from ch import unfit
from env import Step
from harness import Edit
from models import Call, Message, ModelError, Reply, fill, open_model
from models.student import learn, same
from models.theta import Theta, grpo
from prm import Judge, grounded, middle, score, valid, windows
from rebuild import logged, prompts
from runlog import BadInput, read_rows, write_atomic, write_rows

Ask = Callable[[str, list, list], Reply]
GROUP = 4                            # offline GRPO: candidates a state
PASS = 0.7                           # windows below this reward, and the lower half of an iteration, go to the teacher


# -- shards

def shard_row(id: str, messages: list[Message], reply: Reply, tools: list[dict], weight: float, **more: object) -> dict:
    """One decision. Its calls' arguments are objects: some chat templates refuse JSON in a string."""
    calls = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.args}} for c in reply.calls]
    said = [{"role": "assistant", "content": reply.text, "tool_calls": calls}]
    return {"id": id, "prompt": messages, "completion": said, "tools": tools, "images": [], "weight": round(weight, 6), **more}


def calls(row: dict) -> list[Call]:
    return [Call(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in row["completion"][0]["tool_calls"]]


def refused(reply: Reply, tools: list[dict]) -> str:
    """Why a reply can't be carried out; "" when it can. The same check that the agent's own calls go through."""
    schemas = {t["function"]["name"]: ("", t["function"]["parameters"]) for t in tools}
    return "no call" if not reply.calls else "; ".join(filter(None, (unfit(c, schemas) for c in reply.calls)))


def relabel(decisions: Iterable[tuple[Step, list | None, list]], rewards: list[dict], ask: Ask | None,
            context: int = 0) -> tuple[list[dict], Counter]:
    """One iteration's shard, and what was dropped. A good window keeps its decisions with its reward as weight; a low one gets
    the teacher's with weight 1. ask None, the teacher is self: own decisions by how far their window's reward is above the mean.
    context: tokens, at 4 characters each, that a prompt may have (0: the trainer counts); a longer one is never cut."""
    bar = max(PASS, median(r["reward"] for r in rewards))
    mid, spread = mean(r["reward"] for r in rewards), pstdev(r["reward"] for r in rewards) + 1e-4
    at = {t: r["reward"] for r in rewards for t in range(r["steps"][0], r["steps"][1] + 1)}
    rows, count = [], Counter()
    for step, messages, tools in decisions:
        low = ask is not None and at[step.t] < bar
        if messages is None:
            count["dropped: not rebuilt"] += 1
            continue
        if context and len(json.dumps([messages, tools])) > 4 * context:
            count["dropped: too long"] += 1
            continue
        reply = ask("teacher", [*messages, {"role": "user", "content": fill("teacher")}], tools) if low else step.reply
        weight = 1.0 if low else at[step.t] if ask else max(0.0, min(1.0, (at[step.t] - mid) / spread))
        if refused(reply, tools) or weight <= 0 or not low and not valid(step):
            count["dropped: the teacher's reply is refused" if low else "dropped: own call without worth"] += 1
            continue
        count["relabelled" if low else "kept"] += 1
        rows.append(shard_row(f"{step.agent}-{step.t}", messages, reply, tools, weight))
    return rows, count


# -- theta_k -> theta_{k+1}

def fit(theta: Theta, shard: list[dict], **options: float) -> dict:
    """Soft SFT of the numpy student on a shard, in place. Weights are scaled to mean 1: the learning rate keeps its meaning."""
    scale = mean(r["weight"] for r in shard) if shard else 1.0
    rows = [learn(r["prompt"], r["tools"], calls(r)[:1], [r["weight"] / scale]) for r in shard]
    known = [r for r in rows if r is not None]
    history = theta.fit(known, **{"lr": 0.02, "epochs": 6, **options})
    part = max(1, len(history) // 8)
    return {"rows": len(known), "dropped: not among the student's calls": len(rows) - len(known),
            "loss": [round(mean(history[:part]), 4), round(mean(history[-part:]), 4)] if history else []}


def adapter(out: Path) -> Path:
    """Where a language model's theta lies; the folder's name is its name at the server, so it differs from run to run."""
    return out / f"{out.parent.name}-{out.name}"


def train(model: str, last: Path | None, shards: list[Path], out: Path, python: str = "", base: str = "", url: str = "") -> bool:
    """The theta in the folder `last` (None: what `model` is) -> the next one, in `out`. The numpy student learns from the last
    shard and as many rows of the warm-up's and the earlier ones (DAgger's aggregate, thinned out). A language model is trained by tools/lora.py and
    loaded at its server. False: no row was worth it, theta stays."""
    if model.partition(":")[0] != "student":
        from tools.lora import advance
        more = {"init": str(adapter(last))} if last else {}
        return advance(shards[-1], adapter(out), base, python, url, served=model, **more) is not None
    first = model.partition(":")[2]
    warm = [Path(first).with_suffix(".jsonl")] if first else []          # beside theta_0, not to be forgotten
    theta, rows = Theta.load(str(last / "theta.npz") if last else first), read_rows(shards[-1])
    old = [row for shard in [*warm, *shards[:-1]] for row in read_rows(shard)]
    fit(theta, rows + old[::-(-len(old) // max(1, len(rows))) or 1])
    write_atomic(out / "theta.npz", theta.dumps())
    return True


def iteration(k: int, out: Path, steps: list[Step], edits: list[Edit], tools: dict, harness_tools: list[str], *, since: int,
              size: int, judge: Judge, ask: Ask | None, context: int = 0) -> None:
    """Score and relabel what was played after step `since`; rewards.jsonl, shard.jsonl and report.json in `out`."""
    pool = windows([s for s in steps if s.t > since])
    rewards, flips = score(pool, judge, middle(windows([s for s in steps if s.t <= size])))
    rows, count = relabel(prompts(tools, harness_tools, steps, edits, since), rewards, ask, context)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "rewards.jsonl", rewards)
    write_rows(out / "shard.jsonl", rows)
    reached = dict.fromkeys(m for s in steps if s.t > since for m in s.milestones)
    report = {"iteration": k, "steps": [since + 1, max(s.t for s in steps)], "milestones": list(reached),
              "flips": round(flips, 4), **{what: round(mean(r[what] for r in rewards), 4) for what in ("reward", "format")}, **count}
    write_atomic(out / "report.json", json.dumps(report).encode())


# -- warm-up: SFT on a teacher's trajectories, offline GRPO

def teacher_shard(runs: list[Path], out: Path) -> None:
    """The decisions of trajectories as they are, weight 1: what warm-up SFT learns."""
    rows = [shard_row(f"{run.name}-{step.agent}-{step.t}", messages, step.reply, tools, 1.0)
            for run in runs for step, messages, tools in logged(run) if valid(step)]
    write_rows(out, rows)


def agreement(reply: Reply, gold: Reply) -> float:
    """How right an action is beside the teacher's: 1 the same call, 0.5 the same tool, 0 another one or none."""
    if not reply.calls or not gold.calls or reply.calls[0].name != gold.calls[0].name:
        return 0.0
    return 1.0 if same(reply.calls[0].args, gold.calls[0].args) else 0.5


def group_shard(run: Path, asks: list[Ask], out: Path) -> None:
    """Offline GRPO's shard: an answer of each of `asks` to every state of a teacher's run, a row each, with its reward:
    0.6 action + 0.4 format. An answer that holds no call has no row."""
    rows = []
    for step, messages, tools in logged(run):
        group = f"{step.agent}-{step.t}"
        for i, reply in enumerate(ask("candidate", messages, tools) for ask in asks):
            reward = round(0.6 * agreement(reply, step.reply) + 0.4 * (not refused(reply, tools)), 3)
            if reply.calls:
                rows.append(shard_row(f"{group}-{i}", messages, reply, tools, 1.0, group=group, reward=reward))
    write_rows(out, rows)


def advantages(rewards: list[float]) -> list[float]:
    """Group-relative: (r - mean) / standard deviation; all zero, no signal, where all are equal."""
    mid, spread = mean(rewards), pstdev(rewards)
    return [(r - mid) / (spread + 1e-4) if spread > 1e-6 else 0.0 for r in rewards]


def fit_groups(theta: Theta, shard: list[dict], **options: float) -> dict:
    """Offline GRPO of the numpy student, in place: 8 states a step, 590 steps, KL to the theta that made the candidates."""
    groups: dict[str, list[dict]] = {}
    for r in shard:
        groups.setdefault(r["group"], []).append(r)
    known, flat = [], 0
    for group in groups.values():
        gains = advantages([r["reward"] for r in group])
        made = learn(group[0]["prompt"], group[0]["tools"], [calls(r)[0] for r in group], gains) if any(gains) else None
        flat += not any(gains)
        if made is not None:
            made.old = theta.probs(made)
            known.append(made)
    if not known:
        raise BadInput("no group of candidates holds both better and worse ones: there is nothing to learn from")
    history = theta.fit(known, grpo, **{"lr": 0.002, "batch": 8, "steps": 590, **options})
    return {"groups": len(known), "dropped: all candidates equal": flat,
            "loss": [round(mean(history[:40]), 4), round(mean(history[-40:]), 4)]}


# -- the evaluation matrix

def words(reply: Reply) -> Counter:
    reasons = " ".join([reply.text, *(str(c.args.get("reasoning", "")) for c in reply.calls if isinstance(c.args, dict))])
    return Counter(re.findall(r"\w+", reasons.lower()))


def cosine(a: Counter, b: Counter) -> float:
    size = lambda c: sum(n * n for n in c.values()) ** 0.5
    return sum(a[w] * b[w] for w in a) / (size(a) * size(b)) if a and b else 0.0


def evaluate(ask: Ask, run: Path, n: int = 40) -> dict[str, float]:
    """Means over n transitions, evenly spread, of a teacher's run that was not trained on. tool format: a call of a tool that
    exists, with an object; actionable: its arguments fit; relevance: agreement with the teacher; similarity: cosine of the stated
    reasons' words; grounding: the reason names something that was in view."""
    seen = logged(run)
    seen = seen[::max(1, len(seen) // n)][:n]
    columns, lines = ("tool format", "actionable", "relevance", "similarity", "grounding"), []
    for step, messages, tools in seen:
        reply = ask("agent", messages, tools)
        named = {t["function"]["name"] for t in tools}
        shaped = bool(reply.calls) and all(c.name in named and isinstance(c.args, dict) for c in reply.calls)
        lines.append((shaped, not refused(reply, tools), agreement(reply, step.reply), cosine(words(reply), words(step.reply)),
                      grounded(replace(step, reply=reply))))
    return {"transitions": len(lines), **{c: round(mean(v), 3) for c, v in zip(columns, zip(*lines))}}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sft.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: (print(f"sft.py: {message}", file=sys.stderr), sys.exit(2))
    parser.add_argument("what", choices=("warmup", "grpo", "eval"))
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs: a teacher's; eval: one that was not trained on")
    parser.add_argument("--model", default="student", help="student or student:FILE.npz; eval: any model (student)")
    parser.add_argument("--base-url", default="", help="eval: its server")
    parser.add_argument("--out", type=Path, help="the new theta (theta.npz); its shard is written beside it")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="warmup: passes over the decisions (6)")
    parser.add_argument("--transitions", type=int, default=40, metavar="N", help="eval: how many (40)")
    args = parser.parse_args(argv)
    try:
        if args.what == "eval":
            model = open_model(args.model, base_url=args.base_url)
            row = evaluate(lambda role, *what: model(*what), args.runs[0], args.transitions)
            print(json.dumps({"model": args.model, **row}))
            return 0
        if args.model.partition(":")[0] != "student":
            raise BadInput(f"--model {args.model}: only the numpy student is trained here; a language model by tools/lora.py")
        out = args.out or Path("theta.npz")
        shard, theta = out.with_suffix(".jsonl"), Theta.load(args.model.partition(":")[2])
        if args.what == "warmup":
            teacher_shard(args.runs, shard)
            report = fit(theta, read_rows(shard), epochs=args.epochs)
        else:
            asks = [lambda role, *what, m=open_model(args.model, seed): m(*what) for seed in range(GROUP)]
            group_shard(args.runs[0], asks, shard)
            report = fit_groups(theta, read_rows(shard))
        write_atomic(out, theta.dumps())
        print(json.dumps({"theta": str(out), "shard": str(shard), **report}))
        return 0
    except (BadInput, ModelError, OSError) as e:
        print(f"sft.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
