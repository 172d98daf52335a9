"""Build lantern.gb from the C sources and the plain-text data files with sdcc 4.2: `python -m games.cartridge.build`.

load_maps() and its like give the data as the files draw it; build(path) makes the cartridge, always the same bytes.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from games.red_data import LETTERS

HERE = Path(__file__).resolve().parent
SIDES = {"north": 8, "south": 4, "west": 2, "east": 1}          # connection bits, in header order
FACINGS = {"down": 0, "up": 4, "left": 8, "right": 12}
# The first code of a letter; next line, next page, three inserted names.
CHARMAP = {letter: code for code, letter in reversed(LETTERS.items())}
CHARMAP |= {" ": 0x7F, "*": 0xF0, "\n": 0x4E, "|": 0x51, "<": 0x52, ">": 0x53, "^": 0x54}


def sections(name):
    """Each part of a data file as (head words, key=value options, body lines): '[' begins a head, ';' a comment."""
    parts = []
    for line in (HERE / "data" / name).read_text().splitlines():
        if line.startswith("["):
            words = line.strip("[]").split(" ")
            parts.append((words, dict(w.split("=", 1) for w in words if "=" in w), []))
        elif line.strip() and not line.startswith(";"):
            parts[-1][2].append(line.rstrip())
    return parts


def tables():
    return {head[0]: [line.split() for line in body] for head, _, body in sections("tables.txt")}


def load_texts():
    return {head[0]: "\n".join(body).replace("\n/\n", "|") for head, _, body in sections("texts.txt")}


def load_tilesets():
    """Tilesets by id: art (tile id -> 8 rows), cells (character -> four tile ids) and the rule lists."""
    sets = {}
    for head, opt, body in sections("tiles.txt"):
        if head[0] == "tileset":
            current = sets[int(head[1])] = {"art": {}, "cells": {}}
            for key in ("passable", "counters", "grass"):
                current[key] = [int(x, 16) for x in opt.get(key, "").split(",") if x]
        elif head[0] == "cells":
            current["cells"].update({line[0]: [int(x, 16) for x in line[1:].split()] for line in body})
        else:
            for i, tile in enumerate(int(x, 16) for x in head[1:]):
                y, x = i // 2 * 8, i % 2 * 8
                current["art"][tile] = [row[x:x + 8] for row in body[y:y + 8]]
    return sets


def load_maps():
    """Maps in id order: name, rows, and the entries of maps.txt in warps, signs, triggers, npcs, connects, wilds."""
    maps = []
    for i, (head, opt, body) in enumerate(sections("maps.txt")):
        m = {"id": i, "name": head[1], "rows": [], "enter": "", "dark": "0", "maze": "", **opt}
        m.update({key: [] for key in ("warps", "signs", "triggers", "npcs", "connects", "wilds")})
        for line in body:
            kind, *words = line.split()
            if words:
                m[kind + "s"].append([int(w) if w.lstrip("-").isdigit() else w for w in words])
            else:
                m["rows"].append(line)
        maps.append(m | {"tileset": int(m["tileset"])})
    return maps


def picture_bytes(rows):
    """A square picture, tile by tile, two bits a pixel."""
    starts = range(0, len(rows), 8)
    return [sum((".-+#".index(c) >> plane & 1) << 7 - i for i, c in enumerate(row[x:x + 8]))
            for y in starts for x in starts for row in rows[y:y + 8] for plane in (0, 1)]


def sprite_bytes():
    """Names and tiles of all kinds of people: bodies drawn with letters, to which each kind gives its shades."""
    bodies, kinds, data = {}, [], []
    for head, opt, body in sections("sprites.txt"):
        if head[0] == "body":
            bodies[head[1]] = body
        else:
            kinds.append(head[1])
            for frame in head[2].split(","):
                data += picture_bytes([row.translate(str.maketrans(opt)) for row in bodies[frame]])
    return kinds, data


class Source:
    """The assembler source of all data, and the C header with the names of all numbers."""

    def __init__(self):
        self.asm, self.header, self.scripts = [".module assets", ".area _CODE"], [], {}
        self.tab, self.texts, self.tilesets, self.maps = tables(), load_texts(), load_tilesets(), load_maps()
        self.people, self.sprites = sprite_bytes()
        self.ids = {k: self.number(prefix, [w[0] for w in self.tab[k]], first) for k, prefix, first in (
            ("types", "TYPE_", 0), ("moves", "MOVE_", 1), ("items", "ITEM_", 0), ("species", "MON_", 1), ("events", "E_", 0))}
        self.text_ids, self.map_ids = self.number("T_", self.texts), self.number("M_", [m["name"] for m in self.maps])
        self.kinds = {**self.number("PIC_", self.people[:-2], 1), "BALL": 0x3D, "BOULDER": 0x3F}
        self.blocks = {t: {} for t in self.tilesets}
        for i in range(8):              # the maze writes block numbers: bit 0 open east, 1 open south, 2 stairs
            self.block(17, ".>"[i >> 2] + "#."[i & 1] + "#."[i >> 1 & 1] + "#")

    def db(self, label, data):
        self.asm.extend([f"_{label}::"] + [".db " + ",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)])

    def number(self, prefix, words, first=0):
        self.header.extend(f"#define {prefix}{w} {i + first}" for i, w in enumerate(words))
        return {w: i + first for i, w in enumerate(words)}

    def block(self, tileset, chars):    # a block is 2x2 cells, 4x4 tiles; maps make those they need
        a, b, c, d = (self.tilesets[tileset]["cells"][ch] for ch in chars)
        tiles = a[:2] + b[:2] + a[2:] + b[2:] + c[:2] + d[:2] + c[2:] + d[2:]
        return self.blocks[tileset].setdefault(tuple(tiles), len(self.blocks[tileset]))

    def talk(self, word):               # lower-case words name scripts in story.c, others texts
        return self.scripts.setdefault(word, 0x80 + len(self.scripts)) if word.islower() else self.text_ids[word]

    def map(self, m):
        rows, t = m["rows"], m["tileset"]
        self.db("Map" + m["name"], [] if m["maze"] else [self.block(t, rows[y][x:x + 2] + rows[y + 1][x:x + 2])
                                                         for y in range(0, len(rows), 2) for x in range(0, len(rows[0]), 2)])
        head = [list(self.tilesets).index(t), len(rows) // 2, len(rows[0]) // 2, self.block(t, m["border"] * 4),
                6 * int(m["dark"]), self.ids["events"].get(m["enter"], 255)]
        head += [self.ids["species"].get(w, w) for w in (m["wilds"] + [[0] * 7])[0]] + [sum(SIDES[c[0]] for c in m["connects"])]
        for side, to, offset in sorted(m["connects"], key=lambda c: -SIDES[c[0]]):
            far = self.maps[self.map_ids[to]]["rows"]
            edge = {"north": len(far) - 1, "west": len(far[0]) - 1}.get(side, 0)
            head += [self.map_ids[to]] + ([edge, offset & 255] if side in ("north", "south") else [offset & 255, edge])
        head += [len(m["warps"])] + [v for y, x, to, n in m["warps"] for v in (y, x, n, self.map_ids[to])]
        for entries in (m["signs"], m["triggers"]):
            head += [len(entries)] + [v for y, x, text in entries for v in (y, x, self.talk(text))]
        head += [len(m["npcs"])] + [v for y, x, kind, facing, text, moves_about, toggle in m["npcs"] for v in (
            self.kinds[kind], y + 4, x + 4, FACINGS[facing], 0xFE if moves_about == "walks" else 0xFF, self.talk(text), toggle)]
        self.db("Head" + m["name"], head)

    def tileset_records(self):
        records = ["_Tilesets::"]
        for t, ts in self.tilesets.items():
            rules = (ts["counters"] + [255] * 3)[:3] + (ts["grass"] + [255])[:1]
            records += [f".db {t}", f".dw _Blocks{t},_Passable{t},_Tiles{t}", ".db " + ",".join(map(str, rules))]
            self.db(f"Blocks{t}", [v for b in self.blocks[t] for v in b])
            self.db(f"Passable{t}", ts["passable"] + [255])
            self.db(f"Tiles{t}", [v for i, rows in sorted(ts["art"].items()) for v in [i, *picture_bytes(rows)]] + [255])
        self.asm += records

    def names_and_tables(self):
        tab, ids = self.tab, self.ids
        types, moves, species = ids["types"], ids["moves"], ids["species"]
        for name, text in self.texts.items():
            self.db("Text" + name, [*map(CHARMAP.get, text), 0x50])
        self.asm += ["_MapTable::"] + [f".dw _Map{m},_Head{m}" for m in self.map_ids]
        self.asm += ["_TextTable::"] + [f".dw _Text{t}" for t in self.texts]
        for label, words in zip(("Species", "Move", "Item", "Type", "Map"), (species, moves, ids["items"], types, self.map_ids)):
            self.db(label + "Names", [v for w in words for v in [*map(CHARMAP.get, w.replace("_", " ")), 0x50]])
        self.db("Moves", [v for i, w in enumerate(tab["moves"], 1) for v in (i, w[1], w[2], types[w[3]], w[4], w[5])])
        self.db("TypeChart", [v for w in tab["chart"] for v in (types[w[0]], types[w[1]], w[2])] + [255])
        self.db("Species", [v for w in tab["species"] for v in [types[w[1]], *w[2:6], *(moves[x] for x in w[6:])]])

    def pictures(self):
        pictures = {head[0]: picture_bytes(body) for head, _, body in sections("monsters.txt")}
        self.db("Pictures", [v for w in self.ids["species"] for v in pictures[w]])
        font = bytearray(8 * 160)       # one bit a pixel, tiles 60 to FF
        for key, rows in map(str.split, (HERE / "data" / "font.txt").read_text().splitlines()):
            code, data = int(key[1:], 16) if len(key) == 3 else CHARMAP[key], bytes.fromhex(rows)
            font[code * 8 - 0x300:code * 8 - 0x2F8] = data if len(data) == 8 else bytes([0] + [b << 2 for b in data])
        self.db("FontGfx", font)
        self.db("SpriteGfx", self.sprites)

    def files(self):
        """(assets.s, gen.h)"""
        for m in self.maps:
            self.map(m)
        self.tileset_records()
        self.names_and_tables()
        self.pictures()
        self.number("DO_", [s.upper() for s in self.scripts], 0x80)
        self.header.append(f"#define SPRITE_BYTES {len(self.sprites)}")
        return "\n".join(self.asm) + "\n", "\n".join(self.header) + "\n"


def build(out_path):
    """Returns the size of code and data, bytes."""
    with tempfile.TemporaryDirectory() as tmp:
        for f in HERE.glob("*.[chs]*"):
            shutil.copy(f, tmp)
        for name, text in zip(("assets.s", "gen.h"), Source().files()):
            Path(tmp, name).write_text(text)
        done = subprocess.run(["sh", "-e", "compile.sh"], cwd=tmp, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        size = 0x200 + int(re.search(r"^_CODE +\w+ +(\w+) =", Path(tmp, "game.map").read_text(), re.M)[1], 16)
        assert size <= 0x8000, f"{size} bytes do not fit"
        shutil.copy(Path(tmp, "game.gb"), out_path)
    return size


if __name__ == "__main__":
    print("code and data:", build(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "lantern.gb"), "of 32768 bytes")
