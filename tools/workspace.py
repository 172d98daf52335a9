"""H in other people's forms: a coding agent's workspace tree, and the bootstrap folder of the released reference.

A tree (the layout of Continual Harness's evolver for coding agents): AGENTS.md is p, sub_agents/<name>/AGENT.md a
sub-agent, .agents/skills/<name>/SKILL.md a skill with its code under scripts/, memory/NOTES.md the memory, one `## topic` a
note. H -> tree -> H loses nothing: a field without a place of its own stands in the front matter, a note's in a comment.
What is written keeps every file, key and line that it does not have to change; links are never followed.

Not kept: helper scripts of a skill other than the one that is its code (they stay in the tree, H does not hold them).
"""
import difflib
import json
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness import ID, PARTS, SCHEMAS, EditError, Edit, Harness, append_row, fold, imported, read_edits, read_rows
from runlog import BadInput, locked, write_atomic

POLICY, NOTES, TOOLS = "AGENTS.md", "memory/NOTES.md", "harness_tools"       # TOOLS: front matter of AGENTS.md, where H limits them
FILE = {"subagents": ("sub_agents", "AGENT.md"), "skills": (".agents/skills", "SKILL.md")}      # part -> its folder, its file
BODY = {"subagents": "system_instructions", "skills": "instructions", "memory": "content"}      # the field that is the text
CAP, SIZE, SHOWN = 8_000, 1 << 20, 1_024     # characters of AGENTS.md; bytes of a file; characters of a description
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
Files = dict[str, str]                       # path in the tree -> text


# -- one file: front matter and text

def front(text: str) -> tuple[dict[str, str], str]:
    """The front matter, key -> raw value (lines that go on included), and the text after it."""
    found, keys, last = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", text, re.S | re.M), {}, ""
    if not found:
        return {}, text
    for line in found[1].rstrip("\r\n").split("\n"):
        if key := re.match(r"([\w-]+):(?:[ \t]+(.*))?$", line.rstrip("\r")):
            last = key[1]
            keys[last] = key[2] or ""
        elif last:
            keys[last] += "\n" + line
    return keys, text[found.end():]


def decode(raw: str, kind: str) -> Any:
    """A raw value of the front matter as a field of that JSON Schema type: JSON, or the plain YAML that people write."""
    head, _, more = raw.partition("\n")
    if more and head.strip() in ("|", "|-", "|+", ">", ">-", ">+", ""):
        raw = ("\n" if head.startswith("|") or kind == "array" else " ").join(line.strip() for line in more.split("\n"))
    try:
        value = json.loads(raw)
        if {str: "string", int: "integer", float: "integer", list: "array"}.get(type(value)) == kind:
            return value
    except ValueError:
        pass
    plain = raw.strip()
    if kind == "array":
        return [w for w in (w.strip(" '\"-") for w in re.split(r"[,\n]", plain.strip("[]"))) if w]
    return plain[1:-1].replace("''", "'") if plain[:1] == plain[-1:] == "'" and len(plain) > 1 else plain


def encode(value: Any) -> str:
    """A field as YAML: plain where that is safe, else JSON, which is YAML, too."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w ,.;()/+-]*[\w.;)]", value, re.A)
    return value if plain and value.lower() not in ("true", "false", "yes", "no", "null", "on", "off") else json.dumps(value, ensure_ascii=False)


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
        raise BadInput(f"{root} is no folder; give a workspace with AGENTS.md in it")
    files, odd, real = {}, [], root.resolve()
    for top in (POLICY, "sub_agents", ".agents", "memory"):
        found = [root / top] if top == POLICY else [Path(base, n) for base, dirs, names in os.walk(root / top) for n in [*names, *dirs]] \
            if not (root / top).is_symlink() else [root / top]
        for path in sorted(p for p in found if p.is_symlink() or p.is_file()):
            rel = path.relative_to(root).as_posix()
            if path.is_symlink() or path.resolve() != real / rel:
                odd.append(f"{rel}: a link; links are not followed")
            elif path.stat().st_size > SIZE:
                odd.append(f"{rel}: more than {SIZE >> 20} MiB; it is not read")
            else:
                try:
                    files[rel] = path.read_bytes().decode()
                except UnicodeDecodeError:
                    odd.append(f"{rel}: not UTF-8; it is not read")
    return files, odd


def notes(text: str) -> tuple[str, list[tuple[dict, str]]]:
    """NOTES.md -> what stands before the first note, and for each note its fields and its own text."""
    head, *chunks = re.split(r"^(?=## )", text, flags=re.M)
    out = []
    for chunk in chunks:
        title, _, body = chunk[3:].partition("\n")
        entry = {"title": title.strip()[:200], "source": "orchestrator"}
        if meta := re.match(r"<!-- (\{.*\}) -->\n?", body):
            try:
                entry |= json.loads(meta[1])
                body = body[meta.end():]
            except ValueError:
                pass
        out.append(({"content": re.sub(r"^\\(\\*## )", r"\1", body.strip("\r\n"), flags=re.M)} | entry, chunk))
    return head, out


def script(files: Files, folder: str, text: str) -> str:
    """The path of a skill's code: the script that its text names first, or the only one, or one named as the skill; or ''."""
    have = [p for p in files if p.startswith(f"{folder}/scripts/") and p.endswith(".py")]
    named = [f"{folder}/{p}" for p in re.findall(r"scripts/[\w./-]+\.py", text)] + [f"{folder}/scripts/{Path(folder).name}.py"]
    return next((p for p in named if p in have), have[0] if len(have) == 1 else "")


def parse(files: Files) -> tuple[dict, dict]:
    """A tree's files -> the row that `harness.imported` takes, and (part, id) -> where it stands: path, or a note's text."""
    row, where = {"prompt": "", "tools": [], **{part: {} for part in PARTS}}, {}
    if POLICY in files:
        keys, text = front(files[POLICY])
        own = list(keys) == [TOOLS]
        row["prompt"], row["tools"] = (unwrap(text), decode(keys[TOOLS], "array")) if own else (files[POLICY].removesuffix("\n"), [])
    for part, (top, file) in FILE.items():
        rules, prefix = SCHEMAS[part]["properties"], PARTS[part][1]
        for path in sorted(p for p in files if re.fullmatch(rf"{re.escape(top)}/[^/]+/{file}", p)):
            folder, (keys, text) = os.path.dirname(path), front(files[path])
            name = os.path.basename(folder)
            entry = {"name": name, "source": "human"} | {k: decode(v, rules[k].get("type", "string")) for k, v in keys.items() if k in rules}
            entry["name"] = decode(keys["title"], "string") if "title" in keys else entry["name"]
            entry["description"] = decode(keys["full_description"], "string") if "full_description" in keys else entry.get("description", "")
            entry[BODY[part]] = unwrap(text)
            if part == "skills" and (code := script(files, folder, text)):
                entry["code"] = unwrap(files[code]) if files[code].startswith("\n") else files[code].removesuffix("\n")
            id = decode(keys.get("id", ""), "string") or name
            id = id if ID.fullmatch(id) and id not in row[part] else f"{prefix}-{slug(name)}"
            row[part][id], where[part, id] = entry, path
    listed, number = notes(files.get(NOTES, ""))[1], 1
    ids = {entry.get("id") for entry, _ in listed}
    for entry, chunk in listed:
        id = entry.pop("id", None)
        while not isinstance(id, str) or id in row["memory"]:
            id, number = f"mem_{number:04d}" if f"mem_{number:04d}" not in ids else None, number + 1
        row["memory"][id] = {k: v for k, v in entry.items() if k in SCHEMAS["memory"]["properties"]}
        where["memory", id] = chunk
    return row, where


def clean(row: dict) -> dict:
    """A row with every field of every entry, in order of the ids: two rows of the same H are equal."""
    full = {part: {id: {**asdict(PARTS[part][0](**{"name" if part != "memory" else "title": ""})), **e}
                   for id, e in sorted(row.get(part, {}).items())} for part in PARTS}
    return {"prompt": row.get("prompt", ""), "tools": row.get("tools", []), **full}


# -- H -> tree

def more(part: str, id: str, entry: dict, skip: Iterable[str]) -> dict:
    """The fields of an entry that have no other place, where they are not the default."""
    plain = asdict(PARTS[part][0](**{"name" if part != "memory" else "title": ""}))
    return {"id": id} | {k: v for k, v in entry.items() if k not in skip and (v != plain[k] or k == "source")}


def note(id: str, entry: dict, old: str = "") -> str:
    """One note. A title or a text that Markdown can't hold as it is (line breaks, blank edges) stands in the comment."""
    title = " ".join(entry["title"].split()) or id
    body = re.sub(r"^(\\*## )", r"\\\1", entry["content"], flags=re.M)
    keys = more("memory", id, entry, ("title", "content"))
    keys |= {"title": entry["title"]} if title != entry["title"] else {}
    if body.strip("\r\n") != body or body.startswith("<!-- {"):
        keys, body = keys | {"content": entry["content"]}, ""
    if meta := re.match(r"[^\n]*\n<!-- (\{.*\}) -->", old):
        keys |= {k: v for k, v in json.loads(meta[1]).items() if k not in SCHEMAS["memory"]["properties"] and k != "id"}
    comment = json.dumps(keys, ensure_ascii=False).replace(">", "\\u003e")
    return f"## {title}\n<!-- {comment} -->\n{body}\n\n"


def document(part: str, id: str, entry: dict, folder: str, old: str = "") -> str:
    """AGENT.md or SKILL.md. Keys of the old text that are not H's stay."""
    rest = more(part, id, entry, ("name", "description", "code", BODY[part]))
    shown = entry["description"][:SHOWN] or entry["name"]
    keys = {"name": folder, "description": shown} | ({"title": entry["name"]} if entry["name"] != folder else {}) | rest
    keys |= {"full_description": entry["description"]} if shown != entry["description"] else {}
    own = {*SCHEMAS[part]["properties"], "id", "title", "full_description"}
    raw = {k: encode(v) for k, v in keys.items()} | {k: v for k, v in front(old)[0].items() if k not in own}
    return "---\n" + "".join(f"{k}: {v}\n" for k, v in raw.items()) + "---\n" + wrap(entry[BODY[part]])


def to_files(row: dict, old: Files) -> Files:
    """A tree that holds `row`, made of the files that are there: an entry that has not changed keeps its text."""
    before, where = parse(old)
    before, row, files = clean(before), clean(row), dict(old)
    if (row["prompt"], row["tools"]) != (before["prompt"], before["tools"]):
        own = row["tools"] or list(front(row["prompt"])[0]) == [TOOLS]
        files[POLICY] = f"---\n{TOOLS}: {encode(row['tools'])}\n---\n" + wrap(row["prompt"]) if own else row["prompt"] + "\n"
    for part, (top, file) in FILE.items():
        for id in before[part].keys() - row[part].keys():
            files = {p: t for p, t in files.items() if not p.startswith(os.path.dirname(where[part, id]) + "/")}
        for id, entry in row[part].items():
            if before[part].get(id) == entry:
                continue
            taken = {p.split("/")[top.count("/") + 1] for p in files if p.startswith(top + "/")}
            folder = os.path.dirname(where[part, id]) if (part, id) in where else f"{top}/{slug(entry['name'], taken)}"
            files[f"{folder}/{file}"] = document(part, id, entry, os.path.basename(folder), old.get(f"{folder}/{file}", ""))
            if part == "skills":
                path = script(files, folder, entry["instructions"]) or next(
                    iter(re.findall(r"scripts/[\w-]+\.py", entry["instructions"])), f"scripts/{os.path.basename(folder)}.py")
                path = path if path.startswith(folder) else f"{folder}/{path}"
                if entry["code"]:
                    files[path] = wrap(entry["code"]) if entry["code"].startswith("\n") else entry["code"] + "\n"
                elif before[part].get(id, {}).get("code"):
                    del files[path]
    if row["memory"] != before["memory"]:
        ids = [i for i in before["memory"] if i in row["memory"]] + [i for i in row["memory"] if i not in before["memory"]]
        text = lambda i: where["memory", i] if before["memory"].get(i) == row["memory"][i] else note(i, row["memory"][i], where.get(("memory", i), ""))
        files[NOTES] = notes(old.get(NOTES, "# Notes\n\n"))[0] + "".join(text(i) if text(i).endswith("\n") else text(i) + "\n" for i in ids)
    return files


# -- the specification

def check(files: Files, odd: Iterable[str] = ()) -> list[str]:
    """Every violation of the tree's specification, a line each, with its file."""
    out, row = list(odd), parse(files)[0]
    if not row["prompt"].strip():
        out.append(f"{POLICY}: missing or empty")
    if len(files.get(POLICY, "")) > CAP:
        out.append(f"{POLICY}: {len(files[POLICY])} characters; the limit is {CAP}")
    for path, text in files.items():
        at = path.split("/")
        part = next((p for p, (top, _) in FILE.items() if path.startswith(top + "/")), "")
        base = "/".join(at[:{"subagents": 2, "skills": 3}.get(part, 0)])
        if path not in (POLICY, NOTES) and (not part or path == base):
            out.append(f"{path}: not a part of the harness; known are {POLICY}, {NOTES}, " + ", ".join(top for top, _ in FILE.values()))
        if part and f"{base}/{FILE[part][1]}" not in files and path != base:
            out.append(f"{path}: no {FILE[part][1]} beside it")
        if text.encode(errors="replace").decode() != text:
            out.append(f"{path}: holds half a character; it can't be written as UTF-8")
        elif path.endswith(".py"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(text, path, "exec")
            except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
                out.append(f"{path}: does not compile: {e}")
        if path.endswith(".md"):
            named = re.findall(r"(?<![\w/.:-])((?:sub_agents|\.agents/skills|memory|scripts)/[\w./-]*\w)", text)
            out += [f"{path}: names {p}, which does not exist" for p in dict.fromkeys(named)
                    if not any(f == q or f.startswith(q + "/") for q in (p, f"{base}/{p}") for f in files)]
            out += [f"{path}: leaves the tree with {p}" for p in dict.fromkeys(re.findall(r"(?<![\w.])(?:[\w.-]+/)*\.\./[\w./-]*", text))]
        if part and path == f"{base}/{FILE[part][1]}":
            keys, name = {k: decode(v, "string") for k, v in front(text)[0].items()}, at[-2]
            if part == "skills" and (keys.get("name") != name or not NAME.fullmatch(name) or len(name) > 64):
                out.append(f"{path}: name {keys.get('name', '')!r} must be its folder's, 1 to 64 of a-z 0-9 - with no edge or double hyphen")
            if not 1 <= len(keys.get("description", "")) <= SHOWN:
                out.append(f"{path}: description must have 1 to {SHOWN} characters; without one an agent never sees the entry")
    titles = [e["title"] for e in row["memory"].values()]
    out += [f"{NOTES}: the topic {t!r} stands there twice" for t in dict.fromkeys(titles) if titles.count(t) > 1]
    for part in PARTS:
        for id, entry in row[part].items():
            try:
                imported({part: {id: entry}})
            except EditError as e:
                out.append(f"{FILE[part][0] if part in FILE else NOTES}: {e}")
    return list(dict.fromkeys(out))


def diff(old: Files, new: Files) -> str:
    lines = lambda files, p: files.get(p, "").splitlines(keepends=True)
    shown = [difflib.unified_diff(lines(old, p), lines(new, p), f"a/{p}" if p in old else "/dev/null", f"b/{p}" if p in new else "/dev/null")
             for p in sorted({*old, *new}) if old.get(p) != new.get(p)]
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for part in shown for line in part)


def write_tree(root: Path, new: Files, old: Files) -> list[str]:
    """Write what differs from `old`, and nothing when a file is no longer as it was in `old`. Returns the paths. Raises BadInput."""
    changed = sorted(p for p in {*old, *new} if old.get(p) != new.get(p))
    for p in changed:
        if (root / p).resolve() != root.resolve() / p:
            raise BadInput(f"{root / p}: a link is in the way; nothing was written")
        if ((root / p).read_bytes() if (root / p).exists() else None) != (old[p].encode() if p in old else None):
            raise BadInput(f"{root / p} is not ours to overwrite: it was there before, or has changed meanwhile; nothing was written")
    for p in changed:
        if p not in new:
            (root / p).unlink()
            continue
        (root / p).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(root / p, new[p].encode())
    return changed
