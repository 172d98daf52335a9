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
import resource
import sys
import time
from pathlib import Path

from ch import MAIN, Agent, context, tool_list
from env import open_env
from games.toy import MOVES
from harness import Harness, problems
from models import ModelError
from models.local import Local, weights
from models.scripted import Scripted
from runlog import BadInput, write_atomic
from tools.lora import canary, train

SYSTEM = "Walk to the key k, then to the exit E. Answer with one call."
TOOLS = {"move": ("Walk one cell.", {"type": "object", "properties": {"direction": {"type": "string", "enum": list(MOVES)}},
                                     "required": ["direction"], "additionalProperties": False})}
STEPS, MUTE, DISCOUNT = 60, 10, 0.97         # of a walk, at most; replies without a call that end it; of a row's weight, a step
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
    teacher, env = Scripted(0), open_env("toy")
    agent = Agent(env, Harness(prompt="go"), lambda role, messages, tools: teacher(messages, tools))
    while len(env.reached) < 2 and agent.t < 100:
        agent.step()
    agent.sandbox.close()
    rows, later, left = [], set(), 0
    for s in reversed(agent.steps):
        later, left = (set(), 0) if s.milestones else (later, left + 1)      # back from each milestone
        call = {"name": "move", "arguments": {"direction": s.reply.calls[0].args["direction"]}}
        said = {"role": "assistant", "content": "", "tool_calls": [{"id": f"call{s.t}", "type": "function", "function": call}]}
        rows.append({"id": f"toy {s.t}", "prompt": context(SYSTEM, "", [], s.obs, None), "completion": [said],
                     "tools": tool_list(TOOLS), "images": [], "weight": 0.0 if s.key in later else DISCOUNT ** left})
        later.add(s.key)
    return rows[::-1]


def evaluate(model: Small, rows: list[dict]) -> dict:
    """The same states for every theta: the likeliest reply is one valid call; it is the teacher's. Then a walk, sampled."""
    shaped, same, model.fields["temperature"] = 0, 0, 0
    for row in rows:
        calls = model(row["prompt"], row["tools"]).calls
        valid = len(calls) == 1 and calls[0].name == "move" and not problems(calls[0].args, TOOLS["move"][1])
        shaped += valid
        same += valid and calls[0].args == row["completion"][0]["tool_calls"][0]["function"]["arguments"]
    env = open_env("toy")
    agent = Agent(env, Harness(), lambda role, messages, tools: model(messages, tools))
    while agent.t < STEPS and len(env.reached) < 2 and (agent.t < MUTE or any(s.reply.calls for s in agent.steps[-MUTE:])):
        model.fields |= {"temperature": 1, "seed": agent.t}
        agent.threads[MAIN].clear()          # each turn is sent alone
        agent.turn(MAIN, SYSTEM, TOOLS)
    agent.sandbox.close()
    said = agent.steps[0].reply
    return {"states": len(rows), "format": shaped, "the teacher's": same, "milestones": len(env.reached), "steps": agent.t,
            "said first": said.text[:60] or str(said.calls)}


def demo(out: Path, python: str) -> dict:
    """All of it; prints each stage's seconds as it ends. Raises BadInput, ModelError."""
    seconds, start = {}, time.monotonic()

    def lap(stage: str) -> None:
        nonlocal start
        seconds[stage], start = round(time.monotonic() - start, 1), time.monotonic()
        print(f"{stage:16s} {seconds[stage]:6.1f} s", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    rows, shard, results = collect(), out / "shard.jsonl", {}
    write_atomic(shard, "".join(json.dumps(row) + "\n" for row in rows).encode())
    kept = [row for row in rows if row["weight"]]
    lap("collect")
    theta_0 = Small(actions="tools")
    results["theta_0"] = evaluate(theta_0, kept)
    theta_0.close()
    lap("theta_0 plays")
    done = train(shard, out / "theta_1", str(weights()), python, "sft", **SMALL)
    lap("training")
    theta_1 = Small(str(out / "theta_1"), actions="tools")
    scaled = lambda scale: {"lora": [{"id": 0, "scale": scale}]}
    apart = canary(theta_1.url.removesuffix("/chat/completions"), scaled(0.0), scaled(1.0), [kept[0]["prompt"]])
    lap("canary")
    results["theta_1"] = evaluate(theta_1, kept)
    theta_1.close()
    lap("theta_1 plays")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return results | {"training": done, "canary": str(apart), "seconds": seconds, "peak MB": peak}     # the trainer's


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"), help="the shard and theta_1 (runs/lora)")
    parser.add_argument("--trainer-python", default=".trainer/bin/python", help="the trainer's environment (.trainer/bin/python)")
    args = parser.parse_args(argv)
    try:
        print("\n".join(f"{name:16s} {json.dumps(what)}" for name, what in demo(args.out, args.trainer_python).items()))
    except (BadInput, ModelError, OSError) as e:
        print(f"tools.lora_demo: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
