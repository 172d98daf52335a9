"""The whole chain on a real language model, on a CPU: collect, train theta_1, serve it, play. No key, no cost.

    make lora                          what it needs (1.4 GB, the trainer's part in a venv of its own), and then this
    .venv/bin/python -m tools.lora_demo --trainer-python .trainer/bin/python --out runs/lora

The model is SmolLM2-135M-Instruct (models/local.py), the game is toy, and each turn is sent alone, without history. It proves
the chain, not the play: both thetas are asked about the very states that were trained on. In so few steps this model learns
the form of a call (0 of 19 valid before, 19 after) and not yet where to go (6 of 19 as the teacher; no milestone).
The teacher is the scripted model, which wanders. A state's last visit before a milestone is what led there: that step's row
has the weight 0.97 ^ (steps to the milestone), all others 0.
"""
import argparse
import json
import sys
import time
from contextlib import closing
from pathlib import Path

from ch import Agent, context, tool_list
from env import open_env
from games.toy import MOVES
from harness import Harness
from models import Call, ModelError, Reply
from models.local import Local, weights
from models.scripted import Scripted
from runlog import BadInput, write_rows
from sft import agreement, first_call, refused, shard_row
from tools.lora import canary, train

SYSTEM = "Walk to the key k, then to the exit E. Answer with one call."
WAY = {"type": "object", "properties": {"direction": {"type": "string", "enum": list(MOVES)}}, "required": ["direction"],
       "additionalProperties": False}
TOOLS = tool_list({"move": ("Walk one cell.", WAY)})
WALK, DISCOUNT = 30, 0.97            # steps of a walk, at most; of a row's weight, a step
# Half of the layers, small steps, a high learning rate: little enough for a CPU, enough for twenty rows to learn a call's form.
SMALL = {"r": 16, "alpha": 32, "lr": 1e-3, "beta2": 0.95, "epochs": 7, "per_step": 2, "batch": 2, "max_length": 512,
         "targets": r".*layers\.(1[5-9]|2\d)\.(self_attn\.(q|k|v|o)|mlp\.(gate|up|down))_proj",
         "template": str(Path(__file__).parent.parent / "models" / "local.jinja")}


class Small(Local):
    """A short context, and calls in the model's own words: no schema is enforced."""

    output = longest = 40
    context = 1024


def collect() -> list[dict]:
    """The teacher's walk as rows of a shard."""
    teacher = Scripted(0)
    agent = Agent(open_env("toy"), Harness(prompt="go"), lambda role, *what: teacher(*what))
    while len(agent.env.reached) < 2 and agent.t < 100:
        agent.step()
    agent.sandbox.close()
    rows, later, left = [], set(), 0
    for s in reversed(agent.steps):
        later, left = (set(), 0) if s.milestones else (later, left + 1)      # back from each milestone
        said = Reply("", [Call(f"call{s.t}", "move", {"direction": s.reply.calls[0].args["direction"]})])
        weight = 0.0 if s.key in later else DISCOUNT ** left
        rows.append(shard_row(f"toy {s.t}", context(SYSTEM, "", [], s.obs, None), said, TOOLS, weight))
        later.add(s.key)
    return rows[::-1]


def evaluate(model: Small, rows: list[dict]) -> dict:
    """The same states for every theta: the likeliest reply can be carried out; it is the teacher's. Then a walk, sampled."""
    model.fields["temperature"] = 0
    replies = [model(row["prompt"], TOOLS) for row in rows]
    right = sum(agreement(reply, Reply("", [first_call(row)])) == 1 for reply, row in zip(replies, rows))
    env = open_env("toy")
    for t in range(WALK):
        model.fields |= {"temperature": 1, "seed": t}
        reply = model(context(SYSTEM, "", [], env.observe().text, None), TOOLS)
        for call in reply.calls if not refused(reply, TOOLS) else []:
            env.act(call.name, call.args)
    return {"states": len(rows), "format": sum(not refused(reply, TOOLS) for reply in replies), "the teacher's": right,
            "milestones": len(env.reached), "steps": env.presses, "said last": reply.text[:60] or str(reply.calls)}


def demo(out: Path, python: str) -> None:
    """All of it; prints a line a stage: its seconds, what came of it. Raises BadInput, ModelError."""
    shard, start = out / "shard.jsonl", time.monotonic()

    def lap(stage: str, result: object) -> None:
        nonlocal start
        print(f"{stage:16s} {time.monotonic() - start:6.1f} s  {json.dumps(result)}", flush=True)
        start = time.monotonic()

    out.mkdir(parents=True, exist_ok=True)
    rows = collect()
    kept = [row for row in rows if row["weight"]]
    write_rows(shard, rows)
    lap("collect", {"rows": len(rows), "of weight": len(kept)})
    with closing(Small(actions="tools")) as theta_0:
        lap("theta_0 plays", evaluate(theta_0, kept))
    lap("training", train(shard, out / "theta_1", str(weights()), python, "sft", **SMALL))
    with closing(Small(str(out / "theta_1"), actions="tools")) as theta_1:
        base, theta = ({"lora": [{"id": 0, "scale": scale}]} for scale in (0.0, 1.0))
        moved = canary(theta_1.url.removesuffix("/chat/completions"), base, theta, [kept[0]["prompt"]])
        lap("canary", f"apart by {moved:g}")
        lap("theta_1 plays", evaluate(theta_1, kept))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"), help="the shard and theta_1 (runs/lora)")
    parser.add_argument("--trainer-python", default=".trainer/bin/python", help="the trainer's environment (.trainer/bin/python)")
    args = parser.parse_args(argv)
    try:
        demo(args.out, args.trainer_python)
    except (BadInput, ModelError, OSError) as e:
        print(f"tools.lora_demo: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
