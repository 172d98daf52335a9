"""What red.py knows of the cartridge rather than of the moment: letters, tiles, which ROM a file is, names in its tables.

Tile and map ids are facts of the pret/pokered disassembly; they and the milestones lie in text files beside this one. Names
of species, moves, items, types and trainers are never shipped: they are read from the user's own ROM at run time.
"""
import hashlib
import re
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runlog import BadInput

FACING = {0: "down", 4: "up", 8: "left", 12: "right"}
STEP = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
BADGES = ("Boulder", "Cascade", "Thunder", "Rainbow", "Soul", "Marsh", "Volcano", "Earth")
THINGS = {0x3D: ("O", "item ball"), 0x3E: ("O", "fossil"), 0x3F: ("B", "boulder"), 0x41: ("O", "Pokédex"),
          0x45: ("O", "Old Amber"), 0x26: ("N", "clerk"), 0x29: ("N", "nurse")}               # by the sprite's picture

# (direction, tile stood on, tile of the ledge) in tileset 0: only these steps are jumps; the landing cell is never tested.
JUMPS = [("down", 0x2C, 0x37), ("down", 0x39, 0x36), ("down", 0x39, 0x37), ("left", 0x2C, 0x27), ("left", 0x39, 0x27),
         ("right", 0x2C, 0x0D), ("right", 0x2C, 0x1D), ("right", 0x39, 0x0D)]
LEDGES = {0x36: "↓", 0x37: "↓", 0x27: "←", 0x0D: "→", 0x1D: "→"}
CARPETS = {"down": {0x01, 0x12, 0x17, 0x3D, 0x04, 0x18, 0x33}, "up": {0x01, 0x5C}, "left": {0x1A, 0x4B}, "right": {0x0F, 0x4E}}
FRONT_TILESETS, FRONT_MAPS, BOW = {0, 13, 14, 23}, {0xC7, 0xC8, 0xCA, 0x52}, 0x63             # here CARPETS decide
EDGE_MAP = 0x61                                                       # S.S. Anne 3F: the edge of the map, though a ship


def lines(name: str) -> list[str]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [row for row in text.splitlines() if row and row[0] != "#"]


def tiles(words: str) -> frozenset:
    """Tile ids; "05-20" is an unordered pair of them."""
    ids = [frozenset(int(n, 16) for n in word.split("-")) for word in words.split()]
    return frozenset(pair if len(pair) > 1 else min(pair) for pair in ids)


# A row of red_tilesets.txt: sets of tile ids, the last two of pairs.
Tileset = namedtuple("Tileset", "passable doors warps water spinners trees heights surf_heights", defaults=[frozenset()] * 8)
TILESETS = [Tileset(*map(tiles, row.split("|")[1:])) for row in lines("red_tilesets.txt")]    # by id
MAPS = lines("red_maps.txt")                                                                  # by id
LETTERS = {int(first, 16) + i: letter for first, *letters in map(str.split, lines("red_letters.txt"))
           for i, letter in enumerate(letters)}
BARS = {0x71: "HP:", 0x73: "ID", 0x74: "No.", 0x6D: ""}               # the same codes where health bars are drawn


def word(mem: Any, a: int) -> int:
    """Two bytes, low one first: ROM and RAM pointers."""
    return mem[a] | mem[a + 1] << 8


def number(mem: Any, a: int) -> int:
    """Two bytes, high one first: HP and all of the game's own numbers."""
    return mem[a] << 8 | mem[a + 1]


def records(mem: Any, a: int, count: int, size: int) -> list[list[int]]:
    """`count` records of `size` bytes."""
    return [mem[i:i + size] for i in range(a, a + size * count, size)]


def bcd(digits: list[int]) -> int:
    return int("".join(f"{d:02x}" for d in digits)) if all(d >> 4 < 10 and d & 15 < 10 for d in digits) else 0


def decode(codes: list[int], letters: dict[int, str] = LETTERS) -> str:
    """Screen tiles -> text; anything that is no letter is a blank. Never stops early: 0x50 is a map tile here."""
    return "".join(letters.get(c, " ") if c >= 0x60 else " " for c in codes)


def string(mem: Any, a: int, size: int = 11) -> str:
    """A name in memory; it ends at 0x50."""
    return decode(bytes(mem[a:a + size]).split(b"\x50")[0]).strip()


def at(grid: list[list[Any]], x: int, y: int) -> Any:
    """A cell of a grid; None beyond its edge."""
    return grid[y][x] if 0 <= y < len(grid) and 0 <= x < len(grid[0]) else None


# -- milestones

def condition(kind: str, numbers: list[int]) -> Callable[[Any], bool]:
    """A predicate over memory; see red_milestones.txt for the kinds."""
    bit = lambda base: lambda mem: bool(mem[base + numbers[0] // 8] >> numbers[0] % 8 & 1)
    return {"town": bit(0xD70B), "badge": bit(0xD356), "event": bit(0xD747), "always": lambda mem: True,
            "map": lambda mem: mem[0xD35E] in numbers, "party": lambda mem: mem[0xD163] > 0 or bool(mem[0xD72E] & 8),
            # subtle: nobody has control in the Hall of Fame; what counts is the number of teams, kept when play goes on
            "hall": lambda mem: mem[0xD35E] == 0x76 or mem[0xD5A2] > 0}[kind]


def milestones() -> tuple[dict[str, Callable[[Any], bool]], set[str]]:
    """(name -> predicate, in order; the names of the 18)."""
    rows = lines("red_milestones.txt")
    words = (row.replace("*", "").split() for row in rows)
    return ({name: condition(kind, [int(n, 16) for n in rest]) for name, kind, *rest in words},
            {row.split()[0] for row in rows if "*" in row})


# -- ROM

class Shifted:
    """Yellow's memory at Red's addresses: it lacks one variable, so all WRAM from CF1B on lies one byte lower."""

    def __init__(self, mem: Any):
        self.mem = mem

    def key(self, key: Any) -> Any:
        if isinstance(key, slice):
            return slice(self.key(key.start), self.key(key.start) + key.stop - key.start)
        return key - 1 if isinstance(key, int) and 0xCF1B <= key < 0xE000 else key

    def __getitem__(self, key: Any) -> Any:
        return self.mem[self.key(key)]

    def __setitem__(self, key: Any, value: int) -> None:
        self.mem[self.key(key)] = value


def peek(mem: Any, bank: int | None, a: int, size: int = 1) -> bytes:
    """Bytes of the ROM; none where there is no ROM (a recorded image) or no such bank (before the first map)."""
    try:
        return bytes(mem[a:a + size] if bank is None else mem[bank, a:min(a + size, 0x8000)])
    except Exception:                    # PyBoy and a test's image raise errors of their own kinds; all mean "not there"
        return b""


def code(text: str) -> bytes:
    return bytes(0x7F if c == " " else 0x80 + ord(c) - ord("A") for c in text)


# (bank, address) in Red and Blue, and how the table begins: Yellow and some hacks have the same tables elsewhere.
TABLES = {"species": (0x07, 0x421E, code("RHYDON")), "move": (0x2C, 0x4000, code("POUND") + b"\x50"),
          "item": (0x01, 0x472B, code("MASTER BALL") + b"\x50"), "trainer": (0x0E, 0x59FF, code("YOUNGSTER") + b"\x50"),
          "move data": (0x0E, 0x4000, bytes([1, 0, 40, 0, 255, 35, 2, 0, 50, 0, 255, 25]))}
TYPES = (0x09, 0x7DAE)                                                # pointers, by type id

SHA1 = {"ea9bcae617fdf159b045185467ae58b2e4a48b9a": "red", "d7037c83e1ae5b39bde3c30787637ba1d4c48ce2": "blue",
        "cc7d03262ebfaf2f06772c1a480c7d9d5f4a38e1": "yellow"}
FOREIGN = [(0, b"PK", "a ZIP archive: unpack it"), (0, b"7z", "a 7z archive: unpack it"),
           (0, b"\x1f\x8b", "a gzip file: unpack it"), (4, b"\x24\xff\xae\x51", "a Game Boy Advance ROM")]
WANTED = "give the .gb file of the US or European Pokémon Red, Blue or Yellow, 1,048,576 bytes"


def identify(data: bytes, path: str) -> tuple[str, str]:
    """("red", "blue" or "yellow"; a warning or ""). Raises BadInput for any other file, in a line that says what it is."""
    title = re.sub(r"[^ -~]", "", data[0x134:0x143].split(b"\0")[0].decode("latin-1")).strip()
    size = 0x8000 << data[0x148] if len(data) > 0x150 and data[0x148] < 9 else 0
    checks = [(data[at:at + len(magic)] == magic, what) for at, magic, what in FOREIGN] + [
        (len(data) < 0x150, f"too short for a Game Boy ROM ({len(data)} bytes)"),
        (data[0x104:0x108] != b"\xce\xed\x66\x66", "no Game Boy ROM: the logo that every cartridge has at 0x104 is missing"),
        (data[0x14D:0x14E] != bytes([-sum(data[0x134:0x14D]) - 25 & 0xFF]), "a damaged ROM: its header fails its own checksum"),
        (title.startswith("POKEMON") and data[0x14A:0x14B] == b"\0", f"the Japanese {title!r}, which has another memory layout"),
        (title not in ("POKEMON RED", "POKEMON BLUE", "POKEMON YELLOW"), f"another game, {title!r}"),
        (len(data) != size, f"{'truncated' if len(data) < size else 'too long'}: {len(data):,} bytes, its header says {size:,}"),
        # A hack changes some names; a file with none of the tables would run wild in the emulator, for ever.
        (not any(start in data for *_, start in TABLES.values()), f"no working {title}: it has that header but no tables")]
    if wrong := next((what for found, what in checks if found), ""):
        raise BadInput(f"{path} is {wrong}; {WANTED}")
    version, sha = title.split()[1].lower(), hashlib.sha1(data).hexdigest()
    return version, "" if SHA1.get(sha) == version else (
        f"{path} calls itself {title} but is not the original (SHA-1 {sha[:12]}...): a hack, a translation or a bad copy may be "
        "misread; going on")


class Cartridge:
    """The half of a reader that knows the cartridge. Another game (lantern.py) overrides most of this and little else."""

    def __init__(self, seed: int = 0):
        self.seed, self.version, self.lists = seed, "red", {}
        self.at = {kind: row[:2] for kind, row in TABLES.items()} | {"type": TYPES}

    def rom(self, path: str) -> bytes:
        """The cartridge's bytes, from the user's own file; a changed ROM is warned of. Raises BadInput, OSError."""
        if not path:
            raise BadInput("red, blue and yellow need your own ROM: --rom PATH, or the environment variable CH_ROM; "
                           "without one, --game lantern plays")
        data = Path(path).read_bytes()
        self.version, warning = identify(data, path)
        self.name = self.version                       # a checkpoint of Blue is not one of Red
        for kind, (bank, a, start) in TABLES.items():
            usual, found = bank * 0x4000 + a % 0x4000, data.find(start)
            if data[usual:usual + len(start)] != start and found >= 0x4000:
                self.at[kind] = (found // 0x4000, found % 0x4000 + 0x4000)
        if warning:
            print(f"run.py: warning: {warning}", file=sys.stderr)
        return data

    def view(self, mem: Any) -> Any:
        """Memory with this game's variables at Red's addresses."""
        return Shifted(mem) if self.version == "yellow" else mem

    def prepare(self, mem: Any) -> None:
        """Pokes before the first frame (lantern's seed)."""

    def tune(self, mem: Any) -> None:
        """Once the player has control: text speed FAST, as the OPTION menu would set it."""
        if mem[0xD355] & 7 > 1:
            mem[0xD355] = mem[0xD355] & 0xF8 | 1

    def belongs(self, mem: Any) -> bool:
        """Does this memory fit the ROM? The tileset's header is in both. True when unknown: in Yellow, before the first map."""
        if not mem[0xD368] or self.version == "yellow":
            return True
        return peek(mem, 3, 0x47BE + 12 * mem[0xD367], 11) == bytes(mem[0xD52B:0xD536])

    def map_name(self, mem: Any, number: int) -> str:
        return MAPS[number] if number < len(MAPS) else f"MAP_{number:02X}"

    def names(self, mem: Any, kind: str) -> list[str]:
        """The ROM's names of species (by internal id), moves, items, trainer classes or types, by number; [] without a ROM."""
        (bank, a), text = self.at[kind], lambda codes: decode(codes.split(b"\x50")[0]).strip()
        if kind not in self.lists and (raw := peek(mem, bank, a, 2000)):
            if kind == "type":
                self.lists[kind] = [text(peek(mem, bank, word(raw, i), 10)) for i in range(0, 54, 2)]
            else:
                parts = [raw[i:i + 10] for i in range(0, 1900, 10)] if kind == "species" else raw.split(b"\x50")
                self.lists[kind] = [""] + [text(part) for part in parts]
        return self.lists.get(kind, [])

    def label(self, mem: Any, kind: str, number: int) -> str:
        """The name of a species, move, item, trainer or type; "species 176" where there is no table to read it from."""
        if kind == "item" and number >= 0xC4:
            return f"HM{number - 0xC3:02d}" if number < 0xC9 else f"TM{number - 0xC8:02d}"
        return at([self.names(mem, kind)], number, 0) or f"{kind} {number}"

    def move_data(self, mem: Any, number: int) -> list[int]:
        """[power, type id, accuracy of 255, PP without PP Ups], or [] without a ROM."""
        bank, a = self.at["move data"]
        return list(peek(mem, bank, a + 6 * (number - 1) + 2, 4))

    def tileset(self, mem: Any) -> Tileset:
        return TILESETS[mem[0xD367]] if mem[0xD367] < len(TILESETS) else Tileset()

    def stored_blocks(self, mem: Any) -> list[list[int]]:
        """The map's blocks as the ROM has them: in a battle their place in memory is used for pictures."""
        bank, height, width = peek(mem, 3, 0x423D + mem[0xD35E]), mem[0xD368], mem[0xD369]
        stored = peek(mem, bank[0], word(mem, 0xD36A), height * width) if bank and self.version != "yellow" else b""
        return [list(stored[i:i + width]) for i in range(0, len(stored), width)]

    def passable(self, mem: Any) -> frozenset[int]:
        """Tiles that let a step through: the list in ROM that wTilesetCollisionPtr names (bank 1 in Yellow)."""
        found = peek(mem, 1 if self.version == "yellow" else None, word(mem, 0xD530), 96)
        return frozenset(found.split(b"\xff")[0]) or self.tileset(mem).passable

    def seen(self, mem: Any, height: int, width: int) -> list[list[int | None]]:
        """Without a ROM: the part of the map that the screen shows, where no box covers it."""
        grid: list[list[int | None]] = [[None] * 2 * width for _ in range(2 * height)]
        for row, col in ((r, c) for r in range(9) for c in range(10) if not mem[0xD057]):
            x, y, tile = mem[0xD362] - 4 + col, mem[0xD361] - 4 + row, mem[0xC3A0 + 20 * (2 * row + 1) + 2 * col]
            if 0 <= x < 2 * width and 0 <= y < 2 * height and tile < 0x60:
                grid[y][x] = tile
        return grid

    def way_out(self, mem: Any, tiles: list[list[int | None]], x: int, y: int) -> str:
        """How the warp on this cell works: by stepping on it, or by pressing a direction there."""
        tileset, area, beside = self.tileset(mem), mem[0xD35E], {way: at(tiles, x + dx, y + dy) for way, (dx, dy) in STEP.items()}
        if tiles[y][x] in tileset.doors | tileset.warps:
            return "step on"
        if area != EDGE_MAP and (area in FRONT_MAPS or mem[0xD367] in FRONT_TILESETS):        # a mat lies in front
            ways = [way for way, tile in beside.items() if tile in ({0x15} if area == BOW else CARPETS[way])]
        else:                                                                                 # the map's edge is in front
            edge = {"up": y == 0, "down": y == len(tiles) - 1, "left": x == 0, "right": x == len(tiles[0]) - 1}
            ways = [way for way in edge if edge[way]]
        return "press " + (" or ".join(ways).upper().replace("OR", "or") or "a direction")
