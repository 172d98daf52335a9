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
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

if sys.version_info < (3, 10):
    print("run.py needs Python 3.10 or newer; this is " + sys.version.split()[0], file=sys.stderr)
    sys.exit(2)
try:
    from PIL import Image
    from tqdm import tqdm

    from ch import MAIN, Agent, skill_api
    from env import Env, Step
    from guard import Guard, commit, rollback
    from harness import Edit, Uses, fold, read_edits
    from models import Model, ModelError, Usage
    from models.vision import PROBE, saw
    from people import PEOPLE, pending, review, take_up
    from refiner import Schedule, refine
    from runlog import (BadInput, BudgetEnd, Diverged, LogEnd, Recorder, append_row, cached_share, locked, read_checkpoint,
                        read_rows, write_checkpoint)
    from settings import Settings, new_folder, open_game, open_models, open_named, parse, read_settings, start_edits
    from sft import iteration, served
    from signatures import lost
except ModuleNotFoundError as e:
    print(f"run.py: the package {e.name} is not installed; run `make play`, or `pip install .` in this folder", file=sys.stderr)
    sys.exit(2)

EVERY, SHOTS, FORMAT_ERRORS = 10, 25, 10     # steps between checkpoints, between frames; replies without a call that end a run
LOGS = ("trajectory.jsonl", "edits.jsonl", "refinements.jsonl")


class Run:
    """One run: its folder, its logs, its agent. Made new, or from a folder (resume), or from a folder's log (replay)."""

    def __init__(self, settings: Settings, folder: Path, env: Env, models: dict[str, Model], people: list[Edit] | None = None):
        """models: by name; {} re-executes the log and nothing else. people: a person's edits that are still to be taken up."""
        self.settings, self.folder, self.env, self.models, self.live = settings, folder, env, models, bool(models)
        self.schedule, self.start, self.shown, self.refinements = Schedule.parse(settings.schedule), time.monotonic(), 0, []
        self.theta = {"k": 0, "since": 0, "made": 0}     # --colearn: iterations done, their last step, newest theta (0: none)
        self.counters = {"unchanged": 0, "key": "", "mute": 0}      # steps since the world changed; its key; replies with no call
        head, state = read_checkpoint(folder / "checkpoint")
        tools, sizes = json.loads((folder / "settings.json").read_text())["tools"], head.get("sizes", {})
        self.people = pending(folder, head) if people is None else people
        if head and self.live:
            write_checkpoint(folder / "checkpoint", head | {"people": [asdict(e) for e in self.people]}, state)
        if (folder / "harness.json").exists():       # back with the log, or the difference would look like a person's edit
            kept = read_rows(folder / "edits.jsonl", sizes.get("edits.jsonl", 0))
            fold((Edit(**row) for row in kept), tools).save(folder / "harness.json")
        for name in LOGS:                    # back to the checkpoint: what came after it is written again, the same
            (folder / name).touch()
            os.truncate(folder / name, min(sizes.get(name, 0), (folder / name).stat().st_size))
        self.edits = read_edits(folder / "edits.jsonl")
        self.recorder = Recorder(folder / "replies.jsonl", (lambda role: models[settings.model_of(role)]) if models else None,
                                 head.get("replies", 0), settings.dollars)
        self.agent = Agent(self.env, fold(self.edits, tools), self.recorder.ask, seed=settings.seed, vision=head.get("vision"),
                           on_step=self.on_step, on_edit=self.on_edit)
        self.agent.harness.reuse = not settings.no_reuse
        for edit in [] if self.edits else start_edits(settings)[0]:
            self.agent.harness.apply(edit)
            self.on_edit(edit)
        limits = {"need": settings.delta, "alternatives": settings.alternatives, "seed": settings.seed}
        self.guard = Guard(open_game(settings), self.recorder.ask, bound=float(settings.guard), **limits) \
            if settings.guard and not settings.frozen else None
        if head:
            self.restore(head, state)

    # -- files

    def checkpoint(self) -> None:
        agent = self.agent
        sizes = {name: (self.folder / name).stat().st_size for name in LOGS}
        head = {"sizes": sizes, "replies": self.recorder.count, "t": agent.t, "vision": agent.vision, "theta": self.theta,
                "counters": self.counters, "people": [asdict(e) for e in self.people],
                "uses": {k: asdict(v) for k, v in agent.harness.uses.items()}, "guard": self.guard and self.guard.to_json(),
                "totals": {k: asdict(v) for k, v in self.recorder.totals.items()}}
        write_checkpoint(self.folder / "checkpoint", head, self.env.save())
        agent.harness.save(self.folder / "harness.json")

    def restore(self, head: dict, state: bytes) -> None:
        agent = self.agent
        self.env.load(state)
        agent.steps = [Step.from_json(row) for row in read_rows(self.folder / "trajectory.jsonl")]
        agent.threads[MAIN] = [s for s in agent.steps if s.agent == MAIN]
        agent.t, self.counters, self.theta = head["t"], head["counters"], head.get("theta", self.theta)
        self.load_theta()
        agent.harness.uses = {k: Uses(**v) for k, v in head["uses"].items()}
        self.recorder.totals = {k: Usage(**v) for k, v in head["totals"].items()}
        self.refinements = read_rows(self.folder / "refinements.jsonl")
        if self.guard:
            self.guard.restore(head["guard"], read_rows(self.recorder.path)[:head["replies"]])

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
        if 0 < s.colearn <= self.theta["k"]:
            return "iterations"
        over = [name for name, value in reached.items() if self.live and 0 < getattr(s, name) <= value]
        return over[0] if over else "format errors" if self.counters["mute"] >= FORMAT_ERRORS else ""

    def event(self, before: int) -> str:
        """What --refine-on waits for, if it came about after step `before`; else ""."""
        new, wanted = [s for s in self.agent.steps if s.t > before], self.settings.refine_on.split(",")
        seen = {"milestone": any(s.milestones for s in new), "loss": bool(lost(new))}
        return next((name for name in wanted if seen.get(name)), "")

    def refine_if_due(self, before: int) -> None:
        agent, s = self.agent, self.settings
        # The last step's own effect shows in the key of the next one only, so the world is looked at once more.
        unchanged = self.counters["unchanged"] + (self.env.observe().key == self.counters["key"])
        cause = "schedule" if self.schedule.due(before, agent.t) else "asked" if agent.refine_asked else \
            "stall" if 0 < s.stall <= unchanged else self.event(before)
        size, agent.refine_asked = max(s.window, agent.refine_asked), 0
        if not cause or s.frozen:
            return
        window = sorted(agent.steps[-2 * size:], key=lambda step: step.t)[-size:]
        ask, make = self.recorder.ask, self.guard.refine if self.guard else refine
        row = make(agent.harness, window, self.env.observe().text, ask, step=agent.t, cause=cause, on_edit=self.on_edit,
                   tools=sorted(agent.all_tools), api=skill_api(self.env.tools), dry_run=agent.dry_run, retire=not s.no_retire,
                   **({"review": lambda harness, edits: review(harness, edits, ask)} if s.review else {}))
        append_row(self.folder / "refinements.jsonl", row)
        self.refinements.append(row)
        if s.rollback:
            back = rollback(agent.harness, self.edits, agent.steps, self.refinements, s.rollback, agent.t)
            commit(agent.harness, back, self.on_edit)
        self.counters["unchanged"] = -1      # this step's own effect has been counted
        self.shoot(agent.t)

    def improve_if_due(self) -> None:
        """--colearn: after each iteration score, relabel and train; theta_{k+1} plays on in the same game with the same H."""
        s = self.settings
        if not s.colearn or self.agent.t < s.iteration * (self.theta["k"] + 1):
            return
        self.theta = iteration(self.theta, s, self.folder, self.agent, self.edits, self.live)
        self.load_theta()
        if self.guard:
            self.guard.forget(self.recorder.count)
        if s.reset_each:
            fresh = open_game(s)
            self.env.load(fresh.save())
            getattr(fresh, "close", lambda: None)()

    def load_theta(self) -> None:
        """The newest theta answers for the agent's model from now on."""
        s, out = self.settings, self.folder / f"theta_{self.theta['made']}"
        if self.live and self.theta["made"]:
            old, self.models[s.model] = self.models[s.model], open_named(s, self.folder, served(s, out))
            getattr(old, "close", lambda: None)()

    def play(self, bar: tqdm) -> str:
        """Step until a limit; returns its name. Whatever interrupts it, the last checkpoint and the logs hold everything."""
        saved, s = -EVERY, self.settings
        if self.agent.vision is None:        # the probe is a logged reply as any other, so a replay knows the answer too
            told = s.vision != "auto" or s.model == "scripted" or s.is_student() or self.env.observe().frame is None
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
            self.guard.step(self.agent) if self.guard else self.agent.step()
            self.refine_if_due(before)
            self.improve_if_due()
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
        if self.guard:
            self.guard.close()
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
                "unpriced_calls": tokens.pop("unpriced"), "tokens": tokens,
                "roles": {role: asdict(u) for role, u in self.recorder.totals.items() if u.input},
                "cached_share": self.share(), "stopped": stopped}

    def table(self, stopped: str) -> str:
        s, at = self.summary(stopped), {m: step.t for step in reversed(self.agent.steps) for m in step.milestones}
        edits = lambda made: f"{len(made)} edit" + "s" * (len(made) != 1)
        lines = [f"{'milestone':28s} {'step':>6s} {'presses':>8s}"]
        for name in self.env.observe().state["progress"]["milestones"]:
            lines.append(f"{name:28s} {at.get(name, '-'):>6} {s['milestones'][name] if name in at else '-':>8}")
        for row in self.refinements:
            did = [f"{p['part']}: {edits(p['edits']) if p['status'] == 'edited' else p['status']}"
                   for p in row["passes"] if p["status"] != "unchanged"]
            did += [f"upkeep: {edits(row['upkeep'])}"] if row.get("upkeep") else []
            seen = ", ".join(dict.fromkeys(x["name"] for x in row["signatures"])) or "no failure"
            lines.append(f"refined at step {row['step']} ({row['cause']}; {seen}): {', '.join(did) or 'no change'}; "
                         f"H version {row['version']}")
        lines += self.recorder.bill(s["cached_share"])
        end = f"{s['steps']} steps, {s['presses']} presses, H version {s['version']}, {self.recorder.total().money()}"
        return "\n".join(lines + [f"{stopped}: {end}",
                                  f"everything is in {self.folder}: `python harness.py log {self.folder}` lists the edits of H"])


def difference(old: list[Step], new: list[Step]) -> str:
    """The first difference between two trajectories, in words; "" when they are equal."""
    short = lambda step, name: repr(str(getattr(step, name))[:200])
    for a, b in zip(old, new):
        if a != b:
            name = next(f.name for f in fields(Step) if getattr(a, f.name) != getattr(b, f.name))
            return f"step {a.t}: {name} was {short(a, name)} and is now {short(b, name)}"
    return f"{len(old)} steps in the log, {len(new)} re-executed" if len(old) != len(new) else ""


def replay(settings: Settings, folder: Path) -> int:
    """Re-execute the log in a copy and compare each step with the logged one. 0 when all are equal."""
    logged, differs = [Step.from_json(row) for row in read_rows(folder / "trajectory.jsonl")], ""
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("settings.json", "replies.jsonl"):
            shutil.copy(folder / name, tmp)
        people = [e for e in read_edits(folder / "edits.jsonl") if e.by in PEOPLE]
        run = Run(settings, Path(tmp), open_game(settings), {}, people)
        try:
            run.play(tqdm(disable=True))
        except LogEnd:
            pass
        except Diverged as e:
            differs = str(e)
        run.close()
    differs = differs or difference(logged, run.agent.steps)
    print(differs or f"replayed {len(logged)} steps from {folder}: every key, prompt hash and result is equal")
    return 1 if differs else 0


def main(argv: list[str] | None = None) -> int:
    settings, given = parse(__doc__, argv)
    run = None
    try:
        if settings.resume or settings.replay:
            settings = read_settings(settings, given)
        settings.check()
        Schedule.parse(settings.schedule)
        if settings.replay:
            with locked(Path(settings.run)):
                return replay(settings, Path(settings.run))
        name = f"{settings.game}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder = Path(settings.run or Path(__file__).parent / "runs" / name)
        models, env = open_models(settings, folder), open_game(settings)       # before anything is written
        if not settings.resume:
            new_folder(settings, folder)
        with locked(folder):
            if settings.resume:
                take_up(folder)
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
        before = signal.signal(signal.SIGINT, run.recorder.stop)
        try:
            return 0, run.play(bar)
        except BudgetEnd:
            return 0, "dollars"
        except KeyboardInterrupt:
            return 130, "interrupted"
        except (BadInput, ModelError) as e:
            print(f"run.py: {e}. All is saved: `python run.py --run {run.folder} --resume` goes on.", file=sys.stderr)
            return 2, "error"
        finally:
            signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
