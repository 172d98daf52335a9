"""H as a workspace tree for coding agents, and the tree's specification.

AGENTS.md is p, sub_agents/<name>/AGENT.md a sub-agent, .agents/skills/<name>/SKILL.md a skill, its code under scripts/,
memory/NOTES.md the memory, one `## topic` a note (the layout of Continual Harness's evolver for coding agents). H -> tree -> H
loses nothing: a field with no place of its own stands in the front matter, a note's in a comment. What is written keeps every
file, key and line that it need not change; links are never followed. Not in H: helper scripts besides a skill's code.
"""
import difflib
import json
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ID, PARTS, SCHEMAS, EditError, imported
from runlog import BadInput, write_atomic

POLICY, NOTES, TOOLS = "AGENTS.md", "memory/NOTES.md", "harness_tools"       # TOOLS: its front matter, where H limits them
FILE = {"subagents": ("sub_agents", "AGENT.md"), "skills": (".agents/skills", "SKILL.md")}      # part -> its folder, its file
BODY = {"subagents": "system_instructions", "skills": "instructions", "memory": "content"}      # part -> the field that is text
TITLE = {"subagents": "name", "skills": "name", "memory": "title"}
CAP, SIZE, SHOWN = 8_000, 1 << 20, 1_024                 # characters of AGENTS.md, bytes of a file, characters of a description
Files = dict[str, str]                                   # path in the tree -> text


# -- one file: front matter and text

def front(text: str) -> tuple[dict[str, str], str]:
    """The front matter, key -> raw value (lines that go on included), and the text after it."""
    found, keys, last = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", text, re.S | re.M), {}, ""
    for line in found[1].rstrip("\r\n").split("\n") if found else []:
        if key := re.match(r"([\w-]+):(?:[ \t]+(.*))?$", line.rstrip("\r")):
            last = key[1]
            keys[last] = key[2] or ""
        elif last:
            keys[last] += "\n" + line
    return keys, text[found.end():] if found else text


def decode(raw: str, kind: str = "string") -> Any:
    """A raw value of the front matter as a field of that JSON Schema type: JSON, or the plain YAML that people write."""
    head, _, more = raw.partition("\n")
    if more and head.strip() in ("|", "|-", "|+", ">", ">-", ">+", ""):
        raw = ("\n" if head.startswith("|") or kind == "array" else " ").join(line.strip() for line in more.split("\n"))
    try:
        value = json.loads(raw)
        if {str: "string", int: "integer", list: "array", bool: "boolean"}.get(type(value)) == kind:
            return value
    except ValueError:
        pass
    plain = raw.strip()
    if kind == "array":
        return [w for w in (w.strip(" '\"-") for w in re.split(r"[,\n]", plain.strip("[]"))) if w]
    return plain[1:-1].replace("''", "'") if re.fullmatch(r"'.*'", plain, re.S) else plain


def encode(value: Any) -> str:
    """A field as YAML: plain where that is safe, else JSON, which is YAML, too."""
    safe = r"(?!(?i:true|false|yes|no|null|on|off)$)[A-Za-z][\w ,.;()/+-]*[\w.;)]"
    plain = isinstance(value, str) and re.fullmatch(safe, value, re.A)
    return value if plain else json.dumps(value, ensure_ascii=False)


def wrap(text: str) -> str:
    return f"\n{text}\n" if text else ""


def unwrap(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def slug(name: str, taken: Iterable[str] = ()) -> str:
    """A folder name for an entry: a-z 0-9 -, not taken yet."""
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "entry"
    return next(s for s in [base, *(f"{base}-{n}" for n in range(2, 999))] if s not in taken)


# -- tree -> H

def read_tree(root: Path) -> tuple[Files, list[str]]:
    """The files of a tree that are H's, and a line for each that is not readable as one. Raises BadInput."""
    if not root.is_dir():
        raise BadInput(f"{root} is no folder; give a workspace with {POLICY} in it")
    files, odd = {}, []
    for top in (POLICY, "sub_agents", ".agents", "memory"):
        inside = os.walk(root / top) if not (root / top).is_symlink() else []
        for path in [root / top, *sorted(Path(base, name) for base, dirs, names in inside for name in [*names, *dirs])]:
            rel = path.relative_to(root).as_posix()
            if path.is_symlink():
                odd.append(f"{rel}: a link; links are not followed")
            elif path.is_file() and path.stat().st_size > SIZE:
                odd.append(f"{rel}: more than {SIZE >> 20} MiB; it is not read")
            elif path.is_file():
                try:
                    files[rel] = path.read_bytes().decode()
                except UnicodeDecodeError:
                    odd.append(f"{rel}: not UTF-8; it is not read")
    return files, odd


def notes(text: str) -> tuple[str, list[tuple[dict, str]]]:
    """NOTES.md -> what stands before the first note, and each note: its fields (with "id", if it has one) and its own text."""
    head, *chunks = re.split(r"^(?=## )", text, flags=re.M)
    out = []
    for chunk in chunks:
        title, _, body = chunk[3:].partition("\n")
        entry, meta = {"title": title.strip()[:200], "source": "orchestrator"}, re.match(r"<!-- (\{.*\}) -->\n?", body)
        try:
            keys = json.loads(meta[1]) if meta else {}
            body = body[meta.end():] if meta else body
        except ValueError:                               # a person's own comment
            keys = {}
        out.append((entry | {"content": re.sub(r"^\\(\\*## )", r"\1", body.strip("\r\n"), flags=re.M)} | keys, chunk))
    return head, out


def script(files: Files, folder: str, text: str) -> str:
    """The path of a skill's code: the script that its text names first, or the one named as the skill, or the only one; or ''."""
    have = [p for p in files if p.startswith(f"{folder}/scripts/") and p.endswith(".py")]
    named = [f"{folder}/{p}" for p in [*re.findall(r"scripts/[\w./-]+\.py", text), f"scripts/{os.path.basename(folder)}.py"]]
    return next((p for p in named if p in have), have[0] if len(have) == 1 else "")


def parse(files: Files) -> tuple[dict, dict]:
    """A tree's files -> the row that `harness.imported` takes, and (part, id) -> where it stands: its path, or a note's text."""
    row, where = {"prompt": files.get(POLICY, "").removesuffix("\n"), "tools": [], **{part: {} for part in PARTS}}, {}
    keys, text = front(files.get(POLICY, ""))
    if list(keys) == [TOOLS]:
        row |= {"prompt": unwrap(text), "tools": decode(keys[TOOLS], "array")}
    for part, (top, file) in FILE.items():
        rules, prefix = SCHEMAS[part]["properties"], PARTS[part][1]
        for path in sorted(p for p in files if re.fullmatch(rf"{re.escape(top)}/[^/]+/{file}", p)):
            folder, (keys, text) = os.path.dirname(path), front(files[path])
            name = os.path.basename(folder)
            entry = {"source": "human"} | {k: decode(v, rules[k]["type"]) for k, v in keys.items() if k in rules}
            entry[BODY[part]] = unwrap(text)
            entry["name"] = decode(keys["title"]) if "title" in keys else name
            entry["description"] = decode(keys.get("full_description", keys.get("description", "")))
            if part == "skills" and (code := files.get(script(files, folder, text))):
                entry["code"] = unwrap(code) if code.startswith("\n") else code.removesuffix("\n")
            id = decode(keys.get("id", "")) or name
            id = id if ID.fullmatch(id) and id not in row[part] else f"{prefix}-{name}"
            row[part][id], where[part, id] = entry, path
    listed, number = notes(files.get(NOTES, ""))[1], 0
    ids = {entry.get("id") for entry, _ in listed}
    for entry, chunk in listed:
        id = entry.pop("id", "")
        while not isinstance(id, str) or not ID.fullmatch(id) or id in row["memory"]:      # it has none yet
            number += 1
            id = "" if f"mem_{number:04d}" in ids else f"mem_{number:04d}"
        row["memory"][id], where["memory", id] = {k: v for k, v in entry.items() if k in SCHEMAS["memory"]["properties"]}, chunk
    return row, where


def default(part: str) -> dict:
    return asdict(PARTS[part][0](**{TITLE[part]: ""}))


def clean(row: dict) -> dict:
    """A row with all fields of all entries, in order of the ids: the rows of two equal H are equal."""
    return {"prompt": row.get("prompt", ""), "tools": row.get("tools", []),
            **{part: {id: default(part) | entry for id, entry in sorted(row.get(part, {}).items())} for part in PARTS}}


# -- H -> tree

def rest(part: str, id: str, entry: dict, *placed: str) -> dict:
    """The fields of an entry that have no place of their own, where they are not the default."""
    return {"id": id} | {k: v for k, v in entry.items() if k not in placed and (v != default(part)[k] or k == "source")}


def note(id: str, entry: dict, old: str) -> str:
    """One note. A title or a text that Markdown can't hold as it is (line breaks, blank edges) stands in the comment."""
    title, body = " ".join(entry["title"].split()) or id, re.sub(r"^(\\*## )", r"\\\1", entry["content"], flags=re.M)
    keys = rest("memory", id, entry, "title", "content") | ({"title": entry["title"]} if title != entry["title"] else {})
    if body.strip("\r\n") != body or body.startswith("<!-- {"):
        keys, body = keys | {"content": entry["content"]}, ""
    before = notes(old)[1][0][0] if old else {}
    keys |= {k: v for k, v in before.items() if k not in SCHEMAS["memory"]["properties"] and k != "id"}
    comment = json.dumps(keys, ensure_ascii=False).replace(">", "\\u003e")
    return f"## {title}\n<!-- {comment} -->\n{body}\n\n"


def document(part: str, id: str, entry: dict, folder: str, old: str) -> str:
    """AGENT.md or SKILL.md. Keys of the old text that are not H's stay."""
    shown = entry["description"][:SHOWN] or entry["name"]
    keys = {"name": folder, "description": shown} | ({"title": entry["name"]} if entry["name"] != folder else {})
    keys |= rest(part, id, entry, "name", "description", "code", BODY[part])
    keys |= {"full_description": entry["description"]} if shown != entry["description"] else {}
    ours = {*SCHEMAS[part]["properties"], "id", "title", "full_description"}
    raw = {k: encode(v) for k, v in keys.items()} | {k: v for k, v in front(old)[0].items() if k not in ours}
    return "---\n" + "".join(f"{k}: {v}\n" for k, v in raw.items()) + "---\n" + wrap(entry[BODY[part]])


def put(part: str, id: str, entry: dict, folder: str, files: Files) -> None:
    """A sub-agent or a skill into `files`, the skill's code under the name that its text gives it."""
    path, name = f"{folder}/{FILE[part][1]}", os.path.basename(folder)
    files[path] = document(part, id, entry, name, files.get(path, ""))
    if part == "skills":
        named = [*re.findall(r"scripts/[\w-]+\.py", entry["instructions"]), f"scripts/{name}.py"][0]
        code = script(files, folder, entry["instructions"]) or f"{folder}/{named}"
        files.pop(code, None)
        if entry["code"]:
            files[code] = wrap(entry["code"]) if entry["code"].startswith("\n") else entry["code"] + "\n"


def to_files(row: dict, old: Files) -> Files:
    """A tree that holds `row`, made of the files that are there: what has not changed keeps its text."""
    before, where = parse(old)
    before, row, files = clean(before), clean(row), dict(old)
    if (row["prompt"], row["tools"]) != (before["prompt"], before["tools"]):
        keyed = row["tools"] or list(front(row["prompt"])[0]) == [TOOLS]
        files[POLICY] = f"---\n{TOOLS}: {encode(row['tools'])}\n---\n" + wrap(row["prompt"]) if keyed else row["prompt"] + "\n"
    for part, (top, _) in FILE.items():
        for id in before[part].keys() - row[part].keys():
            files = {p: t for p, t in files.items() if not p.startswith(os.path.dirname(where[part, id]) + "/")}
        for id, entry in row[part].items():
            if before[part].get(id) != entry:
                taken = {p.split("/")[top.count("/") + 1] for p in files if p.startswith(top + "/")}
                new = f"{top}/{slug(entry['name'], taken)}/"
                put(part, id, entry, os.path.dirname(where.get((part, id), new)), files)
    if row["memory"] != before["memory"]:
        ids = [i for i in before["memory"] if i in row["memory"]] + [i for i in row["memory"] if i not in before["memory"]]
        chunk = lambda i, was: was if before["memory"].get(i) == row["memory"][i] else note(i, row["memory"][i], was)
        texts = [notes(old.get(NOTES, "# Notes\n\n"))[0], *(chunk(i, where.get(("memory", i), "")) for i in ids)]
        files[NOTES] = "".join(t + "\n" * (t != "" and not t.endswith("\n")) for t in texts)
    return files


# -- the specification

def named_paths(path: str, base: str, text: str, files: Files) -> list[str]:
    """Paths in a text that do not exist in the tree, or that lead out of it."""
    found = re.findall(r"(?<![\w/.:-])((?:sub_agents|\.agents/skills|memory|scripts)/[\w./-]*\w)", text)
    gone = [p for p in dict.fromkeys(found) if not any(f"{f}/".startswith((f"{p}/", f"{base}/{p}/")) for f in files)]
    out = dict.fromkeys(re.findall(r"(?<![\w.])(?:[\w.-]+/)*\.\./[\w./-]*", text))
    return [f"{path}: names {p}, which does not exist" for p in gone] + [f"{path}: leaves the tree with {p}" for p in out]


def compiles(path: str, text: str) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, path, "exec")
        return []
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        return [f"{path}: does not compile: {e}"]


def check(files: Files, odd: Iterable[str] = ()) -> list[str]:
    """Every violation of the tree's specification, a line each, with its file."""
    out, row = list(odd), parse(files)[0]
    size = len(files.get(POLICY, "").strip())
    if not 0 < size <= CAP:
        out.append(f"{POLICY}: {size} characters; the limit is {CAP}" if size else f"{POLICY}: missing or empty")
    for path, text in files.items():
        part = next((p for p, (top, _) in FILE.items() if path.startswith(top + "/")), "")
        base = "/".join(path.split("/")[:{"subagents": 2, "skills": 3}.get(part, 0)])
        name, main = os.path.basename(base), f"{base}/{FILE[part][1]}" if part else ""
        if path not in (POLICY, NOTES) and (not part or path == base):
            out.append(f"{path}: not a part of the harness: {POLICY}, {NOTES}, {FILE['subagents'][0]}, {FILE['skills'][0]}")
        elif part and main not in files:
            out.append(f"{path}: no {FILE[part][1]} beside it")
        if text.encode(errors="replace").decode() != text:
            out.append(f"{path}: holds half a character; it can't be written as UTF-8")
        elif path.endswith((".py", ".md")):
            out += compiles(path, text) if path.endswith(".py") else named_paths(path, base, text, files)
        if path == main:
            keys = {k: decode(v) for k, v in front(text)[0].items()}
            if part == "skills" and (keys.get("name") != name or not re.fullmatch(r"(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*", name)):
                out.append(f"{path}: name {keys.get('name', '')!r} must be its folder's, 1 to 64 of a-z 0-9 and single hyphens")
            if not 1 <= len(keys.get("description", "")) <= SHOWN:
                out.append(f"{path}: description must have 1 to {SHOWN} characters; without one an agent never sees the entry")
    titles = [entry["title"] for entry in row["memory"].values()]
    out += [f"{NOTES}: the topic {t!r} stands there twice" for t in dict.fromkeys(titles) if titles.count(t) > 1]
    for part, id, entry in ((part, id, entry) for part in PARTS for id, entry in row[part].items()):
        try:
            imported({part: {id: entry}})
        except EditError as e:
            out.append(f"{FILE[part][0] if part in FILE else NOTES}: {e}")
    return list(dict.fromkeys(out))


def diff(old: Files, new: Files) -> str:
    """The change as a patch."""
    lines, out = lambda files, p: files.get(p, "").splitlines(keepends=True), ""
    for p in sorted(p for p in {*old, *new} if old.get(p) != new.get(p)):
        names = f"a/{p}" if p in old else "/dev/null", f"b/{p}" if p in new else "/dev/null"
        for line in difflib.unified_diff(lines(old, p), lines(new, p), *names):
            out += line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
    return out


def write_tree(root: Path, new: Files, old: Files) -> list[str]:
    """Write what differs from `old`, and nothing when a file is not as it is in `old`. Returns the paths. Raises BadInput."""
    changed = sorted(p for p in {*old, *new} if old.get(p) != new.get(p))
    for p in changed:
        if (root / p).resolve() != root.resolve() / p:
            raise BadInput(f"{root / p}: a link is in the way; nothing was written")
        if ((root / p).read_bytes() if (root / p).exists() else None) != (old[p].encode() if p in old else None):
            raise BadInput(f"{root / p} is not ours to overwrite: it was there or has changed meanwhile; nothing was written")
    for p in changed:
        if p not in new:
            (root / p).unlink()
            continue
        (root / p).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(root / p, new[p].encode())
    return changed
