"""Pokémon Red's memory -> what a person sees on the screen: text map, text, party, battle. lantern.py reads through it too.

Reads from any object that answers `mem[a]`, `mem[a:b]` (WRAM and ROM bank 0) and `mem[bank, a]` (ROM): PyBoy's memory or
a recorded image. Addresses are those that the pret/pokered disassembly documents; names are its symbols. Without a ROM
names become numbers ("species 176"), the map is only what the screen holds, and `notes` says so.

Covered: the overworld (map, heights, ledges, people, signs, doors), text, menus with their cursor, naming, battles, party,
bag, money, badges; Blue as it is, Yellow through a shifted view (there the map is not read during battles).
Not covered: hidden items, scripts of people, people beyond the screen, a route: nothing that a player could not see is ever
in the text. The link cable, the slot machines and the Safari Zone's step count have no fields of their own.
"""
import re
from itertools import takewhile
from typing import Any

from games.red_data import (BADGES, BARS, FACING, JUMPS, LEDGES, LETTERS, STEP, THINGS, Cartridge, at, bcd, decode, milestones,
                            number, peek, records, string, word)

LEGEND = {"P": "you", ".": "floor", "#": "wall", "~": "tall grass", "W": "water", "D": "door", "S": "stairs",
          "N": "person", "O": "ball", "B": "boulder", "!": "sign", "↓": "ledge down", "←": "ledge left",
          "→": "ledge right", "C": "counter", "T": "small tree", "@": "spinner", " ": "not visible"}
VIEW, MARGIN, DARK = (4, 4, 5, 4), 2, 1    # cells left of, above, right of, below the player on the screen; margin; in the dark
QUIET, BATTLE_QUIET = 96, 240              # frames of a still picture that count as waiting: text without arrow, in battle
STATS = ("attack", "defense", "speed", "special")
STATUS = ((7, "asleep"), (8, "poisoned"), (16, "burned"), (32, "frozen"), (64, "paralyzed"))
UNSAID = re.compile("(?i)battle|wild|enemy|fainted|exp")
MILESTONES, EIGHTEEN = milestones()


def status(byte: int, hp: int) -> str:
    return next((name for bits, name in STATUS if byte & bits), "ok") if hp else "KO"


class Red(Cartridge):
    """How one game's memory is read. A subclass overrides what differs: above all what is in Cartridge."""

    name = "red"
    milestones: dict[str, Any] = MILESTONES            # id -> predicate over memory, in the order a player meets them

    # -- is the game waiting for a button?

    def ui_open(self, mem: Any) -> bool:
        """A text, a menu or another screen covers the map (hWY, wFontLoaded)."""
        return mem[0xFFB0] == 0 or bool(mem[0xCFC4] & 1)

    def settled(self, mem: Any) -> bool:
        """The player stands in the overworld and has control: no step, fade, script or battle in progress."""
        # Recorded images hold no LCD registers: all are 0 there, which never happens while the game runs.
        lit = mem[0xFF47] == (0xFE if mem[0xD35D] == 6 else 0xE4) or not any(mem[0xFF40:0xFF4C])
        return (not mem[0xD057] and not mem[0xD059] and mem[0xFFB0] == 0x90 and not mem[0xCFC4] & 1 and not mem[0xCFC5]
                and not mem[0xCD6B] and not mem[0xD730] & 0xA1 and not mem[0xD736] & 0xC2 and not mem[0xCD38]
                and not mem[0xCC57] and lit and mem[0xD368] > 0)

    def cursor(self, mem: Any) -> tuple[int, int] | None:
        """(column, row) of the live menu cursor, in tiles."""
        spot = word(mem, 0xCC30) - 0xC3A0
        live = 0 <= spot < 360 and mem[0xC3A0 + spot] == 0xED and (self.ui_open(mem) or mem[0xD057])
        return (spot % 20, spot // 20) if live else None

    def prompt(self, mem: Any) -> bool:
        """A text arrow or a menu cursor waits for a button."""
        return mem[0xC4F2] == 0xEE and (self.ui_open(mem) or mem[0xD057] > 0) or self.cursor(mem) is not None

    def patience(self, mem: Any) -> int:
        """Frames of an unchanged picture after which the game is taken to wait, though there is no arrow and no cursor."""
        return BATTLE_QUIET if mem[0xD057] else QUIET if self.ui_open(mem) else 1 << 30

    def picture(self, mem: Any) -> list[int]:
        """What changes while something moves: sprites, scroll, palettes; the background is compared by itself."""
        return list(mem[0xC300:0xC3A0]) + list(mem[0xFF42:0xFF44]) + list(mem[0xFF47:0xFF4A])

    # -- the map

    def blocks(self, mem: Any) -> list[list[int]]:
        """Block ids of the current map, (blocks high, blocks wide), with cut trees and opened doors as they are now."""
        height, width = mem[0xD368], mem[0xD369]
        stride, first = width + 6, 0xC6E8 + 3 * (width + 6) + 3
        if mem[0xD057] or mem[0xD059] or stride * (height + 6) > 1300:
            return self.stored_blocks(mem)
        return [list(mem[first + y * stride:first + y * stride + width]) for y in range(height)]

    def tiles(self, mem: Any) -> list[list[int | None]]:
        """Bottom-left tile of each cell of the whole current map, (cells high, cells wide): the tile that decides a step.

        Made from wOverworldMap and the tileset's blocks in ROM, so it is right while a text covers the screen. None: unknown.
        """
        rows, bank, start = self.blocks(mem), mem[0xD52B], word(mem, 0xD52C)
        art = {block: peek(mem, bank, start + 16 * block, 16) for block in {b for row in rows for b in row}}      # 4 x 4 tiles
        if not all(art.values()):
            return self.seen(mem, len(rows), len(rows[0]))
        return [[art[block][i + x] for block in row for x in (0, 2)] for row in rows for i in (4, 12)]

    def mark(self, mem: Any, tile: int | None, passable: frozenset[int]) -> str:
        """A tile's symbol, by the first rule that fits; doors, signs and people are put over it."""
        tileset = self.tileset(mem)
        if tile is None:
            return " "
        if tile in mem[0xD532:0xD535] and tile != 0xFF:
            return "C"
        if mem[0xD367] == 0 and tile in LEDGES:
            return LEDGES[tile]
        if tile in passable:
            return "~" if tile == mem[0xD535] else "@" if tile in tileset.spinners else "."
        return "W" if tile in tileset.water else "T" if tile in tileset.trees else "#"

    def in_view(self, mem: Any, x: int, y: int) -> bool:
        """Is this map cell on the screen? In a dark cave only what is next to the player is."""
        left, up, right, down = (DARK,) * 4 if mem[0xD35D] == 6 else VIEW
        return -left <= x - mem[0xD362] <= right and -up <= y - mem[0xD361] <= down

    def people(self, mem: Any) -> list[dict]:
        """Sprites on the screen that are really there: in use, not switched off by the map's toggle list, and drawn."""
        toggles = takewhile(lambda row: row[0] != 0xFF, records(mem, 0xD5CE, 17, 2))
        hidden = {slot for slot, flag in toggles if mem[0xD5A6 + flag // 8] >> flag % 8 & 1}
        out, bare = [], not self.ui_open(mem) and not mem[0xD057]
        for i in range(1, min(mem[0xD4E1], 14 if self.version == "yellow" else 15) + 1):      # 15 is Pikachu, which steps aside
            picture, x, y = mem[0xC100 + 16 * i], mem[0xC205 + 16 * i] - 4, mem[0xC204 + 16 * i] - 4
            drawn = mem[0xC102 + 16 * i] != 0xFF or not bare                                  # a text box hides sprites under it
            if picture and i not in hidden and drawn and self.in_view(mem, x, y):
                mark, what = THINGS.get(picture, ("N", "person"))
                out.append({"x": x, "y": y, "mark": mark, "what": what})
        return out

    def warps(self, mem: Any, tiles: list[list[int | None]]) -> list[dict]:
        name = lambda n: self.map_name(mem, mem[0xD365] if n == 0xFF else n)                  # FF: back to where one came from
        return [{"x": x, "y": y, "dest_map": name(to), "how": self.way_out(mem, tiles, x, y)}
                for y, x, _, to in records(mem, 0xD3AF, min(mem[0xD3AE], 32), 4) if y < len(tiles) and x < len(tiles[0])]

    def edges(self, mem: Any, tiles: list[list[int | None]], passable: frozenset[int]) -> dict[str, list]:
        """[[x1, y1, x2, y2], ...] each. blocked_edges: neighbours at two heights, that no step joins either way though both
        let one through. jumps: over a ledge, from the cell before it to the landing cell, one way only."""
        tileset, surfing, jumps = self.tileset(mem), mem[0xD700] == 2, JUMPS if mem[0xD367] == 0 else ()
        ground = passable | tileset.water if surfing else passable
        pairs = [pair for pair in (tileset.surf_heights if surfing else tileset.heights) if pair <= ground]
        cells = [(x, y, tile) for y, row in enumerate(tiles) for x, tile in enumerate(row)] if pairs or jumps else []
        return {"blocked_edges": [[x, y, x + dx, y + dy] for x, y, tile in cells for dx, dy in ((1, 0), (0, 1))
                                  if {tile, at(tiles, x + dx, y + dy)} in pairs],
                "jumps": [[x, y, x + 2 * dx, y + 2 * dy] for way, stand, ledge in jumps for dx, dy in [STEP[way]]
                          for x, y, tile in cells if tile == stand and at(tiles, x + dx, y + dy) == ledge
                          and at(tiles, x + 2 * dx, y + 2 * dy) is not None]}

    def map(self, mem: Any) -> dict:
        """The current map: grid[y][x] of symbols, warps, signs, objects, edges; coordinates are map cells."""
        tiles, passable, dark = self.tiles(mem), self.passable(mem), mem[0xD35D] == 6
        player = {"x": mem[0xD362], "y": mem[0xD361]}
        symbols = {tile: self.mark(mem, tile, passable) for tile in {t for row in tiles for t in row}}
        seen = lambda x, y: not dark or self.in_view(mem, x, y)
        grid = [[symbols[tile] if seen(x, y) else " " for x, tile in enumerate(row)] for y, row in enumerate(tiles)]
        signs = [{"x": x, "y": y} for y, x in records(mem, 0xD4B1, min(mem[0xD4B0], 16), 2) if seen(x, y)]
        warps, objects = [w for w in self.warps(mem, tiles) if seen(w["x"], w["y"])], self.people(mem)
        edges = {kind: [e for e in found if seen(*e[:2]) and seen(*e[2:])]
                 for kind, found in self.edges(mem, tiles, passable).items()}
        stairs = self.tileset(mem).warps - self.tileset(mem).doors
        marked = [(s, "!") for s in signs] + [(w, "S" if tiles[w["y"]][w["x"]] in stairs else "D") for w in warps]
        for thing, symbol in marked + [(o, o["mark"]) for o in objects] + [(player, "P")]:
            if at(grid, thing["x"], thing["y"]) is not None:
                grid[thing["y"]][thing["x"]] = symbol
        sides = [(8, "north", 0xD371), (4, "south", 0xD37C), (2, "west", 0xD387), (1, "east", 0xD392)]
        beyond = [{"direction": side, "dest_map": self.map_name(mem, mem[a])} for bit, side, a in sides if mem[0xD370] & bit]
        return {"grid": ["".join(row) for row in grid], "player": player,
                "location": self.map_name(mem, mem[0xD35E]) if mem[0xD368] else "TITLE_SCREEN",
                "dimensions": {"width": len(grid[0]) if grid else 0, "height": len(grid)}, "warps": warps, "signs": signs,
                "objects": objects, "connections": beyond, **edges, "dark": dark, "surfing": mem[0xD700] == 2,
                "grid_legend": LEGEND}

    # -- text and menus

    def letters(self, mem: Any) -> dict[int, str]:
        """What the tiles above 0x5F stand for on this screen."""
        if self.naming(mem):
            return LETTERS | {0xF0: "END"}
        bars = any(0x62 <= tile <= 0x6B for tile in mem[0xC3A0:0xC508])
        return LETTERS | BARS | ({0x73: " ", 0x74: " "} if mem[0xD057] else {}) if bars else LETTERS   # lines, in a battle

    def screen(self, mem: Any) -> list[str]:
        """Lines of text on the screen, top to bottom, without box borders; empty when none is open."""
        if not self.ui_open(mem) and not mem[0xD057]:
            return []
        letters = self.letters(mem)
        found = (re.sub(" {3,}", "   ", decode(mem[a:a + 20], letters)).strip() for a in range(0xC3A0, 0xC508, 20))
        return [line for line in found if line]

    def naming(self, mem: Any) -> bool:
        """The naming screen has no flag of its own: underscores in its fourth row and the alphabet's first letters tell."""
        underscores = any(tile in (0x76, 0x77) for tile in mem[0xC3A0 + 70:0xC3A0 + 80])              # also lines in a battle
        return underscores and [mem[0xC3A0 + 102], mem[0xC3A0 + 104]] in ([0x80, 0x81], [0xA0, 0xA1])

    def item(self, mem: Any, col: int, row: int, width: int = 20) -> str:
        """The entry whose text begins in this column: up to the box's border or two blanks."""
        shown = mem[0xC3A0 + 20 * row + col:0xC3A0 + 20 * row + min(col + width, 20)]
        codes = [c if c >= 0x60 and not 0x79 <= c <= 0x7E else 0x7C for c in shown]
        return decode(bytes(codes).split(b"\x7c")[0], self.letters(mem)).split("  ")[0].strip()

    def menu(self, mem: Any) -> dict | None:
        """The live menu: {"kind", "cursor": the chosen entry, "options": [entries on the screen]}; None when there is none."""
        if self.naming(mem):
            x, y = mem[0xCC25] + 1, 3 + 2 * mem[0xCC26]
            return {"kind": "naming", "cursor": (self.item(mem, x, y) if y < 18 else "").split(" ")[0], "options": [],
                    "typed": string(mem, 0xCF4B), "cell": {"column": mem[0xCC25] // 2, "row": mem[0xCC26] - 1}}
        if not (spot := self.cursor(mem)):
            return None
        (col, row), top, chosen = spot, mem[0xCC24], mem[0xCC26]
        if mem[0xD057] and row in (14, 16) and col in (9, 15):
            entry = lambda c, r: self.item(mem, c + 1, r, 5)          # two columns, five letters each
            return {"kind": "battle menu", "cursor": entry(col, row), "options": [entry(c, r) for r in (14, 16) for c in (9, 15)]}
        moves = mem[0xD057] > 0 and (col, top) == (5, 12)             # one row each and counted from 1; others from 0
        step = 1 if moves else max((row - top) // chosen, 1) if chosen else 2
        rows = range(13, 17) if moves else range(top, min(top + step * mem[0xCC28] + 1, 18), step)
        options = [text for r in rows if (text := self.item(mem, col + 1, r))]
        known = {"YES": "yes/no", "HEAL": "yes/no", "NEW GAME": "main menu", "EXIT": "START menu"}
        kind = "moves" if moves else next((known[o] for o in options if o in known), "list" if (col, top) == (5, 4) else "menu")
        out = {"kind": kind, "cursor": self.item(mem, col + 1, row), "options": options}
        return out | ({"index": mem[0xCC36] + chosen, "count": mem[0xD12A]} if kind == "list" else {})

    def context(self, mem: Any, menu: dict | None) -> str:
        if mem[0xD057]:
            return "battle"
        if menu and menu["kind"] != "main menu":
            return "menu"
        if menu or not mem[0xD368] and mem[0xC3A0 + 240] != 0x79:     # 79: the corner of the message box, in Oak's speech
            return "title"
        return "dialogue" if self.ui_open(mem) else "overworld"

    # -- party and battle

    def moves(self, mem: Any, ids: int, points: int) -> list[dict]:
        """The moves at `ids`, their PP bytes at `points`: PP in the low six bits, PP Ups in the high two."""
        out = []
        for i, move in ((i, mem[ids + i]) for i in range(4) if mem[ids + i]):
            pp, ups, data = mem[points + i] & 0x3F, mem[points + i] >> 6, self.move_data(mem, move)
            known = {"max_pp": data[3] + ups * min(data[3] // 5, 7), "type": self.label(mem, "type", data[1]),
                     "power": data[0], "accuracy": round(data[2] / 255, 2)} if data else {}
            out.append({"name": self.label(mem, "move", move), "pp": pp, "pp_ups": ups, **known})
        return out

    def types(self, mem: Any, a: int) -> list[str]:
        return [self.label(mem, "type", t) for t in dict.fromkeys(mem[a:a + 2])]

    def party(self, mem: Any) -> list[dict]:
        """Own Pokémon in order. In a battle the one that is out (wPlayerMonNumber) has its HP, status and PP elsewhere."""
        out, fighting = [], mem[0xD057] in (1, 2) and not mem[0xD11D] and mem[0xD022] > 0
        for i in range(min(mem[0xD163], 6)):
            a = 0xD16B + 44 * i
            now, points, stats = (0xD014, 0xD02D, 0xD025) if fighting and mem[0xCC2F] == i else (a, a + 0x1D, a + 0x24)
            hp = number(mem, now + 1)
            out.append({"species": self.label(mem, "species", mem[a]), "nickname": string(mem, 0xD2B5 + 11 * i),
                        "level": mem[a + 0x21], "hp": hp, "max_hp": number(mem, a + 0x22), "status": status(mem[now + 4], hp),
                        "types": self.types(mem, a + 5), "moves": self.moves(mem, now + 8, points),
                        "stats": {name: number(mem, stats + 2 * n) for n, name in enumerate(STATS)}})
        return out

    def battle(self, mem: Any) -> dict | None:
        """The battle on the screen; None outside one. The enemy's HP is what its bar shows, in 48ths."""
        if not mem[0xD057]:
            return None
        if mem[0xD057] == 0xFF:
            return {"kind": "lost", "active": mem[0xCC2F], "enemy": None}
        kind = "trainer" if mem[0xD057] == 2 else {1: "demonstration", 2: "safari"}.get(mem[0xD05A], "wild")
        hp, full = number(mem, 0xCFE6), max(number(mem, 0xCFF4), 1)
        enemy = {"species": self.label(mem, "species", mem[0xCFE5]), "nickname": string(mem, 0xCFDA), "level": mem[0xCFF3],
                 "hp_bar": max(48 * hp // full, int(hp > 0)), "status": status(mem[0xCFE9], hp), "types": self.types(mem, 0xCFEA)}
        out = {"kind": kind, "active": mem[0xCC2F], "enemy": None if mem[0xD11D] else enemy, "own_hp": number(mem, 0xD015)}
        who = string(mem, 0xD04A, 13) or self.label(mem, "trainer", mem[0xD031])
        return out | ({"trainer": who} if kind == "trainer" else {})

    # -- everything, as data and as text

    def read(self, mem: Any) -> dict:
        """State of the game as a JSON-able dict: what `get_game_state` and `get_map_data` (its "map") give to skills."""
        world, menu, party = self.map(mem), self.menu(mem), self.party(mem)
        items = records(mem, 0xD31E, min(mem[0xD31D], 20), 2)
        bag = [{"name": self.label(mem, "item", item), "quantity": n} for item, n in items]
        ones = lambda a: sum(bin(byte).count("1") for byte in mem[a:a + 19])
        state = {"context": self.context(mem, menu), "location": world["location"], "player_position": world["player"],
                 "facing": FACING.get(mem[0xC109], "down"), "money": bcd(mem[0xD347:0xD34A]), "player": string(mem, 0xD158),
                 "badges": [name for i, name in enumerate(BADGES) if mem[0xD356] >> i & 1], "party": party, "bag": bag,
                 "pokedex": {"owned": ones(0xD2F7), "seen": ones(0xD30A)}, "screen": self.screen(mem), "menu": menu,
                 "battle": self.battle(mem), "play_time": f"{mem[0xDA41]}:{mem[0xDA43]:02d}:{mem[0xDA44]:02d}",
                 "map": world | {"party": party}}
        nameless = any(re.match(r"(species|item) \d", text) for text in [m["species"] for m in party] + [i["name"] for i in bag])
        holes = any(" " in row for row in world["grid"]) and not world["dark"]
        notes = ["species, moves and items go by number: this memory has no ROM tables"] * nameless + \
            ["only the part of the map that is on the screen is known: this memory has no ROM"] * holes
        return state | ({"notes": notes} if notes else {})                    # never a silent gap

    def reached(self, mem: Any) -> list[str]:
        """Milestones whose condition holds now."""
        return [name for name, holds in self.milestones.items() if holds(mem)]

    def feedback(self, button: str, before: dict, after: dict) -> str:
        """What one press did, in a line: a step taken, a step blocked and by what, or the text that it brought up."""
        spot = lambda s: (s["player_position"]["x"], s["player_position"]["y"])
        walking, old, new = before["context"] == "overworld", before["menu"] or {}, after["menu"] or {}
        facing = button.lower() if button.lower() in STEP else before["facing"]
        (x, y), (dx, dy), grid = spot(before), STEP[facing], before["map"]["grid"]
        front = at(grid, x + dx, y + dy) or " "          # what lies ahead; " ": beyond the map's edge
        if after["battle"] and not before["battle"]:
            return f"{button} '{front}' {(x, y)}: a battle begins: " + " / ".join(after["screen"][-2:])[:160]
        if old != new and old.get("kind") == new.get("kind"):
            return f"{button}: cursor on {new['cursor'] or 'nothing'}"
        hurt = self.hurt(before["battle"], after["battle"])
        if after["screen"] and after["screen"] != before["screen"]:
            if front == "C" and at(grid, x + 2 * dx, y + 2 * dy) == "N":     # one talks across a counter
                front, dx, dy = "N", 2 * dx, 2 * dy
            where = f" at '{front}' {(x + dx, y + dy)}" if walking else f" on {old['cursor']}" if old else ""
            lines = after["screen"][-2:] if after["battle"] else after["screen"]
            return f"{button}{where}: text: " + " / ".join(lines)[:160] + hurt
        if button.lower() in STEP and walking:
            step = f"{button} '{front}' {(x, y)}"
            if after["location"] != before["location"]:
                return f"{step} -> {after['location']} {spot(after)}"
            return f"{step} -> {spot(after)}" if spot(after) != (x, y) else f"{step} blocked"
        return f"{button}: " + ("text closed" if before["screen"] and not after["screen"] else "nothing changed") + hurt

    def hurt(self, old: dict | None, new: dict | None) -> str:
        """What a press in a battle took: from the enemy's bar, in 48ths, and from own HP."""
        if old and new and old["kind"] != new["kind"] == "lost":
            return " [the battle is lost]"
        if not (old and new and old.get("enemy") and new.get("enemy")):
            return ""
        foe, bar, own = new["enemy"], old["enemy"]["hp_bar"], (old.get("own_hp"), new.get("own_hp"))
        out = f" [enemy {foe['species']} ({'/'.join(foe['types'])}) {bar}->{foe['hp_bar']}/48]" if bar != foe["hp_bar"] else ""
        return out + (f" [own HP {own[0]}->{own[1]}]" if own[0] != own[1] else "")

    def render(self, state: dict) -> str:
        """The observation text. The line after the map's rows begins with '(': evolved skills look for it."""
        pos = state["player_position"]
        lines = [f"Game State: {state['context']}", f"Location: {state['location']}",
                 f"Position: x={pos['x']}, y={pos['y']}, facing {state['facing']}, money {state['money']}"]
        if state["screen"]:
            lines += ["Text on screen:"] + ["  " + line for line in state["screen"]]
        if menu := state["menu"]:
            rest = f"of {', '.join(menu['options'])}" if menu["options"] else f"typed so far: {menu.get('typed') or 'nothing'}"
            lines.append(f"Menu: {menu['kind']}, cursor on {menu['cursor'] or 'nothing'} {rest}")
        lines += self.battle_lines(state) if state["battle"] else self.map_lines(state["map"])
        mon = lambda m: f"{m['nickname']} ({m['species']}) level {m['level']} HP {m['hp']}/{m['max_hp']} {m['status']}"
        bag = [f"{item['name']} x{item['quantity']}" for item in state["bag"]]
        owned = {"Party": map(mon, state["party"]), "Bag": bag, "Badges": state["badges"], "Note": state.get("notes", [])}
        lines += [f"{title}: {text}" for title, items in owned.items() if (text := "; ".join(items))]
        text = "\n".join(lines)
        # Evolved skills look for these words in the overworld: a name that holds one (EXP.ALL) gets a dot inside.
        return UNSAID.sub(lambda m: m[0][0] + "·" + m[0][1:], text) if state["context"] == "overworld" else text

    def battle_lines(self, state: dict) -> list[str]:
        battle, active = state["battle"], at([state["party"]], state["battle"]["active"], 0)
        lines = [f"Battle: {battle['kind']}" + (f" {battle['trainer']}" if battle.get("trainer") else "")]
        if enemy := battle["enemy"]:
            lines.append(f"Enemy: {enemy['species']} ({'/'.join(enemy['types'])}) level {enemy['level']}, "
                         f"HP bar {enemy['hp_bar']}/48, {enemy['status']}")
        if active:
            data = lambda m: f"/{m['max_pp']} {m['type']}" if "type" in m else ""
            moves = [f"{m['name']} PP {m['pp']}{data(m)}" for m in active["moves"]]
            lines.append(f"Own: {active['nickname']} ({'/'.join(active['types'])}), moves: {'; '.join(moves)}")
        return lines

    def map_lines(self, world: dict) -> list[str]:
        """The view with its margin, then what lies in it."""
        x, y, size = world["player"]["x"], world["player"]["y"], world["dimensions"]
        if not world["grid"]:
            return []
        left, top = max(x - VIEW[0] - MARGIN, 0), max(y - VIEW[1] - MARGIN, 0)
        right, bottom = x + VIEW[2] + MARGIN + 1, y + VIEW[3] + MARGIN + 1
        rows = [row[left:right] for row in world["grid"][top:bottom]]
        near = lambda things: [t for t in things if left <= t["x"] < right and top <= t["y"] < bottom]
        cell = lambda t: f"({t['x']}, {t['y']})"
        meaning = world["grid_legend"]
        legend = ", ".join(f"{s if s.strip() else 'blank:'} {meaning[s]}" for s in meaning if any(s in row for row in rows))
        lines = ["ASCII Map:", *rows, f"(top-left cell is x={left}, y={top}; map {size['width']}x{size['height']}; {legend})"]
        heights = [f"({a}, {b})-({c}, {d})" for a, b, c, d in world["blocked_edges"] if near([{"x": a, "y": b}])]
        what = lambda o: f" ({o['what']})" if o["what"] != "person" else ""
        parts = {"Doors": [f"{cell(w)} to {w['dest_map']}, {w['how']}" for w in near(world["warps"])],
                 "People and things": [f"{o['mark']} at {cell(o)}{what(o)}" for o in near(world["objects"])],
                 "Signs": [cell(s) for s in near(world["signs"])], "No step between (another height)": heights,
                 "The map goes on to": [f"the {c['direction']} ({c['dest_map']})" for c in world["connections"]],
                 "It is dark": ["only the cells next to you can be seen"] if world["dark"] else []}
        return lines + [f"{title}: {'; '.join(found)}" for title, found in parts.items() if found]


Game = Red
