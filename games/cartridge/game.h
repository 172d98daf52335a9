/* Shared names. The live state lies where the pret/pokered disassembly documents Red's,
   so that one memory reader serves both games. Plain address macros, not __at variables:
   sdcc 4.2.0 miscompiles some pointer steps with those. */
#include <stdint.h>
#include "gen.h"
typedef uint8_t u8; typedef int8_t i8; typedef uint16_t u16;
#define BYTE(a) (*(u8 *)(a))
#define REG(a) (*(volatile u8 *)(a))
#define WORD(a) (*(u16 *)(a))

#define wSprites1 ((u8 *)0xC100)
#define wSprites2 ((u8 *)0xC200)
#define wOAM ((u8 *)0xC300)
#define wTileMap ((u8 *)0xC3A0)
#define wScratch ((u8 *)0xC508)
#define wOverworldMap ((u8 *)0xC6E8)
#define wTopMenuItemY BYTE(0xCC24)
#define wTopMenuItemX BYTE(0xCC25)
#define wCurrentMenuItem BYTE(0xCC26)
#define wMaxMenuItem BYTE(0xCC28)
#define wMenuWatchedKeys BYTE(0xCC29)
#define wPlayerMonNumber BYTE(0xCC2F)
#define wMenuCursorLocation (*(u8 **)0xCC30)
#define wFontLoaded BYTE(0xCFC4)
#define wWalkCounter BYTE(0xCFC5)
#define wEnemyMonNick ((u8 *)0xCFDA)
#define wEnemyMon ((struct fighter *)0xCFE5)
#define wBattleMonNick ((u8 *)0xD009)
#define wBattleMon ((struct fighter *)0xD014)
#define wTrainerClass BYTE(0xD031)
#define wIsInBattle BYTE(0xD057)
#define wCurOpponent BYTE(0xD059)
#define wPlayerName ((u8 *)0xD158)
#define wPartyCount BYTE(0xD163)
#define wPartySpecies ((u8 *)0xD164)
#define wPartyMon ((u8 *)0xD16B)
#define wPartyHP BYTE(0xD16D)
#define wPartyExp ((u8 *)0xD179)
#define wPartyPP ((u8 *)0xD188)
#define wPartyLevel BYTE(0xD18C)
#define wPartyMaxHP BYTE(0xD18E)
#define wPartyNick ((u8 *)0xD2B5)
#define wNumBagItems BYTE(0xD31D)
#define wBagItems ((u8 *)0xD31E)
#define wMoney ((u8 *)0xD347)
#define wBadges BYTE(0xD356)
#define wSeed WORD(0xD359)
#define wMapPalOffset BYTE(0xD35D)
#define wCurMap BYTE(0xD35E)
#define wYCoord BYTE(0xD361)
#define wXCoord BYTE(0xD362)
#define wYBlockCoord BYTE(0xD363)
#define wXBlockCoord BYTE(0xD364)
#define wLastMap BYTE(0xD365)
#define wCurMapTileset BYTE(0xD367)
#define wCurMapHeight BYTE(0xD368)
#define wCurMapWidth BYTE(0xD369)
#define wCurMapConnections BYTE(0xD370)
#define wConnections ((u8 *)0xD371)   /* 11 bytes each: north, south, west, east */
#define wMapBackgroundTile BYTE(0xD3AD)
#define wNumberOfWarps BYTE(0xD3AE)
#define wWarpEntries ((u8 *)0xD3AF)   /* Y, X, warp there, map there */
#define wNumSigns BYTE(0xD4B0)
#define wSignCoords ((u8 *)0xD4B1)
#define wSignTextIDs ((u8 *)0xD4D1)
#define wNumSprites BYTE(0xD4E1)
#define wMapSpriteData ((u8 *)0xD4E4)
#define wCurrentMapHeight2 BYTE(0xD524)
#define wCurrentMapWidth2 BYTE(0xD525)
#define wPlayerDirection BYTE(0xD52A)
#define wTilesetBank BYTE(0xD52B)
#define wTilesetBlocksPtr (*(const u8 **)0xD52C)
#define wTilesetCollisionPtr (*(const u8 **)0xD530)
#define wTalkingOverTiles ((u8 *)0xD532)
#define wGrassTile BYTE(0xD535)
#define wToggleFlags ((u8 *)0xD5A6)
#define wToggleList ((u8 *)0xD5CE)
#define wStatusFlags5 BYTE(0xD730)
#define wMovementFlags BYTE(0xD736)
#define wEventFlags ((u8 *)0xD747)
#define wGrassRate BYTE(0xD887)
#define hWY BYTE(0xFFB0)

/* Bit 5 of D730 is set except while the game waits for a button: readers need no other test. */
#define buttonsDead() (wStatusFlags5 |= 0x20)
#define buttonsLive() (wStatusFlags5 &= ~0x20)

#define KEY_A 1
#define KEY_B 2
#define KEY_START 8
#define KEY_RIGHT 0x10
#define KEY_LEFT 0x20
#define KEY_UP 0x40
#define KEY_DOWN 0x80

struct fighter {                      /* Red's battle struct; all HP here stays below 256 */
    u8 species, hpHigh, hp, position, status, types[2], catchRate, moves[4], dv[2], level, maxHpHigh, maxHp,
        attackHigh, attack, defenceHigh, defence, speedHigh, speed, specialHigh, special, pp[4];
};

/* data from build.py */
extern const u8 FontGfx[], SpriteGfx[], Pictures[], Moves[], TypeChart[], Species[], SpeciesNames[], MoveNames[],
    ItemNames[], TypeNames[], Tilesets[], dma[];
extern const u8 *const MapTable[], *const TextTable[];

/* overworld.c */
extern u8 pressed, held, frontY, frontX;
extern i8 stepY, stepX;
void copy(u8 *to, const u8 *from, u16 n);
void fill(u8 *to, u8 value, u16 n);
u8 random(void);
u16 nextRandom(u16 r);
u8 testBit(const u8 *flags, u8 n);
void setBit(u8 *flags, u8 n);
void waitFrame(void);
void lcdOff(void);
void resetScroll(void);
void showScreen(void);
void loadTileGfx(void);
void loadView(void);
void flush(u8 from, u8 to);
void updateSprites(void);
void showMap(void);
void enterMap(u8 map, u8 y, u8 x);
void overworldFrame(void);
void initOverworld(void);

/* text.c */
extern const u8 *argA, *argB, *argC;
extern void (*menuMoved)(void);
u8 waitKey(u8 keys);
void frame(u8 x, u8 y, u8 w, u8 h);
u8 *put(u8 *to, const u8 *text);
void putNumber(u8 *to, u8 n);
u8 *at(u8 x, u8 y);
const u8 *nth(const u8 *list, u8 n);
void print(u8 id);
void say(u8 id);
void waitArrow(void);
u8 yesNo(void);
u8 menu(u8 x, u8 y, u8 step, u8 first, u8 last, u8 keys);
void openText(void);
void closeText(void);
u8 bagMenu(void);
u8 bagCount(u8 item);
void bagAdd(u8 item);
void bagRemove(u8 item);
u8 useBalm(void);
void moneyAdd(u8 hundreds, u8 ones);
u8 moneyTake(u8 hundreds, u8 ones);
void moneyBox(void);
void startMenu(void);
void statusPage(void);

/* battle.c */
u8 battle(u8 species, u8 level, u8 trainer);
void healParty(void);
void makeCompanion(void);

/* story.c */
void makeMaze(void);
void runTalk(u8 id);
void lostBattle(void);
void wildBattle(const u8 *table);
