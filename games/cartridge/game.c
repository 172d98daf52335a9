/* Lantern: an original Game Boy game, MIT. Its live state lies in WRAM where the pret/pokered disassembly
   documents Pokemon Red's, so that one reader (games/red.py) serves both. Built by build.py. */
#include <stdint.h>
typedef uint8_t u8; typedef int8_t i8; typedef uint16_t u16;
#define REG(a) (*(volatile u8 *)(a))
#define rP1 REG(0xFF00)
#define rIF REG(0xFF0F)
#define rLCDC REG(0xFF40)
#define rSCY REG(0xFF42)
#define rSCX REG(0xFF43)
#define rLY REG(0xFF44)
#define rBGP REG(0xFF47)
#define rOBP0 REG(0xFF48)
#define rOBP1 REG(0xFF49)
#define rIE REG(0xFFFF)
#define hWY REG(0xFFB0)               /* 0x90: the map is in view; 0: a text covers it */
#define LCDC_ON 0xC3

__at(0xC100) u8 wSprites1[256];
__at(0xC200) u8 wSprites2[256];
__at(0xC300) u8 wOAM[160];
__at(0xC3A0) u8 wTileMap[18 * 20];
__at(0xC6E8) u8 wOverworldMap[1300];
__at(0xCFC4) u8 wFontLoaded;
__at(0xCFC5) u8 wWalkCounter;
__at(0xD35E) u8 wCurMap;
__at(0xD361) u8 wYCoord;
__at(0xD362) u8 wXCoord;
__at(0xD367) u8 wCurMapTileset;
__at(0xD368) u8 wCurMapHeight;
__at(0xD369) u8 wCurMapWidth;
__at(0xD3AE) u8 wNumberOfWarps;
__at(0xD3AF) u8 wWarpEntries[32][4];
__at(0xD4B0) u8 wNumSigns;
__at(0xD4B1) u8 wSignCoords[16][2];
__at(0xD4D1) u8 wSignTextIDs[16];
__at(0xD4E1) u8 wNumSprites;
__at(0xD4E4) u8 wMapSpriteData[16][2];
__at(0xD52A) u8 wPlayerDirection;
__at(0xD52B) u8 wTilesetBank;
__at(0xD52C) const u8 *wTilesetBlocksPtr;
__at(0xD530) const u8 *wTilesetCollisionPtr;

__at(0xD532) u8 wCounterTiles[3];
__at(0xD535) u8 wGrassTile;
__at(0xD730) u8 wStatusFlags5;
__at(0xD747) u8 wEventFlags[320];

extern const u8 TilesetGfx[], TilesetGfxEnd[], TilesetColl[], FontGfx[], FontGfxEnd[], BoxGfx[], BoxGfxEnd[],
    SpriteGfx[], SpriteGfxEnd[], BlockData[], dma[];
extern const u8 *const MapHeaders[], *const TextTable[];

/* private state, in the scratch area below wSprites1 */
volatile u8 req, vblanked;
const u8 *reqSrc;
u8 *reqDst;
u8 ox, oy, scx, scy, viewY, viewX, pressed, held, frontY, frontX;
i8 dy, dx;

struct dir { u8 pad; i8 dy, dx; u8 facing; u16 tile; u8 type, edge; };
const struct dir dirs[4] = {
    {0x80, 1, 0, 0, 20 * 11 + 8, 1, 16}, {0x40, -1, 0, 4, 20 * 7 + 8, 1, 0},
    {0x20, 0, -1, 8, 20 * 9 + 6, 2, 0}, {0x10, 0, 1, 12, 20 * 9 + 10, 2, 18}};

void copy(u8 *to, const u8 *from, u16 n) { while (n--) *to++ = *from++; }
void clear(u8 *to, u16 n) { while (n--) *to++ = 0; }

void vblank(void) {
    u8 i;
    rSCX = scx; rSCY = scy;
    if (req) {
        const u8 *s = reqSrc; u8 *d = reqDst;
        if (req == 1) {
            for (i = 0; i < 40; i += 2) {
                if (i == 20) d = reqDst + 32;
                *d++ = *s++; *d++ = *s++;
                if (!((u8)(u16)d & 31)) d -= 32;
            }
        } else {
            for (i = 18; i; i--) {
                *d++ = *s++; *d = *s; s += 19; d += 31;
                if (d >= (u8 *)0x9C00) d -= 0x400;
            }
        }
        req = 0;
    }
    vblanked = 1;
}

void waitFrame(void) {
    u8 b;
    vblanked = 0;
    while (!vblanked) { __asm halt __endasm; __asm nop __endasm; }
    rP1 = 0x20; b = rP1; b = rP1; b = (~b & 15) << 4;
    rP1 = 0x10; (void)rP1; (void)rP1; b |= ~rP1 & 15; rP1 = 0x30;
    pressed = b & ~held; held = b;
}

void lcdOff(void) {
    if (!(rLCDC & 0x80)) return;
    while (rLY != 144);
    rLCDC = 0;
}

void request(u8 type, u8 edge) {
    if (type == 1) {
        reqSrc = wTileMap + 20 * edge;
        reqDst = (u8 *)0x9800 + (u16)((oy + edge) & 31) * 32 + ox;
    } else {
        reqSrc = wTileMap + edge;
        reqDst = (u8 *)0x9800 + (u16)oy * 32 + ((ox + edge) & 31);
    }
    req = type;
}

void loadView(void) {
    u8 *t = wTileMap, r, c, y = viewY + 2, x;
    for (r = 9; r; r--, y++, t += 20) {
        const u8 *b = wOverworldMap + (u16)(y >> 1) * (u8)(wCurMapWidth + 6) + (u8)((viewX + 2) >> 1);
        for (c = 10, x = viewX + 2; c; c--, x++, t += 2) {
            const u8 *q = BlockData + ((u16)*b << 4) + ((y & 1) << 3) + ((x & 1) << 1);
            t[0] = q[0]; t[1] = q[1]; t[20] = q[4]; t[21] = q[5];
            if (x & 1) b++;
        }
    }
}

void putSprite(u8 *o, u8 y, u8 x, u8 attr) {
    u8 i;
    for (i = 0; i < 4; i++) {
        *o++ = y + ((i & 2) << 2); *o++ = x + ((i & 1) << 3); *o++ = i; *o++ = attr;
    }
}

void updateSprites(void) {
    u8 *o = wOAM, *p = wSprites1, i;
    i8 k = wWalkCounter ? 16 - wWalkCounter : 0;
    clear(wOAM, 160);
    for (i = 0; i < 16; i++, p += 16) {
        if (!*p) continue;
        p[2] = p[9];                                       /* ImageIndex: drawn */
        if (i) {
            u8 y = p[0x104] - wYCoord, x = p[0x105] - wXCoord;
            if (y >= 9 || x >= 10) { p[2] = 0xFF; continue; }
            p[4] = (y << 4) - 4 - (dy > 0 ? k : dy ? -k : 0);
            p[6] = (x << 4) - (dx > 0 ? k : dx ? -k : 0);
        }
        putSprite(o, p[4] + 16, p[6] + 8, *p == 1 ? 0 : 0x10);
        o += 16;
    }
}

void loadMapData(u8 map) {
    const u8 *h = MapHeaders[map], *blocks;
    u8 border, i; u8 *p;
    wCurMap = map;
    wCurMapHeight = h[0]; wCurMapWidth = h[1]; border = h[2];
    blocks = *(const u8 **)(h + 3); h += 5;
    for (p = wOverworldMap; p != wOverworldMap + 1300; ) *p++ = border;
    p = wOverworldMap + 3 * (u8)(wCurMapWidth + 6) + 3;
    for (i = wCurMapHeight; i; i--) {
        copy(p, blocks, wCurMapWidth);
        p += wCurMapWidth + 6; blocks += wCurMapWidth;
    }
    wNumberOfWarps = *h++; copy(wWarpEntries[0], h, wNumberOfWarps * 4); h += wNumberOfWarps * 4;
    wNumSigns = *h++; copy(wSignCoords[0], h, wNumSigns * 2); h += wNumSigns * 2;
    copy(wSignTextIDs, h, wNumSigns); h += wNumSigns;
    wNumSprites = *h++; copy(wMapSpriteData[0], h, wNumSprites * 2); h += wNumSprites * 2;
    clear(wSprites1 + 16, 240);
    for (i = 0, p = wSprites1 + 16; i < wNumSprites; i++, p += 16) {
        *p = *h++; p[0x104] = *h++ + 4; p[0x105] = *h++ + 4; p[9] = *h++;
    }
    wTilesetCollisionPtr = TilesetColl; wTilesetBlocksPtr = BlockData;
    wCounterTiles[0] = wCounterTiles[1] = wCounterTiles[2] = wGrassTile = 0xFF;
    if (map == 1) wEventFlags[0] |= 1;                     /* milestone: left the house */
}

void showMap(void) {
    u8 r; u8 *d = (u8 *)0x9800; const u8 *s = wTileMap;
    ox = oy = scx = scy = req = 0;
    viewY = wYCoord; viewX = wXCoord;
    loadView();
    for (r = 18; r; r--, d += 32, s += 20) copy(d, s, 20);
    updateSprites();
    rLCDC = LCDC_ON;
}

void checkWarp(void) {
    u8 i;
    for (i = 0; i < wNumberOfWarps; i++) {
        u8 *w = wWarpEntries[i];
        if (w[0] == wYCoord && w[1] == wXCoord) {
            u8 to = w[2];
            wStatusFlags5 |= 0x20;                         /* as in Red: no input while the map changes */
            lcdOff();
            loadMapData(w[3]);
            wYCoord = wWarpEntries[to][0]; wXCoord = wWarpEntries[to][1];
            showMap();
            waitFrame();
            wStatusFlags5 &= ~0x20;
            return;
        }
    }
}

u8 spriteAtFront(void) {
    u8 i; u8 *p = wSprites2 + 0x14;
    frontY = wYCoord + dy; frontX = wXCoord + dx;
    for (i = 1; i <= wNumSprites; i++, p += 16)
        if (p[0] == (u8)(frontY + 4) && p[1] == (u8)(frontX + 4)) return i;
    return 0;
}

void tryStep(void) {
    const struct dir *d = dirs; const u8 *ok = wTilesetCollisionPtr; u8 tile;
    while (!(held & d->pad)) d++;
    wPlayerDirection = (d->pad >> 4) | (d->pad << 4);
    dy = d->dy; dx = d->dx; wSprites1[9] = d->facing;
    tile = wTileMap[d->tile];
    while (*ok != 0xFF && *ok != tile) ok++;
    if (*ok == 0xFF || spriteAtFront()) { updateSprites(); return; }
    viewY = frontY; viewX = frontX;
    ox = (ox + 2 * dx) & 31; oy = (oy + 2 * dy) & 31;
    loadView();
    wWalkCounter = 16;
    request(d->type, d->edge);
}

u8 *boxRow(u8 *t, u8 a, u8 b, u8 c) {
    u8 i;
    *t++ = a;
    for (i = 18; i; i--) *t++ = b;
    *t++ = c;
    return t;
}

void showLowerRows(void) {
    u8 r;
    for (r = 12; r < 18; r += 2) { request(1, r); waitFrame(); }
}

u8 *blankBox(void) {
    u8 i; u8 *t = boxRow(wTileMap + 20 * 12, 0x79, 0x7A, 0x7B);
    for (i = 4; i; i--) t = boxRow(t, 0x7C, 0x7F, 0x7C);
    boxRow(t, 0x7D, 0x7A, 0x7E);
    return wTileMap + 20 * 14 + 1;
}

void waitButton(u8 arrow) {
    if (arrow) wTileMap[18 + 20 * 16] = 0xEE;              /* more to come: the waiting arrow */
    showLowerRows();
    do waitFrame(); while (!(pressed & 3));
}

void showText(u8 id) {
    const u8 *s = TextTable[id]; u8 *t = blankBox(), i;
    wFontLoaded = 1; hWY = 0;
    for (; *s != 0x50; s++) {
        if (*s == 0x4E) t = wTileMap + 20 * 16 + 1;
        else if (*s == 0x51) { waitButton(1); t = blankBox(); }
        else if (*s == 0x4C) {                             /* scroll: the lower line moves up */
            waitButton(1);
            t = wTileMap + 20 * 14 + 1;
            for (i = 18; i; i--, t++) { *t = t[40]; t[40] = 0x7F; }
            wTileMap[18 + 20 * 14] = 0x7F;
            t = wTileMap + 20 * 16 + 1;
        } else *t++ = *s;
    }
    waitButton(0);
    wFontLoaded = 0; hWY = 0x90;
    if (id == 2) wEventFlags[0] |= 2;                      /* milestones: read the sign, spoke to the guard */
    if (id == 3) wEventFlags[0] |= 4;
    loadView();
    showLowerRows();
}

void interact(void) {
    const struct dir *d = &dirs[wSprites1[9] >> 2]; u8 i;
    dy = d->dy; dx = d->dx;
    if ((i = spriteAtFront())) { showText(wMapSpriteData[i - 1][1]); return; }
    for (i = 0; i < wNumSigns; i++)
        if (wSignCoords[i][0] == frontY && wSignCoords[i][1] == frontX) showText(wSignTextIDs[i]);
}

void main(void) {
    lcdOff();
    clear((u8 *)0xC000, 0x1F00);
    clear((u8 *)0x8000, 0x2000);
    copy((u8 *)0xFF80, dma, 10);
    copy((u8 *)0x9000, TilesetGfx, TilesetGfxEnd - TilesetGfx);
    copy((u8 *)0x9790, BoxGfx, BoxGfxEnd - BoxGfx);
    copy((u8 *)0x8800, FontGfx, FontGfxEnd - FontGfx);
    copy((u8 *)0x8000, SpriteGfx, SpriteGfxEnd - SpriteGfx);
    rBGP = rOBP0 = 0xE4; rOBP1 = 0x90;
    wSprites1[0] = 1; wSprites1[4] = 0x3C; wSprites1[6] = 0x40;
    wYCoord = wXCoord = 4;
    hWY = 0x90;
    loadMapData(0);
    showMap();
    rIE = 1; rIF = 0;
    __asm ei __endasm;
    for (;;) {
        waitFrame();
        if (wWalkCounter) {
            wWalkCounter--; scx += dx; scy += dy;
            if (!wWalkCounter) { wYCoord = viewY; wXCoord = viewX; }
            updateSprites();
            if (!wWalkCounter) checkWarp();
        } else if (pressed & 1) interact();
        else if (held & 0xF0) tryStep();
    }
}
