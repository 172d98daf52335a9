"""The environment: what the agent sees, and the only place where the game moves.

`Env` is the whole contract. A new domain is a new file in games/ (toy.py is the template) with a class `Game` that either
is an Env itself or, for a Game Boy game, says how its memory is read (red.py) and is played through `GameBoy` below.

Departures from the paper (section 3): the game moves only when an action says so, never while the model thinks, and a
press waits until the game has settled instead of a fixed 120 frames (`--frames 120` gives the paper's step).
"""
import contextlib
import importlib
import io
import json
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models import Reply, digest
from runlog import BadInput

HOLD, CAP = 8, 1200                  # frames: a button is held; the longest wait for the game to settle
BUTTONS = ["A", "B", "START", "SELECT", "UP", "DOWN", "LEFT", "RIGHT", "WAIT"]
GAMES = {"blue": "red", "yellow": "red"}                 # names that another file plays


@dataclass(frozen=True)
class Observation:
    text: str                        # what the model reads
    frame: np.ndarray | None         # (height, width, 3) uint8, or None where there is no picture
    state: dict                      # JSON-able; skills see all of it but "progress"
    key: str                         # unchanged key = the world did not change, as far as a player can see


@dataclass(frozen=True)
class Step:
    """One turn of an agent: a row of trajectory.jsonl. The prompt is rebuilt from these rows, so only its hash is kept."""

    t: int                           # turns so far, sub-agents' included; 1 is the first
    agent: str                       # "orchestrator", or "<sub-agent's id>@<step that called it>"
    version: int                     # H's version when the model was asked
    obs: str | None                  # the observation sent; None: answered in the same conversation
    key: str                         # the world's key before the calls
    place: str                       # "location (x, y)" before the calls
    sha: str                         # hash of the messages and tools that the model was sent
    reply: Reply
    results: list[dict]              # one a call, in order
    presses: int                     # button presses of the whole run, after this step
    milestones: list[str]            # those reached in this step

    def to_json(self) -> dict:
        return {**self.__dict__, "reply": self.reply.to_json()}

    def line(self) -> str:
        """The step in one line: where, what was called, what came of it. The Refiner's window is made of these."""
        cut = lambda text, size: text if len(text) <= size else text[:size] + "…"
        short = lambda value, size: cut(json.dumps(value, ensure_ascii=False), size)
        args = lambda c: {k: v for k, v in c.args.items() if k != "reasoning"} if isinstance(c.args, dict) else c.args
        did = "; ".join(f"{c.name} {short(args(c), 240)} -> {short(r, 600)}" for c, r in zip(self.reply.calls, self.results))
        said = f" says {self.reply.text[:160]!r}:" if self.reply.text else ":"
        end = f" MILESTONES {', '.join(self.milestones)}" if self.milestones else ""
        return f"[{self.t}] {self.agent} at {self.place}{said} {did or 'no tool call'}{end}"

    @staticmethod
    def from_json(row: dict) -> "Step":
        return Step(**{**row, "reply": Reply.from_json(row["reply"])})


class Env(Protocol):
    """A world without reset. `tools` is its action vocabulary: {name: (description, JSON Schema of the arguments)}.

    `observe().state["progress"]` = {"milestones": [all, in order], "reached": {name: presses}, "presses": int}.
    `act` never raises for a bad action: the result says what was wrong and the world has not moved.
    """

    tools: dict[str, tuple[str, dict]]

    def observe(self) -> Observation: ...
    def act(self, name: str, args: dict) -> dict: ...
    def save(self) -> bytes: ...
    def load(self, data: bytes) -> None: ...


def open_env(game: str, rom: str = "", seed: int = 0, frames: int = 0, state: str = "") -> Env:
    """The environment of `game`, looked up by name in games/; `state`: a PyBoy state to start from. Raises BadInput."""
    name = GAMES.get(game, game)
    files = {p.stem for p in (Path(__file__).parent / "games").glob("*.py")} - {"__init__", "red_data"}
    if name not in files:
        raise BadInput(f"--game {game}: no such game; choose one of {', '.join(sorted(files | set(GAMES)))}")
    made = importlib.import_module(f"games.{name}").Game(seed=seed)
    if hasattr(made, "act"):
        if state:
            raise BadInput(f"--state {state}: {game} has no emulator; leave the flag out")
        return made
    try:
        data = made.rom(rom)
    except OSError as e:
        raise BadInput(f"{rom} can't be read ({e.strerror}): --rom or CH_ROM takes the path of your own .gb file") from None
    if len(data) < 0x8000 or len(data) % 0x4000 or sum(-b - 1 for b in data[0x134:0x14D]) & 0xFF != data[0x14D]:
        raise BadInput(f"--rom {rom} is no Game Boy cartridge: its length or its header's checksum is wrong; give a .gb file")
    return GameBoy(made, data, frames, state)


class GameBoy:
    """A Game Boy cartridge under PyBoy. Moves only inside `act`; the same presses give the same memory, bit for bit."""

    tools = {"press_buttons": (
        "Press buttons one after another. Each is held for a moment, then the game runs on until it wants input again. "
        "WAIT presses nothing for a moment.",
        {"type": "object", "properties": {
            "buttons": {"type": "array", "items": {"type": "string", "enum": BUTTONS}, "minItems": 1, "maxItems": 20},
            "reasoning": {"type": "string"}}, "required": ["buttons", "reasoning"], "additionalProperties": False})}

    def __init__(self, game: Any, rom: bytes, frames: int = 0, state: str = ""):
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyboy import PyBoy
        self.game, self.frames, self.presses, self.reached, self.now = game, frames, 0, {}, None
        # subtle: from memory, never from a path: PyBoy would read and write a ROM.ram beside the user's file.
        self.boy = PyBoy(io.BytesIO(rom), window="null", sound_emulated=False, log_level="ERROR", no_input=True)
        self.mem = game.view(self.boy.memory)
        self.game.prepare(self.mem)
        self.boy.tick(90, False, False)                              # PyBoy's own boot ROM takes 80 frames
        if state:
            self.start_from(state)
        self.settle()

    def start_from(self, path: str) -> None:
        """Begin from a PyBoy state. Raises BadInput. A state does not say which ROM it is of: its size and memory must fit."""
        own, wrong = self.snapshot(), ""
        try:
            data = Path(path).read_bytes()
            if data[:1] != own[:1]:
                found = f"format {data[0]}" if data else "empty"
                wrong = f"is no state of this PyBoy ({found}, this version writes format {own[0]}): save it again here"
            elif len(data) != len(own):
                wrong = f"is damaged or of another ROM: {len(data):,} bytes, a state of this ROM has {len(own):,}"
            else:
                self.boy.load_state(io.BytesIO(data))
                wrong = "" if self.game.belongs(self.mem) else "was saved with another ROM than --rom: its map is another's"
        except OSError as e:
            wrong = f"can't be read ({e.strerror})"
        except Exception as e:               # PyBoy raises many kinds
            wrong = f"is damaged or of another ROM: {e}"
        if wrong:
            raise BadInput(f"--state {path} {wrong}")

    def snapshot(self) -> bytes:
        out = io.BytesIO()
        self.boy.save_state(out)
        return out.getvalue()

    def read(self) -> dict:
        """The state, read from memory once after each move. Callers get the same dict: nobody changes it."""
        if self.now is None:
            self.now = self.game.read(self.mem)
        return self.now

    def settle(self) -> bool:
        """Run until the game wants input: control in the overworld, an arrow or a cursor, or a still screen.

        False when it was still busy after CAP frames.
        """
        self.now = None
        if self.frames:
            self.boy.tick(self.frames, True, False)
            return True
        seen, still, quiet, done, waited = (None, None), 0, 0, False, 0
        while not done and waited < CAP:
            self.boy.tick(4, False, False)
            old, seen = seen, (self.mem[0xC3A0:0xC508], self.game.picture(self.mem))
            still, quiet = still + 4 if seen[0] == old[0] else 0, quiet + 4 if seen == old else 0       # frames
            wanted = self.game.settled(self.mem) or self.game.prompt(self.mem)
            done, waited = still >= 8 and wanted or quiet >= self.game.patience(self.mem), waited + 4
        self.boy.tick(1, True, False)                                # draw the picture once, at rest
        return done

    def press(self, button: str) -> str:
        """One button press. Returns a line of feedback: what lay ahead, and whether the player moved."""
        before = self.read()
        if button != "WAIT":
            self.boy.button_press(button.lower())
        self.boy.tick(HOLD, False, False)
        if button != "WAIT":
            self.boy.button_release(button.lower())
        settled = self.settle()
        self.presses += 1
        if self.game.settled(self.mem):      # never during a fade: there the map is new and the position still old
            self.game.tune(self.mem)
            for name in self.game.reached(self.mem):
                self.reached.setdefault(name, self.presses)
        return self.game.feedback(button, before, self.read()) + ("" if settled else " (busy)")

    def act(self, name: str, args: dict) -> dict:
        if name != "press_buttons":
            return {"success": False, "error": f"no such action: {name}; the actions are {', '.join(self.tools)}"}
        if bad := [b for b in args.get("buttons") or ["(none)"] if b not in BUTTONS]:
            known = f"the buttons are {' '.join(BUTTONS)}; nothing was pressed"
            return {"success": False, "error": f"not a button: {bad[0]}; {known}"}
        had = list(self.reached)
        trace = [self.press(b) for b in args["buttons"]]
        new = [m for m in self.reached if m not in had]
        return {"success": True, "presses": len(trace), "trace": trace} | ({"milestones": new} if new else {})

    def observe(self) -> Observation:
        state = dict(self.read())
        # People who walk by themselves are not in the key: a blocked player must not look like progress.
        # Nor is the clock.
        seen = {k: v for k, v in state.items() if k not in ("map", "play_time")}
        key = digest(seen, state["map"]["signs"], state["map"]["warps"])
        state["progress"] = {"milestones": list(self.game.milestones), "reached": dict(self.reached), "presses": self.presses}
        return Observation(self.game.render(state), self.boy.screen.ndarray[:, :, :3].copy(), state, key)

    def save(self) -> bytes:
        """Nothing is queued between presses, so a PyBoy state holds all of the emulator; ours is put in front."""
        head = json.dumps({"game": self.game.name, "presses": self.presses, "reached": self.reached}).encode()
        return head + b"\n" + zlib.compress(self.snapshot(), 1)

    def load(self, data: bytes) -> None:
        line, _, state = data.partition(b"\n")
        head = json.loads(line)
        if head["game"] != self.game.name:
            raise BadInput(f"this state belongs to {head['game']}, not to {self.game.name}")
        self.boy.load_state(io.BytesIO(zlib.decompress(state)))
        self.now, self.presses, self.reached = None, head["presses"], head["reached"]

    def close(self) -> None:
        self.boy.stop(save=False)
