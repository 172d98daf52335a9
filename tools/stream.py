"""A stream of tasks, one after another, with a guard of each strictness: what is learned, and what is forgotten.

    python guard.py stream lantern --guard 0,1,3,inf --seeds 5      minutes a seed with the scripted model; no key, no cost
    python guard.py stream tools/questions.jsonl --model NAME       questions, for a real model
    python guard.py stream lantern --without memory                 an ablation: this part of H is never edited

Each task has cases of three kinds, disjoint. Adaptation: H plays them and the Refiner reads how. Validation: the guard
compares candidate and live H on them. Test: after each stage every task so far is tested, R[s, j]; nothing is learned
from that (Harness Continual Learning, arXiv 2608.19013).

lantern: cases out of one run of the expert harness, in TASKS. Questions: a JSONL file with a row {task, input, answer,
check} each, check one of CHECKS. There p is the interface I and the router R, M is the memory, the skills are the inner
capabilities C; the answer tool is the outer one, which no edit may touch.
"""
import argparse
import json
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from cases import SPAN, Case, brief, hindsight
from ch import Agent, skill_api
from env import Env, Observation
from guard import Ask, Guard
from harness import fold, problems
from models import digest
from refiner import PASSES
from runlog import BadInput, BudgetEnd, Recorder, command, read_rows, write_atomic
from settings import HERE, Settings, open_game, open_models, start_edits
from tools.report import columns

SPLIT = {"adapt": 3, "valid": 3, "test": 5}
COUNTERS = ("SHOP", "HEALER")                             # where lantern's people stand behind a counter
TASKS: dict[str, Callable[[Case, dict], bool]] = {        # lantern's: (case, brief state at its end) -> is it of this task?
    "walk": lambda c, end: c.goal[0] in ("place", "cell") and not end["dark"],
    "talk": lambda c, end: c.goal[0] == "text" and end["place"] not in COUNTERS,
    "shop": lambda c, end: end["place"] in COUNTERS and c.goal[0] in ("item", "milestone"),
    "fight": lambda c, end: c.goal[0] == "battle",
    "switches": lambda c, end: c.goal[1] in ("opened the shrine", "entered the last room"),
    "maze": lambda c, end: c.goal[0] in ("place", "cell") and end["dark"]}
Tasks = dict[str, dict[str, list[Case]]]                  # name -> its cases by kind, disjoint


def split(pools: dict[str, list[Case]], seed: int) -> Tasks:
    """Cases by task -> tasks in the same order, drawn by the seed. Raises BadInput where there are too few."""
    tasks, need = {}, sum(SPLIT.values())
    for name, pool in pools.items():
        pool = list({c.id: c for c in pool}.values())
        solved = [c for c in pool if c.solved]
        if len(pool) < need:
            raise BadInput(f"task {name!r} has {len(pool)} different cases; it takes {need}")
        drawn = iter(random.Random(f"{seed} {name}").sample(solved if len(solved) >= need else pool, need))
        tasks[name] = {kind: [next(drawn) for _ in range(n)] for kind, n in SPLIT.items()}
    return tasks


# -- lantern

def lantern_cases(steps: int = 0) -> dict[str, list[Case]]:
    """Play lantern with the expert harness and keep what it comes by, by task. steps: stop early (0: at the end)."""
    settings = Settings(harness="expert")
    model, env, (edits, tools) = open_models(settings, HERE)["scripted"], open_game(settings), start_edits(settings)
    agent = Agent(env, fold(edits, tools), lambda role, messages, tools: model(messages, tools))
    snaps: deque[Case] = deque(maxlen=2 * SPAN)
    pools: dict[str, list[Case]] = {name: [] for name in TASKS}
    while len(env.reached) < len(env.game.milestones) and (not steps or agent.t < steps):
        snaps.append(Case.of(env))
        step, end = agent.step(), brief(env.observe().state)
        for draw in range(12):                            # several beginnings for one end
            for case in hindsight(list(snaps), step, end, random.Random(f"{draw} {step.t}")):
                name = next((n for n, mine in TASKS.items() if case.call is None and mine(case, end)), None)
                if name:
                    pools[name].append(case)
    agent.sandbox.close()
    env.close()
    return pools


# -- questions

RIGHT = "a right answer"
CHECKS: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda said, answer: " ".join(said.split()) == answer,
    "number": lambda said, answer: [*map(float, re.findall(r"-?\d+(?:\.\d+)?", said.replace(",", ""))[-1:])] == [float(answer)],
    "choice": lambda said, answer: re.findall(r"\b[A-Z]\b", said)[-1:] == [answer],
    "regex": lambda said, answer: re.fullmatch(answer, said.strip()) is not None}
WORDS = {"type": "string", "minLength": 1}
ROW = {"type": "object", "required": ["task", "input", "answer", "check"], "additionalProperties": False,
       "properties": {"task": WORDS, "input": WORDS, "answer": WORDS, "check": {"enum": list(CHECKS)}}}


class Questions:
    """An Env of one question at a time: it is over once an answer was given."""

    tools = {"answer": ("Answer the question. It is checked, and you are told.", {
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False})}

    def __init__(self, rows: list[dict]):
        self.rows, self.at, self.said = rows, 0, None

    def observe(self) -> Observation:
        row = self.rows[self.at]
        right = self.said is not None and CHECKS[row["check"]](self.said, row["answer"])
        over, text = self.said is not None, f"Kind of question: {row['task']}\nQuestion: {row['input']}"
        state = {"location": row["task"], "context": "answered" if over else "question", "over": over,
                 "progress": {"milestones": [RIGHT], "reached": {RIGHT: 1} if right else {}, "presses": int(over)}}
        return Observation(text, None, state, digest(self.at, self.said))

    def act(self, name: str, args: dict) -> dict:
        if name != "answer" or not isinstance(args.get("text"), str) or self.said is not None:
            return {"success": False, "error": "answer takes a text, once"}
        self.said = args["text"][:2_000]
        right = bool(self.observe().state["progress"]["reached"])
        return {"success": True, "right": right, "presses": 1} | ({} if right else {"right answer": self.rows[self.at]["answer"]})

    def save(self) -> bytes:
        return json.dumps([self.at, self.said]).encode()

    def load(self, data: bytes) -> None:
        self.at, self.said = json.loads(data)


def read_questions(path: Path) -> list[dict]:
    """The rows of a question file. Raises BadInput, with the line."""
    rows = read_rows(path)
    for number, row in enumerate(rows, 1):
        try:
            wrong = problems(row, ROW) or CHECKS[row["check"]]("", row["answer"]) and "an empty answer is right"
        except (ValueError, re.error) as e:
            wrong = f"its answer is no {row['check']}: {e}"
        if wrong:
            raise BadInput(f"{path}, question {number}: {wrong}")
    if not rows:
        raise BadInput(f"{path}: no such file, or no questions in it; `lantern` and tools/questions.jsonl are there")
    return rows


def question_cases(rows: list[dict]) -> dict[str, list[Case]]:
    env, pools = Questions(rows), {}
    for env.at, row in enumerate(rows):
        pools.setdefault(row["task"], []).append(replace(Case.of(env), goal=["milestone", RIGHT], presses=9))
    return pools


# -- the stream

def average(R: list[list[float]]) -> float:
    """Avg_T. R[s][j]: score on task j after stage s, j <= s."""
    return mean(R[-1])


def forgetting(R: list[list[float]]) -> float:
    """Fgt_T: what each task but the last has lost since it was best.

    >>> forgetting([[1.0], [0.5, 0.8], [0.75, 0.6, 1.0]])      # (1 - 0.75 + 0.8 - 0.6) / 2
    0.225
    """
    last = len(R) - 1
    return round(mean(max(R[s][j] for s in range(j, last + 1)) - R[last][j] for j in range(last)), 9) if last else 0.0


def stream(tasks: Tasks, guard: Guard, settings: Settings, ask: Ask) -> dict:
    """One stream under one guard. Returns R, Avg_T, Fgt_T, candidates accepted and rejected, forks, seconds, decisions."""
    harness, steps, R, rows, start = fold(*start_edits(settings)), [], [], [], time.monotonic()
    for name, task in tasks.items():
        before = len(steps)
        for case in task["adapt"]:                        # what the Refiner reads; its outcome is what anchors are drawn from
            ok, agent = guard.play(harness, case, ask, len(steps))
            steps += sorted(agent.steps, key=lambda s: s.t)
            guard.pool.append(replace(case, solved=ok))
        guard.valid.extend(task["valid"])
        agent = Agent(guard.env, harness, ask)
        agent.sandbox = guard.sandbox
        window, seen = steps[before:][-settings.window:], guard.env.observe().text
        row = guard.refine(harness, window, seen, ask, step=len(steps), cause=name, tools=sorted(agent.all_tools),
                           api=skill_api(guard.env.tools), dry_run=agent.dry_run)
        rows += row["guard"]
        guard.end_task(len(steps))
        guard.valid.clear()
        tested = [task["test"] for task in tasks.values()][:len(R) + 1]
        R.append([mean(ok for ok, _ in guard.scores(harness, cases).values()) for cases in tested])
    return {"Avg": average(R), "Fgt": forgetting(R), "accepted": sum(d["taken"] for d in rows),
            "rejected": sum(bool(d["refused"]) for d in rows), "forks": guard.count.total(),
            "seconds": round(time.monotonic() - start, 1), "R": R, "decisions": rows}


def table(results: dict[str, list[dict]]) -> str:
    """B -> the results of its seeds, as means; Avg and Fgt in percent."""
    scale = {"Avg": 100, "Fgt": 100, "accepted": 1, "rejected": 1, "forks": 1, "seconds": 1}
    cells = [[bound, str(len(rows)), *(f"{mean(r[c] for r in rows) * by:.1f}" for c, by in scale.items())]
             for bound, rows in results.items()]
    return columns([["B", "seeds", *scale], *cells])


def sweep(pools: dict[str, list[Case]], env: Callable[[], Env], settings: Settings, bounds: list[str], seeds: int,
          parts: list[str], out: Path) -> dict[str, list[dict]]:
    """Every B with every seed. Every reply is in OUT/replies-SEED.jsonl: the same command again asks for none of them twice."""
    results: dict[str, list[dict]] = {bound: [] for bound in bounds}
    for seed in range(seeds):
        settings = replace(settings, seed=seed)
        models = open_models(settings, out)
        recorder = Recorder(out / f"replies-{seed}.jsonl", lambda role: models[settings.model_of(role)], budget=settings.dollars)
        memo, replies = {}, {}                            # the same H, case and model: the same outcome, under every B
        for bound in bounds:
            guard = Guard(env(), recorder.ask, bound=float(bound), need=settings.delta, alternatives=settings.alternatives,
                          seed=seed, parts=parts)
            guard.memo, guard.replies = memo, replies
            result = stream(split(pools, seed), guard, settings, recorder.ask)
            guard.close()
            results[bound].append(result)
            write_atomic(out / f"{bound}-{seed}.json", json.dumps(result).encode())
            print(f"seed {seed}, B = {bound}: Avg {100 * result['Avg']:.1f}, Fgt {100 * result['Fgt']:.1f}", file=sys.stderr)
        for model in models.values():
            getattr(model, "close", lambda: None)()
    return results


FLAGS = {"guard": ("0,1,3,inf", "values of B, with commas between"), "seeds": (1, "seeds 0 to N - 1"),
         "without": ("", f"parts of H that are never edited, of {', '.join(PASSES)}"), "out": ("", "the folder of the results"),
         **{name: (getattr(Settings(), name), "as run.py's")
            for name in ("model", "base_url", "refiner_model", "delta", "alternatives", "dollars")}}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="guard.py stream", description=__doc__)
    parser.add_argument("tasks", help="lantern, or a JSONL file of questions")
    for flag, (default, words) in FLAGS.items():
        parser.add_argument("--" + flag.replace("_", "-"), type=type(default), default=default, help=f"{words} ({default})")
    return command(parser, argv, do)


def do(args: argparse.Namespace) -> None:
    name, bounds, seeds, without, out = (vars(args).pop(k) for k in ("tasks", "guard", "seeds", "without", "out"))
    settings, without = Settings(**vars(args)), list(filter(None, without.split(",")))
    out = Path(out or HERE / "runs" / f"stream-{Path(name).stem}")
    for bound in bounds.split(","):
        replace(settings, guard=bound or "none").check()
    if seeds < 1 or set(without) - set(PASSES):
        raise BadInput(f"--seeds {seeds} --without {','.join(without)}: at least one seed; the parts are {', '.join(PASSES)}")
    rows = [] if name == "lantern" else read_questions(Path(name))
    if rows and settings.model == "scripted":
        raise BadInput("the scripted model plays games and answers no questions; name another with --model")
    out.mkdir(parents=True, exist_ok=True)
    pools, env = (question_cases(rows), lambda: Questions(rows)) if rows else (lantern_cases(), lambda: open_game(settings))
    try:
        print(table(sweep(pools, env, settings, bounds.split(","), seeds, [p for p in PASSES if p not in without], out)))
    except BudgetEnd:
        raise BadInput(f"--dollars {settings.dollars:g} is reached; the same command with more goes on, and nothing is paid twice") from None


if __name__ == "__main__":
    sys.exit(main())
