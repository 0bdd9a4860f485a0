"""Draw docs/pictures/demo.svg: what `millpond demo` says, as it says it. Run by hand when that changes:

.venv/bin/python docs/pictures/draw.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 118
HERE = Path(__file__).parent


def main() -> None:
    """Run the demo, then the explanation that it proposes, and draw both."""
    demo = run("demo")
    home, job = re.search(r"--home (\S+) explain (\d+)", demo).groups()  # pyright: ignore[reportOptionalMemberAccess]
    told = run("--home", home, "explain", job)
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for command, said in (("millpond demo", demo), (f"millpond --home ./demo explain {job}", told)):
            console.print(Text(f"$ {command}", style="bold green"))
            for line in said.replace(home, "./demo").splitlines():
                style = (
                    "yellow" if "ambiguous" in line or " held " in line else "cyan" if " paid twice " in line else ""
                )
                console.print(Text(line, style=style, no_wrap=True, overflow="ellipsis"))
        drawn = console.export_svg(title="millpond", font_aspect_ratio=0.61)
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # the reader's own monospace, nothing fetched
    drawn = drawn.replace("Fira Code,", "").replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    (HERE / "demo.svg").write_text(drawn, encoding="utf-8")


def run(*words: str) -> str:
    """What the program says to such words, on both of its streams."""
    command = [sys.executable, "-u", "-m", "millpond", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


if __name__ == "__main__":
    main()
