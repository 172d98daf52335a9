"""Soft SFT of theta from the trajectory (paper section 4): low-reward windows -> teacher labels -> a shard -> theta_{k+1}.

    python sft.py warmup RUN... --out theta_0.npz         SFT on a teacher's own trajectories: seconds, no key
    python sft.py grpo RUN --model student:theta_0.npz --out theta_1.npz      offline GRPO on its own candidates
    python sft.py eval RUN --model student:theta_1.npz    the evaluation matrix on transitions that it was not trained on
    python run.py --model student --colearn 6             the loop: play, score, relabel, train; game and H go on

The student plays, the teacher answers the states that the student got into (DAgger, arXiv 1011.0686). What the student saw is
rebuilt from the log (rebuild.py). A row of a shard is one decision: {"id", "prompt", "completion", "tools", "images", "weight"};
only the completion is learned. The student is trained here; for a language model the shard is written, for tools/lora.py.
"""
import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, pstdev

from ch import Agent, unfit
from harness import Edit
from models import Call, Message, Reply, fill, open_model
from models.student import blank, learn
from models.theta import Theta, grpo
from prm import grounded, middle, model_judge, reasons, rule_judge, score, valid, windows
from rebuild import Seen, logged, prompts
from runlog import BadInput, command, read_rows, write_atomic, write_rows
from settings import Settings

Ask = Callable[[str, list, list], Reply]
GROUP = 4                            # offline GRPO: candidates a state
PASS = 0.7                           # windows below this reward, and the lower half of an iteration, go to the teacher


# -- shards

def shard_row(id: str, messages: list[Message], reply: Reply, tools: list[dict], weight: float = 1.0, **more: object) -> dict:
    """One decision. Its calls' arguments are objects: some chat templates refuse JSON in a string."""
    calls = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.args}} for c in reply.calls]
    said = [{"role": "assistant", "content": reply.text, "tool_calls": calls}]
    return {"id": id, "prompt": messages, "completion": said, "tools": tools, "images": [], "weight": round(weight, 6), **more}


def first_call(row: dict) -> Call:
    call = row["completion"][0]["tool_calls"][0]
    return Call(call["id"], call["function"]["name"], call["function"]["arguments"])


def refused(reply: Reply, tools: list[dict]) -> str:
    """Why a reply can't be carried out; "" when it can. The same check that the agent's own calls go through."""
    schemas = {t["function"]["name"]: ("", t["function"]["parameters"]) for t in tools}
    return "no call" if not reply.calls else "; ".join(filter(None, (unfit(c, schemas) for c in reply.calls)))


def advantages(rewards: list[float]) -> list[float]:
    """Group-relative: (r - mean) / standard deviation; all zero, no signal, where all are equal."""
    mid, spread = mean(rewards), pstdev(rewards)
    return [(r - mid) / (spread + 1e-4) if spread > 1e-6 else 0.0 for r in rewards]


def relabel(decisions: Seen, rewards: list[dict], ask: Ask | None) -> tuple[list[dict], Counter]:
    """One iteration's shard, and what was dropped. A good window keeps its decisions with its reward as weight; a low one gets
    the teacher's with weight 1. ask None, the teacher is self: own decisions by how far their window's reward is above the mean.
    A row is never cut: one over the context is dropped by the trainer, which counts its tokens."""
    values = [r["reward"] for r in rewards]
    bar = max(PASS, median(values))
    own = values if ask else [max(0.0, min(1.0, a)) for a in advantages(values)]
    worth = {t: (weight, ask is not None and r["reward"] < bar)
             for r, weight in zip(rewards, own) for t in range(r["steps"][0], r["steps"][1] + 1)}
    rows, count = [], Counter()
    for step, messages, tools in decisions:
        weight, low = worth[step.t]
        if messages is None:
            what = "dropped: not rebuilt"
        elif low:
            reply = ask("teacher", [*messages, {"role": "user", "content": fill("teacher")}], tools)
            what = "dropped: the teacher's reply is refused" if refused(reply, tools) else "relabelled"
        else:
            reply = step.reply
            what = "dropped: own call without worth" if weight <= 0 or not valid(step) or refused(reply, tools) else "kept"
        count[what] += 1
        if not what.startswith("dropped"):
            rows.append(shard_row(f"{step.agent}-{step.t}", messages, reply, tools, 1.0 if low else weight))
    return rows, count


# -- theta_k -> theta_{k+1}

def fit(theta: Theta, shard: list[dict], epochs: int = 6) -> dict:
    """Soft SFT of the numpy student on a shard, in place. Weights are scaled to mean 1: the learning rate keeps its meaning."""
    scale = mean(r["weight"] for r in shard) if shard else 1.0
    rows = [learn(r["prompt"], r["tools"], [first_call(r)], [r["weight"] / scale]) for r in shard]
    known = [r for r in rows if r is not None]
    history = theta.fit(known, steps=epochs * -(-len(known) // 16), batch=16)
    return {"rows": len(known), "dropped: not among the student's calls": len(rows) - len(known), "loss": ends(history)}


def ends(history: list[float]) -> list[float]:
    """The mean loss of the first and of the last eighth."""
    part = max(1, len(history) // 8)
    return [round(mean(h), 4) for h in (history[:part], history[-part:]) if h]


def adapter(out: Path) -> Path:
    """Where a language model's theta lies; the folder's name is its name at the server, so it differs from run to run."""
    return out / f"{out.parent.name}-{out.name}"


def train(s: Settings, last: Path | None, shards: list[Path], out: Path) -> bool:
    """The theta in the folder `last` (None: what --model is) -> the next one, in `out`. The numpy student learns from the last
    shard and as many rows of the warm-up's and the earlier ones (DAgger's aggregate, thinned out). A language model is trained
    by tools/lora.py and loaded at its server. False: no row was worth it, theta stays."""
    if not s.is_student():
        from tools.lora import advance
        more = json.loads(s.trainer or "{}") | ({"init": str(adapter(last))} if last else {})
        made = advance(shards[-1], adapter(out), s.weights, s.trainer_python, s.base_url, s.model, **more)
        return made is not None
    first = s.model.partition(":")[2]
    warm = [Path(first).with_suffix(".jsonl")] if first else []          # beside theta_0, not to be forgotten
    theta, rows = Theta.load(str(last / "theta.npz") if last else first), read_rows(shards[-1])
    old = [row for shard in [*warm, *shards[:-1]] for row in read_rows(shard)]
    fit(theta, rows + old[::-(-len(old) // max(1, len(rows))) or 1])
    write_atomic(out / "theta.npz", theta.dumps())
    return True


def served(s: Settings, out: Path) -> str:
    """The model's name of the theta in the folder `out`. A server that was started again has forgotten its adapters."""
    if s.is_student():
        return f"student:{out / 'theta.npz'}"
    if s.model == "local":
        return f"local:{adapter(out)}"
    from tools.lora import publish
    publish(s.base_url, adapter(out).name, adapter(out))
    return adapter(out).name


def iteration(theta: dict, s: Settings, folder: Path, agent: Agent, edits: list[Edit], live: bool) -> dict:
    """--colearn: score, relabel and train on what was played since the last iteration; all in folder/theta_{k+1}. Returns the
    loop's state: {"k": iterations done, "since": their last step, "made": the newest theta (0: none)}. Not live: no training."""
    k, since, made, ask = theta["k"] + 1, theta["since"], theta["made"], agent.ask
    outs, new = [folder / f"theta_{i}" for i in range(1, k + 1)], [step for step in agent.steps if step.t > since]
    judge = rule_judge if s.model_of("judge") == "scripted" else model_judge(ask)
    rewards, flips = score(windows(new), judge, middle(windows([step for step in agent.steps if step.t <= s.iteration])))
    seen = prompts(agent.env.tools, agent.harness.tools, agent.steps, edits, since)
    rows, count = relabel(seen, rewards, None if s.model_of("teacher") == "self" else ask)
    outs[-1].mkdir(parents=True, exist_ok=True)
    write_rows(outs[-1] / "rewards.jsonl", rewards)
    write_rows(outs[-1] / "shard.jsonl", rows)
    report = {"iteration": k, "steps": [since + 1, agent.t], "flips": round(flips, 4), **count,
              "milestones": list(dict.fromkeys(m for step in new for m in step.milestones)),
              **{what: round(mean(r[what] for r in rewards), 4) for what in ("reward", "format")}}
    write_atomic(outs[-1] / "report.json", json.dumps(report).encode())
    if live and train(s, outs[made - 1] if made else None, [out / "shard.jsonl" for out in outs], outs[-1]):
        made = k
    return {"k": k, "since": agent.t, "made": made}


# -- warm-up: SFT on a teacher's trajectories, offline GRPO

def teacher_shard(runs: list[Path]) -> list[dict]:
    """The decisions of trajectories as they are: what warm-up SFT learns."""
    return [shard_row(f"{run.name}-{step.agent}-{step.t}", messages, step.reply, tools)
            for run in runs for step, messages, tools in logged(run) if valid(step)]


def agreement(reply: Reply, gold: Reply) -> float:
    """How right an action is beside the teacher's: 1 the same call, 0.5 the same tool, 0 another one or none."""
    if not reply.calls or not gold.calls or reply.calls[0].name != gold.calls[0].name:
        return 0.0
    return 1.0 if blank(reply.calls[0].args) == blank(gold.calls[0].args) else 0.5


def group_shard(run: Path, asks: list[Ask]) -> list[dict]:
    """Offline GRPO's shard: an answer of each of `asks` to every state of a teacher's run, a row each, with its reward:
    0.6 action + 0.4 format. An answer that holds no call has no row."""
    rows = []
    for step, messages, tools in logged(run):
        group = f"{step.agent}-{step.t}"
        for i, reply in enumerate(ask("candidate", messages, tools) for ask in asks):
            reward = round(0.6 * agreement(reply, step.reply) + 0.4 * (not refused(reply, tools)), 3)
            rows += [shard_row(f"{group}-{i}", messages, reply, tools, group=group, reward=reward)] if reply.calls else []
    return rows


def fit_groups(theta: Theta, shard: list[dict]) -> dict:
    """Offline GRPO of the numpy student, in place: 8 states a step, 590 steps, KL to the theta that made the candidates."""
    groups = defaultdict(list)
    for r in shard:
        groups[r["group"]].append(r)
    gains = {name: advantages([r["reward"] for r in group]) for name, group in groups.items()}
    rows = [learn(group[0]["prompt"], group[0]["tools"], [first_call(r) for r in group], gains[name])
            for name, group in groups.items() if any(gains[name])]
    known = [replace(r, old=theta.probs(r)) for r in rows if r is not None]
    if not known:
        raise BadInput("no group of candidates holds both better and worse ones: there is nothing to learn from")
    history = theta.fit(known, grpo, steps=590, batch=8, lr=0.002)
    return {"groups": len(known), "dropped: all candidates equal": len(groups) - len(rows), "loss": ends(history)}


# -- the evaluation matrix

def cosine(a: str, b: str) -> float:
    """Of two texts' word counts."""
    a, b = (Counter(re.findall(r"\w+", text.lower())) for text in (a, b))
    dot = lambda x, y: sum(x[w] * y[w] for w in x)
    return dot(a, b) / (dot(a, a) * dot(b, b)) ** 0.5 if a and b else 0.0


def evaluate(ask: Ask, run: Path, n: int = 40) -> dict[str, float]:
    """Means over n transitions, evenly spread, of a teacher's run that was not trained on. tool format: a call of a tool that
    exists, with an object; actionable: its arguments fit; relevance: agreement with the teacher; similarity: cosine of the stated
    reasons' words; grounding: the reason names something that was in view."""
    seen, columns = logged(run), defaultdict(list)
    for step, messages, tools in seen[::max(1, len(seen) // n)][:n]:
        reply, named = ask("agent", messages, tools), {t["function"]["name"] for t in tools}
        row = {"tool format": bool(reply.calls) and all(c.name in named and isinstance(c.args, dict) for c in reply.calls),
               "actionable": not refused(reply, tools), "relevance": agreement(reply, step.reply),
               "similarity": cosine(reasons(reply), reasons(step.reply)), "grounding": grounded(reply, step.obs)}
        for name, value in row.items():
            columns[name].append(value)
    return {"transitions": len(columns["relevance"]), **{name: round(mean(v), 3) for name, v in columns.items()}}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sft.py", description=__doc__)
    parser.add_argument("what", choices=("warmup", "grpo", "eval"))
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs: a teacher's; eval: one that was not trained on")
    parser.add_argument("--model", default="student", help="student, student:FILE.npz, or a language model (student)")
    parser.add_argument("--base-url", default="", help="its server")
    parser.add_argument("--out", type=Path, default="theta.npz", help="the new theta (theta.npz); its shard is written beside it")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="warmup: passes over the decisions (6)")
    return command(parser, argv, do)


def do(args: argparse.Namespace) -> None:
    def opened(seed: int = 0) -> Ask:
        model = open_model(args.model, seed, args.base_url)
        return lambda role, *what: model(*what)

    kind, _, path = args.model.partition(":")
    if args.what == "eval":
        print(json.dumps({"model": args.model, **evaluate(opened(), args.runs[0])}))
        return
    theta, warm, shard = Theta.load(path) if kind == "student" else None, args.what == "warmup", args.out.with_suffix(".jsonl")
    rows = teacher_shard(args.runs) if warm else group_shard(args.runs[0], list(map(opened, range(GROUP))))
    if theta:
        report = {"theta": str(args.out)} | (fit(theta, rows, args.epochs) if warm else fit_groups(theta, rows))
        write_atomic(args.out, theta.dumps())
    else:
        report = {"rows": len(rows), "next": f"python -m tools.lora {shard} --mode {'sft' if warm else 'grpo'}"}
    write_rows(shard, rows)
    print(json.dumps({"shard": str(shard), **report}))


if __name__ == "__main__":
    sys.exit(main())
