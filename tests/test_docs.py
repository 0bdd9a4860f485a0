"""The pages are true: their snippets run, their links lead somewhere, and the command line is described as it is.

The option tables of docs/cli.md, the faults of docs/testing.md, the cases of docs/promises.md and the list of decisions
are drawn. After a change of them: `.venv/bin/python tests/test_docs.py`.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from cases import TABLE as CASE_TABLE
from cases import WENT_WRONG, files_by_case, table_of_cases
from published import DUPLICATES, TOKENS_AND_CROSSINGS

from millpond.drill.script import FAULTS
from millpond.faces.cli import VERBS, cli
from millpond.settings import load

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CLI_PAGE = DOCS / "cli.md"
DRAWN = [CLI_PAGE, DOCS / "testing.md", DOCS / "index.md", DOCS / "promises.md"]
RUN = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
"""Pages whose blocks are run."""
READ = [*RUN, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
"""Pages whose links are followed."""
ENTRANCES = [ROOT / "README.md", DOCS / "index.md"]

MOST_NOT_RUN = 3
SKIP = re.compile(r"<!-- not run: (.*?) -->")
LANGUAGES = {"python", "console", "yaml", "json", "toml", "mermaid"}
"""What a block may say that it is. `python` and `console` are run, `yaml` is read as settings, `toml` by
tests/lanes/test_own_lanes_page.py. README.md may also have `sh`, whose verbs and options are checked and which is not
run."""

TAGS = {"millpond prompt 1", "millpond command 1"}
"""Not commands, but the first bytes of a canonical form (docs/identity.md)."""

WILD = "…"
"""Stands for any text in a line of output; on a line of its own, for any lines."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page, and why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    before, start, language, inside = "", 0, None, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, start, inside = line.removeprefix("```"), number, []
        elif language is not None and line == "```":
            skip = SKIP.fullmatch(before)
            yield Block(page, start, language, "\n".join(inside) + "\n", skip[1] if skip else None)
            before, language = "", None
        elif language is not None:
            inside.append(line)
        elif line.strip():
            before = line.strip()


BLOCKS = [block for page in RUN if page.exists() for block in blocks_of(page)]


def to_run(language: str) -> list[Block]:
    """The blocks of a language that are not marked."""
    return [block for block in BLOCKS if block.language == language and block.not_run is None]


def bare_environment(folder: Path) -> dict[str, str]:
    """What a reader's shell has, and nothing of ours: this program first on the path, an empty home folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLPOND_", "XDG_", "PYTEST"))}
    home = folder / "home-of-the-reader"
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "100"}


# --- what is run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", to_run("python"), ids=str)
def test_every_python_block_runs_in_an_empty_folder(block: Block, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    program = tmp_path / "block.py"
    program.write_text("\n" * block.line + block.text, encoding="utf-8")  # so that a traceback names the page's lines
    # A block that begins with the name of a file of tests is one. Whether this environment knows the plugin or not:
    tests = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "millpond.testing.plugin"]
    how = tests if block.text.startswith("# test_") else []
    run = subprocess.run(
        [sys.executable, *how, str(program)],
        cwd=folder, env=bare_environment(tmp_path) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, f"{block}\n{run.stdout}{run.stderr}"
    expected = printed_by(block.text)
    assert not expected or matches(expected, run.stdout.splitlines()), f"{block}: printed\n{run.stdout}"


def printed_by(program: str) -> list[str]:
    """The lines that a program says it prints: the comment behind each `print(…)`; any lines where there is none."""
    said = re.findall(r"^\s*print\(.*?\)(?:\s+# (.*))?$", program, re.MULTILINE)
    return [words or WILD for words in said]


@pytest.mark.parametrize("page", sorted({block.page for block in to_run("console")}), ids=lambda page: page.name)
def test_every_console_block_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    commands = [command for block in to_run("console") if block.page == page for command in commands_of(block)]
    folder = tmp_path / "folder"
    folder.mkdir()
    outputs = run_in_one_shell([text for _, text, _ in commands], folder, tmp_path)
    for number, ((where, text, shown), (code, output)) in enumerate(zip(commands, outputs, strict=True)):
        said = number + 1 < len(commands) and commands[number + 1][1] == "echo $?"
        assert code == 0 or said, f"{where}: `{text}` exits {code}\n{output}"
        printed = [line.rstrip() for line in output.splitlines()]
        assert not shown or matches(shown, printed), f"{where}: `{text}` prints\n{output}"


def commands_of(block: Block) -> Iterator[tuple[str, str, list[str]]]:
    """Each command of a console block: where it stands, its text, and the lines that are shown of its output."""
    assert block.text.startswith("$ "), f"{block}: begins with {block.text[:20]!r}, wanted `$ ` and a command"
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        end = next((at for at, line in enumerate(lines) if not line.endswith("\\")), len(lines) - 1)
        yield str(block), "\n".join(lines[: end + 1]), [line.rstrip() for line in lines[end + 1 :]]


def run_in_one_shell(commands: list[str], folder: Path, scratch: Path) -> list[tuple[int, str]]:
    """Run commands one after the other in one shell; exit code and output (both streams) of each."""
    mark = "--end of a command--"
    steps = [f"{command}\n__code=$?; printf '%s %s\\n' '{mark}' $__code; (exit $__code)" for command in commands]
    script, output = scratch / "page.sh", scratch / "output"
    script.write_text("\n".join(steps) + "\n", encoding="utf-8")
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder, env=bare_environment(scratch), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        shell.wait(timeout=100)
    finally:
        with suppress(ProcessLookupError):  # what the page left running in the background
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    parts = re.split(rf"{mark} (\d+)\n", output.read_text(encoding="utf-8"))
    return [(int(code), text) for text, code in zip(parts[:-1:2], parts[1::2], strict=True)]


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether output is what is shown of it."""
    lines = [
        r"(?:.*\n)*?" if line == WILD else re.escape(line).replace(re.escape(WILD), ".*?") + r"\n" for line in shown
    ]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in printed)) is not None


def test_matching_is_not_lenient() -> None:
    assert matches(["a … c", WILD], ["a b c", "d"])
    assert matches([WILD, "d"], ["d"])
    assert not matches(["a … c"], ["a b c", "d"])
    assert not matches(["a.c"], ["abc"])
    assert not matches(["a", "b"], ["b", "a"])


@pytest.mark.parametrize("block", to_run("yaml"), ids=str)
def test_every_yaml_block_is_accepted_as_settings(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "millpond.yaml"
    file.write_text(block.text, encoding="utf-8")
    load(config=file, env={"XDG_CONFIG_HOME": str(tmp_path)}, cwd=tmp_path)  # raises what is wrong, line by line


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = [f"{block}: {block.not_run}" for block in BLOCKS if block.not_run is not None]
    assert len(reasons) <= MOST_NOT_RUN, reasons
    assert all(reason.rpartition(": ")[2].strip() for reason in reasons)
    marks = sum(page.read_text(encoding="utf-8").count("<!-- not run") for page in RUN if page.exists())
    assert marks == len(reasons), "a mark stands directly above its block, as `<!-- not run: reason -->`"


def test_every_block_says_what_it_is() -> None:
    unknown = [block for block in BLOCKS if block.language not in LANGUAGES]
    assert [
        f"{block} {block.language}" for block in unknown if (block.page.name, block.language) != ("README.md", "sh")
    ] == []


def test_the_published_queries_stand_on_their_page_as_they_were_printed() -> None:
    page = (DOCS / "money.md").read_text(encoding="utf-8")
    assert [query for query in (TOKENS_AND_CROSSINGS, DUPLICATES) if f'execute("""{query}""")' not in page] == []


# --- links -----------------------------------------------------------------------------------------------------------


def prose_of(page: Path) -> str:
    """A page without its blocks and code spans."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "``", text)


def links_of(page: Path) -> list[str]:
    """The targets of a page's links, those to other sites left out."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)) if "://" not in target]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in READ if page.exists()], ids=lambda page: page.name)
def test_every_link_leads_to_a_page_and_its_heading(page: Path) -> None:
    broken: list[str] = []
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_by_links() -> None:
    reached: set[Path] = set()
    ahead = [page for page in ENTRANCES if page.exists()]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        ahead += [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page)]
    assert sorted(str(page.relative_to(ROOT)) for page in set(RUN) - reached) == []


# --- the command line ------------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Every verb by the words that call it (`config show` too), and under `millpond` what all of them share."""
    found: dict[str, click.Command] = {"millpond": cli}
    for verb, (module, _) in VERBS.items():
        command: click.Command = getattr(importlib.import_module(f"millpond.faces.cli.{module}"), verb)
        inner = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{verb} {name}": one for name, one in inner.items()} or {verb: command}
    return found


def options_of(command: click.Command) -> list[click.Option]:
    """The options of a verb that are its own."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def table_of(command: click.Command) -> str:
    """The options of a verb as a table, in the words of its `--help`."""
    rows: list[str] = []
    with click.Context(command) as ctx:
        for option in options_of(command):
            words, said = option.get_help_record(ctx) or ("", "")
            first = words.replace("|", r"\|")
            rows.append(f"| `{first}` | {said.replace('|', chr(92) + '|')} |")
    return "\n".join(["| option | what it does |", "|---|---|", *rows]) + "\n" if rows else ""


DECISIONS = r"(<!-- decisions: .*? -->\n)(.*?)(<!-- end of the decisions -->)"
FAULT_TABLE = r"(<!-- faults: .*? -->\n)(.*?)(<!-- end of the faults -->)"
TABLE = r"(<!-- options: {} -->\n)(.*?)(<!-- end of options -->)"


def drawn(page: str) -> str:
    """The page with every option table as the program has it."""
    for verb, command in commands().items():
        table = table_of(command)
        page = re.sub(TABLE.format(verb), lambda m, t=table: m[1] + t + m[3], page, flags=re.DOTALL)
    page = re.sub(CASE_TABLE, lambda m: m[1] + table_of_cases() + m[3], page, flags=re.DOTALL)
    page = re.sub(FAULT_TABLE, lambda m: m[1] + table_of_faults() + m[3], page, flags=re.DOTALL)
    return re.sub(DECISIONS, lambda m: m[1] + list_of_decisions() + m[3], page, flags=re.DOTALL)


def table_of_faults() -> str:
    """What the fault lane can play."""
    rows = [
        f"| `{name}` | {_yes(fault.works)} | {_yes(fault.arrives)} | {fault.seen}"
        + (f" (`{fault.plain}`)" if fault.plain else "")
        + " |"
        for name, fault in FAULTS.items()
    ]
    return "\n".join(["| fault | done | arrives | the client sees |", "|---|---|---|---|", *rows]) + "\n"


def list_of_decisions() -> str:
    """The decision records, each by its heading."""
    pages = sorted((DOCS / "decisions").glob("*.md"))
    return "".join(f"- [{_heading(page)}](decisions/{page.name})\n" for page in pages)


def _heading(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _yes(claim: bool) -> str:
    return "yes" if claim else "no"


@pytest.mark.parametrize("page", DRAWN, ids=lambda page: page.name)
def test_what_is_drawn_from_the_program_is_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == drawn(text), f"{page.name} is out of date: .venv/bin/python tests/test_docs.py draws it anew"


def test_every_case_that_a_page_tells_of_has_its_tests() -> None:
    assert set(files_by_case()) == set(WENT_WRONG)


@pytest.mark.parametrize("page", [page for page in READ if page.exists()], ids=lambda page: page.name)
def test_every_file_of_the_checkout_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`[^`\n]*?((?:tests|src)/[\w./-]+)[^`\n]*`", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_verb_has_its_section_and_no_other_has() -> None:
    sections = re.findall(r"^#+ `millpond (.*?)`$", CLI_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [re.sub(r" [\[A-Z].*| -.*", "", section) for section in sections]
    assert sorted(named) == sorted(set(commands()) - {"millpond"})


def test_every_verb_with_options_has_its_table() -> None:
    page = CLI_PAGE.read_text(encoding="utf-8")
    wanted = {verb for verb, command in commands().items() if options_of(command)}
    assert set(re.findall(r"<!-- options: (.*?) -->", page)) == wanted


def spoken_of(page: Path) -> list[str]:
    """What a page shows as commands of ours: code spans, and lines of blocks for the shell."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"`((?:millpond |-)[^`\n]*)`", text) + re.findall(r"^(?:\$ )?(millpond .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in READ if page.exists()], ids=lambda page: page.name)
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    known = {name for command in commands().values() for option in options_of(command) for name in option.opts}
    known |= {"--help", "--version", "-h", "--json", "--home", "--queue", "--config"}
    named = {word for words in spoken_of(page) for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)}
    assert named - known == set()


@pytest.mark.parametrize("page", [page for page in READ if page.exists()], ids=lambda page: page.name)
def test_no_page_names_a_verb_that_does_not_exist(page: Path) -> None:
    spoken = [words for words in spoken_of(page) if words not in TAGS]
    calls = [re.match(r"millpond (?:--json |--\S+ \S+ )*([a-z]+)", words) for words in spoken]
    assert {call[1] for call in calls if call} - set(VERBS) == set()


if __name__ == "__main__":
    for page in DRAWN:
        page.write_text(drawn(page.read_text(encoding="utf-8")), encoding="utf-8")
