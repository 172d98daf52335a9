/* What people and things do, and the start of the game. */
#include "game.h"
#define KEEPER_GONE 0                    /* bits of wToggleFlags */
#define KEY_TAKEN 1
#define GUARD_GONE 2
#define BOULDER_GONE 3
#define WARDEN_GONE 4
#define TRAINER_BRAM 1
#define TRAINER_WARDEN 2

static u8 switchesDown;                  /* how many stones are pressed in the right order */
static const u8 orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* The order of the stones comes from the seed; only the rhyme in the hall tells it. */
static const u8 *order(void) { return orders[(u8)(wSeed ^ wSeed >> 8) % 6]; }

static const u8 *stoneName(u8 stone) { return TextTable[T_NAME_LEAF + stone]; }

static u8 event(u8 e) { return testBit(wEventFlags, e); }

/* A person steps aside, a thing is gone: not drawn and not solid from now on. */
static void hide(u8 toggle) {
    setBit(wToggleFlags, toggle);
}

/* A maze over blocks. Block numbers of the cave: bit 0 open to the east, 1 open to the south, 2 stairs.
   Its own generator, from the seed alone: the maze is the same at every visit. */
void makeMaze(void) {
    u8 w = wCurMapWidth, n = w * wCurMapHeight, here = 0, depth = 0, choices[4], k, stride = w + 6;
    u8 *seen = wScratch, *stack = wScratch + 128;              /* seen: number of open sides of each node */
    u8 *map = wOverworldMap + 3 * stride + 3, *b;
    u16 r = wSeed ^ 0xA5C3;
    if (!r) r = 1;
    fill(wScratch, 0, 256);
    for (k = 0; k < n; k++) map[k / w * stride + k % w] = 0;
    for (;;) {
        u8 x = here % w, count = 0, to;
        if (here != w - 1 && here != n - w) {                  /* stairs lie in dead ends: nobody must cross them */
            if (here >= w && !seen[here - w]) choices[count++] = here - w;
            if (here + w < n && !seen[here + w]) choices[count++] = here + w;
            if (x && !seen[here - 1]) choices[count++] = here - 1;
            if (x + 1 < w && !seen[here + 1]) choices[count++] = here + 1;
        }
        if (!count) {
            if (!depth) break;
            here = stack[--depth];
            continue;
        }
        r = nextRandom(r);
        to = choices[(u8)r % count];
        k = to < here ? to : here;                             /* the opening is noted at the upper or left node */
        b = map + k / w * stride + k % w;
        *b |= (u8)(to + here - k - k) == 1 ? 1 : 2;
        seen[here]++; seen[to]++;
        stack[depth++] = here;
        here = to;
    }
    map[(u16)(wCurMapHeight - 1) * stride] |= 4;
    map[w - 1] |= 4;
    r = nextRandom(r);
    k = (u8)r % n;                                             /* the key lies in a dead end that holds no stairs */
    do k = k + 1 == n ? 0 : k + 1; while (seen[k] != 1 || k == w - 1 || k == n - w);
    wSprites2[0x14] = (k / w << 1) + 4; wSprites2[0x15] = (k % w << 1) + 4;
}

static void rhyme(void) {
    const u8 *o = order();
    argA = stoneName(o[0]); argB = stoneName(o[1]); argC = stoneName(o[2]);
    say(T_RHYME);
    setBit(wEventFlags, E_READ_RHYME);
}

static void pressStone(u8 stone) {
    argA = stoneName(stone);
    if (event(E_SWITCHES)) { say(T_SWITCH_DEAD); return; }
    if (order()[switchesDown] != stone) { switchesDown = 0; say(T_SWITCH_WRONG); return; }
    say(T_SWITCH);
    if (++switchesDown < 3) return;
    setBit(wEventFlags, E_SWITCHES);
    hide(BOULDER_GONE);
    say(T_SWITCH_OPEN);
}

static void sell(u8 question, u8 item, u8 hundreds, u8 ones) {
    moneyBox();
    print(question);
    if (!yesNo()) return;
    if (item == ITEM_BALM && bagCount(item) == 9) { say(T_SHOP_FULL); return; }
    if (!moneyTake(hundreds, ones)) { say(T_SHOP_POOR); return; }
    bagAdd(item);
    if (item == ITEM_LANTERN) setBit(wEventFlags, E_GOT_LANTERN);
    moneyBox();
    say(T_SHOP_THANKS);
}

static void shop(void) {
    say(T_SHOP_HELLO);
    if (bagCount(ITEM_LANTERN)) sell(T_SHOP_BALM, ITEM_BALM, 0, 0x60);
    else sell(T_SHOP_LANTERN, ITEM_LANTERN, 3, 0);
}

static void healer(void) {
    say(T_HEAL_HELLO);
    healParty();
    setBit(wEventFlags, E_HEALED);
    say(T_HEAL_DONE);
}

/* Kind hands carry the player to the healer, in front of the fire. */
void lostBattle(void) {
    healParty();
    wSprites1[9] = 4;
    enterMap(M_HEALER, 4, 4);
}

void wildBattle(const u8 *table) {
    const u8 *w = table + 2 * (random() % 3);
    if (!battle(w[0], w[1], 0)) lostBattle();
}

static void trainer(void) {
    if (event(E_BEAT_TRAINER)) { say(T_TRAINER_DONE); return; }
    say(T_TRAINER);
    if (!battle(MON_CRAGOT, 6, TRAINER_BRAM)) { lostBattle(); return; }
    setBit(wEventFlags, E_BEAT_TRAINER);
    say(T_TRAINER_DONE);
}

static void warden(void) {
    say(T_WARDEN);
    if (!battle(MON_GLOAMER, 10, TRAINER_WARDEN)) { lostBattle(); return; }
    setBit(wEventFlags, E_BEAT_WARDEN);
    wBadges |= 1;
    hide(WARDEN_GONE);
    updateSprites();
    say(T_WARDEN_BEATEN);
}

static void script(u8 id) {
    switch (id) {
    case DO_AUNT: say(event(E_BEAT_WARDEN) ? T_AUNT_END : event(E_LEFT_HOUSE) ? T_AUNT_LATER : T_AUNT); break;
    case DO_ELDER: say(T_ELDER); setBit(wEventFlags, E_MET_ELDER); break;
    case DO_SHOP: shop(); break;
    case DO_RHYME: rhyme(); break;
    case DO_HEALER: healer(); break;
    case DO_CHALLENGE: if (event(E_BEAT_TRAINER)) break;   /* else as if spoken to */
    case DO_TRAINER: trainer(); break;
    case DO_KEEPER:
        if (!bagCount(ITEM_LANTERN)) { say(T_KEEPER); break; }
        say(T_KEEPER_OPEN); hide(KEEPER_GONE); break;
    case DO_KEY: bagAdd(ITEM_IRON_KEY); setBit(wEventFlags, E_GOT_KEY); hide(KEY_TAKEN); say(T_KEY); break;
    case DO_GATE:
        if (!bagCount(ITEM_IRON_KEY)) { say(T_GATE); break; }
        say(T_GATE_OPEN); hide(GUARD_GONE); break;
    case DO_PILGRIM: say(T_PILGRIM); healParty(); break;
    case DO_LEAF: pressStone(0); break;
    case DO_FLAME: pressStone(1); break;
    case DO_MOON: pressStone(2); break;
    case DO_LAMP: say(event(E_BEAT_WARDEN) ? T_GREAT_LAMP_LIT : T_GREAT_LAMP); break;
    case DO_WARDEN: warden(); break;
    }
}

/* A text, or a script that may say several or none. */
void runTalk(u8 id) {
    if (id < 0x80) say(id); else script(id);
    if (wFontLoaded & 1) closeText();
}

void main(void) {
    u16 seed = wSeed;                    /* put there from outside before the start: keep it */
    lcdOff();
    fill((u8 *)0xC000, 0, 0x1F00);
    fill((u8 *)0x8000, 0, 0x2000);
    fill((u8 *)0xFF90, 0, 0x60);
    buttonsDead();
    wSeed = seed;
    copy((u8 *)0xFF80, dma, 10);
    REG(0xFF48) = 0xD0; REG(0xFF49) = 0xD0;
    initOverworld();
    makeCompanion();
    *put(wPlayerName, TextTable[T_NAME_PLAYER]) = 0x50;
    wMoney[1] = 0x05;
    wBagItems[0] = 0xFF;
    bagAdd(ITEM_BALM); bagAdd(ITEM_BALM);
    enterMap(M_HOUSE, 3, 3);
    wLastMap = M_VILLAGE;
    REG(0xFFFF) = 1; REG(0xFF0F) = 0;
    __asm ei __endasm;
    for (;;) overworldFrame();
}
