"""What was said, where: YAML files, variables and flags read into plain trees that remember the origin of each key.

    user file  <  ./millpond.yaml  <  MILLPOND_…  <  flags          (the right one wins, key by key)

A nearer file that names `lanes` gives all of them, and their `routing`: the list of lanes is one thing, and a lane that
costs must not slip in from a file that nobody looked at. `price` and `spill` are replaced whole too: two halves of a
price are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

Key = tuple[str | int, ...]
"""A path into the tree; numbers stand for places in a list."""

Tree = dict[str, Any]

PREFIX = "MILLPOND_"
ELSEWHERE = frozenset({"CONFIG", "COMMAND_QUEUE_PATH", "DEBUG"})
"""Variables that other parts of the product read."""

SERVICE_LINK = re.compile(r"(SERVICE|PORT)(_|$)")
"""Kubernetes gives containers MILLPOND_PORT, MILLPOND_SERVICE_HOST, … once a service is called millpond."""

WHOLE = frozenset({"price", "spill"})
MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 20_000
"""Bounds of a settings file: aliases in YAML can name a tree inside itself, or unfold a few lines into millions."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a key was said (`millpond.yaml:7`, `environment MILLPOND_X`, `flag`); paths start from `folder`."""

    text: str
    folder: Path


@dataclass(slots=True)
class Said:
    """One source: its tree, the origin of every key in it, and a line for each fault found while reading."""

    tree: Tree = field(default_factory=dict[str, Any])
    origins: dict[Key, Origin] = field(default_factory=dict[Key, Origin])
    faults: list[str] = field(default_factory=list[str])


# --- files -----------------------------------------------------------------------------------------------------------


def read_file(path: Path, cwd: Path) -> Said:
    """Read a settings file. What cannot be read or parsed is one line in `faults`."""
    shown = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    said = Said()
    text = _text(path, shown, said.faults)
    if text is None:
        return said
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return said
        if not isinstance(node, yaml.MappingNode):
            said.faults.append(f"{shown}: found {_node_kind(node)}, wanted keys and values; such as `lanes:`")
            return said
        said.tree = _Reader(loader, shown, path.absolute().parent, said).mapping(node, ())
    except yaml.MarkedYAMLError as fault:
        said.faults.append(_yaml_fault(fault, shown))
    except yaml.YAMLError as fault:
        said.faults.append(f"{shown}: not YAML: {_one_line(str(fault))}; mend the file")
    except (_Unbounded, RecursionError):
        said.faults.append(
            f"{shown}: nested or repeated without end; wanted at most {MAX_DEPTH} levels, no alias loops"
        )
    return said


def _text(path: Path, shown: str, faults: list[str]) -> str | None:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        faults.append(f"{shown}: no such file; `millpond init` writes one")
    except IsADirectoryError:
        faults.append(f"{shown}: found a folder, wanted a file; name the millpond.yaml in it")
    except OSError as fault:
        faults.append(f"{shown}: cannot be read ({fault.strerror or fault}); mend its permissions or name another")
    else:
        if len(raw) > MAX_BYTES:
            faults.append(f"{shown}: larger than {MAX_BYTES:,} bytes; is it a settings file?")
            return None
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as fault:
            faults.append(f"{shown}: byte {raw[fault.start]:#04x} at {fault.start} is not UTF-8; save it as UTF-8 text")
    return None


class _Unbounded(Exception):
    pass


class _Reader:
    """Turns YAML nodes into values, noting the line of every key. Same tags and merges as PyYAML's safe loader."""

    def __init__(self, loader: yaml.SafeLoader, shown: str, folder: Path, said: Said) -> None:
        self.loader, self.shown, self.folder, self.said = loader, shown, folder, said
        self.left = MAX_NODES

    def mapping(self, node: yaml.MappingNode, at: Key) -> Tree:
        self.count(at)
        merges = any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value)
        if merges:
            self.loader.flatten_mapping(node)
        tree: Tree = {}
        for key_node, value_node in node.value:
            key = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            where = self.where(key_node)
            if not isinstance(key, str):
                said = key_node.value if isinstance(key_node, yaml.ScalarNode) else _node_kind(key_node)
                self.said.faults.append(f"{where.text}: key {said} is not text; put it in quotes")
                continue
            here = (*at, key)
            if key in tree and not merges:  # a merged mapping may be overridden on purpose
                first = self.said.origins[here].text
                self.said.faults.append(f"{where.text}: {dotted(here)}: said twice (first at {first}); keep one")
                continue
            self.said.origins[here] = where
            tree[key] = self.value(value_node, here)
        return tree

    def value(self, node: yaml.Node, at: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            self.count(at)
            values: list[Any] = []
            for place, item in enumerate(node.value):
                self.said.origins[(*at, place)] = self.where(item)
                values.append(self.value(item, (*at, place)))
            return values
        self.count(at)
        return self.scalar(cast("yaml.ScalarNode", node))

    def scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.loader.construct_object(node)  # pyright: ignore[reportUnknownMemberType]
        except ValueError:  # 2026-13-45 looks like a date and is none
            return node.value

    def where(self, node: yaml.Node) -> Origin:
        return Origin(f"{self.shown}:{node.start_mark.line + 1}", self.folder)

    def count(self, at: Key) -> None:
        self.left -= 1
        if self.left < 0 or len(at) > MAX_DEPTH:
            raise _Unbounded


def _yaml_fault(fault: yaml.MarkedYAMLError, shown: str) -> str:
    mark = fault.problem_mark or fault.context_mark
    where = f"{shown}:{mark.line + 1}" if mark else shown
    problem = _one_line(fault.problem or "cannot be parsed")
    mend = "indent with spaces, not tabs" if "'\\t'" in problem else "mend the line"
    return f"{where}: not YAML: {problem}; {mend}"


def _node_kind(node: yaml.Node) -> str:
    return (
        "a list"
        if isinstance(node, yaml.SequenceNode)
        else "a mapping"
        if isinstance(node, yaml.MappingNode)
        else "a value"
    )


# --- environment and flags -------------------------------------------------------------------------------------------


def read_environment(env: Mapping[str, str], below: Tree, cwd: Path) -> Said:
    """Read MILLPOND_… variables; `__` goes one level down: MILLPOND_LANES__FREE__BASE_URL is lanes.free.base_url.

    Names are matched to the keys of `below` (what the files said) without regard to case, `-` read as `_`, so that a
    lane `night-shift` is MILLPOND_LANES__NIGHT_SHIFT. A value that starts with `{` or `[` is read as YAML, and so is
    whatever goes into `params`; an empty one counts as not set.
    """
    said = Said()
    for variable in sorted(env):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in ELSEWHERE or SERVICE_LINK.match(name) or not env[variable].strip():
            continue
        parts = ["QUEUE", "PATH"] if name == "QUEUE" else name.split("__")
        at: Key = ()
        level: Any = below
        for part in parts:
            known = cast("Tree", level) if isinstance(level, dict) else {}
            key = next((key for key in known if _folded(key) == _folded(part)), part.lower())
            at, level = (*at, key), known.get(key)
        origin = Origin(f"environment {variable}", cwd)
        value: Any = env[variable]
        if value.lstrip().startswith(("{", "[")) or "params" in at[:-1]:
            try:
                value = yaml.safe_load(value)
            except (yaml.YAMLError, ValueError) as fault:
                said.faults.append(f"{origin.text}: not YAML: {_one_line(str(fault))}; mend the value")
                continue
        _put(said, at, value, origin)
    return said


def read_flags(flags: Mapping[str, Any], cwd: Path) -> Said:
    """Read flags, by dotted key (`lanes.free.max_in_flight`) or nested; None means that the flag was not given."""
    said = Said()
    for key, value in flags.items():
        if value is not None:
            _put(said, tuple(key.split(".")), value, Origin("flag", cwd))
    return said


def _put(said: Said, at: Key, value: Any, origin: Origin) -> None:
    tree = said.tree
    for place in range(1, len(at)):
        said.origins.setdefault(at[:place], origin)
        below = tree.setdefault(str(at[place - 1]), {})
        if not isinstance(below, dict):
            said.faults.append(
                f"{origin.text}: {dotted(at)}: {dotted(at[:place])} is a single value; say one of the two"
            )
            return
        tree = cast("Tree", below)
    for key in _keys_of(value, at):
        said.origins[key] = origin
    before = tree.get(str(at[-1]))
    tree[str(at[-1])] = _merged(cast("Tree", before), cast("Tree", value)) if _both_dicts(before, value) else value


def _keys_of(value: Any, at: Key) -> Iterator[Key]:
    yield at
    if isinstance(value, dict):
        for key, item in cast("Tree", value).items():
            yield from _keys_of(item, (*at, str(key)))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(cast("list[Any]", value)):
            yield from _keys_of(item, (*at, place))


# --- one above the other ---------------------------------------------------------------------------------------------


def lay_over(below: Said, above: Said, *, whole_lanes: bool) -> Said:
    """Lay one source over another. `whole_lanes`: an upper one that names lanes hides the lower's, and its routing."""
    tree, origins = dict(below.tree), dict(below.origins)
    if whole_lanes and above.tree.get("lanes") is not None:
        for hidden in ("lanes", "routing"):
            tree.pop(hidden, None)
            origins = {key: origin for key, origin in origins.items() if key[0] != hidden}
    merged = _merged(tree, above.tree)
    kept = {key: origin for key, origin in origins.items() if _stands(merged, key)}
    return Said(merged, kept | above.origins, [*below.faults, *above.faults])


def without_nulls(said: Said) -> Tree:
    """The tree without keys that were said to be null (`key:` with nothing after it): those take their defaults.

    A lane with nothing after its name stays, as a lane that says nothing. `params` may mean null.
    """
    tree = {key: value for key, value in said.tree.items() if value is not None}
    lanes = tree.get("lanes")
    if isinstance(lanes, dict):
        tree["lanes"] = {name: {} if lane is None else lane for name, lane in cast("Tree", lanes).items()}
    return cast("Tree", _pruned(tree, ()))


def dotted(key: Key) -> str:
    """A key as people write it: `lanes.free.pin_on`, and `[2]` for the third place of a list."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def user_file(env: Mapping[str, str]) -> Path:
    """The user's own settings file, where this system keeps such files."""
    from platformdirs import user_config_path

    chosen = env.get("XDG_CONFIG_HOME", "")
    folder = Path(chosen) / "millpond" if os.path.isabs(chosen) else user_config_path("millpond")
    return folder / "millpond.yaml"


def _merged(below: Tree, above: Tree) -> Tree:
    # The lower one's order stands: a variable that names the last lane must not make it the preferred one.
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        if key not in WHOLE and _both_dicts(before, value):
            merged[key] = _merged(cast("Tree", before), cast("Tree", value))
        else:
            merged[key] = value
    return merged


def _pruned(value: Any, at: Key) -> Any:
    if not isinstance(value, dict) or (at and at[-1] == "params"):
        return cast("Any", value)
    tree = cast("Tree", value)
    return {key: _pruned(item, (*at, key)) for key, item in tree.items() if item is not None}


def _stands(tree: Any, key: Key) -> bool:
    for part in key:
        if isinstance(part, int):
            if not isinstance(tree, list) or part >= len(cast("list[Any]", tree)):
                return False
        elif not isinstance(tree, dict) or part not in tree:
            return False
        tree = cast("Any", tree)[part]
    return True


def _both_dicts(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _one_line(text: str) -> str:
    return " ".join(text.split())
