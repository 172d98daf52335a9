"""A run's settings: a field of `Settings` is a flag of run.py and a key of settings.json. Also what the flags open."""
import argparse
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from env import GAMES, Env, open_env
from harness import Edit, imported
from models import Model, fill, open_model
from people import PERSON, Person
from runlog import BadInput, append_line, write_atomic
from tools.bootstrap import read_any

HERE = Path(__file__).parent


def flag(default: object, help: str) -> object:
    return field(default=default, metadata={"help": help})


@dataclass
class Settings:
    """One field a flag: its name, its default, its help."""

    game: str = flag("lantern", "lantern, toy, red, blue, yellow")
    rom: str = flag("", "red, blue, yellow: your own ROM (or the environment variable CH_ROM)")
    state: str = flag("", "start from a PyBoy state of that ROM instead of from power-on")
    model: str = flag("scripted", "scripted, student[:FILE.npz], local (a tiny real one, `make local`), or a model's name")
    base_url: str = flag("", "an OpenAI-compatible server; without it the provider follows from the model's name")
    actions: str = flag("auto", "how calls are made: tools, json (by response_format), auto (json after 3 replies with no call)")
    prices: str = flag("", "your own price file (models/prices.json)")
    refiner_model: str = flag("", "the Refiner's model (the agent's; scripted when that is a student)")
    judge_model: str = flag("", "--colearn: who compares windows (as the Refiner's; scripted judges by rule)")
    teacher_model: str = flag("", "--colearn: who answers the states of low-reward windows (as the Refiner's; self: nobody)")
    colearn: int = flag(0, "so many iterations of play, score, relabel, train (0: theta stays as it is)")
    iteration: int = flag(256, "--colearn: steps an iteration")
    trainer_python: str = flag("", "--colearn: the Python with torch, transformers and peft that trains a language model")
    weights: str = flag("", "--colearn: the weights behind --model, a folder or a name that transformers knows (not for local)")
    trainer: str = flag("", "--colearn: other settings for it than the paper's, as JSON: {\"r\": 16}")
    reset_each: bool = flag(False, "--colearn, a control: every iteration starts the game anew")
    harness: str = flag("ch", "min, ch, expert, or a harness.json; min and expert are baselines and stay as they are")
    bootstrap: str = flag("", "start from another H: a run's folder, a harness.json, the reference's folder, a workspace tree")
    frozen: bool = flag(False, "no refinement; the agent may still write its own memory")
    schedule: str = flag("25,25,200,100", "refine at: warm-up, early period, until, late period")
    frames: int = flag(0, "a fixed number of frames a press, the paper's 120 (0: until the game has settled)")
    window: int = flag(50, "steps that the Refiner reads")
    stall: int = flag(20, "unchanged steps before the Refiner is called early (0: never)")
    refine_on: str = flag("", "milestone, loss, or milestone,loss: call the Refiner at these events, too")
    no_reuse: bool = flag(False, "ablation: no ranking of H by worth, near-duplicates are new entries")
    no_retire: bool = flag(False, "ablation: entries that fail or are of no use stay")
    review: bool = flag(False, "a person sees each change of H by the Refiner as a diff: y, n, or e to edit it")
    guard: str = flag("", "evaluate each refinement on forks before it goes live; how many lost anchors are allowed: a number, or inf")
    delta: float = flag(0.0, "--guard: the least gain on the validation cases, a share of them")
    alternatives: int = flag(3, "--guard: how many versions of one part's edits are tried")
    rollback: int = flag(0, "after so many refinements in a stall, back to the H that last reached a milestone (0: never)")
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

    def model_of(self, role: str) -> str:
        """The name of the model that plays a role: agent, subagent, probe, guard, history, judge, teacher, or one of the refiner's."""
        if role == "review":
            return PERSON
        if role in ("agent", "subagent", "probe", "guard"):
            return self.model
        named = {"refine": "", "judge": self.judge_model, "teacher": self.teacher_model}.get(role.split("_")[0])
        return named or named is not None and self.refiner_model or ("scripted" if self.is_student() else self.model)

    def is_student(self) -> bool:
        return self.model.partition(":")[0] == "student"

    def check(self) -> None:
        """Raises BadInput for values that no flag's type can catch."""
        self.frozen = self.frozen or self.harness in ("min", "expert") and not self.bootstrap
        if self.colearn and (self.colearn < 0 or self.iteration < 16):
            raise BadInput(f"--colearn {self.colearn} --iteration {self.iteration}: iterations of at least 16 steps each")
        served = self.model == "local" or self.weights and self.base_url
        if self.colearn and not self.is_student() and not (self.trainer_python and served):
            raise BadInput("--colearn: --model student; --model local with --trainer-python; or any language model with "
                           "--trainer-python, --weights and --base-url")
        try:
            json.loads(self.trainer or "{}").items()
        except (ValueError, AttributeError):
            raise BadInput(f"--trainer {self.trainer}: it takes a JSON object like {{\"r\": 16}}") from None
        if any(c in self.base_url for c in "@?"):
            raise BadInput("--base-url is written into the run's folder: no user, password or key in it; set OPENAI_API_KEY")
        if odd := set(filter(None, self.refine_on.split(","))) - {"milestone", "loss"}:
            raise BadInput(f"--refine-on {', '.join(sorted(odd))}: it takes milestone, loss, or milestone,loss")
        if self.actions not in ("auto", "tools", "json"):
            raise BadInput(f"--actions {self.actions}: it takes auto, tools or json")
        if self.guard and not re.fullmatch(r"\d+|inf", self.guard) or self.alternatives < 1 or self.rollback < 0:
            raise BadInput(f"--guard {self.guard} --alternatives {self.alternatives} --rollback {self.rollback}: --guard takes a whole "
                           "number or inf, --alternatives 1 or more, --rollback 0 or more")


FREE = {"run", "resume", "replay", "json", "steps", "presses", "dollars", "seconds", "model", "refiner_model", "base_url", "rom",
        "state", "actions", "prices", "trainer_python", "trainer"}        # may change on --resume
HOME = {"run", "resume", "replay", "json", "rom"}       # not part of settings.json: they say nothing about what happened


def parse(doc: str, argv: list[str] | None) -> tuple[Settings, set[str]]:
    """Flags -> settings, and the names that were given. A bad flag: argparse prints one line and exits with 2."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
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
    path = Path(settings.bootstrap) if settings.bootstrap else path
    try:
        row = read_any(path)
        row["prompt"] = row.get("prompt") or fill("seed_policy")
        if settings.bootstrap:
            for part in ("subagents", "skills", "memory"):
                for entry in row.get(part, {}).values():
                    entry["source"] = "bootstrapped"
        return imported(row)
    except FileNotFoundError:
        raise BadInput(f"no harness at {path}: --harness takes min, ch, expert or a harness.json, --bootstrap what its help says") from None
    except (ValueError, AttributeError, TypeError) as e:
        raise BadInput(f"{path} is no harness: {e}") from None


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


def open_named(settings: Settings, folder: Path, name: str) -> Model:
    """What it has to say on the way goes to model.log. Raises ModelError."""
    return open_model(name, settings.seed, settings.base_url, actions=settings.actions, prices=settings.prices,
                      log=lambda line: append_line(folder / "model.log", line))


def open_models(settings: Settings, folder: Path) -> dict[str, Model]:
    """The models of all roles, by name."""
    roles = ("agent", "refine", "history") + ("judge", "teacher") * bool(settings.colearn)
    models = {name: open_named(settings, folder, name) for name in sorted({settings.model_of(role) for role in roles} - {"self"})}
    return models | ({PERSON: Person()} if settings.review else {})


def open_game(settings: Settings) -> Env:
    return open_env(settings.game, settings.rom or os.environ.get("CH_ROM", ""), settings.seed, settings.frames, settings.state)
