"""Makes docs/report.png and docs/compare.png from jobs that it runs on this machine: python docs/page_pictures.py.

It needs Playwright and Chromium, and some three minutes of an idle machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
TRAIN = """import torch
import torch.distributed as dist


def log_metrics(step, loss):
    if step == 24 and dist.get_rank() == 1:
        # A collective that the other ranks never call.
        dist.broadcast(torch.tensor([step]), src=1)
    dist.all_reduce(loss)


dist.init_process_group("gloo")
for step in range(50):
    log_metrics(step, torch.ones(1))
"""
SWEEP = "strategy=ddp,zero1,fsdp model=gpt2_tiny train.steps=12 checkpoint=off record=full"


def dtk(folder: Path, *words: str) -> None:
    """Run `dtk WORDS` in a folder; whether it finds causes does not matter."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "dtk", *words], cwd=folder, env=environment, capture_output=True)


def picture(page: Path, width: int, height: int) -> None:
    """Write docs/<name of the page>.png, its upper part; the folder of the job is called /job in it."""
    own, breaks = str(page.parent), "/<wbr>"  # The page may break a path between its folders.
    page.write_text(page.read_text().replace(own, "/job").replace(own.replace("/", breaks), f"{breaks}job"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": width, "height": height})
        shown.goto(page.as_uri())
        shown.screenshot(path=DOCS / f"{page.stem}.png")
        browser.close()


def main() -> None:
    """Run the jobs and take the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job42"
        (folder / "train.py").write_text(TRAIN)
        dtk(folder, "watch", "--folder", str(job), "--", "torchrun", "--nproc-per-node=4", "train.py")
        dtk(folder, "diagnose", "job42", "--html", "report.html")
        picture(folder / "report.html", 1165, 1330)
        dtk(folder, "run", "-m", *SWEEP.split(), "repeats=3", "runs_folder=runs")
        dtk(folder, "compare", "runs", "--html", "compare.html")
        picture(folder / "compare.html", 1100, 1700)


if __name__ == "__main__":
    main()
