"""Lantern's tiles, font, maps and texts, drawn as text and turned into asm source. Original work, MIT.

Covered: what build.py assembles and what the tests compare the running game with.
Not covered: the engine (game.c). Tiles that mean something carry the id that Pokémon Red's overworld tileset
gives them (door 1B, water 14), so that games/red.py reads both games.
"""

SHADES = {".": 0, "-": 1, "+": 2, "#": 3}

TILES = {  # background tiles; their ids stand in TILE_IDS
    "floor": "........ ........ ........ ........ ........ ........ ........ ........",
    "grass": "........ .-...... -.-...-. ........ ........ ....-... ...-.-.. ........",
    "brick": "######## #--#---- #--#---- ######## --#---#- --#---#- ######## ++++++++",
    "tree":  "..####.. .#++-+#. #+-++++# #++++-+# #+-++++# .#++-+#. ..#++#.. ...##...",
    "roof":  "######## -+-+-+-+ +-+-+-+- ######## -+-+-+-+ +-+-+-+- ######## --------",
    "doorA": "######## #++++++# #+----+# #+----+# #+----+# #+----+# #+----+# #+----+#",
    "doorB": "#+----+# #+----+# #+--#-+# #+----+# #+----+# #+----+# #++++++# ########",
    "matt":  "-+-+-+-+ +-+-+-+- -+-+-+-+ +-+-+-+- -+-+-+-+ +-+-+-+- -+-+-+-+ +-+-+-+-",
    "signA": "........ ######## #------# #-####-# #------# #-####-# #------# ########",
    "signB": "...##... ...##... ...##... ...##... ...##... ..-##-.. ........ ........",
    "water": "++++++++ +--+++++ -++--+++ +++++--- ++++++++ +++--+++ +--++--+ ++++++++",
    "table": "######## #------# #------# #------# #------# ######## #+....+# #+....+#",
}
TILE_IDS = {"floor": 0x00, "grass": 0x10, "water": 0x14, "doorB": 0x1B, "matt": 0x58, "brick": 0x40, "tree": 0x41,
            "roof": 0x42, "doorA": 0x43, "signA": 0x44, "signB": 0x45, "table": 0x46}
PASSABLE = ["floor", "grass", "doorB", "matt"]

CELLS = {  # one map cell = one 16x16 step = four tiles: top left, top right, bottom left, bottom right
    " ": "floor floor floor floor", ".": "grass grass grass grass", "#": "brick brick brick brick",
    "T": "tree tree tree tree", "^": "roof roof roof roof", "D": "doorA doorA doorB doorB",
    "m": "matt matt matt matt", "S": "signA signA signB signB", "~": "water water water water",
    "t": "table table table table",
}

MAPS = [
    dict(name="House", border="#", rows=[
        "##########",
        "#t      t#",
        "#        #",
        "#   tt   #",
        "#        #",
        "#        #",
        "#        #",
        "####m#####"],
        warps=[(7, 4, 0, 1)], signs=[], sprites=[(2, 2, 7, 0, 1)]),
    dict(name="Town", border="T", rows=[
        "TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT",
        "T..............................T",
        "T.^^^^...~~~~......TTTTTT......T",
        "T.^^^^...~~~~......T...........T",
        "T.##D#...~~~~......T..TTTTTT...T",
        "T......................T.......T",
        "T....TTTTTTTT.....TTTTTT.......T",
        "T....T.................TTTTT...T",
        "T....T..TTTTTTT................T",
        "T....T..T.....T....~~~~........T",
        "T.......T.....T....~~~~........T",
        "T.......T..S..T....~~~~........T",
        "T....TTTT.....T................T",
        "T....T.........................T",
        "T....T........TTTTTTTTTT..TTTTTT",
        "T....TTTTTTTTTT..............TTT",
        "T............................TTT",
        "T......TTTT.......TTTTTTTT.....T",
        "T.........T.......T......T.....T",
        "T.........T.......T......T.....T",
        "T.................T............T",
        "TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT"],
        warps=[(4, 4, 0, 0)], signs=[(11, 11, 2)], sprites=[(2, 18, 21, 0, 3)]),
]
TEXTS = ["", "The town is just\noutside the door.", "LANTERN TOWN\nThe guard waits in\vthe south-east.", "You found me! The\nroad is closed.\fCome back when it\nis lit."]

PLAYER = """
....########....
...#++++++++#...
..#++++++++++#..
..#++++++++++#..
.##############.
..#-#-.--.-#-#..
..#--#-..-#--#..
...#--------#...
..##-++++++-##..
.#--########--#.
.#-#++++++++#-#.
..##++++++++##..
...#++++++++#...
...####..####...
...#--#..#--#...
...####..####...
"""

# 5x7 glyphs, one hex byte a row from the top, low five bits
FONT = {
    "A": "0E11111F111111", "B": "1E11111E11111E", "C": "0E11101010110E", "D": "1E11111111111E",
    "E": "1F10101E10101F", "F": "1F10101E101010", "G": "0E11101711110E", "H": "1111111F111111",
    "I": "0E04040404040E", "J": "0702020202120C", "K": "11121418141211", "L": "1010101010101F",
    "M": "111B1515111111", "N": "11191513111111", "O": "0E11111111110E", "P": "1E11111E101010",
    "Q": "0E11111115120D", "R": "1E11111E141211", "S": "0F10100E01011E", "T": "1F040404040404",
    "U": "1111111111110E", "V": "11111111110A04", "W": "11111115151B11", "X": "11110A040A1111",
    "Y": "11110A04040404", "Z": "1F01020408101F", "0": "0E11131519110E", "1": "040C040404040E",
    "2": "0E11010204081F", "3": "1F02040201110E", "4": "02060A121F0202", "5": "1F101E0101110E",
    "6": "0608101E11110E", "7": "1F010204080808", "8": "0E11110E11110E", "9": "0E11110F01020C",
    "a": "00000E010F110F", "b": "1010161911111E", "c": "00000E1010110E", "d": "01010D1311110F",
    "e": "00000E111F100E", "f": "0609081C080808", "g": "000F11110F010E", "h": "10101619111111",
    "i": "04000C0404040E", "j": "0200060202120C", "k": "10101214181412", "l": "0C04040404040E",
    "m": "00001A15151111", "n": "00001619111111", "o": "00000E1111110E", "p": "00001E111E1010",
    "q": "00000D130F0101", "r": "00001619101010", "s": "00000E100E011E", "t": "08081C08080906",
    "u": "0000111111130D", "v": "00001111110A04", "w": "0000111115150A", "x": "0000110A040A11",
    "y": "000011110F010E", "z": "00001F0204081F",
    "!": "04040404040004", "?": "0E110102040004", ".": "00000000000C0C", "'": "04040800000000",
    ",": "000000000C0408", "-": "0000001F000000", ":": "000C0C000C0C00",
}
CHARMAP = {chr(65 + i): 0x80 + i for i in range(26)}
CHARMAP.update({chr(97 + i): 0xA0 + i for i in range(26)})
CHARMAP.update({str(i): 0xF6 + i for i in range(10)})
CHARMAP.update({" ": 0x7F, "!": 0xE7, "?": 0xE6, ".": 0xE8, "'": 0xE0, ",": 0xF4, "-": 0xE3, ":": 0x9C,
                "\n": 0x4E, "\v": 0x4C, "\f": 0x51, "@": 0x50})
BOX = {0x79: "corner 0 0", 0x7A: "h", 0x7B: "corner 1 0", 0x7C: "v", 0x7D: "corner 0 1", 0x7E: "corner 1 1"}


def tile_bytes(rows):
    out = []
    for row in rows:
        shades = [SHADES[c] for c in row]
        out.append(sum((s & 1) << (7 - i) for i, s in enumerate(shades)))
        out.append(sum((s >> 1) << (7 - i) for i, s in enumerate(shades)))
    return bytes(out)


def glyph(hexrows):
    rows = [0] + [b << 2 for b in bytes.fromhex(hexrows)]
    return bytes(x for r in rows for x in (r, r))


def box_tile(kind):
    g = [["." for _ in range(8)] for _ in range(8)]
    if kind == "h":
        for x in range(8):
            g[3][x] = g[4][x] = "#"
    elif kind == "v":
        for y in range(8):
            g[y][3] = g[y][4] = "#"
    else:
        _, right, bottom = kind.split()
        for x in (range(0, 5) if right == "1" else range(3, 8)):
            g[3][x] = g[4][x] = "#"
        for y in (range(0, 5) if bottom == "1" else range(3, 8)):
            g[y][3] = g[y][4] = "#"
    return tile_bytes(g)


def db(label, data, width=32):
    lines = [f"{label}:"]
    lines += ["  db " + ",".join(f"${b:02X}" for b in data[i:i + width]) for i in range(0, len(data), width)]
    return "\n".join(lines)


def source():
    ids = TILE_IDS
    out = [db("TilesetGfx", b"".join(tile_bytes(t.split()) for t in TILES.values())), "TilesetGfxEnd:"]
    out.append(db("TilesetColl", bytes(sorted(ids[n] for n in PASSABLE)) + b"\xff"))
    upper = bytearray(0x800)  # tiles $80-$FF
    low = bytearray(16 * 7)   # tiles $79-$7F
    for ch, code in CHARMAP.items():
        if ch in FONT:
            upper[(code - 0x80) * 16:(code - 0x7F) * 16] = glyph(FONT[ch])
    for code, kind in BOX.items():
        low[(code - 0x79) * 16:(code - 0x78) * 16] = box_tile(kind)
    out += [db("FontGfx", upper), "FontGfxEnd:", db("BoxGfx", low), "BoxGfxEnd:"]
    art = PLAYER.split()
    obj = b"".join(tile_bytes([r[x:x + 8] for r in art[y:y + 8]]) for y in (0, 8) for x in (0, 8))
    out += [db("SpriteGfx", obj), "SpriteGfxEnd:"]
    blocks = {}  # a block = 4x4 tiles = 2x2 cells, made as the maps need them

    def block(cells):
        quads = [[ids[n] for n in CELLS[c].split()] for c in cells]
        grid = [quads[0][0:2] + quads[1][0:2], quads[0][2:4] + quads[1][2:4],
                quads[2][0:2] + quads[3][0:2], quads[2][2:4] + quads[3][2:4]]
        return blocks.setdefault(bytes(x for r in grid for x in r), len(blocks))

    heads, bodies = ["MapHeaders:"], []
    for m in MAPS:
        rows, h, w = m["rows"], len(m["rows"]) // 2, len(m["rows"][0]) // 2
        data = [block(rows[2 * y][2 * x:2 * x + 2] + rows[2 * y + 1][2 * x:2 * x + 2])
                for y in range(h) for x in range(w)]
        heads.append(f"  dw {m['name']}Header")
        bodies.append(f"{m['name']}Header:\n  db {h},{w},{block(m['border'] * 4)}\n  dw {m['name']}Blocks")
        row = lambda values: bodies.append("  db " + ",".join(map(str, values)))
        row([len(m["warps"])] + [v for w in m["warps"] for v in w])
        row([len(m["signs"])] + [v for s in m["signs"] for v in s[:2]] + [s[2] for s in m["signs"]])
        row([len(m["sprites"])] + [v for s in m["sprites"] for v in (0, s[4])] + [v for s in m["sprites"] for v in s[:4]])
        bodies.append(db(f"{m['name']}Blocks", bytes(data)))
    out += heads + bodies + [db("BlockData", b"".join(blocks))]
    out += ["TextTable:"] + [f"  dw Text{i}" for i in range(len(TEXTS))]
    out += [db(f"Text{i}", bytes(CHARMAP[c] for c in t + "@")) for i, t in enumerate(TEXTS)]
    return "\n".join(out) + "\n"
