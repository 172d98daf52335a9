"""A grid world with no emulator, ten lines of rules: the template for a new domain. Copy, rename, change the rules.

The walker starts at the left; the milestones are taking the key and leaving the room. Everything the contract wants is here: see env.Env.
"""
import json

from env import Observation
from models import digest

ROOM = ["#######", "#.....#", "#.###.#", "#..k#E#", "#######"]
MOVES = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
KEY, EXIT = "took the key", "left the room"


class Toy:
    tools = {"move": ("Walk one cell.", {
        "type": "object", "properties": {"direction": {"type": "string", "enum": list(MOVES)}, "reasoning": {"type": "string"}},
        "required": ["direction"], "additionalProperties": False})}

    def __init__(self, seed: int = 0):
        self.x, self.y, self.presses, self.reached = 1, 1, 0, {}

    def observe(self) -> Observation:
        rows = [list(row) for row in ROOM]
        rows[self.y][self.x] = "P"
        grid = ["".join(row) for row in rows]
        state = {"location": "room", "player_position": {"x": self.x, "y": self.y}, "context": "overworld",
                 "keys": int(KEY in self.reached), "map": {"grid": grid}}
        text = "\n".join(["Game State: overworld", f"Position: x={self.x}, y={self.y}, keys {state['keys']}", "ASCII Map:", *grid,
                          "(top-left cell is x=0, y=0; P you, . floor, # wall, k key, E exit: opens with the key)"])
        key = digest(state)
        state["progress"] = {"milestones": [KEY, EXIT], "reached": dict(self.reached), "presses": self.presses}
        return Observation(text, None, state, key)

    def act(self, name: str, args: dict) -> dict:
        if name != "move" or args.get("direction") not in MOVES:
            return {"success": False, "error": f"no such move: {name} {args}; the moves are {', '.join(MOVES)}"}
        dx, dy = MOVES[args["direction"]]
        cell, had, at = ROOM[self.y + dy][self.x + dx], set(self.reached), (self.x, self.y)
        if cell != "#" and (cell != "E" or KEY in self.reached):
            self.x, self.y = self.x + dx, self.y + dy
        self.presses += 1
        if cell == "k":
            self.reached.setdefault(KEY, self.presses)
        if cell == "E" and KEY in self.reached:
            self.reached.setdefault(EXIT, self.presses)
        moved = f"-> {(self.x, self.y)}" if (self.x, self.y) != at else "blocked"
        new = [m for m in self.reached if m not in had]
        return {"success": True, "presses": 1, "trace": [f"{args['direction']} '{cell}' {at} {moved}"]} | ({"milestones": new} if new else {})

    def save(self) -> bytes:
        return json.dumps([self.x, self.y, self.presses, self.reached]).encode()

    def load(self, data: bytes) -> None:
        self.x, self.y, self.presses, self.reached = json.loads(data)


Game = Toy
