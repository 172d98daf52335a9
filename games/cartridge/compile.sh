# Compile in a folder that holds the sources and what build.py made of the data: assets.s, gen.h.
sdasgb -g -o crt0.rel crt0.s
sdasgb -g -o assets.rel assets.s
for name in overworld text battle story; do sdcc -msm83 --opt-code-size -c $name.c; done
sdcc -msm83 --no-std-crt0 --code-loc 0x200 --data-loc 0xC000 -o game.ihx \
    crt0.rel assets.rel overworld.rel text.rel battle.rel story.rel
makebin -Z -yN -yo 2 -yn LANTERN game.ihx game.gb
