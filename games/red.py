"""Pokémon Red's memory -> what a person sees on the screen: text map, text, party. lantern.py reads through it too.

Reads from any object that answers `mem[a]`, `mem[a:b]` (WRAM and ROM bank 0) and `mem[bank, a]` (ROM): PyBoy's memory or
a recorded image. Addresses are those that the pret/pokered disassembly documents; names are its symbols.

Covered: the overworld (map, marks, people, signs, doors), text and menus with their cursor, party, bag, money.
Not covered: hidden items, scripts of people, a route: nothing that a player could not see is ever in the text.
"""
from typing import Any

from runlog import BadInput

LETTERS = {0x80 + i: c for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ():;[]abcdefghijklmnopqrstuvwxyzé")}
LETTERS |= {0xF6 + i: str(i) for i in range(10)}
LETTERS |= {0xBB: "'d", 0xBC: "'l", 0xBD: "'s", 0xBE: "'t", 0xBF: "'v", 0xE0: "'", 0xE1: "PK", 0xE2: "MN", 0xE3: "-",
            0xE4: "'r", 0xE5: "'m", 0xE6: "?", 0xE7: "!", 0xE8: ".", 0xEC: "▷", 0xED: "▶", 0xEE: "▼", 0xEF: "♂", 0xF0: "¥",
            0xF1: "×", 0xF2: ".", 0xF3: "/", 0xF4: ",", 0xF5: "♀", 0x6D: ":", 0x6E: ":L", 0x75: "…"}
FACING = {0: "down", 4: "up", 8: "left", 12: "right"}
STEP = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
LEDGES = {0x37: "↓", 0x36: "↓", 0x27: "←", 0x0D: "→", 0x1D: "→"}                     # tileset 0, tile of the ledge cell
WATER_TILESETS = {0, 3, 5, 7, 13, 14, 17, 22, 23}
# Tiles that carry the player off by themselves, per tileset; other warp cells want a direction pressed at the edge.
DOORS = {0: {0x1B, 0x58}, 3: {0x3A}, 2: {0x5E}, 8: {0x54}, 9: {0x3B}, 10: {0x3B}, 12: {0x3B}, 13: {0x1E},
         18: {0x1C, 0x38, 0x1A}, 19: {0x1A, 0x1C, 0x53}, 20: {0x34}, 22: {0x43, 0x58, 0x1B}, 23: {0x3B, 0x1B}}
STAIRS = {1: {0x1A, 0x1C}, 4: {0x1A, 0x1C}, 6: {0x5E}, 3: {0x5A, 0x5C}, 5: {0x4A}, 7: {0x4A}, 8: {0x5C, 0x32},
          9: {0x1A, 0x1C}, 10: {0x1A, 0x1C}, 11: {0x13}, 12: {0x1A, 0x1C}, 13: {0x37, 0x39, 0x4A}, 15: {0x1B, 0x13},
          16: {0x15, 0x55, 0x04}, 17: {0x18, 0x1A, 0x22}, 22: {0x20, 0x13}}
LEGEND = {"P": "you", ".": "floor", "#": "wall", "~": "tall grass", "W": "water", "D": "door", "S": "stairs",
          "N": "person", "O": "ball", "B": "boulder", "!": "sign", "↓": "ledge down", "←": "ledge left",
          "→": "ledge right", "C": "counter", "T": "small tree"}
VIEW, MARGIN = (4, 4, 5, 4), 2          # cells left of, above, right of, below the player on the screen; margin around it


def word(mem: Any, a: int) -> int:
    return mem[a] | mem[a + 1] << 8


def bcd(digits: list[int]) -> int:
    return int("".join(f"{d:02x}" for d in digits)) if all(d >> 4 < 10 and d & 15 < 10 for d in digits) else 0


def decode(codes: list[int]) -> str:
    """Screen tiles -> text; anything that is no letter is a blank. Never stops early: 0x50 is a map tile here."""
    return "".join(LETTERS.get(c, " ") if c >= 0x60 else " " for c in codes)


class Red:
    """How one game's memory is read. A subclass overrides what differs."""

    name = "red"
    milestones: dict[str, Any] = {}      # id -> predicate over memory, in the order a player meets them

    def __init__(self, seed: int = 0):
        self.seed = seed

    def rom(self, path: str) -> bytes:
        """The cartridge's bytes, from the user's own file."""
        raise BadInput("Pokémon Red and Blue need your own cartridge: --rom PATH, or the environment variable CH_ROM")

    def prepare(self, mem: Any) -> None:
        """Pokes before the first frame (lantern's seed)."""

    # -- is the game waiting for a button?

    def ui_open(self, mem: Any) -> bool:
        """A text, a menu or another screen covers the map (hWY, wFontLoaded)."""
        return mem[0xFFB0] == 0 or bool(mem[0xCFC4] & 1)

    def settled(self, mem: Any) -> bool:
        """The player stands in the overworld and has control: no step, fade, script or battle in progress."""
        palette = 0xFE if mem[0xD35D] == 6 else 0xE4
        return (not mem[0xD057] and not mem[0xD059] and mem[0xFFB0] == 0x90 and not mem[0xCFC4] & 1 and not mem[0xCFC5]
                and not mem[0xCD6B] and not mem[0xD730] & 0xA1 and not mem[0xD736] & 0xC2 and not mem[0xCD38]
                and mem[0xFF47] == palette and mem[0xD368] > 0)

    def prompt(self, mem: Any) -> bool:
        """A text arrow or a menu cursor waits for a button."""
        cursor = word(mem, 0xCC30)
        return self.ui_open(mem) and (mem[0xC4F2] == 0xEE or 0xC3A0 <= cursor < 0xC508 and mem[cursor] == 0xED)

    # -- what is on the screen

    def map_name(self, mem: Any, number: int) -> str:
        return f"Map{number:02X}"

    def tiles(self, mem: Any) -> list[list[int]]:
        """Bottom-left tile of each cell of the whole current map, (cells high, cells wide): the tile that decides a step.

        Made from wOverworldMap and the tileset's blocks in ROM, so it is right while a text covers the screen.
        """
        height, width, bank, blocks = mem[0xD368], mem[0xD369], mem[0xD52B], word(mem, 0xD52C)
        stride, tile = width + 6, {}
        rows = []
        for y in range(2 * height):
            start = 0xC6E8 + (y // 2 + 3) * stride + 3
            row = []
            for x, block in enumerate(b for b in mem[start:start + width] for _ in (0, 1)):
                at = block * 16 + ((y & 1) * 2 + 1) * 4 + (x & 1) * 2
                if at not in tile:
                    tile[at] = mem[bank, blocks + at]
                row.append(tile[at])
            rows.append(row)
        return rows

    def people(self, mem: Any) -> list[dict]:
        """Sprites that are really there: in use and not switched off by the map's toggle list. Cells are map cells."""
        hidden = set()
        for a in range(0xD5CE, 0xD5F0, 2):
            if mem[a] == 0xFF:
                break
            if mem[0xD5A6 + mem[a + 1] // 8] >> mem[a + 1] % 8 & 1:
                hidden.add(mem[a])
        kinds = {0x3D: "O", 0x3E: "O", 0x3F: "B", 0x41: "O", 0x45: "O"}
        return [{"x": mem[0xC205 + 16 * i] - 4, "y": mem[0xC204 + 16 * i] - 4, "mark": kinds.get(mem[0xC100 + 16 * i], "N")}
                for i in range(1, min(mem[0xD4E1], 15) + 1) if mem[0xC100 + 16 * i] and i not in hidden]

    def mark(self, mem: Any, tile: int, tileset: int, passable: set[int], warp: bool, sign: bool) -> str:
        """One cell's symbol, by the first rule that fits."""
        if warp:
            return "S" if tile in STAIRS.get(tileset, ()) else "D"
        if sign:
            return "!"
        if tile in mem[0xD532:0xD535]:
            return "C"
        if tileset == 0 and tile in LEDGES:
            return LEDGES[tile]
        if tile in passable:
            return "~" if tile == mem[0xD535] else "."
        if tileset in WATER_TILESETS and tile in ((0x14,) if tileset == 14 else (0x14, 0x32, 0x48)):
            return "W"
        return "T" if (tileset, tile) in ((0, 0x3D), (7, 0x50)) else "#"

    def map(self, mem: Any) -> dict:
        """The current map: grid[y][x] of symbols, warps, signs, objects; coordinates are map cells."""
        x, y, tileset = mem[0xD362], mem[0xD361], mem[0xD367]
        warps = [{"x": mem[a + 1], "y": mem[a], "dest_map": self.map_name(mem, mem[0xD365] if mem[a + 3] == 0xFF else mem[a + 3])}
                 for a in range(0xD3AF, 0xD3AF + 4 * min(mem[0xD3AE], 32), 4)]
        signs = [{"x": mem[a + 1], "y": mem[a]} for a in range(0xD4B1, 0xD4B1 + 2 * min(mem[0xD4B0], 16), 2)]
        objects = self.people(mem)
        passable, a = set(), word(mem, 0xD530)
        while mem[a] != 0xFF and len(passable) < 96:
            passable.add(mem[a])
            a += 1
        at = lambda things: {(t["x"], t["y"]) for t in things}
        warp_cells, sign_cells = at(warps), at(signs)
        grid = [[self.mark(mem, tile, tileset, passable, (cx, cy) in warp_cells, (cx, cy) in sign_cells)
                 for cx, tile in enumerate(row)] for cy, row in enumerate(self.tiles(mem))]
        for o in objects:
            if 0 <= o["y"] < len(grid) and 0 <= o["x"] < len(grid[0]):
                grid[o["y"]][o["x"]] = o["mark"]
        if 0 <= y < len(grid) and 0 <= x < len(grid[0]):
            grid[y][x] = "P"
        sides = [s for bit, s in ((8, "north"), (4, "south"), (2, "west"), (1, "east")) if mem[0xD370] & bit]
        return {"grid": ["".join(row) for row in grid], "player": {"x": x, "y": y}, "location": self.map_name(mem, mem[0xD35E]),
                "dimensions": {"width": len(grid[0]) if grid else 0, "height": len(grid)}, "warps": warps, "signs": signs,
                "objects": objects, "connections": sides, "grid_legend": LEGEND}

    def screen(self, mem: Any) -> list[str]:
        """Lines of text on the screen, top to bottom, without box borders; empty when none is open."""
        if not self.ui_open(mem):
            return []
        lines = (decode(mem[a:a + 20]).rstrip() for a in range(0xC3A0, 0xC508, 20))
        return [line.strip() for line in lines if line.strip()]

    def read(self, mem: Any) -> dict:
        """State of the game as a JSON-able dict: what `get_game_state` and `get_map_data` give to skills."""
        world = self.map(mem)
        return {"context": "dialogue" if self.ui_open(mem) else "overworld", "location": world["location"],
                "player_position": world["player"], "facing": FACING.get(mem[0xC109], "down"),
                "money": bcd(mem[0xD347:0xD34A]), "screen": self.screen(mem), "map": world}

    def reached(self, mem: Any) -> list[str]:
        """Milestones whose condition holds now."""
        return [name for name, holds in self.milestones.items() if holds(mem)]

    # -- the same as text

    def ahead(self, state: dict, direction: str) -> str:
        """Symbol of the cell next to the player in `direction`; ' ' beyond the map's edge."""
        dx, dy = STEP[direction]
        grid, x, y = state["map"]["grid"], state["player_position"]["x"] + dx, state["player_position"]["y"] + dy
        return grid[y][x] if 0 <= y < len(grid) and 0 <= x < len(grid[0]) else " "

    def feedback(self, button: str, before: dict, after: dict) -> str:
        """What one press did, in a line: a step taken, a step blocked and by what, or the text that it brought up."""
        spot = lambda s: (s["player_position"]["x"], s["player_position"]["y"])
        walking = before["context"] == "overworld"
        facing = button.lower() if button.lower() in STEP else before["facing"]
        (x, y), (dx, dy) = spot(before), STEP[facing]
        if after["screen"] and after["screen"] != before["screen"]:
            at = f" at '{self.ahead(before, facing)}' {(x + dx, y + dy)}" if walking else ""
            return f"{button}{at}: text: " + " / ".join(after["screen"])[:160]
        if button.lower() in STEP and walking:
            step = f"{button} '{self.ahead(before, facing)}' {(x, y)}"
            if after["location"] != before["location"]:
                return f"{step} -> {after['location']} {spot(after)}"
            return f"{step} -> {spot(after)}" if spot(after) != (x, y) else f"{step} blocked"
        return f"{button}: " + ("text closed" if before["screen"] and not after["screen"] else "nothing changed")

    def render(self, state: dict) -> str:
        """The observation text. The line after the map's rows begins with '(': evolved skills look for it."""
        world, pos = state["map"], state["player_position"]
        left, top = max(pos["x"] - VIEW[0] - MARGIN, 0), max(pos["y"] - VIEW[1] - MARGIN, 0)
        right, bottom = pos["x"] + VIEW[2] + MARGIN + 1, pos["y"] + VIEW[3] + MARGIN + 1
        rows = [row[left:right] for row in world["grid"][top:bottom]]
        near = lambda things: [t for t in things if left <= t["x"] < right and top <= t["y"] < bottom]
        cell = lambda t: f"({t['x']}, {t['y']})"
        legend = ", ".join(f"{s} {LEGEND[s]}" for s in LEGEND if any(s in row for row in rows))
        lines = [f"Game State: {state['context']}", f"Location: {state['location']}",
                 f"Position: x={pos['x']}, y={pos['y']}, facing {state['facing']}, money {state['money']}"]
        if state["screen"]:
            lines += ["Text on screen:"] + ["  " + line for line in state["screen"]]
        lines += ["ASCII Map:", *rows,
                  f"(top-left cell is x={left}, y={top}; map {world['dimensions']['width']}x{world['dimensions']['height']}; {legend})"]
        if doors := near(world["warps"]):
            lines.append("Doors: " + "; ".join(f"{cell(w)} to {w['dest_map']}" for w in doors))
        if people := near(world["objects"]):
            lines.append("People and things: " + "; ".join(f"{o['mark']} at {cell(o)}" for o in people))
        if signs := near(world["signs"]):
            lines.append("Signs: " + "; ".join(cell(s) for s in signs))
        if world["connections"]:
            lines.append("The map goes on to the " + ", ".join(world["connections"]))
        return "\n".join(lines)


Game = Red
