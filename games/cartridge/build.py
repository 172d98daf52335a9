"""Build lantern.gb from the source beside this file: `python -m games.cartridge.build [OUT.gb]` (1-2 s, needs sdcc 4.2).

Nobody needs this to play: lantern.gb is in the repository, and a test compares the two where sdcc is installed.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from games.cartridge import assets

HERE = Path(__file__).parent


def asm() -> str:
    """The assets as sdasgb source: labels made global with C's underscore, $ written as 0x."""
    out = ["\t.module assets", "\t.area _CODE"]
    for line in assets.source().splitlines():
        if label := re.match(r"(\w+):$", line):
            out.append(f"_{label[1]}::")
            continue
        line = line.strip().replace("$", "0x")
        out.append("\t." + (re.sub(r"\b([A-Z]\w*)", r"_\1", line) if line.startswith("dw") else line))
    return "\n".join(out) + "\n"


def build(out: Path) -> None:
    """Assemble, compile and link in a temporary directory; write the 32 KiB ROM to `out`."""
    with tempfile.TemporaryDirectory() as tmp:
        run = lambda *words: subprocess.run(words, check=True, cwd=tmp)
        Path(tmp, "assets.s").write_text(asm())
        for name in ("crt0.s", "game.c"):
            Path(tmp, name).write_text((HERE / name).read_text())
        run("sdasgb", "-o", "crt0.rel", "crt0.s")
        run("sdasgb", "-o", "assets.rel", "assets.s")
        run("sdcc", "-msm83", "-c", "game.c")
        run("sdcc", "-msm83", "--no-std-crt0", "--code-loc", "0x200", "--data-loc", "0xC000",
            "-o", "game.ihx", "crt0.rel", "game.rel", "assets.rel")
        run("makebin", "-Z", "-yN", "-yo", "2", "-yn", "LANTERN", "game.ihx", "lantern.gb")
        out.write_bytes(Path(tmp, "lantern.gb").read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "lantern.gb")
