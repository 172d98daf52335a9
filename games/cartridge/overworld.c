/* The overworld: picture, maps, walking, people. */
#include "game.h"
#define rP1 REG(0xFF00)
#define rLCDC REG(0xFF40)
#define rSCY REG(0xFF42)
#define rSCX REG(0xFF43)
#define rLY REG(0xFF44)
#define rBGP REG(0xFF47)

u8 pressed, held, frontY, frontX;
i8 stepY, stepX;                       /* the way of the step under way, or of the last look ahead */
static volatile u8 request, vblanked;  /* request: 1 = two rows, 2 = two columns of wTileMap to VRAM */
static const u8 *requestFrom;
static u8 *requestTo;
static u8 originX, originY, scrollX, scrollY, viewY, viewX, stepLength, parity, loadedTileset;
static u16 rng;
static const u8 *wild, *triggers;      /* parts of the map header in ROM */

struct direction { u8 key; i8 dy, dx; u8 facing; u16 tile; u8 type, edge, bit, link, ledge; };
static const struct direction directions[4] = {   /* down, up, left, right; tile: of the cell in front, in wTileMap */
    {KEY_DOWN, 1, 0, 0, 20 * 11 + 8, 1, 16, 4, 11, 0x37}, {KEY_UP, -1, 0, 4, 20 * 7 + 8, 1, 0, 8, 0, 0xFF},
    {KEY_LEFT, 0, -1, 8, 20 * 9 + 6, 2, 0, 2, 22, 0x27}, {KEY_RIGHT, 0, 1, 12, 20 * 9 + 10, 2, 18, 1, 33, 0x1D}};

void copy(u8 *to, const u8 *from, u16 n) { while (n--) *to++ = *from++; }
void fill(u8 *to, u8 value, u16 n) { while (n--) *to++ = value; }
u8 testBit(const u8 *flags, u8 n) { return flags[n >> 3] >> (n & 7) & 1; }
void setBit(u8 *flags, u8 n) { flags[n >> 3] |= 1 << (n & 7); }

/* One generator for everything random: it moves on with steps and battle turns, never with idle frames. */
u16 nextRandom(u16 r) {
    r ^= r << 7;
    r ^= r >> 9;
    return r ^ (r << 8);
}

u8 random(void) {
    rng = nextRandom(rng);
    return rng;
}

/* ---- picture ---- */

/* Runs in the VBlank interrupt, then the OAM DMA follows: there is time for 40 bytes only. */
void vblank(void) {
    u8 i;
    rSCX = scrollX; rSCY = scrollY;
    if (request) {
        const u8 *s = requestFrom; u8 *d = requestTo;
        if (request == 1) {
            for (i = 0; i < 40; i += 2) {
                if (i == 20) d = requestTo + 32;
                *d++ = *s++; *d++ = *s++;
                if (!((u8)(u16)d & 31)) d -= 32;
            }
        } else {
            for (i = 18; i; i--) {
                *d++ = *s++; *d = *s; s += 19; d += 31;
                if (d >= (u8 *)0x9C00) d -= 0x400;
            }
        }
        request = 0;
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
    while (rLY < 144);
    rLCDC = 0;
}

static void requestEdge(u8 type, u8 edge) {
    if (type == 1) {
        requestFrom = wTileMap + 20 * edge;
        requestTo = (u8 *)0x9800 + (u16)((originY + edge) & 31) * 32 + originX;
    } else {
        requestFrom = wTileMap + edge;
        requestTo = (u8 *)0x9800 + (u16)originY * 32 + ((originX + edge) & 31);
    }
    request = type;
}

/* Bring rows from..to-1 of wTileMap to the screen, two a frame. */
void flush(u8 from, u8 to) {
    for (; from < to; from += 2) { requestEdge(1, from); waitFrame(); }
}

/* With the LCD off: show wTileMap at once, unscrolled. */
void showScreen(void) {
    u8 r; u8 *d = (u8 *)0x9800; const u8 *s = wTileMap;
    originX = originY = scrollX = scrollY = request = 0;
    for (r = 18; r; r--, d += 32, s += 20) copy(d, s, 20);
    rLCDC = 0xC3;
}

void loadTileGfx(void) {
    const u8 *g = *(const u8 **)(Tilesets + loadedTileset * 11 + 5);
    for (; *g != 0xFF; g += 17) copy((u8 *)0x9000 + ((u16)*g << 4), g + 1, 16);
}

static const u8 *blockAt(u8 y, u8 x) {   /* the 16 tiles of the block at a cell, with 3 blocks of border around */
    u8 b = wOverworldMap[(u16)((u8)(y + 6) >> 1) * (u8)(wCurMapWidth + 6) + ((u8)(x + 6) >> 1)];
    return wTilesetBlocksPtr + ((u16)b << 4) + ((y & 1) << 3) + ((x & 1) << 1);
}

void loadView(void) {
    u8 *t = wTileMap, r, c, y = viewY + 2, x;
    for (r = 9; r; r--, y++, t += 20) {
        const u8 *b = wOverworldMap + (u16)(y >> 1) * (u8)(wCurMapWidth + 6) + (u8)((viewX + 2) >> 1);
        for (c = 10, x = viewX + 2; c; c--, x++, t += 2) {
            const u8 *q = wTilesetBlocksPtr + ((u16)*b << 4) + ((y & 1) << 3) + ((x & 1) << 1);
            t[0] = q[0]; t[1] = q[1]; t[20] = q[4]; t[21] = q[5];
            if (x & 1) b++;
        }
    }
}

/* ---- people ---- */

static u8 hidden(u8 slot) {
    const u8 *l = wToggleList;
    for (; *l != 0xFF; l += 2) if (l[0] == slot) return testBit(wToggleFlags, l[1]);
    return 0;
}

static u8 covered(u8 y, u8 x) {          /* does a text box lie over this cell of the view? */
    const u8 *t = wTileMap + 40 * y + 2 * x;
    return t[0] >= 0x60 || t[1] >= 0x60 || t[20] >= 0x60 || t[21] >= 0x60;
}

static void putSprite(u8 *o, u8 *p, u8 walking) {
    u8 i, tile, attr = 0, y = p[4] + 16, x = p[6] + 8;
    if (*p == PIC_PLAYER) tile = walking ? 12 : 0;
    else if (*p < 0x3D) tile = *p * 12;                       /* kind 2 begins at tile 24 */
    else tile = *p == 0x3D ? 108 : 112;
    if (*p < 0x3D) tile += p[9] >= 8 ? 8 : p[9];
    if (p[9] == 12 || (walking && p[9] < 8 && parity)) attr = 0x20;
    for (i = 0; i < 4; i++) {
        *o++ = y + ((i & 2) << 2); *o++ = x + ((i & 1) << 3);
        *o++ = tile + (attr ? i ^ 1 : i); *o++ = attr;
    }
}

void updateSprites(void) {
    u8 *o = wOAM, *p = wSprites1, i, y, x;
    i8 k = wWalkCounter ? stepLength - wWalkCounter : 0;
    fill(wOAM, 0, 160);
    for (i = 0; i <= wNumSprites; i++, p += 16) {
        y = x = 4;
        p[2] = 0xFF;
        if (i) {
            if (!wWalkCounter) p[1] = 1;
            if (hidden(i)) continue;
            y = p[0x104] - wYCoord; x = p[0x105] - wXCoord;
            if (wWalkCounter ? (u8)(y + 1) >= 11 || (u8)(x + 1) >= 12 : y >= 9 || x >= 10) continue;
            p[4] = (y << 4) - 4 - (stepY > 0 ? k : stepY ? -k : 0);
            p[6] = (x << 4) - (stepX > 0 ? k : stepX ? -k : 0);
            if (p[1] == 3) {
                p[4] -= (i8)p[3] > 0 ? wWalkCounter : p[3] ? -wWalkCounter : 0;
                p[6] -= (i8)p[5] > 0 ? wWalkCounter : p[5] ? -wWalkCounter : 0;
            }
        }
        if (!wWalkCounter && covered(y, x)) continue;
        p[2] = (i << 4) + p[9];
        putSprite(o, p, !i && wWalkCounter & 8);
        o += 16;
    }
}

static u8 spriteAt(u8 y, u8 x) {
    u8 i; u8 *p = wSprites2 + 0x14;
    for (i = 1; i <= wNumSprites; i++, p += 16)
        if (p[0] == (u8)(y + 4) && p[1] == (u8)(x + 4) && !hidden(i)) return i;
    return 0;
}

/* A walking person takes at most one step while the player takes one, so idle time changes nothing. */
static void walkPeople(void) {
    u8 i, r, y, x, away, tile; u8 *p = wSprites1 + 16; const struct direction *d;
    for (i = 1; i <= wNumSprites; i++, p += 16) {
        if (p[0x106] != 0xFE) continue;
        r = random();
        if (r & 4) continue;
        d = &directions[r & 3];
        p[9] = d->facing;
        y = p[0x104] - 4 + d->dy; x = p[0x105] - 4 + d->dx;
        away = p[0x102] + d->dy;                              /* 8 = at home; two cells away at most */
        if (away < 6 || away > 10) continue;
        away = p[0x103] + d->dx;
        if (away < 6 || away > 10) continue;
        tile = blockAt(y, x)[4];
        if ((tile != 0x2C && tile != 0x10 && tile != 0x23) || spriteAt(y, x)) continue;
        if ((y == wYCoord && x == wXCoord) || (y == frontY && x == frontX)) continue;
        p[0x104] = y + 4; p[0x105] = x + 4; p[0x102] += d->dy; p[0x103] = away;
        p[1] = 3; p[3] = d->dy; p[5] = d->dx;
    }
}

/* ---- maps ---- */

static const u8 *loadConnections(const u8 *h) {
    u8 bit, i, k; u8 *c = wConnections;
    fill(c, 0xFF, 44);
    wCurMapConnections = *h++;
    for (i = 0, bit = 8; i < 4; i++, c += 11) {
        k = i == 0 ? 8 : i == 1 ? 4 : i == 2 ? 2 : 1;
        if (!(wCurMapConnections & k)) continue;
        c[0] = h[0]; c[7] = h[1]; c[8] = h[2];                 /* map, then Y and X alignment as in Red */
        h += 3;
    }
    return h;
}

static const u8 *loadPeople(const u8 *h) {
    u8 i; u8 *p = wSprites1 + 16, *t = wToggleList;
    fill(wSprites1 + 16, 0, 240); fill(wSprites2 + 16, 0, 240);
    wNumSprites = *h++;
    for (i = 1; i <= wNumSprites; i++, p += 16, h += 7) {
        p[0] = h[0]; p[1] = 1; p[2] = 0xFF; p[9] = h[3];
        p[0x102] = p[0x103] = 8;
        p[0x104] = h[1]; p[0x105] = h[2]; p[0x106] = h[4];
        wMapSpriteData[2 * i - 2] = h[4]; wMapSpriteData[2 * i - 1] = h[5];
        if (h[6] != 0xFF) { t[0] = i; t[1] = h[6]; t += 2; }
    }
    *t = 0xFF;
    return h;
}

static void loadTileset(u8 index) {
    const u8 *t = Tilesets + index * 11;
    wCurMapTileset = t[0];
    wTilesetBlocksPtr = *(const u8 **)(t + 1);
    wTilesetBank = (u16)wTilesetBlocksPtr >> 14;
    wTilesetCollisionPtr = *(const u8 **)(t + 3);
    copy(wTalkingOverTiles, t + 7, 3);
    wGrassTile = t[10];
    loadedTileset = index;
    loadTileGfx();
}

/* With the LCD off. */
static void loadMapData(u8 map) {
    const u8 *blocks = MapTable[map * 2], *h = MapTable[map * 2 + 1]; u8 i; u8 *p;
    if (wCurMapTileset == 0) wLastMap = wCurMap;
    wCurMap = map;
    loadTileset(h[0]);
    wCurMapHeight = h[1]; wCurMapWidth = h[2]; wMapBackgroundTile = h[3]; wMapPalOffset = h[4];
    wCurrentMapHeight2 = wCurMapHeight << 1; wCurrentMapWidth2 = wCurMapWidth << 1;
    if (h[5] != 0xFF) setBit(wEventFlags, h[5]);
    wild = h + 6;
    wGrassRate = *wild;
    h = loadConnections(h + 13);
    fill(wOverworldMap, wMapBackgroundTile, 1300);
    wNumberOfWarps = *h++;
    copy(wWarpEntries, h, wNumberOfWarps * 4); h += wNumberOfWarps * 4;
    wNumSigns = *h++;
    for (i = 0; i < wNumSigns; i++, h += 3) {
        wSignCoords[2 * i] = h[0]; wSignCoords[2 * i + 1] = h[1]; wSignTextIDs[i] = h[2];
    }
    triggers = h; h += 1 + *h * 3;
    loadPeople(h);
    if (map == M_CAVE) { makeMaze(); return; }
    p = wOverworldMap + 3 * (u8)(wCurMapWidth + 6) + 3;
    for (i = wCurMapHeight; i; i--) {
        copy(p, blocks, wCurMapWidth);
        p += wCurMapWidth + 6; blocks += wCurMapWidth;
    }
}

void showMap(void) {
    viewY = wYCoord; viewX = wXCoord;
    wYBlockCoord = wYCoord & 1; wXBlockCoord = wXCoord & 1;
    loadView();
    updateSprites();
    rBGP = wMapPalOffset ? 0xFE : 0xE4;
    hWY = 0x90;
    showScreen();
}

/* y = 0xFF: x is the number of the warp to arrive at. */
void enterMap(u8 map, u8 y, u8 x) {
    lcdOff();
    loadMapData(map);
    if (y == 0xFF) { y = wWarpEntries[4 * x]; x = wWarpEntries[4 * x + 1]; }
    wYCoord = y; wXCoord = x;
    showMap();
}

static u8 takeWarp(void) {
    u8 i; const u8 *w = wWarpEntries;
    for (i = wNumberOfWarps; i; i--, w += 4)
        if (w[0] == wYCoord && w[1] == wXCoord) { enterMap(w[3], 0xFF, w[2]); return 1; }
    return 0;
}

/* ---- steps ---- */

static const struct direction *look(u8 facing) {
    const struct direction *d = &directions[facing >> 2];
    stepY = d->dy; stepX = d->dx;
    frontY = wYCoord + stepY; frontX = wXCoord + stepX;
    return d;
}

static u8 passable(u8 tile) {
    const u8 *ok = wTilesetCollisionPtr;
    while (*ok != 0xFF) if (*ok++ == tile) return 1;
    return 0;
}

/* Scroll one cell: the new edge of wTileMap goes to VRAM at the next VBlank. */
static void startCell(const struct direction *d) {
    viewY += stepY; viewX += stepX;
    originX = (originX + 2 * stepX) & 31; originY = (originY + 2 * stepY) & 31;
    loadView();
    requestEdge(d->type, d->edge);
}

static void overEdge(const struct direction *d) {
    const u8 *c = wConnections + d->link;
    if (!(wCurMapConnections & d->bit)) { takeWarp(); return; }   /* a doormat at the wall leads out */
    if (d->type == 1) enterMap(c[0], c[7], wXCoord + c[8]);
    else enterMap(c[0], wYCoord + c[7], c[8]);
}

static void tryStep(void) {
    const struct direction *d = directions; u8 tile, own;
    while (!(held & d->key)) d++;
    wPlayerDirection = d->key == KEY_DOWN ? 4 : d->key == KEY_UP ? 8 : d->key == KEY_LEFT ? 2 : 1;
    wSprites1[9] = d->facing;
    look(d->facing);
    if (frontY >= wCurrentMapHeight2 || frontX >= wCurrentMapWidth2) { overEdge(d); updateSprites(); return; }
    tile = wTileMap[d->tile]; own = wTileMap[20 * 9 + 8];
    if (spriteAt(frontY, frontX)) { updateSprites(); return; }
    stepLength = 16;
    if (wCurMapTileset == 0 && tile == d->ledge && (own == 0x2C || own == 0x39)) {
        stepLength = 32; wMovementFlags |= 0x40;
    } else if (!passable(tile)) { updateSprites(); return; }
    parity ^= 1;
    if (stepLength == 16) walkPeople();
    wWalkCounter = stepLength;
    startCell(d);
}

static u8 runTrigger(void) {
    u8 i; const u8 *t = triggers + 1;
    for (i = *triggers; i; i--, t += 3)
        if (t[0] == wYCoord && t[1] == wXCoord) { runTalk(t[2]); return 1; }
    return 0;
}

/* The end of a step: first the coordinates, then what the cell brings. */
static void arrive(void) {
    wYCoord = viewY; wXCoord = viewX;
    wYBlockCoord = wYCoord & 1; wXBlockCoord = wXCoord & 1;
    wMovementFlags &= ~0x40;
    updateSprites();
    if (takeWarp() || runTrigger()) return;
    if (testBit(wEventFlags, E_BEAT_WARDEN)) return;         /* the lamp keeps the wild ones away */
    if (*wild && (wMapPalOffset || wTileMap[20 * 9 + 9] == wGrassTile) && random() < *wild) wildBattle(wild + 1);
}

static void walk(void) {
    scrollX += stepX; scrollY += stepY;
    if (--wWalkCounter == 16) startCell(&directions[wSprites1[9] >> 2]);   /* second half of a ledge */
    if (wWalkCounter) updateSprites(); else arrive();
}

static void interact(void) {
    const struct direction *d = look(wSprites1[9]); u8 i; u8 *p;
    if (wTileMap[d->tile] == wTalkingOverTiles[0] && !spriteAt(frontY, frontX)) { frontY += stepY; frontX += stepX; }
    if ((i = spriteAt(frontY, frontX))) {
        p = wSprites1 + 16 * i;
        if (*p < 0x3D) p[9] = wSprites1[9] ^ 4;                /* turn to the player */
        updateSprites();
        runTalk(wMapSpriteData[2 * i - 1]);
        return;
    }
    for (i = 0; i < wNumSigns; i++)
        if (wSignCoords[2 * i] == frontY && wSignCoords[2 * i + 1] == frontX) {
            setBit(wEventFlags, E_READ_SIGN);
            runTalk(wSignTextIDs[i]);
            return;
        }
}

void overworldFrame(void) {
    if (!wWalkCounter) buttonsLive();
    waitFrame();
    buttonsDead();
    if (wWalkCounter) walk();
    else if (pressed & KEY_START) startMenu();
    else if (pressed & KEY_A) interact();
    else if (held & 0xF0) tryStep();
}

void initOverworld(void) {
    u8 i; u8 *d = (u8 *)0x8600; const u8 *s = FontGfx; u16 n;
    rng = wSeed ^ 0x5EED;
    if (!rng) rng = 1;
    for (i = 8; i; i--) random();
    for (n = 0; n < 1280; n++, d += 2) {                       /* font: one bit a pixel, tiles 60-7F lie at 9600 */
        if (n == 256) d = (u8 *)0x8800;
        if (n < 256) { d[0x1000] = d[0x1001] = *s++; } else { d[0] = d[1] = *s++; }
    }
    copy((u8 *)0x8000, SpriteGfx, SPRITE_BYTES);
    wSprites1[0] = PIC_PLAYER; wSprites1[4] = 0x3C; wSprites1[6] = 0x40;
}
