"""Figures that one analyser of traces gives for a folder, as one line of JSON.

    python benchmarks/analyser_figures.py hta|tb|gpu_idle|nsys_ai|dtk FOLDER

Runs with the Python of the analyser's own environment, of which it uses nothing but the analyser; analysers.py starts
it. Percentages are those that the analyser prints: `overlap` of the communication, `exposed` communication and `idle`
of the analyser's own window, one entry per rank or device. `remarks` are the causes and pieces of advice that it gives.
"""

import argparse
import contextlib
import gzip
import io
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def hta(folder: Path) -> Result:
    """HolisticTraceAnalysis: it gives figures only."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=str(folder))
    overlap = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    times = {row["rank"]: row for row in analysis.get_temporal_breakdown(visualize=False).to_dict("records")}
    ranks = sorted((row["rank"], row["comp_comm_overlap_pctg"]) for row in overlap)
    return {"ranks": [{"overlap": share, "idle": times[rank]["idle_time_pctg"]} for rank, share in ranks]}


def tb(folder: Path) -> Result:
    """Return what the TensorBoard plug-in shows in its overview and its distributed view, without TensorBoard."""
    from torch_tb_profiler.profiler.data import RunProfileData

    ranks, remarks = [], []
    for path in sorted(folder.iterdir()):
        with tempfile.TemporaryDirectory() as cache:
            data = RunProfileData.parse("worker", 1, str(path), cache)
        used = [share for share in data.gpu_metrics_parser.gpu_utilization if share is not None]
        figures = {"idle": 100 * (1 - used[0])} if used else {}
        steps = data.comm_overlap_costs
        communication, overlap = sum(step.communication for step in steps), sum(step.overlap for step in steps)
        if used and communication:
            wall = sum(step.computation + step.other for step in steps) + communication - overlap
            figures |= {"overlap": 100 * overlap / communication, "exposed": 100 * (communication - overlap) / wall}
        ranks.append(figures)
        remarks += map(str, data.recommendations)
    return {"ranks": ranks, "remarks": remarks}


def gpu_idle(folder: Path) -> Result:
    """gpu-idle: it reads plain JSON, so its files are unpacked first."""
    from analyzer import analyze

    ranks, remarks = [], []
    for path in sorted(folder.iterdir()):
        with tempfile.NamedTemporaryFile(suffix=".json") as plain:
            plain.write(gzip.decompress(path.read_bytes()))
            plain.flush()
            result = analyze(plain.name)
        ranks.append({"idle": 100 - result["measurements"]["busy_pct"]})
        remarks += [item["cause"] for item in result["findings"] if item["cause"] != "unattributed"]
    return {"ranks": ranks, "remarks": remarks}


def nsys_ai(folder: Path) -> Result:
    """nsys-ai: three of its skills, without a language model."""
    from nsys_ai.cli.app import main

    (path,) = folder.iterdir()

    def skill(name: str, *more: str) -> list[Result]:
        sys.argv = ["nsys-ai", "skill", "run", name, str(path), "--format", "json", *more]
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            main()
        return json.loads(output.getvalue())

    ranks = []
    for row in skill("pipeline_bubble_metrics"):
        figures = {"idle": row["bubble_pct"]}
        (use,) = skill("overlap_breakdown", "-p", f"device={row['deviceId']}")
        if use["nccl_kernels"]:
            figures |= {"overlap": use["overlap_pct"], "exposed": 100 * use["nccl_only_ms"] / use["total_ms"]}
        ranks.append(figures)
    return {
        "ranks": ranks,
        "remarks": [row["pattern"] for row in skill("root_cause_matcher") if row["severity"] != "info"],
    }


def dtk(folder: Path) -> Result:
    """`dtk diagnose` with all its causes."""
    from diagnostics.diagnose import diagnose
    from diagnostics.report.jsonform import as_json

    report = as_json(diagnose(folder))
    ranks = []
    for row in report["measures"].get("overlap", {}).get("ranks", {}).values():
        shares = {name: 100 * row[f"{name}_ms"] / row["wall_ms"] for name in ("exposed", "idle")}
        ranks.append(shares | ({"overlap": row["overlap_percent"]} if "overlap_percent" in row else {}))
    return {"ranks": ranks, "remarks": [root["cause"] for root in report["root_causes"]]}


ANALYSERS = {function.__name__: function for function in (hta, tb, gpu_idle, nsys_ai, dtk)}


def main() -> None:
    """Print what one analyser returns, or how it ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("analyser", choices=ANALYSERS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            result = ANALYSERS[options.analyser](options.folder)
    except Exception as error:  # of any kind: the table counts the trace as not opened
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
