"""The offline model, as the Refiner: a rule learner. It knows no game; it induces what it writes from the window it is shown.

From (symbol, direction, did the player move) it learns which symbols let a step through, in which directions, which carry
two cells on, which lead away, and where battles begin, and writes that as the tables of a walking skill. From (move, foe's
type, bar before and after) it learns which move to prefer and writes a fighting skill. Texts, doors and the places where a
milestone was reached become memory. Its first walker is thin: it goes straight and knows only what was seen; it is rewritten
when walks fail. The skills' sources lie in skills/; what is learned are their tables.
"""
import json
import re
from collections import defaultdict
from pathlib import Path

WAYS = {(0, -1): ("UP", "north"), (0, 1): ("DOWN", "south"), (-1, 0): ("LEFT", "west"), (1, 0): ("RIGHT", "east")}
DIRECTION = {name: way for way, names in WAYS.items() for name in names}
MOVE = re.compile(r"(\w+) '(.)' \((\d+), (\d+)\)(?: -> (?:(\w+) )?\((\d+), (\d+)\)| (blocked))")
TALK = re.compile(r"\w+ at '(.)' \((-?\d+), (-?\d+)\): text: ([^\"]*)")
VAIN = re.compile(r"^\[\d+\] \S+ at (\w+) \(.*?says 'walk to .*? for the (?:door|stairs) at (\(\d+, \d+\))'"
                  r".*?\"success\": false, \"from\".*?\"in\": \"overworld\", \"things\": \[\]", re.M)
BEGIN = re.compile(r"\w+ '(.)' \(\d+, \d+\): a battle begins")
HIT = re.compile(r"A on ([A-Z][\w ]*?): [^\"]*?\[enemy \w+ \(([\w/]+)\) (\d+)->(\d+)")
MEND = re.compile(r"A on ([A-Z][\w ]*?): [^\"]*?\[own HP (\d+)->(\d+)\]")
RULES = {                                                # what it adds to the policy for a signature
    "blocked_moves": "When a move was blocked, do not press the same direction again; look at the symbol in front of you.",
    "navigation_loop": "Do not walk back to where you have been; prefer cells of the map that are new.",
    "repeated_dialogue": "When a text repeats, leave: press B, then walk away.",
    "unexplored_exits": "Take doors that you have not taken yet.",
    "tool_errors": "Read the error of a failed call before the next one.",
    "repeated_failing_call": "Never send a call again that has failed twice with the same arguments.",
    "schema_mismatch": "When a call was not carried out, compare its arguments with what the tool takes before the next one.",
    "no_tool_call": "Answer with a tool call each time.",
    "stall": "When nothing changes, do something of another kind.",
    "nonzero_exit": "When a command fails, read its output, and look in the notes for the way that works here.",
    "invalid_call": "Look at a tool's schema before you call it.",
    "cycle": "When two actions take turns and nothing comes of it, stop and try a third.",
    "same_result": "Do not do again what has given the same result twice.",
    "repeated_script": "When you write a script for the second time, save it as a skill and use that.",
    "cut_session": "Save what is done in small steps: a session may end at any moment.",
    "no_final_message": "End with a message that says what was done.",
    "token_blowup": "Look at long output in parts: never print a whole file or log.",
}
NOTED = {"nonzero_exit": "Fails here", "invalid_call": "Call that was refused", "repeated_script": "Script written again"}     # titles
SKILLS = Path(__file__).with_name("skills")               # sources with empty tables


def section(question: str, heading: str) -> str:
    return (re.search(rf"^# {heading}.*?\n(.*?)(?=^# [A-Z]|\Z)", question, re.M | re.S) or ["", ""])[1].strip()


def refine(part: str, question: str) -> dict:
    """One pass's answer, from its question alone."""
    window, found = section(question, "The last steps"), section(question, "Failure signatures")
    current = question.partition("\n# What you edit, as it is now\n")[2].rsplit("\n\nAnswer with one JSON object", 1)[0]
    names = re.findall(r"^- (\w+) \(", found, re.M)
    if part == "policy":
        new = [RULES[n] for n in dict.fromkeys(names) if n in RULES and RULES[n] not in current]
        return {"analysis": ", ".join(names) or "no failure", "prompt": "\n".join([current, *(f"- {rule}" for rule in new)]) if new else None}
    if part == "sub":
        return refine_subagents(window, current)
    told = [(n, text) for n, text in re.findall(r"^- (\w+) \([^)]*\): (.*)$", found, re.M) if n in NOTED and f"content: {text}" not in current]
    if part == "memory" and told:                        # the sessions of a coding agent
        return {"analysis": ", ".join(names), "create": [{"title": f"{NOTED[n]}: {text[:60]}", "content": text, "why": n} for n, text in told[:5]]}
    return refine_skills(window, current) if part == "skills" else refine_memory(window, current)


def entries(current: str) -> dict[str, tuple[str, str, int, int]]:
    """name or title -> (id, body, times used, times with success) of the entries that a pass shows."""
    out = {}
    for head, body in re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", current, re.M | re.S):
        use = re.search(r"used (\d+) times, (\d+) with", head)
        name = re.search(r"^(?:name|title): (.*)$", body, re.M)
        out[name[1] if name else ""] = (head.split()[0], body, int(use[1]) if use else 0, int(use[2]) if use else 0)
    return out


def refine_subagents(window: str, current: str) -> dict:
    pages = len(re.findall(r'"A: text', window))
    if pages < 2 or "dialogue" in entries(current):
        return {"analysis": "no work to hand over"}
    return {"analysis": f"{pages} pages of text were read one call a page", "create": [{
        "name": "dialogue", "description": "reads an open text to its end", "available_tools": ["press_buttons"], "max_turns": 20,
        "system_instructions": "Press A until the text is closed.", "return_condition": "Game State is overworld", "why": "texts take several presses"}]}


def refine_skills(window: str, current: str) -> dict:
    have, out = entries(current), {"analysis": "", "create": [], "update": []}
    for name, (code, why) in {"walk_to": walker(window, have.get("walk_to")), "fight": fighter(window, have.get("fight"))}.items():
        example = {"x": 1, "y": 1} if name == "walk_to" else {}
        if code and name in have:
            out["update"].append({"id": have[name][0], "code": code, "example": example, "why": why})
        elif code:
            about = {"walk_to": "walks to the cell args x, y on the current map", "fight": "chooses moves until the battle is over"}
            out["create"].append({"name": name, "description": about[name], "code": code, "path": "movement" if name == "walk_to" else "battle",
                                  "example": example, "why": why})
        out["analysis"] += f"{name}: {why}. "
    return out


def table(body: str, name: str) -> dict:
    """A table of a skill's code, as it is now."""
    found = re.search(rf"^(?:code: )?{name} = (.*)$", body, re.M)
    return json.loads(found[1]) if found else {}


def source(skill: str, **tables: dict) -> str:
    """A skill's code with its tables filled in."""
    code = (SKILLS / f"{skill}.py.txt").read_text(encoding="utf-8")
    for name, value in tables.items():
        code = re.sub(rf"^{name} = .*$", lambda _: f"{name} = {dump(value)}", code, flags=re.M)
    return code


def walker(window: str, have: tuple | None) -> tuple[str, str]:
    """(code, why) of the walking skill that the window calls for; ("", why) when the present one will do."""
    body = have[1] if have else ""
    opens, leap, away, cost, shut = tables = [table(body, name) for name in ("OPEN", "LEAP", "AWAY", "COST", "SHUT")]
    known, searching = dump(tables), "heapq" in body
    steps, fights = defaultdict(int), defaultdict(int)
    for name, symbol, x, y, place, to_x, to_y, stuck in MOVE.findall(window):
        if name not in DIRECTION or not symbol.strip():
            continue
        if stuck:
            shut[symbol] = sorted({*shut.get(symbol, []), name})
            continue
        steps[symbol] += 1
        if place:
            away[symbol] = 1
        elif abs(int(to_x) - int(x)) + abs(int(to_y) - int(y)) == 2:
            leap[symbol] = name
            continue
        opens[symbol] = sorted({*opens.get(symbol, []), name})
    for symbol in BEGIN.findall(window):
        fights[symbol] += 1
    for symbol, count in fights.items():                 # a battle takes about twenty presses; this is what a step on it risks
        cost[symbol] = max(cost.get(symbol, 0), min(round(20 * count / max(steps[symbol], count)), 6))
    for symbol, ways in opens.items():
        if len(ways) >= 2:                               # two ways are taken for all four
            opens[symbol] = sorted(n for n in DIRECTION if n.isupper() == ways[0].isupper())
    for symbol in [s for s in shut if s in opens or s in leap]:
        del shut[symbol]
    for symbol, ways in shut.items():
        if len(ways) >= 2 and symbol not in leap:
            shut[symbol] = sorted(n for n in DIRECTION if n.isupper() == ways[0].isupper())
    if len({n for ways in opens.values() for n in ways}) < 2:
        return "", "too few steps were taken"
    broken = re.search(r"^last run failed:.*, (line \d+)\n(?:  .*\n)*  (.*)", body, re.M)
    weak = have is not None and not searching and have[2] >= 2 and have[3] < 0.9 * have[2]
    if dump(tables) == known and not weak and not broken:
        return "", "nothing new about walking"
    names = sorted({n for ways in opens.values() for n in ways} | set(leap.values()))
    code = source("walk_search" if searching or weak else "walk_straight", OPEN=opens, LEAP=leap, AWAY=away, COST=cost, SHUT=shut,
                  MOVES={n: DIRECTION[n] for n in names})
    if not names[0].isupper():                           # a game with one direction a call
        code = code.replace("tools['press_buttons'](buttons=[name], reasoning='walk')", "tools['move'](direction=name)")
    if broken:
        return code, f"it broke at {broken[1]} ({broken[2]}): written anew from its tables"
    return code, f"{have[3]} of {have[2]} walks succeeded: search instead" if weak else f"symbols that let a step through: {' '.join(sorted(opens))}"


def dump(value: dict | list) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def fighter(window: str, have: tuple | None) -> tuple[str, str]:
    """(code, why) of the fighting skill: mean damage of each move against each type of foe, weighted over all windows."""
    worth, heal = (table(have[1], "WORTH"), table(have[1], "HEAL")) if have else ({}, {})
    known = dump([worth, heal])
    sums = defaultdict(list)
    for move, foe, before, after in HIT.findall(window):
        sums[(foe, move)].append(max(int(before) - int(after), 0) / 48)
    for (foe, move), shares in sums.items():
        old = worth.setdefault(foe, {}).get(move)
        mean = sum(shares) / len(shares)
        if old is None or abs(old - mean) > 0.15:        # a small difference is chance, not news
            worth[foe][move] = round(mean if old is None else (old + mean) / 2, 2)
    for move, before, after in MEND.findall(window):
        if int(after) > int(before) and move.isupper():
            heal[move] = 1
    if not worth or dump([worth, heal]) == known:
        return "", "nothing new about battles"
    return source("fight", WORTH=worth, HEAL=heal), "what each move took from each type of foe"


def refine_memory(window: str, current: str) -> dict:
    """What was read, and where: one entry a sign or person; which door leads where; places that are explored."""
    found: dict[str, tuple[str, str, str]] = {}
    last, reached, lines = "", {}, re.findall(r"^\[\d+\] (\S+ at (\w+) (\(\d+, \d+\)).*)$", window, re.M)
    for (line, place, _), (_, then, spot) in zip(lines, lines[1:] + lines[-1:]):
        for name, symbol, x, y, to, to_x, to_y, _ in MOVE.findall(line):
            if to and name in DIRECTION:
                dx, dy = DIRECTION[name]
                door = (int(x) + dx, int(y) + dy)
                found[f"{place} {door}"] = (f"leads to {to}", place, f"{door[0]}, {door[1]}")
                back = (int(to_x) - dx * (symbol == " "), int(to_y) - dy * (symbol == " "))      # over an edge: beyond it
                found.setdefault(f"{to} {back}", (f"leads to {place}", to, f"{back[0]}, {back[1]}"))
        for symbol, x, y, text in TALK.findall(line):
            last = f"{place} ({x}, {y})"
            found[last] = (f"'{symbol}' says: {text[:300]}", place, f"{x}, {y}")
        for page in re.findall(r"\"A: text: ([^\"]*)", line):                              # the pages that follow, in a helper's turns too
            if last in found and "battle" not in line and page not in found[last][0]:
                found[last] = (f"{found[last][0][:700]} / {page}", *found[last][1:])
        if BEGIN.search(line):
            last = ""
        if names := re.search(r" MILESTONES (.*)$", line):
            at, how = (f"{then} {spot}", "on arrival") if then != place else (last, f"by {found[last][0][:3]}") if last else ("", "")
            reached |= {names[1]: (at, how)} if at and names[1] not in reached else {}
        if done := re.search(r"\b(\w+) is explored", line):
            found[done[1]] = ("explored", done[1], "")
    for place, cell in VAIN.findall(window):
        if f"{place} {cell}: leads to" not in current:
            found.setdefault(f"{place} {cell}", ("no way there yet", place, cell.strip("()")))
    have = {title.split(": ")[0]: (id, body) for title, (id, body, *_) in entries(current).items() if "path: milestones" not in body}
    new = [{"title": f"{at}: {names} {how}", "path": "milestones", "source": "evolved", "why": "progress: where it was made"}
           for names, (at, how) in reached.items() if f": {names} " not in current]
    more = []
    for title, (text, place, at) in found.items():
        entry = {"title": " ".join(f"{title}: {text[:160]}".replace("▼", "").split()), "content": text}
        if title not in have:
            new.append({**entry, "location": place, "coordinates": at, "path": "places", "source": "evolved", "why": "came up in the window"})
            continue
        id, body = have[title]
        longer = f"content: {text.split(' / ')[0]}" in body and text.count(" / ") > body.count(" / ") / 2
        if "source: bootstrapped" in body:               # what was inherited counts again from here on
            more.append({**entry, "id": id, "source": "evolved", "why": "seen in this run, too"})
        elif text not in body and (longer or "no way there yet" in body):                # the text goes on; the way is found
            more.append({**entry, "id": id, "why": "more is known now"})
    return {"analysis": f"{len(new)} new facts", "create": new[:5], "update": more[:5]}
