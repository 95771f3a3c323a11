"""A script whose first rank prepares the data, while the others wait for it no longer than the timeout of the group."""

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from tqdm import tqdm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work-s", type=float, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    if int(os.environ["RANK"]) == 0:
        end_s = time.monotonic() + args.work_s
        for n in tqdm(range(200), desc="Tokenizing"):
            time.sleep(max(0.0, (end_s - time.monotonic()) / (200 - n)))
    dist.barrier()
    for step in range(1, 21):
        loss = torch.tensor(1.0 / step)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
