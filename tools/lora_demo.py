"""The whole chain on a real language model, on a CPU: collect, train theta_1, serve it, play. No key, no cost.

    make lora                          what it needs (1.4 GB, the trainer's part in a venv of its own), and then this
    .venv/bin/python -m tools.lora_demo --trainer-python .trainer/bin/python --out runs/lora

The model is SmolLM2-135M-Instruct (models/local.py), the game is toy, told in one line a turn: in minutes on a CPU it learns to
read which ways are open, not to read a map. The teacher, the scripted model, wanders: loops are cut out of its walk, and a row
weighs 0.97 ^ (steps to its milestone). Both thetas answer the very states that were trained on, then walk for themselves.
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
from models import Call, Reply
from models.local import TEMPLATE, Local, weights
from models.scripted import Scripted
from runlog import command, write_rows
from sft import agreement, first_call, refused, shard_row
from tools.lora import SCALES, canary, train

SYSTEM = "Take the key, then leave the room. Answer with one call of move."
WAY = {"type": "object", "properties": {"direction": {"type": "string", "enum": list(MOVES)}}, "required": ["direction"]}
TOOLS = tool_list({"move": ("Walk one cell.", WAY)})
BACK = dict(zip(MOVES, ("south", "north", "east", "west")))
STEPS, DISCOUNT = 40, 0.97           # replies of theta's walk, at most; of a row's weight, a step
# Half of the layers, small steps, a high learning rate: little enough for a CPU.
SMALL = {"r": 16, "alpha": 32, "lr": 2e-3, "beta2": 0.95, "epochs": 6, "per_step": 2, "batch": 2, "max_length": 512,
         "targets": r".*layers\.(1[5-9]|2\d)\.(self_attn\.(q|k|v|o)|mlp\.(gate|up|down))_proj",
         "template": str(TEMPLATE)}


class Walk:
    """A game of toy, and what a small model is told of it."""

    def __init__(self):
        self.env, self.came = open_env("toy"), "nowhere"

    def prompt(self) -> list[dict]:
        state = self.env.observe().state
        (x, y), grid, keys = state["player_position"].values(), state["map"]["grid"], state["keys"]
        ways = [way for way, (dx, dy) in MOVES.items() if grid[y + dy][x + dx] not in ("#" if keys else "#E")]
        told = f"x={x}, y={y}, keys {keys}. Ways: {', '.join(ways)}. Came from: {self.came}."
        return context(SYSTEM, "", [], told, None)

    def go(self, direction: str) -> None:
        if "blocked" not in self.env.act("move", {"direction": direction})["trace"][0]:
            self.came = BACK[direction]


class Small(Local):
    """A short context, and calls in the model's own words: no schema is enforced."""

    output, longest, context = 40, 40, 1024


def collect() -> list[dict]:
    """The teacher's way as rows of a shard."""
    teacher = Scripted(0)
    agent = Agent(open_env("toy"), Harness(prompt="go"), lambda role, *what: teacher(*what))
    while len(agent.env.reached) < 2 and agent.t < 100:
        agent.step()
    agent.sandbox.close()
    way, walk, rows = [], Walk(), []
    for s in agent.steps:
        way = way[:next((i for i, w in enumerate(way) if w.key == s.key), len(way))] + [s]
    ends = [i for i, s in enumerate(way) if s.milestones]
    for i, s in enumerate(way):
        direction = s.reply.calls[0].args["direction"]
        said = Reply("", [Call(f"call{i}", "move", {"direction": direction})])
        rows.append(shard_row(f"toy {s.t}", walk.prompt(), said, TOOLS, DISCOUNT ** min(e - i for e in ends if e >= i)))
        walk.go(direction)
    return rows


def play(model: Small, seed: int) -> list[int]:
    """A walk, drawn at temperature 1: [milestones, replies]."""
    walk, n = Walk(), 0
    while len(walk.env.reached) < 2 and n < STEPS:
        model.fields |= {"temperature": 1, "seed": 1000 * seed + n}
        reply, n = model(walk.prompt(), TOOLS), n + 1
        if not refused(reply, TOOLS):
            walk.go(reply.calls[0].args["direction"])
    return [len(walk.env.reached), n]


def evaluate(model: Small, rows: list[dict], walks: int) -> dict:
    """The same states for every theta: the likeliest reply can be carried out; it is the teacher's. Then walks."""
    model.fields["temperature"] = 0
    replies = [model(row["prompt"], TOOLS) for row in rows]
    right = sum(agreement(reply, Reply("", [first_call(row)])) == 1 for reply, row in zip(replies, rows))
    return {"states": len(rows), "valid": sum(not refused(reply, TOOLS) for reply in replies), "the teacher's": right,
            "walks: milestones, replies": [play(model, seed) for seed in range(walks)],
            "said last": replies[-1].text[:60] or str(replies[-1].calls[0].args)}


def demo(out: Path, python: str, walks: int) -> None:
    """All of it; prints a line a stage: its seconds, what came of it. Raises BadInput, ModelError."""
    shard, start = out / "shard.jsonl", time.monotonic()

    def lap(stage: str, result: object) -> None:
        nonlocal start
        print(f"{stage:16s} {time.monotonic() - start:6.1f} s  {json.dumps(result)}", flush=True)
        start = time.monotonic()

    out.mkdir(parents=True, exist_ok=True)
    rows = collect()
    write_rows(shard, rows)
    lap("collect", {"rows": len(rows)})
    with closing(Small(actions="tools")) as theta_0:
        lap("theta_0 plays", evaluate(theta_0, rows, walks))
    done = train(shard, out / "theta_1", str(weights()), python, "sft", **SMALL)
    lap("training", {what: done[what] for what in ("rows", "steps", "loss_first", "loss_last", "peak_gb")})
    with closing(Small(str(out / "theta_1"), actions="tools")) as theta_1:
        moved = canary(theta_1.url.removesuffix("/chat/completions"), *SCALES, [rows[0]["prompt"]])
        lap("canary", f"apart by {moved:g}")
        lap("theta_1 plays", evaluate(theta_1, rows, walks))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.lora_demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"), help="the shard and theta_1 (runs/lora)")
    parser.add_argument("--trainer-python", default=".trainer/bin/python", help="the trainer's environment (.trainer/bin/python)")
    parser.add_argument("--walks", type=int, default=1, metavar="N", help="walks of each theta, at most half a minute each (1)")
    return command(parser, argv, lambda args: demo(args.out, args.trainer_python, args.walks))


if __name__ == "__main__":
    sys.exit(main())
