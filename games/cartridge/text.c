/* Text boxes, menus, the bag and money. */
#include "game.h"
#define CURSOR 0xED
#define HOLLOW 0xEC
#define ARROW 0xEE
#define SPACE 0x7F
#define END 0x50

const u8 *argA, *argB, *argC;           /* what < > and ^ of a text stand for */
void (*menuMoved)(void);                /* called whenever the cursor has a new place, if set */

/* ---- drawing into wTileMap ---- */

u8 *at(u8 x, u8 y) { return wTileMap + 20 * y + x; }

u8 *put(u8 *to, const u8 *text) {
    while (*text != END) *to++ = *text++;
    return to;
}

void putNumber(u8 *to, u8 n) {          /* three places, right-aligned */
    to[0] = n >= 100 ? 0xF6 + n / 100 : SPACE;
    to[1] = n >= 10 ? 0xF6 + n / 10 % 10 : SPACE;
    to[2] = 0xF6 + n % 10;
}

/* The n-th string (from 0) of a list of strings that end with 0x50. */
const u8 *nth(const u8 *list, u8 n) {
    while (n) if (*list++ == END) n--;
    return list;
}

static void frameRow(u8 *t, u8 w, u8 left, u8 middle, u8 right) {
    *t++ = left;
    for (w -= 2; w; w--) *t++ = middle;
    *t = right;
}

void frame(u8 x, u8 y, u8 w, u8 h) {
    u8 *t = at(x, y);
    frameRow(t, w, 0x79, 0x7A, 0x7B);
    for (h -= 2; h; h--) { t += 20; frameRow(t, w, 0x7C, SPACE, 0x7C); }
    frameRow(t + 20, w, 0x7D, 0x7A, 0x7E);
}

/* ---- waiting ---- */

u8 waitKey(u8 keys) {
    buttonsLive();
    do waitFrame(); while (!(pressed & keys));
    buttonsDead();
    return pressed & keys;
}

/* Text over the map: the window and font flags say so until closeText. In battle both stay as they are. */
void openText(void) {
    if (wIsInBattle || wFontLoaded & 1) return;
    wFontLoaded |= 1;
    hWY = 0;
}

void closeText(void) {
    loadView();
    flush(0, 18);
    wFontLoaded &= ~1;
    updateSprites();
    hWY = 0x90;
}

/* Wait at the arrow in the corner of the message box. */
void waitArrow(void) {
    *at(18, 16) = ARROW;
    flush(16, 18);
    waitKey(KEY_A | KEY_B);
    *at(18, 16) = SPACE;
}

/* Print a text; all pages but the last wait at the arrow. */
void print(u8 id) {
    const u8 *s = TextTable[id]; u8 *t; u8 c;
    openText();
    do {
        frame(0, 12, 20, 6);
        if (!wIsInBattle) updateSprites();
        t = at(1, 14);
        for (;;) {
            c = *s++;
            if (c == 0x4E) t = at(1, 16);
            else if (c == 0x52) t = put(t, argA);
            else if (c == 0x53) t = put(t, argB);
            else if (c == 0x54) t = put(t, argC);
            else if (c < 0x60) break;
            else *t++ = c;
        }
        flush(12, 18);
        if (c == END) return;
        waitArrow();
    } while (1);
}

void say(u8 id) { print(id); waitArrow(); }

/* ---- menus ---- */

static void drawCursor(u8 tile) {
    u8 row;
    *wMenuCursorLocation = tile;
    row = (u16)(wMenuCursorLocation - wTileMap) / 20;
    flush(row, row + 1);
}

/* A column of choices first..last, the cursor at row y + step * choice. Starts at wCurrentMenuItem,
   returns the key that ended it: A leaves a hollow cursor, the others none. */
u8 menu(u8 x, u8 y, u8 step, u8 first, u8 last, u8 keys) {
    u8 key;
    wTopMenuItemX = x; wTopMenuItemY = y; wMaxMenuItem = last; wMenuWatchedKeys = keys | KEY_UP | KEY_DOWN;
    for (;;) {
        wMenuCursorLocation = at(x, y + step * wCurrentMenuItem);
        if (menuMoved) menuMoved();
        drawCursor(CURSOR);
        key = waitKey(wMenuWatchedKeys);
        drawCursor(key & KEY_A ? HOLLOW : SPACE);
        if (key & KEY_UP) wCurrentMenuItem = wCurrentMenuItem == first ? last : wCurrentMenuItem - 1;
        else if (key & KEY_DOWN) wCurrentMenuItem = wCurrentMenuItem == last ? first : wCurrentMenuItem + 1;
        else return key;
    }
}

static void putWords(u8 x, u8 y, u8 id) {   /* the lines of a text, two rows apart */
    const u8 *s = TextTable[id]; u8 *t = at(x, y);
    for (; *s != END; s++)
        if (*s == 0x4E) t = at(x, y += 2); else *t++ = *s;
}

u8 yesNo(void) {
    frame(14, 7, 6, 5);
    putWords(16, 8, T_YES_NO);
    flush(6, 12);
    updateSprites();
    wCurrentMenuItem = 0;
    return menu(15, 8, 2, 0, 1, KEY_A | KEY_B) & KEY_A && !wCurrentMenuItem;
}

/* ---- bag ---- */

static u8 *bagFind(u8 item) {
    u8 i, *b = wBagItems;
    for (i = wNumBagItems; i; i--, b += 2) if (*b == item) return b;
    return 0;
}

u8 bagCount(u8 item) {
    u8 *b = bagFind(item);
    return b ? b[1] : 0;
}

void bagAdd(u8 item) {
    u8 *b = bagFind(item);
    if (b) { b[1]++; return; }
    b = wBagItems + 2 * wNumBagItems++;
    b[0] = item; b[1] = 1; b[2] = 0xFF;
}

void bagRemove(u8 item) {
    u8 *b = bagFind(item);
    if (!b || --b[1]) return;
    wNumBagItems--;
    for (; b[0] != 0xFF; b += 2) { b[0] = b[2]; b[1] = b[3]; }
}

/* Choose from the bag: the item, or 0. */
u8 bagMenu(void) {
    u8 i, y = 4, *b = wBagItems;
    frame(4, 2, 16, 11);
    for (i = wNumBagItems; i; i--, b += 2, y += 2) {
        put(at(6, y), nth(ItemNames, b[0]));
        *at(15, y) = 0xF1;
        putNumber(at(16, y), b[1]);
    }
    putWords(6, y, T_CANCEL);
    if (!wIsInBattle) updateSprites();
    flush(2, 14);
    wCurrentMenuItem = 0;
    if (menu(5, 4, 2, 0, wNumBagItems, KEY_A | KEY_B) & KEY_B || wCurrentMenuItem == wNumBagItems) return 0;
    return wBagItems[2 * wCurrentMenuItem];
}

u8 useBalm(void) {
    u8 *hp = wIsInBattle ? &wBattleMon->hp : &wPartyHP;
    if (*hp == wPartyMaxHP) { say(T_ITEM_FULL); return 0; }
    *hp = *hp + 20 > wPartyMaxHP ? wPartyMaxHP : *hp + 20;
    bagRemove(ITEM_BALM);
    argA = wPartyNick;
    say(T_MENDED);
    return 1;
}

/* ---- money: three BCD bytes ---- */

static u8 bcdAdd(u8 *to, u8 n, u8 carry) {   /* to += n + carry, all BCD; returns the carry */
    u8 low = (*to & 15) + (n & 15) + carry, high = (*to >> 4) + (n >> 4);
    if (low > 9) { low -= 10; high++; }
    carry = high > 9;
    if (carry) high -= 10;
    *to = high << 4 | low;
    return carry;
}

void moneyAdd(u8 hundreds, u8 ones) {        /* both BCD */
    u8 c = bcdAdd(wMoney + 2, ones, 0);
    c = bcdAdd(wMoney + 1, hundreds, c);
    if (bcdAdd(wMoney, 0, c)) wMoney[0] = wMoney[1] = wMoney[2] = 0x99;
}

u8 moneyTake(u8 hundreds, u8 ones) {         /* 0 if there is too little */
    u8 c;
    if (!wMoney[0] && (wMoney[1] < hundreds || (wMoney[1] == hundreds && wMoney[2] < ones))) return 0;
    c = bcdAdd(wMoney + 2, 0x99 - ones, 1);  /* ten's complement */
    c = bcdAdd(wMoney + 1, 0x99 - hundreds, c);
    bcdAdd(wMoney, 0x99, c);
    return 1;
}

void moneyBox(void) {
    u8 i, digit, started = 0; u8 *t = at(12, 1);
    frame(11, 0, 9, 3);
    *t++ = 0xF0;
    for (i = 0; i < 6; i++) {
        digit = i & 1 ? wMoney[i >> 1] & 15 : wMoney[i >> 1] >> 4;
        started |= digit;
        if (started || i == 5) *t++ = 0xF6 + digit;
    }
    updateSprites();
    flush(0, 4);
}

/* ---- start menu ---- */

void statusPage(void) {
    u8 i;
    frame(0, 0, 20, 18);
    put(at(2, 2), wPartyNick);
    *at(14, 2) = 0x6E; putNumber(at(15, 2), wPartyLevel);
    *at(2, 4) = 0x71;
    putNumber(at(4, 4), wPartyHP); *at(7, 4) = 0xF3; putNumber(at(8, 4), wPartyMaxHP);
    put(at(13, 4), nth(TypeNames, wPartyMon[5]));
    for (i = 0; i < 4; i++) {
        put(at(2, 7 + 2 * i), nth(MoveNames, wPartyMon[8 + i] - 1));
        putNumber(at(15, 7 + 2 * i), wPartyPP[i]);
    }
    fill(wOAM, 0, 160);
    flush(0, 18);
    *at(18, 16) = ARROW;
    flush(16, 18);
    waitKey(KEY_A | KEY_B);
}

static void useFromBag(void) {
    u8 item;
    while ((item = bagMenu())) {
        if (item == ITEM_BALM) useBalm();
        else say(item == ITEM_LANTERN ? T_ITEM_LANTERN : T_ITEM_KEY);
        loadView();
        flush(0, 18);
    }
}

void startMenu(void) {
    u8 choice = 0;
    openText();
    for (;;) {
        loadView();
        frame(10, 0, 10, 8);
        putWords(12, 2, T_START_MENU);
        updateSprites();
        flush(0, 18);
        wCurrentMenuItem = choice;
        if (menu(11, 2, 2, 0, 2, KEY_A | KEY_B | KEY_START) & (KEY_B | KEY_START)) break;
        choice = wCurrentMenuItem;
        if (choice == 0) useFromBag();
        else if (choice == 1) statusPage();
        else break;
    }
    closeText();
}
