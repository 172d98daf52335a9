"""Run one game with several harnesses and seeds, and print medians over the seeds: presses, refinements, seconds.

    python -m tools.sweep --game lantern --harness min,ch,expert --seeds 5 [--jobs 2] [--steps N] [--out DIR]
    python -m tools.sweep --harness neither,live-H,live-theta,both --model student:theta_0.npz --colearn 6
    python -m tools.sweep --table DIR                  the table of a folder again

Minutes a run, and as many at a time as --jobs says; the scripted model needs no key and costs nothing. Two more
conditions start from the H of the ch run of the same seed, once it is there: bootstrap (H goes on changing) and frozen
(it does not). Co-learning's controls are conditions too: CONTROLS, all with the same number of steps; their table also has
the milestones by iteration.

Each run leaves DIR/<harness>-<seed>/ and its summary DIR/<harness>-<seed>.json. A run whose summary exists is not run
again, one that was broken off goes on where it stopped. A run that did not finish the game, or failed, is counted as
such.
"""
import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from run import Settings, open_game, start_edits
from runlog import BadInput, command, read_rows, write_atomic
from tools.report import columns

HERE = Path(__file__).parent.parent
CONTROLS = {"neither": "--frozen", "live-H": "", "live-theta": "--frozen {loop}", "both": "{loop}",          # co-learning's
            "self": "--teacher-model self {loop}", "reset": "--reset-each {loop}"}
FROM_CH = {"bootstrap": "--bootstrap {ch}", "frozen": "--bootstrap {ch} --frozen"}
CONDITIONS = {"no-reuse": "--no-reuse", "no-retire": "--no-retire", **FROM_CH,       # name -> run.py's flags; others: --harness
              **{name: "--model {model} " + flags for name, flags in CONTROLS.items()}}
FLAGS = [("game", "lantern", "as run.py's"),
         ("harness", "min,ch,expert", f"harnesses, files or {', '.join(CONDITIONS)}; commas between"),
         ("model", "student", "co-learning: theta_0"), ("colearn", 6, "co-learning: iterations"),
         ("iteration", 256, "co-learning: steps an iteration"),
         ("seeds", 5, "seeds 0 to N - 1"), ("jobs", 2, "runs at a time"), ("steps", 0, "steps a run; 0: no limit"),
         ("out", "", "the sweep's folder; runs/sweep-<game>"), ("table", "", "print the table of this folder and run nothing")]


def check(args: argparse.Namespace) -> None:
    """Raises BadInput before anything is run."""
    if min(args.seeds, args.jobs, args.colearn, args.iteration) < 1 or args.steps < 0:
        raise BadInput("--seeds, --jobs, --colearn and --iteration are whole numbers above 0, --steps is not negative")
    env, harnesses = open_game(Settings(game=args.game)), args.harness.split(",")
    getattr(env, "close", lambda: None)()
    for name in harnesses:
        if name in FROM_CH and "ch" not in harnesses:
            raise BadInput(f"--harness {name}: it starts from the ch runs; name ch too")
        if name not in CONDITIONS:
            start_edits(Settings(game=args.game, harness=name))
    if len({Path(h).stem for h in harnesses}) < len(harnesses):
        raise BadInput(f"--harness {args.harness}: two have the same name")


def flags_of(args: argparse.Namespace, harness: str, seed: int, folder: Path) -> list[str]:
    """The flags of one run. One that exists goes on; its own settings hold all but the limit."""
    steps = args.colearn * args.iteration if harness in CONTROLS else args.steps        # equal budgets with those that learn
    flags = ["--run", str(folder), "--json"] + (["--steps", str(steps)] if steps else [])
    if (folder / "settings.json").exists():
        return flags + ["--resume"]
    facts = {"{ch}": [str(folder.with_name(f"ch-{seed}"))], "{model}": [args.model],
             "{loop}": ["--colearn", str(args.colearn), "--iteration", str(args.iteration)]}
    start = [word for part in CONDITIONS[harness].split() for word in facts.get(part, [part])] if harness in CONDITIONS else \
        ["--harness", harness]
    return flags + ["--game", args.game, "--seed", str(seed), *start]


def run_one(args: argparse.Namespace, out: Path, harness: str, seed: int) -> None:
    """Run it and keep its summary, with the seconds it took; of a run that failed, the last line of what it said."""
    path = out / f"{Path(harness).stem}-{seed}.json"
    row = (read_rows(path) or [{}])[0]
    if row.get("game", args.game) != args.game:
        raise BadInput(f"{out} holds runs of {row['game']}; choose another --out")
    if "presses" in row:
        return
    flags, start = flags_of(args, harness, seed, path.with_suffix("")), time.monotonic()
    done = subprocess.run([sys.executable, str(HERE / "run.py"), *flags], capture_output=True, text=True)
    # subtle: of a resumed run only the last session's seconds are known, so none are given
    row = {"seconds": None if "--resume" in flags else round(time.monotonic() - start, 1)}
    said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
    row |= json.loads(done.stdout) if done.returncode == 0 else {"error": said}
    write_atomic(path, json.dumps(row).encode())
    print(f"{path.stem}: {row.get('error') or row['stopped']}", file=sys.stderr)


def sweep(args: argparse.Namespace, out: Path) -> None:
    """All runs; those that start from a ch run's H come after it."""
    out.mkdir(parents=True, exist_ok=True)
    todo = [(harness, seed) for seed in range(args.seeds) for harness in args.harness.split(",")]
    with ThreadPoolExecutor(args.jobs) as pool:
        try:
            for later in (False, True):
                list(pool.map(lambda what: run_one(args, out, *what), [w for w in todo if (w[0] in FROM_CH) == later]))
        finally:
            pool.shutdown(cancel_futures=True)


# -- the table

def read(out: Path) -> dict[str, list[dict]]:
    """harness -> the rows of its runs. A run's folder without a summary is a run that was broken off: it counts."""
    names = {p.stem for p in out.glob("*-*.json")} | {p.parent.name for p in out.glob("*-*/settings.json")}
    if not names:
        raise BadInput(f"{out} holds no sweep: no summaries <harness>-<seed>.json")
    first = ("min", "ch", "expert", *CONDITIONS)
    rows: dict[str, list[dict]] = {h: [] for h in first}
    for name in sorted(names):
        row = (read_rows(out / f"{name}.json") or [{"error": "broken off"}])[0]
        rows.setdefault(name.rpartition("-")[0], []).append(row)
    return {harness: runs for harness, runs in rows.items() if runs}


def spread(values: list[float | None]) -> str:
    """Median [min..max]; '-' unless all runs have a value, with how many have one."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return f"- ({len(known)} of {len(values)})"
    return f"{median(known):g} [{min(known):g}..{max(known):g}]"


def table(rows: dict[str, list[dict]]) -> str:
    reached = [r["milestones"] for runs in rows.values() for r in runs if "presses" in r]
    names = {m: median(r[m] for r in reached if m in r) for r in reached for m in r}
    finished = lambda r: r.get("stopped") == "finished"
    at = lambda m: lambda r: r.get("milestones", {}).get(m)
    measures = {f"presses: {m}": at(m) for m in sorted(names, key=names.get)} | {
        "presses to the end": lambda r: r["presses"] if finished(r) else None,
        "refinements": lambda r: r.get("refinements"), "seconds": lambda r: r.get("seconds")}
    line = lambda what, get: [what, *(spread([*map(get, runs)]) for runs in rows.values())]
    cells = [["", *rows], *(line(*measure) for measure in measures.items()),
             ["runs finished", *(f"{sum(map(finished, runs))} of {len(runs)}" for runs in rows.values())],
             ["runs failed or broken off", *(str(sum("error" in r for r in runs)) for runs in rows.values())]]
    return columns(cells)


def by_iteration(out: Path) -> str:
    """Milestones reached by the end of each iteration, a column a condition; "" where nothing is a co-learning run."""
    condition = lambda folder: folder.name.rpartition("-")[0]
    runs = [p.parent for p in out.glob("*-*/settings.json") if condition(p.parent) in CONTROLS]
    settings = [json.loads((run / "settings.json").read_text()) for run in runs]
    n, size = max(((s["colearn"], s["iteration"]) for s in settings), default=(0, 0))
    when = defaultdict(list)             # condition -> of each run, the steps that reached a milestone
    for run in sorted(runs, key=lambda run: [*CONTROLS].index(condition(run))):
        rows = reversed(read_rows(run / "trajectory.jsonl"))
        when[condition(run)].append({m: r["t"] for r in rows for m in r["milestones"]}.values())
    by = lambda step: [spread([sum(t <= step for t in steps) for steps in of]) for of in when.values()]
    lines = [[f"iteration {k} ({size * k} steps)", *by(size * k)] for k in range(1, n + 1)]
    return "\n\n" + columns([["milestones by the end of", *when], *lines]) if lines else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sweep.py", description=__doc__)
    for name, default, help in FLAGS:
        parser.add_argument(f"--{name}", default=default, type=type(default), help=f"{help} ({default})".replace(" ()", ""))
    return command(parser, argv, do)


def do(args: argparse.Namespace) -> int:
    out = Path(args.table or args.out or HERE / "runs" / f"sweep-{args.game}")
    if not args.table:
        check(args)
        sweep(args, out)
    rows = read(out)
    print(table(rows) + by_iteration(out))
    return int(any("error" in r for runs in rows.values() for r in runs))


if __name__ == "__main__":
    sys.exit(main())
