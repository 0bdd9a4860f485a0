"""Draw docs/pictures/demo.svg: what `millpond demo` says, as it says it. Run by hand when that changes.

.venv/bin/python docs/pictures/draw.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
SHOWN = {"ended": 5, "held": 3, "done": 6}
"""How many lines of each kind of event are shown, from where they first stand side by side."""


def main() -> None:
    """Run the demo and draw a part of its events and all of its end."""
    said = subprocess.run([sys.executable, "-m", "millpond", "demo"], capture_output=True, text=True, check=True).stdout
    lines = [re.sub(r"/\S*millpond-demo-\S+", "./demo", line) for line in said.splitlines()]
    events = [at for at, line in enumerate(lines) if re.match(r"\d\d:\d\d:\d\d ", line)]
    left = dict(SHOWN)
    kept: list[int] = []
    for at in events[40:]:
        kind = lines[at].split()[1]
        if left.get(kind, 0):
            left[kind] -= 1
            kept.append(at)
    console = Console(record=True, width=112, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text("$ millpond demo", style="bold green"))
    for line in [*lines[: events[0]], "…", *(lines[at] for at in kept), "…", *lines[events[-1] + 1 :]]:
        style = "yellow" if " ambiguous" in line or " held " in line else "cyan" if line.startswith("done ") else ""
        console.print(Text(line, style=style))
    drawn = console.export_svg(title="millpond demo", font_aspect_ratio=0.61)
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # the reader's own monospace, nothing fetched
    drawn = drawn.replace("Fira Code,", "").replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    (HERE / "demo.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
