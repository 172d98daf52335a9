"""Continual Harness (arXiv 2605.09998): an agent plays a long game without a reset while a Refiner edits its harness.

    python run.py                                      lantern, an open cartridge, with the offline scripted model:
                                                       a minute or two, no key, no ROM, no GPU, no cost
    python run.py --game red --rom red.gb --model gpt-5-mini
    python run.py --run runs/NAME --resume             go on after a stop or a kill
    python run.py --run runs/NAME --replay             re-execute the log with no model and compare every step

The loop: 1. Observe: the environment gives the text map, the frame and the state. 2. Think: the model reads H, the recent
trajectory and the observation, and answers with tool calls. 3. Act: each call is validated and carried out. 4. Refine: at
steps 25, 50, ..., 200, 300, ... the Refiner reads the window and edits H; the next step sees the new H. 5. Keep: every
reply and every step is on the disk before the next one begins; nothing is ever reset.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

if sys.version_info < (3, 10):
    print("run.py needs Python 3.10 or newer; this is " + sys.version.split()[0], file=sys.stderr)
    sys.exit(2)
try:
    from PIL import Image
    from tqdm import tqdm

    from ch import MAIN, PROBE, Agent, saw
    from env import GAMES, Env, Step, open_env
    from harness import Edit, Uses, fold, imported, read_edits
    from models import Model, ModelError, Usage, fill, open_model
    from refiner import Schedule, refine
    from runlog import (BadInput, BudgetEnd, Diverged, LogEnd, Recorder, append_line, append_row, cached_share, locked,
                        read_checkpoint, read_rows, write_atomic, write_checkpoint)
except ModuleNotFoundError as e:
    print(f"run.py: the package {e.name} is not installed; run `make play`, or `pip install .` in this folder", file=sys.stderr)
    sys.exit(2)

HERE = Path(__file__).parent
EVERY, SHOTS, FORMAT_ERRORS = 10, 25, 10     # steps between checkpoints, between frames; replies without a call that end a run
LOGS = ("trajectory.jsonl", "edits.jsonl", "refinements.jsonl")


def flag(default: object, help: str) -> object:
    return field(default=default, metadata={"help": help})


@dataclass
class Settings:
    """One field a flag: its name, its default, its help."""

    game: str = flag("lantern", "lantern, toy, red, blue, yellow")
    rom: str = flag("", "red, blue, yellow: your own ROM (or the environment variable CH_ROM)")
    state: str = flag("", "start from a PyBoy state of that ROM instead of from power-on")
    model: str = flag("scripted", "scripted, local (a tiny real one, `make local`), or a model's name")
    base_url: str = flag("", "an OpenAI-compatible server; without it the provider follows from the model's name")
    actions: str = flag("auto", "how calls are made: tools, json (by response_format), auto (json after 3 replies with no call)")
    prices: str = flag("", "your own price file (models/prices.json)")
    refiner_model: str = flag("", "the Refiner's model (the agent's)")
    harness: str = flag("ch", "min, ch, expert, or a harness.json; min and expert are baselines and stay as they are")
    bootstrap: str = flag("", "start from another run's H: its folder or its harness.json")
    frozen: bool = flag(False, "no refinement")
    schedule: str = flag("25,25,200,100", "refine at: warm-up, early period, until, late period")
    frames: int = flag(0, "a fixed number of frames a press, the paper's 120 (0: until the game has settled)")
    window: int = flag(50, "steps that the Refiner reads")
    stall: int = flag(20, "unchanged steps before the Refiner is called early (0: never)")
    vision: str = flag("auto", "on, off, auto: send the frame to the model (auto: if it can name a known picture)")
    steps: int = flag(0, "stop after so many steps (0: no limit)")
    presses: int = flag(0, "stop after so many button presses (0: no limit)")
    dollars: float = flag(0.0, "stop before the call that could pass so many dollars (0: no limit)")
    seconds: float = flag(0.0, "stop after so many seconds of this session (0: no limit)")
    seed: int = flag(0, "everything random: the cartridge, the scripted model, the sandbox")
    run: str = flag("", "the run's folder (a new one in runs/)")
    resume: bool = flag(False, "go on with --run")
    replay: bool = flag(False, "re-execute --run from its log, with no model, and compare every step")
    json: bool = flag(False, "one JSON line at the end, no progress bar")


FREE = {"run", "resume", "replay", "json", "steps", "presses", "dollars", "seconds", "model", "refiner_model", "base_url", "rom",
        "state", "actions", "prices"}        # may change on --resume
HOME = {"run", "resume", "replay", "json", "rom"}       # not part of settings.json: they say nothing about what happened


def parse(argv: list[str] | None) -> tuple[Settings, set[str]]:
    """Flags -> settings, and the names that were given. A bad flag: argparse prints one line and exits with 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.error = lambda message: (print(f"run.py: {message}; `python run.py --help` lists the flags", file=sys.stderr), sys.exit(2))
    for f in fields(Settings):
        kind = {"action": "store_true"} if f.type in (bool, "bool") else {"type": type(f.default), "metavar": f.name.upper()}
        parser.add_argument("--" + f.name.replace("_", "-"), default=argparse.SUPPRESS,
                            help=f"{f.metadata['help']}" + (f" ({f.default})" if f.default not in (False, "", 0) else ""), **kind)
    given = vars(parser.parse_args(argv))
    return Settings(**given), set(given)


def start_edits(settings: Settings) -> tuple[list[Edit], list[str]]:
    """The edits that make the run's first H, and the agent's tools."""
    name = f"expert-{GAMES.get(settings.game, settings.game)}" if settings.harness == "expert" else settings.harness
    path = HERE / "harnesses" / f"{name}.json" if "/" not in name and not name.endswith(".json") else Path(name)
    if settings.bootstrap:
        path = Path(settings.bootstrap)
        path = path / "harness.json" if path.is_dir() else path
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        row.setdefault("prompt", fill("seed_policy"))
        if settings.bootstrap:
            for part in ("subagents", "skills", "memory"):
                for entry in row.get(part, {}).values():
                    entry["source"] = "bootstrapped"
        return imported(row)
    except FileNotFoundError:
        raise BadInput(f"no harness at {path}: --harness takes min, ch, expert or a harness.json, --bootstrap a run's folder") from None
    except (ValueError, AttributeError, TypeError) as e:
        raise BadInput(f"{path} is no harness: {e}") from None


class Run:
    """One run: its folder, its logs, its agent. Made new, or from a folder (resume), or from a folder's log (replay)."""

    def __init__(self, settings: Settings, folder: Path, env: Env, models: dict[str, Model], people: list[Edit] | None = None):
        """models: by name; {} re-executes the log and nothing else. people: a person's edits that are still to be taken up."""
        self.settings, self.folder, self.env, self.models, self.live = settings, folder, env, models, bool(models)
        self.schedule, self.start, self.shown, self.refinements = Schedule.parse(settings.schedule), time.monotonic(), 0, []
        model = lambda role: models[role.startswith("refine") and settings.refiner_model or settings.model]
        head, state = read_checkpoint(folder / "checkpoint")
        self.people = people if people is not None else self.pending_people(head)
        if head and self.live:
            write_checkpoint(folder / "checkpoint", head | {"people": [asdict(e) for e in self.people]}, state)
        for name in LOGS:                    # back to the checkpoint: what came after it is written again, the same
            (folder / name).touch()
            os.truncate(folder / name, min(head.get("sizes", {}).get(name, 0), (folder / name).stat().st_size))
        self.edits = read_edits(folder / "edits.jsonl")
        first, tools = start_edits(settings) if not self.edits else ([], json.loads((folder / "settings.json").read_text())["tools"])
        self.recorder = Recorder(folder / "replies.jsonl", model if models else None, head.get("replies", 0), settings.dollars)
        self.agent = Agent(self.env, fold(self.edits, tools), self.recorder.ask, seed=settings.seed, vision=head.get("vision"),
                           on_step=self.on_step, on_edit=self.on_edit)
        for edit in first:
            self.agent.harness.apply(edit)
            self.on_edit(edit)
        self.counters = {"unchanged": 0, "key": "", "mute": 0}      # steps since the world changed; its key; replies with no call
        if head:
            self.restore(head, state)

    # -- files

    def pending_people(self, head: dict) -> list[Edit]:
        """Edits that a person made while the run was stopped and that are not in the checkpoint: they come after the log."""
        size = head.get("sizes", {}).get("edits.jsonl", 0)
        kept = len(read_rows(self.folder / "edits.jsonl", size))
        rows = head.get("people", []) + [asdict(e) for e in read_edits(self.folder / "edits.jsonl")[kept:] if e.by in ("human", "undo")]
        unique = {json.dumps({k: v for k, v in row.items() if k != "version"}, sort_keys=True): row for row in rows}
        return [Edit(**row) for row in unique.values()]

    def checkpoint(self) -> None:
        agent = self.agent
        sizes = {name: (self.folder / name).stat().st_size for name in LOGS}
        head = {"sizes": sizes, "replies": self.recorder.count, "t": agent.t, "vision": agent.vision,
                "counters": self.counters, "people": [asdict(e) for e in self.people],
                "uses": {k: asdict(v) for k, v in agent.harness.uses.items()}, "totals": {k: asdict(v) for k, v in self.recorder.totals.items()}}
        write_checkpoint(self.folder / "checkpoint", head, self.env.save())
        agent.harness.save(self.folder / "harness.json")

    def restore(self, head: dict, state: bytes) -> None:
        agent = self.agent
        self.env.load(state)
        agent.steps = [Step.from_json(row) for row in read_rows(self.folder / "trajectory.jsonl")]
        agent.threads[MAIN] = [s for s in agent.steps if s.agent == MAIN]
        agent.t, self.counters = head["t"], head["counters"]
        agent.harness.uses = {k: Uses(**v) for k, v in head["uses"].items()}
        self.recorder.totals = {k: Usage(**v) for k, v in head["totals"].items()}
        self.refinements = read_rows(self.folder / "refinements.jsonl")

    def on_step(self, step: Step) -> None:
        append_row(self.folder / "trajectory.jsonl", step.to_json())
        same = step.key == self.counters["key"]
        self.counters = {"unchanged": self.counters["unchanged"] + 1 if same else 0, "key": step.key,
                         "mute": 0 if step.reply.calls else self.counters["mute"] + 1}
        if step.milestones or step.t // SHOTS > self.shown // SHOTS:
            self.shoot(step.t)

    def on_edit(self, edit: Edit) -> None:
        self.edits.append(edit)
        append_row(self.folder / "edits.jsonl", asdict(edit))

    def shoot(self, t: int) -> None:
        """Keep the frame of this moment, for people."""
        self.shown, frame = t, self.env.observe().frame
        if frame is not None:
            (self.folder / "frames").mkdir(exist_ok=True)
            Image.fromarray(frame).save(self.folder / "frames" / f"step{t:06d}.png")

    # -- the loop

    def share(self) -> float | None:
        return cached_share([s.reply.usage for s in self.agent.steps if s.agent == MAIN])

    def limit(self) -> str:
        """Why the run ends here; '' while it goes on. Limits are looked at between steps, so a step is never half done."""
        s, progress = self.settings, self.env.observe().state["progress"]
        if len(progress["reached"]) == len(progress["milestones"]) > 0:
            return "finished"
        reached = {"steps": self.agent.t, "presses": progress["presses"], "dollars": self.recorder.total().dollars or 0,
                   "seconds": time.monotonic() - self.start}
        over = [name for name, value in reached.items() if self.live and 0 < getattr(s, name) <= value]
        return over[0] if over else "format errors" if self.counters["mute"] >= FORMAT_ERRORS else ""

    def refine_if_due(self, before: int) -> None:
        agent, s = self.agent, self.settings
        cause = "schedule" if self.schedule.due(before, agent.t) else "asked" if agent.refine_asked else \
            "stall" if 0 < s.stall <= self.counters["unchanged"] else ""
        size, agent.refine_asked = max(s.window, agent.refine_asked), 0
        if not cause or s.frozen:
            return
        window = sorted(agent.steps[-2 * size:], key=lambda step: step.t)[-size:]
        row = refine(agent.harness, window, self.env.observe().text, self.recorder.ask, step=agent.t, cause=cause,
                     tools=sorted(agent.all_tools), on_edit=self.on_edit)
        append_row(self.folder / "refinements.jsonl", row)
        self.refinements.append(row)
        self.counters["unchanged"] = 0
        self.shoot(agent.t)

    def play(self, bar: tqdm) -> str:
        """Step until a limit; returns its name. Whatever interrupts it, the last checkpoint and the logs hold everything."""
        saved, s = -EVERY, self.settings
        if self.agent.vision is None:        # the probe is a logged reply as any other, so a replay knows the answer too
            told = s.vision != "auto" or s.model == "scripted" or self.env.observe().frame is None
            self.agent.vision = s.vision == "on" if told else saw(self.recorder.ask("probe", PROBE, []))
        while True:
            while self.people and self.people[0].step <= self.agent.t:
                edit = replace(self.people.pop(0), version=self.agent.harness.version + 1)
                self.agent.harness.apply(edit)
                self.on_edit(edit)
                self.recorder.edited = True
            stopped = self.limit()
            if stopped or self.agent.t >= saved + EVERY:
                self.checkpoint()
                saved = self.agent.t
            if stopped:
                return stopped
            before = self.agent.t
            self.agent.step()
            self.refine_if_due(before)
            self.show(bar)
            if before < 12 <= self.agent.t and (self.share() or 1) < 0.7 and self.live:
                print(f"run.py: only {self.share():.0%} of the input came from the cache after turn 3", file=sys.stderr)

    def show(self, bar: tqdm) -> None:
        progress = self.env.observe().state["progress"]
        bar.total, bar.n = len(progress["milestones"]), len(progress["reached"])
        bar.set_postfix_str(f"step {self.agent.t}, presses {progress['presses']}, H version {self.agent.harness.version}, "
                            f"{self.recorder.total().money()}", refresh=False)
        bar.update(0)

    def close(self) -> None:
        self.agent.sandbox.close()
        for model in self.models.values():
            getattr(model, "close", lambda: None)()
        if hasattr(self.env, "close"):
            self.env.close()

    # -- what it came to

    def summary(self, stopped: str) -> dict:
        progress, tokens = self.env.observe().state["progress"], asdict(self.recorder.total())
        return {"run": str(self.folder), "game": self.settings.game, "steps": self.agent.t, "presses": progress["presses"],
                "milestones": progress["reached"], "refinements": len(self.refinements), "version": self.agent.harness.version,
                "dollars": tokens.pop("dollars"), "dollars_cached_at_25": tokens.pop("paper"),
                "unpriced_calls": tokens.pop("unpriced"), "tokens": tokens, "roles": {role: asdict(u) for role, u in self.recorder.totals.items() if u.input},
                "cached_share": self.share(), "stopped": stopped}

    def table(self, stopped: str) -> str:
        s, at = self.summary(stopped), {m: step.t for step in reversed(self.agent.steps) for m in step.milestones}
        lines = [f"{'milestone':28s} {'step':>6s} {'presses':>8s}"]
        for name in self.env.observe().state["progress"]["milestones"]:
            lines.append(f"{name:28s} {at[name]:6d} {s['milestones'][name]:8d}" if name in at else f"{name:28s} {'-':>6s} {'-':>8s}")
        for row in self.refinements:
            did = [f"{p['part']}: {len(p['edits'])} edit{'s' if len(p['edits']) != 1 else ''}" if p["status"] == "edited" else f"{p['part']}: failed"
                   for p in row["passes"] if p["status"] != "unchanged"]
            seen = ", ".join(dict.fromkeys(x["name"] for x in row["signatures"])) or "no failure"
            lines.append(f"refined at step {row['step']} ({row['cause']}; {seen}): {', '.join(did) or 'no change'}; H version {row['version']}")
        lines += self.recorder.bill(s["cached_share"])
        lines.append(f"{stopped}: {s['steps']} steps, {s['presses']} presses, H version {s['version']}, {self.recorder.total().money()}")
        return "\n".join(lines + [f"everything is in {self.folder}: `python harness.py log {self.folder}` lists the edits of H"])


def read_settings(settings: Settings, given: set[str]) -> Settings:
    """The settings of a run that exists, with the flags that may change."""
    path = Path(settings.run or "(no --run)", "settings.json")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BadInput(f"{path} can't be read: --resume and --replay need --run with the folder of a run") from None
    if fixed := sorted(given - FREE):
        raise BadInput(f"--{fixed[0].replace('_', '-')} can't change in a run that exists; start a new one, or leave it out")
    known = {f.name for f in fields(Settings)}
    return replace(settings, **{k: v for k, v in saved.items() if k in known and k not in given})


def new_folder(settings: Settings, folder: Path) -> None:
    """Make the run's folder with its settings.json. Raises BadInput; then nothing is left behind."""
    _, tools = start_edits(settings)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadInput(f"{folder} exists already: --resume goes on with it; or choose another --run")
        folder.mkdir(parents=True, exist_ok=True)
        row = {k: v for k, v in asdict(settings).items() if k not in HOME} | {"tools": tools}
        write_atomic(folder / "settings.json", json.dumps(row, indent=1).encode())
    except OSError as e:
        raise BadInput(f"{folder} can't be written ({e.strerror}); choose another place with --run") from None


def open_models(settings: Settings, folder: Path) -> dict[str, Model]:
    """The agent's model and the Refiner's, by name. What they have to say on the way goes to model.log. Raises ModelError."""
    options = {"actions": settings.actions, "prices": settings.prices, "log": lambda line: append_line(folder / "model.log", line)}
    return {name: open_model(name, settings.seed, settings.base_url, **options)
            for name in sorted({settings.model, settings.refiner_model or settings.model})}


def open_game(settings: Settings) -> Env:
    return open_env(settings.game, settings.rom or os.environ.get("CH_ROM", ""), settings.seed, settings.frames, settings.state)


def replay(settings: Settings, folder: Path) -> int:
    """Re-execute the log in a copy and compare each step with the logged one. 0 when all are equal."""
    logged = [Step.from_json(row) for row in read_rows(folder / "trajectory.jsonl")]
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("settings.json", "replies.jsonl"):
            shutil.copy(folder / name, tmp)
        people = [e for e in read_edits(folder / "edits.jsonl") if e.by in ("human", "undo")]
        run, differs = Run(settings, Path(tmp), open_game(settings), {}, people), ""
        try:
            run.play(tqdm(disable=True))
        except LogEnd:
            pass
        except Diverged as e:
            differs = str(e)
        run.close()
        for old, new in zip(logged, run.agent.steps):
            if old != new and not differs:
                field_ = next(f.name for f in fields(Step) if getattr(old, f.name) != getattr(new, f.name))
                differs = f"step {old.t}: {field_} was {str(getattr(old, field_))[:200]!r} and is now {str(getattr(new, field_))[:200]!r}"
        if not differs and len(run.agent.steps) != len(logged):
            differs = f"{len(logged)} steps in the log, {len(run.agent.steps)} re-executed"
    print(differs or f"replayed {len(logged)} steps from {folder}: every key, prompt hash and result is equal")
    return 1 if differs else 0


def main(argv: list[str] | None = None) -> int:
    settings, given = parse(argv)
    run = None
    try:
        if settings.resume or settings.replay:
            settings = read_settings(settings, given)
        settings.frozen = settings.frozen or settings.harness in ("min", "expert") and not settings.bootstrap
        Schedule.parse(settings.schedule)
        if settings.replay:
            with locked(Path(settings.run)):
                return replay(settings, Path(settings.run))
        if any(c in settings.base_url for c in "@?"):
            raise BadInput("--base-url is written into the run's folder: no user, password or key in it; set OPENAI_API_KEY")
        if settings.actions not in ("auto", "tools", "json"):
            raise BadInput(f"--actions {settings.actions}: it takes auto, tools or json")
        folder = Path(settings.run or HERE / "runs" / f"{settings.game}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        models, env = open_models(settings, folder), open_game(settings)       # before anything is written
        if not settings.resume:
            new_folder(settings, folder)
        with locked(folder):
            run = Run(settings, folder, env, models)
            status, stopped = play(run)
            print(json.dumps(run.summary(stopped)) if settings.json else run.table(stopped))
            return status
    except (BadInput, ModelError) as e:
        print(f"run.py: {e}", file=sys.stderr)
        return 2
    finally:
        if run is not None:
            run.close()


def play(run: Run) -> tuple[int, str]:
    """Play with a progress bar. Returns the exit status and why the run stopped."""
    with tqdm(disable=True if run.settings.json else None, desc=run.settings.game,
              bar_format="{desc}: {n}/{total} milestones {bar:20} {postfix}") as bar:
        try:
            return 0, run.play(bar)
        except BudgetEnd:
            return 0, "dollars"
        except KeyboardInterrupt:
            return 130, "interrupted"
        except ModelError as e:
            print(f"run.py: {e}. All is saved: `python run.py --run {run.folder} --resume` goes on.", file=sys.stderr)
            return 2, "model error"


if __name__ == "__main__":
    sys.exit(main())
