"""How presets, differences, lints and recommendations look: for terminals and pipes, and the table of docs/nccl.md."""

from collections.abc import Callable, Mapping, Sequence

from diagnostics.contract.formatting import counted
from diagnostics.contract.invocation import command
from diagnostics.report.console import Writer, written
from diagnostics.runs.text import clean
from dtk.console import output
from dtk.errors import DtkError
from dtk.nccl.lint import Linted
from dtk.nccl.presets import Preset, Setting
from dtk.nccl.recommend import Advice

_WORDS = {"any": "NCCL or gloo", "nccl": "NCCL", "gloo": "gloo"}
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_FIELD = 10
"""Width of labels."""


def listing(presets: Mapping[str, Preset], problems: Mapping[str, DtkError]) -> str:
    """One line a preset; those that cannot be read last."""
    rows = [
        (name, _WORDS[preset.config.backend], str(len(preset.settings)), preset.summary)
        for name, preset in presets.items()
    ]
    rows += [(clean(name), "-", "-", f"cannot be used: {problem}") for name, problem in problems.items()]
    rows.insert(0, ("preset", "for", "sets", "what it is"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), clean(row[3])]) for row in rows]
    return "\n".join(lines) + "\n"


def shown(preset: Preset) -> str:
    """Everything about one preset."""

    def write(out: Writer) -> None:
        out.line("", f"nccl={preset.name}: {preset.summary}", "bold", width=0)
        out.line("for", f"ranks over {_WORDS[preset.config.backend]}", width=_FIELD)
        for key in ("source", "versions", "harms", "remove", "advice"):
            if preset.about.get(key):
                out.line(key, preset.about[key], width=_FIELD)
        out.line("use", _usage(preset), width=_FIELD)
        for setting in preset.settings:
            _setting(out, setting, preset)

    return _written(write)


def _usage(preset: Preset) -> str:
    """The command of the file's second line."""
    lines = preset.path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[1].removeprefix("# Use:").strip() if len(lines) > 1 else f"python -m dtk.run nccl={preset.name}"


def _setting(out: Writer, setting: Setting, preset: Preset) -> None:
    out.title(f"{setting.name}={setting.value}")
    for key in ("why", "versions", "source", "harms", "remove"):
        text = getattr(setting, key)
        if text and text != preset.about.get(key):  # What holds for the whole preset stands above.
            out.line(key, text, width=_FIELD)


def differences(first: str, second: str, a: Mapping[str, str], b: Mapping[str, str]) -> str:
    """Variables that two sides do not share, as `diff -u` marks them."""
    lines = [f"--- {first}", f"+++ {second}"]
    same = 0
    for name in sorted({*a, *b}):
        if a.get(name) == b.get(name):
            same += 1
            continue
        lines += [f"-{name}={clean(a[name])}"] if name in a else []
        lines += [f"+{name}={clean(b[name])}"] if name in b else []
    lines.append(f" {same} the same" if len(lines) > 2 or same else " neither sets anything")
    return "\n".join(lines) + "\n"


def linted(found: Linted) -> str:
    """Lints, the worst first, with a last line that counts them."""

    def write(out: Writer) -> None:
        for item in found.items:
            what = f"{item.variable}={item.value}" if item.variable else item.place
            where = f" ({item.place})" if item.variable and item.place else ""
            out.line(item.severity, f"{what}{where}: {item.message}", _STYLES[item.severity], width=_FIELD)
            if not item.message.endswith("?"):
                out.line("", item.fix, width=_FIELD)
        out.line("", _verdict(found), width=0)

    return _written(write)


def _verdict(found: Linted) -> str:
    counts = {kind: sum(item.severity == kind for item in found.items) for kind in _STYLES}
    told = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items() if count)
    version = f"NCCL {found.nccl_version}" if found.nccl_version else "version of NCCL unknown"
    where = f"{counted(found.checked, 'variable')} of {', '.join(found.read)}"
    return f"{told or 'nothing wrong'} in {where} ({version}; {found.facts})"


def recommended(found: Sequence[Advice], besides: Sequence[str]) -> str:
    """A preset for each case, with the reasons."""

    def write(out: Writer) -> None:
        for advice in found:
            out.line("", f"{advice.case}: nccl={advice.preset}", "bold", width=0)
            for reason in advice.because:
                out.line("because", reason, width=_FIELD)
            for need in advice.needs:
                out.line("give", need, width=_FIELD)
            out.line("use", command("run", f"nccl={advice.preset}"), width=_FIELD)
        for note in besides:
            out.line("also", note, width=_FIELD)

    return _written(write)


def markdown(presets: Mapping[str, Preset]) -> str:
    """The presets with every variable, as docs/nccl.md has them."""
    return "".join(_section(preset) for preset in presets.values())


def _section(preset: Preset) -> str:
    about = preset.about
    parts = [f"\n### {preset.name}\n{preset.summary} For ranks over {_WORDS[preset.config.backend]}.\n\n"]
    parts.append(f"`{_usage(preset)}`\n\n")
    said = [f"{key}: {about[key]}" for key in ("versions", "harms", "remove", "advice") if about.get(key)]
    parts += [f"- {one}\n" for one in said]
    names = ("variable", "value", "why", "source", "versions", "harms", "remove")
    parts.append(f"\n| {' | '.join(names)} |\n|{' --- |' * len(names)}\n")
    for one in preset.settings:
        cells = (f"`{one.name}`", f"`{one.value}`", one.why, one.source, one.versions, one.harms, one.remove)
        parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def _written(write: Callable[[Writer], None]) -> str:
    columns = output.columns()
    return written(
        lambda console: write(Writer(console, wrap=columns is not None)), columns=columns, colour=output.colours()
    )
