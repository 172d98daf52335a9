"""Lantern, the open cartridge in the repository: read as Pokémon Red is (red.py); here is only what differs."""
from pathlib import Path
from typing import Any

from games.red import Red

ROM = Path(__file__).with_name("lantern.gb")
MAPS = ["House", "Town"]
EVENTS = 0xD747                                                                         # wEventFlags


class Lantern(Red):
    name = "lantern"
    milestones = {"left the house": lambda mem: mem[EVENTS] & 1,
                  "read the sign": lambda mem: mem[EVENTS] & 2,
                  "spoke to the guard": lambda mem: mem[EVENTS] & 4}

    def rom(self, path: str) -> bytes:
        return Path(path).read_bytes() if path else ROM.read_bytes()

    def belongs(self, mem: Any) -> bool:
        return True

    def stored_blocks(self, mem: Any) -> list[list[int]]:
        return []

    def way_out(self, mem: Any, tiles: list[list[int | None]], x: int, y: int) -> str:
        return "step on"

    def map_name(self, mem: Any, number: int) -> str:
        return MAPS[number] if number < len(MAPS) else f"Map{number:02X}"


Game = Lantern
