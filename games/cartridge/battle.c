/* Turn-based battles of one against one. */
#include "game.h"
#define own wBattleMon
#define foe wEnemyMon
#define SPECIES_BYTES 9
#define PICTURE_BYTES 400

static const u8 *species(u8 id) { return Species + (id - 1) * SPECIES_BYTES; }

static void putName(u8 *to, u8 id) { *put(to, nth(SpeciesNames, id - 1)) = 0x50; }

static u8 stat(u8 base, u8 level) { return 5 + (u16)base * level / 25; }

/* ---- building fighters ---- */

static void setStats(struct fighter *m) {
    const u8 *s = species(m->species);
    m->maxHp = stat(s[1], m->level) + 5 + m->level;
    m->attack = stat(s[2], m->level);
    m->defence = stat(s[3], m->level);
    m->speed = stat(s[4], m->level);
    m->special = m->attack;
}

static void makeFighter(struct fighter *m, u8 id, u8 level) {
    const u8 *s = species(id); u8 i;
    fill((u8 *)m, 0, sizeof(struct fighter));
    m->species = id; m->level = level;
    m->types[0] = m->types[1] = s[0];
    for (i = 0; i < 4; i++) { m->moves[i] = s[5 + i]; m->pp[i] = Moves[6 * (s[5 + i] - 1) + 5]; }
    setStats(m);
    m->hp = m->maxHp;
}

/* Red keeps the companion twice, in the party and in battle, in two layouts. */
static void toParty(void) {
    u8 *p = wPartyMon;
    copy(p, (u8 *)own, 12);                  /* species, HP, (position), status, types, moves */
    p[3] = own->level;
    copy(wPartyPP, own->pp, 4);
    copy(p + 0x21, (u8 *)own + 14, 11);      /* level, max HP and the four stats */
}

static void fromParty(void) {
    u8 *p = wPartyMon;
    copy((u8 *)own, p, 12);
    own->position = 0;
    copy(own->pp, wPartyPP, 4);
    copy((u8 *)own + 14, p + 0x21, 11);
}

static u16 expOf(u8 level) { return (u16)level * level * 4; }

static void setExp(u16 e) { wPartyExp[1] = e >> 8; wPartyExp[2] = e; }

void makeCompanion(void) {
    wPartyCount = 1; wPartySpecies[0] = MON_WICKIT; wPartySpecies[1] = 0xFF;
    makeFighter(own, MON_WICKIT, 5);
    setExp(expOf(5));
    toParty();
    putName(wPartyNick, MON_WICKIT);
    putName(wBattleMonNick, MON_WICKIT);
}

void healParty(void) {
    u8 i;
    wPartyHP = wPartyMaxHP;
    for (i = 0; i < 4; i++) wPartyPP[i] = Moves[6 * (wPartyMon[8 + i] - 1) + 5];
}

/* ---- picture ---- */

static void drawBar(u8 *t, struct fighter *m) {
    u8 i, pixels = ((u16)m->hp * 48 + m->maxHp - 1) / m->maxHp;
    *t++ = 0x71; *t++ = 0x62;
    for (i = 6; i; i--) {
        *t++ = 0x63 + (pixels > 8 ? 8 : pixels);
        pixels = pixels > 8 ? pixels - 8 : 0;
    }
    *t = 0x6D;
}

static void drawStatus(void) {
    put(at(1, 0), wEnemyMonNick);
    *at(4, 1) = 0x6E; putNumber(at(5, 1), foe->level);
    drawBar(at(2, 2), foe);
    put(at(10, 7), wBattleMonNick);
    *at(14, 8) = 0x6E; putNumber(at(15, 8), own->level);
    drawBar(at(10, 9), own);
    putNumber(at(11, 10), own->hp); *at(14, 10) = 0xF3; putNumber(at(15, 10), own->maxHp);
}

static void drawPicture(u8 x, u8 y, u8 tile) {
    u8 r, c, *t = at(x, y);
    for (r = 5; r; r--, t += 15) for (c = 5; c; c--) *t++ = tile++;
}

static void drawScene(void) {
    fill(wTileMap, 0x7F, 360);
    drawPicture(13, 1, 0);
    drawPicture(3, 7, 25);
    drawStatus();
    frame(0, 12, 20, 6);
}

static void redraw(void) { drawScene(); flush(0, 18); }

static void openScene(void) {
    lcdOff();
    copy((u8 *)0x9000, Pictures + (u16)(foe->species - 1) * PICTURE_BYTES, PICTURE_BYTES);
    copy((u8 *)0x9000 + PICTURE_BYTES, Pictures + (u16)(own->species - 1) * PICTURE_BYTES, PICTURE_BYTES);
    fill(wOAM, 0, 160);
    wFontLoaded &= ~1;
    hWY = 0;
    REG(0xFF47) = 0xE4;
    drawScene();
    showScreen();
}

static void showHp(void) { drawStatus(); flush(0, 12); }

/* ---- a move ---- */

static u8 typeFactor(u8 attack, u8 defend) {       /* x 10 */
    const u8 *c = TypeChart;
    for (; *c != 0xFF; c += 3) if (c[0] == attack && c[1] == defend) return c[2];
    return 10;
}

static u8 damage(struct fighter *a, struct fighter *d, const u8 *move, u8 factor) {
    u16 n = (u16)(2 * a->level / 5 + 2) * move[2];
    n = n * a->attack / d->defence / 50 + 2;
    if (move[3] == a->types[0]) n += n >> 1;
    n = n * factor / 10;
    n = n * (217 + random() % 39) / 255;
    return n > 250 ? 250 : n ? n : 1;
}

/* One message a move, with what came of it, so that one button press leads on. */
static void useMove(struct fighter *a, struct fighter *d, u8 id) {
    const u8 *move = Moves + 6 * (id - 1); u8 n, factor, note = T_NORMAL;
    if (move[1] == 1) {
        n = a->hp + a->maxHp / 2;
        a->hp = n > a->maxHp ? a->maxHp : n;
        note = T_BETTER;
    } else if (random() >= move[4]) note = T_MISSED;
    else {
        factor = typeFactor(move[3], d->types[0]);
        n = damage(a, d, move, factor);
        d->hp = d->hp > n ? d->hp - n : 0;
        if (factor != 10) note = factor > 10 ? T_STRONG : T_WEAK;
    }
    argA = a == own ? wBattleMonNick : wEnemyMonNick;
    argB = nth(MoveNames, id - 1);
    argC = TextTable[note];
    print(T_USED);
    showHp();
    waitArrow();
}

/* ---- choosing ---- */

static void moveInfo(void) {               /* type and PP of the move at the cursor, in a box of its own */
    u8 i = wCurrentMenuItem - 1; const u8 *move = Moves + 6 * (own->moves[i] - 1);
    frame(0, 8, 11, 4);
    put(at(1, 9), nth(TypeNames, move[3]));
    put(at(1, 10), TextTable[T_PP]);
    putNumber(at(3, 10), own->pp[i]); *at(6, 10) = 0xF3; putNumber(at(7, 10), move[5]);
    flush(8, 12);
}

/* The move's slot 0-3, 4 when no strength is left at all, 0xFF for back. As in Red wCurrentMenuItem counts from 1. */
static u8 chooseMove(void) {
    u8 i, key;
    if (!(own->pp[0] | own->pp[1] | own->pp[2] | own->pp[3])) return 4;
    frame(4, 12, 16, 6);
    for (i = 0; i < 4; i++) put(at(6, 13 + i), nth(MoveNames, own->moves[i] - 1));
    flush(12, 18);
    wCurrentMenuItem = 1;
    menuMoved = moveInfo;
    key = menu(5, 12, 1, 1, 4, KEY_A | KEY_B);
    menuMoved = 0;
    if (key & KEY_B) return 0xFF;
    i = wCurrentMenuItem - 1;
    if (own->pp[i]) return i;
    say(T_NO_PP);
    return 0xFF;
}

/* FIGHT and ITEM in the left column, FRIEND and RUN in the right one: 0, 1, 2, 3. */
static u8 chooseAction(void) {
    u8 key, x = 9;
    frame(8, 12, 12, 6);
    put(at(10, 14), TextTable[T_BATTLE_TOP]);
    put(at(10, 16), TextTable[T_BATTLE_LOW]);
    flush(12, 18);
    wCurrentMenuItem = 0;
    for (;;) {
        key = menu(x, 14, 2, 0, 1, KEY_A | KEY_LEFT | KEY_RIGHT);
        if (key & KEY_A) return wCurrentMenuItem + (x == 9 ? 0 : 2);
        x = key & KEY_RIGHT ? 15 : 9;
    }
}

/* 1 if the turn is used up, 2 if the battle is left. */
static u8 chooseTurn(u8 *slot) {
    u8 action, item;
    for (;;) {
        redraw();
        action = chooseAction();
        if (action == 0) {
            *slot = chooseMove();
            if (*slot != 0xFF) return 1;
        } else if (action == 1) {
            item = bagMenu();
            redraw();
            if (item == ITEM_BALM) { if (useBalm()) { *slot = 0xFF; return 1; } }
            else if (item) say(T_ITEM_FULL);
        } else if (action == 2) statusPage();
        else if (wIsInBattle == 2) say(T_NO_RUN);
        else {
            *slot = 0xFF;
            if (own->speed >= foe->speed || random() < 160) { say(T_RAN); return 2; }
            say(T_CANT_RUN);
            return 1;
        }
        toParty();
    }
}

/* ---- the whole ---- */

static void levelUp(void) {
    u8 before = own->maxHp;
    own->level++;
    setStats(own);
    own->hp += own->maxHp - before;
    showHp();
    argA = wBattleMonNick;
    say(T_LEVEL_UP);
}

static void reward(u8 trainer) {
    u16 e = ((u16)wPartyExp[1] << 8 | wPartyExp[2]) + foe->level * (trainer ? 12 : 6);
    setExp(e);
    while (own->level < 30 && e >= expOf(own->level + 1)) levelUp();
    toParty();
    moneyAdd(trainer ? 2 : 0, 0x20);
}

static u8 ownTurn(u8 slot) {               /* 1 if the foe is down */
    if (slot == 0xFF) return 0;
    if (slot < 4) own->pp[slot]--;
    useMove(own, foe, slot < 4 ? own->moves[slot] : MOVE_NUDGE);
    return !foe->hp;
}

static u8 foeTurn(void) {
    useMove(foe, own, foe->moves[random() & 3]);
    return !own->hp;
}

/* trainer: 0 in the wild, else the class. 1 won, 0 lost, 2 got away. */
u8 battle(u8 id, u8 level, u8 trainer) {
    u8 slot, result = 3, first;
    wTrainerClass = trainer;
    wCurOpponent = trainer ? 200 + trainer : id;
    wIsInBattle = trainer ? 2 : 1;
    wPlayerMonNumber = 0;
    makeFighter(foe, id, level);
    putName(wEnemyMonNick, id);
    fromParty();
    openScene();
    argA = wEnemyMonNick;
    say(trainer ? T_TRAINER_SENDS : T_WILD_APPEARS);
    while (result == 3) {
        if (chooseTurn(&slot) == 2) { result = 2; break; }
        redraw();
        first = slot == 0xFF || own->speed >= foe->speed;
        if (first ? ownTurn(slot) : foeTurn()) result = first;
        else if (first ? foeTurn() : ownTurn(slot)) result = !first;
        toParty();
    }
    if (result != 2) {
        argA = result ? wEnemyMonNick : wBattleMonNick;
        say(T_FAINTED);
    }
    if (result == 1) { reward(trainer); setBit(wEventFlags, E_WON_BATTLE); }
    if (!result) { wIsInBattle = 0xFF; say(T_LOST); }
    wCurOpponent = 0;
    lcdOff();
    loadTileGfx();
    wIsInBattle = 0;
    if (result) showMap();                 /* after a loss the map of the healer follows */
    return result;
}
