"""The whole chain on a real language model, on a CPU: collect, train theta_1, serve it, play. Several minutes, no key, no cost.

    make lora                          what it needs (1.4 GB, in a venv of its own) and then this
    .venv/bin/python -m tools.lora_demo --trainer-python .trainer/bin/python --out runs/lora

The model is SmolLM2-135M-Instruct (models/local.py), the game is toy, and each turn is sent alone: a policy of 135 million
parameters and a room of eleven cells. What it proves is the chain, not the play: theta_0 makes no call at all.
The teacher is the scripted model, which wanders. A state's last visit before a milestone is what led there, so that step is
the row, its weight 0.97 ^ (steps to the milestone); the others have weight 0.
"""
import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from ch import MAIN, Agent, context, spec, tool_list
from env import Step, open_env
from games.toy import MOVES
from harness import Harness
from models import Model, ModelError
from models.local import Local, weights
from models.scripted import Scripted
from runlog import BadInput, write_atomic
from tools.lora import canary, train

SYSTEM = "Walk to the key k, then to the exit E. Answer with one call."
TOOLS = {"move": spec("Walk one cell.", "direction", direction={"type": "string", "enum": list(MOVES)})}
STEPS, DISCOUNT = 40, 0.97
# Few layers and a high learning rate: small enough for a CPU, enough for 19 rows.
SMALL = {"r": 16, "alpha": 32, "lr": 2e-3, "epochs": 8, "per_step": 4, "batch": 2, "max_length": 512,
         "targets": r".*layers\.2\d\.(self_attn\.(q|k|v|o)|mlp\.(gate|up|down))_proj",
         "template": str(Path(__file__).parent.parent / "models" / "local.jinja")}


class Walker(Agent):
    """An agent that is sent its instruction and the observation, and no history."""

    def step(self) -> Step:
        self.threads[MAIN].clear()
        return self.turn(MAIN, SYSTEM, TOOLS)


class Small(Local):
    """The model with a short context, its most likely reply, and calls in its own words (no schema is enforced)."""

    output = longest = 40
    context = 1024

    def __init__(self, adapter: str = ""):
        super().__init__(adapter, actions="tools")
        self.fields |= {"temperature": 0, "cache_prompt": True}


def collect() -> list[dict]:
    """The teacher's walk as rows of a shard."""
    teacher, env = Scripted(0), open_env("toy")
    agent = Agent(env, Harness(prompt="go"), lambda role, messages, tools: teacher(messages, tools))
    while len(env.reached) < 2 and agent.t < 100:
        agent.step()
    agent.sandbox.close()
    rows, later, left = [], set(), None
    for s in reversed(agent.steps):          # back from each milestone
        later, left = (set(), 0) if s.milestones else (later, None if left is None else left + 1)
        weight = DISCOUNT ** left if left is not None and s.key not in later else 0.0
        later.add(s.key)
        call = s.reply.calls[0]
        said = {"role": "assistant", "content": "", "tool_calls": [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": {"direction": call.args["direction"]}}}]}
        rows.append({"id": f"toy {s.t}", "prompt": context(SYSTEM, "", [], s.obs, None), "completion": [said], "tools": tool_list(TOOLS), "images": [], "weight": weight})
    return rows[::-1]


def moves_left(env: Any) -> int | None:
    """The fewest moves to the next milestone, by breadth-first search over saved states: the outside truth."""
    start, reached, seen = env.save(), len(env.reached), set()
    queue = [(0, start)]
    try:
        for moves, state in queue:
            for direction in MOVES:
                env.load(state)
                env.act("move", {"direction": direction})
                if len(env.reached) > reached:
                    return moves + 1
                if (key := env.observe().key) not in seen:
                    seen.add(key)
                    queue.append((moves + 1, env.save()))
        return None
    finally:
        env.load(start)


def states() -> list[bytes]:
    """Every state of the game in which a milestone is still ahead."""
    env, seen, found = open_env("toy"), set(), []
    queue = [env.save()]
    for state in queue:
        env.load(state)
        if (key := env.observe().key) in seen or len(env.reached) == 2:
            continue
        seen.add(key)
        found.append(state)
        for direction in MOVES:
            env.load(state)
            env.act("move", {"direction": direction})
            queue.append(env.save())
    return found


def evaluate(model: Model) -> dict:
    """The same states for every theta: replies that are a valid call, and moves that bring the milestone nearer; then a walk."""
    env, count = open_env("toy"), {"states": 0, "format": 0, "nearer": 0}
    agent = Walker(env, Harness(prompt=""), lambda role, messages, tools: model(messages, tools))
    for state in states():
        env.load(state)
        reached, before = len(env.reached), moves_left(env)
        step = agent.step()
        valid = len(step.reply.calls) == 1 and step.results[0]["success"]
        nearer = valid and (len(env.reached) > reached or moves_left(env) < before)
        for name, hit in (("states", 1), ("format", valid), ("nearer", nearer)):
            count[name] += int(hit)
    agent.env = env = open_env("toy")
    agent.t = 0
    while agent.t < STEPS and len(env.reached) < 2 and agent.step().reply.calls:     # the same words would get the same answer
        pass
    agent.sandbox.close()
    return count | {"milestones": len(env.reached), "steps": agent.t, "says": agent.steps[0].reply.text[:60] or agent.steps[0].reply.calls[0].args}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.lora_demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    parser.add_argument("--trainer-python", default=".trainer/bin/python")
    args = parser.parse_args(argv)
    times, start = {}, time.monotonic()

    def lap(name: str) -> None:
        nonlocal start
        times[name], start = round(time.monotonic() - start, 1), time.monotonic()
        print(f"{name:10s} {times[name]:6.1f} s", flush=True)

    try:
        args.out.mkdir(parents=True, exist_ok=True)
        rows, shard = collect(), args.out / "shard.jsonl"
        write_atomic(shard, "".join(json.dumps(r) + "\n" for r in rows).encode())
        lap("collect")
        theta_0 = Small()
        results = {"theta_0": evaluate(theta_0)}
        theta_0.close()
        lap("play 0")
        done = train(shard, args.out / "theta_1", str(weights()), args.trainer_python, "sft", **SMALL)
        lap("train")
        theta_1 = Small(str(args.out / "theta_1"))
        lora = lambda scale: {"lora": [{"id": 0, "scale": scale}]}
        apart = canary(theta_1.url.removesuffix("/chat/completions"), lora(0.0), lora(1.0), [rows[0]["prompt"]])
        lap("canary")
        results["theta_1"] = evaluate(theta_1)
        theta_1.close()
        lap("play 1")
    except (BadInput, ModelError) as e:
        print(f"tools.lora_demo: {e}", file=sys.stderr)
        return 2
    print(json.dumps({"theta": results, "training": done, "canary": apart, "seconds": times,
                      "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                      "peak_server_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024}, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
