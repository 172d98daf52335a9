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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from run import Settings, open_game, start_edits
from runlog import BadInput, read_rows, write_atomic

HERE = Path(__file__).parent.parent
CONTROLS = {"neither": ["--frozen"], "live-H": [], "live-theta": ["--frozen", "--colearn"], "both": ["--colearn"],
            "self": ["--teacher-model", "self", "--colearn"], "reset": ["--reset-each", "--colearn"]}       # condition -> its flags
FROM_CH = {"bootstrap": [], "frozen": ["--frozen"]}      # condition -> its flags beside --bootstrap


def check(game: str, harnesses: list[str]) -> None:
    """Raises BadInput before anything is run."""
    env = open_game(Settings(game=game))
    if hasattr(env, "close"):
        env.close()
    for name in harnesses:
        if name in FROM_CH and "ch" not in harnesses:
            raise BadInput(f"--harness {name}: it starts from the ch runs; name ch too")
        if name not in {*FROM_CH, *CONTROLS}:
            start_edits(Settings(game=game, harness=name))
    if len({Path(h).stem for h in harnesses}) < len(harnesses):
        raise BadInput(f"--harness {','.join(harnesses)}: two have the same name")


def command(game: str, harness: str, seed: int, steps: int, out: Path, loop: dict | None = None) -> list[str]:
    """The flags of one run. One that exists goes on; its own settings hold all but the limit.

    loop: for CONTROLS, {"colearn": iterations, "iteration": steps of one, "model": theta_0}."""
    folder, control = out / f"{Path(harness).stem}-{seed}", CONTROLS.get(harness)
    if control is not None and "--colearn" not in control:
        steps = loop["colearn"] * loop["iteration"]
    flags = ["--run", str(folder), "--json"] + (["--steps", str(steps)] if steps else [])
    if (folder / "settings.json").exists():
        return flags + ["--resume"]
    start = ["--harness", harness]
    if control is not None:
        numbers = [str(loop["colearn"]), "--iteration", str(loop["iteration"])]
        start = ["--model", loop["model"], *control, *(numbers if "--colearn" in control else [])]
    if harness in FROM_CH:
        start = ["--harness", "ch", "--bootstrap", str(out / f"ch-{seed}"), *FROM_CH[harness]]
    return flags + ["--game", game, "--seed", str(seed), *start]


def run_one(game: str, harness: str, seed: int, steps: int, out: Path, loop: dict | None = None) -> dict:
    """Run it and keep its summary, with the seconds it took; of a run that failed, the last line of what it said."""
    path = out / f"{Path(harness).stem}-{seed}.json"
    row = json.loads(path.read_text()) if path.exists() else {}
    if "presses" in row:
        if row["game"] != game:
            raise BadInput(f"{out} holds runs of {row['game']}; choose another --out")
        return row
    flags, start = command(game, harness, seed, steps, out, loop), time.monotonic()
    done = subprocess.run([sys.executable, str(HERE / "run.py"), *flags], capture_output=True, text=True)
    # subtle: of a resumed run only the last session's seconds are known, so none are given
    row = {"seconds": None if "--resume" in flags else round(time.monotonic() - start, 1)}
    said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
    row |= json.loads(done.stdout) if done.returncode == 0 else {"error": said}
    write_atomic(path, json.dumps(row).encode())
    print(f"{path.stem}: {row.get('error') or row['stopped']}", file=sys.stderr)
    return row


def sweep(game: str, harnesses: list[str], seeds: int, jobs: int, steps: int, out: Path, loop: dict | None = None) -> None:
    """All runs; those that start from a ch run's H come after it."""
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for later in (False, True):
                now = [h for h in harnesses if (h in FROM_CH) == later]
                todo = [(game, h, seed, steps, out, loop) for seed in range(seeds) for h in now]
                list(pool.map(lambda what: run_one(*what), todo))
        finally:
            pool.shutdown(cancel_futures=True)


# -- the table

def read(out: Path) -> dict[str, list[dict]]:
    """harness -> the rows of its runs. A run's folder without a summary is a run that was broken off: it counts."""
    names = {p.stem for p in out.glob("*-*.json")} | {p.parent.name for p in out.glob("*-*/settings.json")}
    rows: dict[str, list[dict]] = {}
    order = {h: i for i, h in enumerate(("min", "ch", "expert", *FROM_CH, *CONTROLS))}
    for name in sorted(names, key=lambda n: (order.get(n.rpartition("-")[0], len(order)), n)):
        path = out / f"{name}.json"
        row = json.loads(path.read_text()) if path.exists() else {"error": "broken off"}
        rows.setdefault(name.rpartition("-")[0], []).append(row)
    if not rows:
        raise BadInput(f"{out} holds no sweep: no summaries <harness>-<seed>.json")
    return rows


def spread(values: list[float | None], total: int) -> str:
    """Median [min..max]; '-' unless all `total` runs have a value, with how many have one."""
    known = [v for v in values if v is not None]
    if len(known) < total:
        return f"- ({len(known)} of {total})"
    return f"{median(known):g} [{min(known):g}..{max(known):g}]"


def table(rows: dict[str, list[dict]]) -> str:
    reached = [r["milestones"] for runs in rows.values() for r in runs if "presses" in r]
    names = {m: median(r[m] for r in reached if m in r) for r in reached for m in r}
    finished = lambda r: r.get("stopped") == "finished"
    at = lambda m: lambda r: r.get("milestones", {}).get(m)
    measures = {f"presses: {m}": at(m) for m in sorted(names, key=names.get)} | {
        "presses to the end": lambda r: r["presses"] if finished(r) else None,
        "refinements": lambda r: r.get("refinements"), "seconds": lambda r: r.get("seconds")}
    line = lambda what, get: [what, *(spread([get(r) for r in runs], len(runs)) for runs in rows.values())]
    cells = [["", *rows], *(line(what, get) for what, get in measures.items()),
             ["runs finished", *(f"{sum(map(finished, runs))} of {len(runs)}" for runs in rows.values())],
             ["runs failed or broken off", *(str(sum("error" in r for r in runs)) for runs in rows.values())]]
    wide = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(v.ljust(w) for v, w in zip(row, wide)).rstrip() for row in cells)


def by_iteration(out: Path) -> str:
    """Milestones reached by the end of each iteration, a column a condition; "" where nothing is a co-learning run."""
    settings = {p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("*-*/settings.json"))}
    n, size = max(((s.get("colearn", 0), s.get("iteration", 0)) for s in settings.values()), default=(0, 0))
    reached: dict[str, list[list[int]]] = {c: [] for c in CONTROLS if any(name.rpartition("-")[0] == c for name in settings)}
    for name in settings:
        if (condition := name.rpartition("-")[0]) in reached:
            rows = read_rows(out / name / "trajectory.jsonl")
            first = {m: r["t"] for r in reversed(rows) for m in r["milestones"]}
            reached[condition].append([sum(t <= size * (k + 1) for t in first.values()) for k in range(n)])
    if not n or not reached:
        return ""
    cells = [["milestones by the end of", *reached]]
    for k in range(n):
        counts = [spread([r[k] for r in runs], len(runs)) for runs in reached.values()]
        cells.append([f"iteration {k + 1} ({size * (k + 1)} steps)", *counts])
    wide = [max(map(len, column)) for column in zip(*cells)]
    return "\n" + "\n".join("  ".join(v.ljust(w) for v, w in zip(row, wide)).rstrip() for row in cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.sweep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: (print(f"sweep.py: {message}", file=sys.stderr), sys.exit(2))
    parser.add_argument("--game", default="lantern", help="as run.py's (lantern)")
    parser.add_argument("--harness", default="min,ch,expert",
                        help=f"min, ch, expert, bootstrap, frozen or files, with commas between; or {', '.join(CONTROLS)}")
    parser.add_argument("--model", default="student", help="co-learning: theta_0 (student)")
    numbers = ("colearn", 6, "co-learning: iterations"), ("iteration", 256, "co-learning: steps an iteration"), ("seeds", 5, "seeds 0 to N - 1"), ("jobs", 2, "runs at a time"), ("steps", 0, "steps a run; 0: no limit")
    for name, default, help in numbers:
        parser.add_argument("--" + name, type=int, default=default, metavar="N", help=f"{help} ({default})")
    parser.add_argument("--out", type=Path, help="the sweep's folder (runs/sweep-<game>)")
    parser.add_argument("--table", type=Path, metavar="DIR", help="print the table of a sweep's folder and run nothing")
    args = parser.parse_args(argv)
    out = args.table or args.out or HERE / "runs" / f"sweep-{args.game}"
    try:
        if not args.table:
            if args.seeds < 1 or args.jobs < 1 or args.steps < 0:
                raise BadInput("--seeds and --jobs are whole numbers above 0, --steps is not negative")
            harnesses = args.harness.split(",")
            check(args.game, harnesses)
            loop = {"colearn": args.colearn, "iteration": args.iteration, "model": args.model}
            sweep(args.game, harnesses, args.seeds, args.jobs, args.steps, out, loop)
        rows = read(out)
        print(table(rows) + by_iteration(out))
        return int(any("error" in r for runs in rows.values() for r in runs))
    except (BadInput, OSError, ValueError) as e:
        print(f"sweep.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
