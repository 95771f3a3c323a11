"""Makes docs/terminal.svg: runs a command on a pseudo terminal and draws what the screen shows at the end.

python docs/terminal_picture.py python -m dtk.run strategy=fsdp model=gpt2
"""

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 118


def screen(command: list[str]) -> str:
    """Return the final state of every line that the command wrote, with colours."""
    os.environ.update({"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "50"})
    chunks: list[bytes] = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 65536))
        return chunks[-1]

    pty.spawn(command, read)
    lines = b"".join(chunks).decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    return "\n".join(line.split("\r\x1b[2K")[-1] for line in lines).rstrip()


def main() -> None:
    """Run and draw."""
    command = sys.argv[1:]
    shown = screen(command)
    home = str(Path.cwd())
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(Text(f"$ {' '.join(command)}", style="bold"))
    console.print(Text.from_ansi(shown.replace(home + "/", "")))
    picture = console.export_svg(title="dtk")
    # A picture must not fetch fonts from elsewhere: the reader's own monospace serves.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    (Path(__file__).parent / "terminal.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
