"""Lantern, the open cartridge in this repository: read as Pokémon Red is (red.py); here is only what differs.

The state lies at Red's addresses. Names are not in Red's banks but in lists that eight pointers at 0x0180 lead to.
"""
from pathlib import Path
from typing import Any

from games.red import Red
from games.red_data import condition, decode, word

ROM = Path(__file__).with_name("lantern.gb")
LISTS = ("species", "move", "item", "type", "map", "move data")                         # in the order of the pointers
# In the order of their event flags.
MILESTONES = ("left the house", "met the elder", "read a sign", "read the rhyme", "bought the lantern", "was healed",
              "won a battle", "beat the trainer", "entered the cave", "found the key", "passed the gate", "crossed the marsh",
              "entered the shrine", "opened the shrine", "entered the last room", "beat the warden")


class Lantern(Red):
    name = "lantern"
    milestones = {name: condition("event", [i]) for i, name in enumerate(MILESTONES)}

    def rom(self, path: str) -> bytes:
        return Path(path).read_bytes() if path else ROM.read_bytes()

    def prepare(self, mem: Any) -> None:
        """The seed of the maze, the encounters and everything else random, where Red keeps the player's number."""
        mem[0xD359], mem[0xD35A] = self.seed & 0xFF, self.seed >> 8 & 0xFF

    def tune(self, mem: Any) -> None:
        """Texts are fast from the start."""

    def belongs(self, mem: Any) -> bool:
        return True

    def names(self, mem: Any, kind: str) -> list[str]:
        if kind == "trainer":
            return ["", "BRAM", "the warden"]
        if kind not in self.lists:
            a = word(mem, 0x180 + 2 * LISTS.index(kind))
            self.lists[kind] = [""] * (kind in ("species", "move")) + [decode(c) for c in bytes(mem[a:a + 200]).split(b"\x50")]
        return self.lists[kind]

    def move_data(self, mem: Any, number: int) -> list[int]:
        a = word(mem, 0x180 + 2 * LISTS.index("move data")) + 6 * (number - 1)
        return mem[a + 2:a + 6]

    def map_name(self, mem: Any, number: int) -> str:
        return self.label(mem, "map", number)

    def stored_blocks(self, mem: Any) -> list[list[int]]:
        """Here a battle leaves the map in memory alone."""
        stride, width = mem[0xD369] + 6, mem[0xD369]
        return [list(mem[a:a + width]) for a in range(0xC6EB + 3 * stride, 0xC6EB + (3 + mem[0xD368]) * stride, stride)]

    def way_out(self, mem: Any, tiles: list[list[int | None]], x: int, y: int) -> str:
        return "step on"


Game = Lantern
