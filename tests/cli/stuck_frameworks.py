"""Training jobs of frameworks that hang: `torchrun --nproc-per-node=3 stuck_frameworks.py NAME`, as people write them.

`TRUTH` is as in stuck.py.
"""

import os
import re
import socket
import sys
import tempfile
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FOREVER_S = 900
_CONDITIONAL = ("hang.conditional_collective", "hang.collective_mismatch")
TRUTH: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "ddp_saves_then_barrier": ((0,), _CONDITIONAL),
    "ddp_short_loader": ((1,), ("hang.uneven_iterations",)),
    "ddp_tokenizer": ((2,), ("hang.host_stall",)),
    "ddp_download": ((0,), ("hang.host_stall",)),
    "fsdp2_skips_nan": ((1,), _CONDITIONAL),
    "fsdp2_early_stop": ((2,), ("hang.uneven_iterations",)),
    "fsdp2_prefetch_thread": ((1,), ("hang.host_stall",)),
    "tp_debug_print": ((0,), _CONDITIONAL),
    "tp_lock": ((1,), ("hang.host_stall",)),
    "pp_last_stage_logs": ((2,), _CONDITIONAL),
    "pp_stage_sleeps": ((0,), ("hang.host_stall",)),
    "pp_fewer_steps": ((2,), ("hang.uneven_iterations", "hang.pipeline_mismatch")),
    "accelerate_gathers": ((0,), _CONDITIONAL),
    "accelerate_waits": ((0,), _CONDITIONAL),
    "trainer_callback": ((0,), _CONDITIONAL),
    "trainer_data": ((2,), ("hang.host_stall",)),
    "trainer_skips_step": ((1,), ("hang.conditional_collective", "hang.uneven_iterations")),
    "lightning_log": ((0,), _CONDITIONAL),
    "deepspeed_metric": ((1,), _CONDITIONAL),
    "deepspeed_saves": ((0,), _CONDITIONAL),
    "groups_order": ((0, 1), ("hang.group_order",)),
    "two_threads": ((0,), ("hang.group_order",)),
    "wrong_world": ((), ("hang.rendezvous",)),
}
WORLD = dict.fromkeys(TRUTH, 3)
HEALTHY = ("ddp_trains",)


class Net(nn.Module):
    """Three layers and a head."""

    def __init__(self, width: int = 60) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Rows(torch.utils.data.Dataset):
    """`count` rows; reading row `stuck_at` of rank `stuck` connects to a server that never answers."""

    def __init__(self, count: int, stuck: int = -1, stuck_at: int = -1) -> None:
        self.count, self.stuck, self.stuck_at = count, stuck, stuck_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.stuck_at >= 0 and int(os.environ["RANK"]) == self.stuck:
            server = socket.create_server(("127.0.0.1", 0))
            with socket.create_connection(server.getsockname()) as client:
                client.recv(1)
        return {"x": torch.full((60,), index / 100), "labels": torch.ones(1)}


def ddp() -> tuple[int, nn.Module, torch.optim.Optimizer]:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), 0.01)


def fsdp2() -> tuple[int, nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    fully_shard(model)
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), 0.01)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    loss = model(torch.randn(4, 60)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def ddp_trains() -> None:
    _, model, optimizer = ddp()
    while True:
        train_step(model, optimizer)


def ddp_saves_then_barrier() -> None:
    rank, model, optimizer = ddp()
    for step in range(20):
        train_step(model, optimizer)
        if step == 9 and rank == 0:
            torch.save(model.state_dict(), tempfile.mkdtemp() + "/model.pt")
            dist.barrier()


def ddp_short_loader() -> None:
    rank, model, optimizer = ddp()
    rows = torch.utils.data.Subset(Rows(80), range(64 if rank == 1 else 80))
    for _epoch in range(2):
        for batch in torch.utils.data.DataLoader(rows, batch_size=8):
            model(batch["x"]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()


def ddp_tokenizer() -> None:
    rank, model, optimizer = ddp()
    for step in range(20):
        if step == 7 and rank == 2:
            re.match(r"(?:\w+\s?)+$", "word " * 60 + "!")
        train_step(model, optimizer)


def ddp_download() -> None:
    rank, model, optimizer = ddp()
    for step in range(20):
        if step == 7 and rank == 0:
            Rows(8, stuck=0, stuck_at=0)[0]
        train_step(model, optimizer)


def fsdp2_skips_nan() -> None:
    rank, model, optimizer = fsdp2()
    for step in range(20):
        loss = model(torch.randn(4, 60)).mean()
        if rank == 1 and step == 8:
            loss = loss * float("nan")
        if torch.isnan(loss):
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()


def fsdp2_early_stop() -> None:
    rank, model, optimizer = fsdp2()
    best, bad = float("inf"), 0
    for step in range(40):
        loss = float(train_step(model, optimizer)) - (0 if rank == 2 and step > 3 else 100 * step)
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        if bad == 5:
            break
    dist.barrier()


def fsdp2_prefetch_thread() -> None:
    import queue

    rank, model, optimizer = fsdp2()
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def produce() -> None:
        for _ in range(6 if rank == 1 else 30):
            batches.put(torch.randn(4, 60))

    threading.Thread(target=produce, daemon=True).start()
    for _step in range(30):
        model(batches.get()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def tensor_parallel() -> tuple[int, nn.Module, torch.optim.Optimizer]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 60))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), 0.01)


def tp_debug_print() -> None:
    rank, model, optimizer = tensor_parallel()
    for step in range(20):
        train_step(model, optimizer)
        if step == 9 and rank == 0:
            print("weight", model[2].weight.full_tensor().norm().item(), flush=True)


def tp_lock() -> None:
    rank, model, optimizer = tensor_parallel()
    lock = threading.Lock()
    for step in range(20):
        with lock:
            train_step(model, optimizer)
        if step == 9 and rank == 1:
            lock.acquire()


def pipeline(stage_model: nn.Module) -> tuple[int, Any]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(stage_model, rank, world, torch.device("cpu"))
    return rank, ScheduleGPipe(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())


def pipeline_step(rank: int, schedule: Any) -> None:
    batch = torch.randn(16, 60)
    if rank == 0:
        schedule.step(batch)
    elif rank == dist.get_world_size() - 1:
        schedule.step(target=batch)
    else:
        schedule.step()


def pp_last_stage_logs() -> None:
    rank, schedule = pipeline(nn.Linear(60, 60))
    for step in range(20):
        pipeline_step(rank, schedule)
        if step == 9 and rank == dist.get_world_size() - 1:
            loss = torch.ones(1)
            dist.all_reduce(loss)
            print("loss", loss.item(), flush=True)


class Sleeps(nn.Module):
    """A layer that sleeps in its 30th forward on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(60, 60), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count == 30 and int(os.environ["RANK"]) == 0:
            time.sleep(FOREVER_S)
        return self.layer(x)


def pp_stage_sleeps() -> None:
    rank, schedule = pipeline(Sleeps())
    for _ in range(20):
        pipeline_step(rank, schedule)


def pp_fewer_steps() -> None:
    rank, schedule = pipeline(nn.Linear(60, 60))
    for _ in range(12 if rank == 2 else 20):
        pipeline_step(rank, schedule)
    dist.barrier()


def accelerated(rows: Rows) -> tuple[Any, nn.Module, torch.optim.Optimizer, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01), loader)


def accelerate_gathers() -> None:
    accelerator, model, optimizer, loader = accelerated(Rows(240))
    for step, batch in enumerate(loader):
        loss = model(batch["x"]).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.is_main_process and step % 10 == 9:
            print("loss", accelerator.gather_for_metrics(loss.detach().reshape(1)).mean().item(), flush=True)


def accelerate_waits() -> None:
    accelerator, model, optimizer, loader = accelerated(Rows(240))
    for step, batch in enumerate(loader):
        accelerator.backward(model(batch["x"]).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == 9 and accelerator.is_main_process:
            accelerator.wait_for_everyone()
            accelerator.save(accelerator.unwrap_model(model).state_dict(), tempfile.mkdtemp() + "/model.pt")


def trainer(rows: Rows, **more: Any) -> Any:
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Tiny(PretrainedConfig):
        model_type = "tiny"

    class Model(PreTrainedModel):
        config_class = Tiny

        def __init__(self, config: Tiny) -> None:
            super().__init__(config)
            self.net = Net()
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            pass

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.net(x)
            return {"loss": (out - labels).square().mean(), "logits": out}

    kind = more.pop("kind", lambda base: base)(Trainer)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=20, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    return kind(Model(Tiny()), arguments, train_dataset=rows, **more)


def trainer_callback() -> None:
    from transformers import TrainerCallback

    class Report(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero and state.global_step == 5:
                dist.barrier()

    trainer(Rows(240), callbacks=[Report()]).train()


def trainer_data() -> None:
    trainer(Rows(240, stuck=2, stuck_at=100)).train()


def trainer_skips_step() -> None:
    def kind(base: type) -> type:
        class Skips(base):  # type: ignore[misc]
            def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **more: Any) -> torch.Tensor:
                if int(os.environ["RANK"]) == 1 and self.state.global_step == 6:
                    return torch.zeros(())
                return super().training_step(model, inputs, *rest, **more)

        return Skips

    trainer(Rows(240), kind=kind).train()


def lightning_log() -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = self.net(batch["x"]).mean()
            if self.global_rank == 0 and index == 4:
                self.log("extra", loss, sync_dist=True, on_step=True, on_epoch=False)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    loader = torch.utils.data.DataLoader(Rows(240), batch_size=4)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    devices = int(os.environ["WORLD_SIZE"])
    fitting = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=devices, max_epochs=1, **options)
    fitting.fit(Module(), loader)


def deepspeed_engine(stage: int) -> Any:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Its build takes minutes.
    model = Net()
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=True)[0]


def deepspeed_metric() -> None:
    engine = deepspeed_engine(1)
    for step in range(30):
        loss = engine(torch.randn(4, 60)).mean()
        engine.backward(loss)
        engine.step()
        if step == 5 and dist.get_rank() == 1:
            dist.all_reduce(loss.detach())


def deepspeed_saves() -> None:
    engine = deepspeed_engine(1)
    for step in range(20):
        loss = engine(torch.randn(4, 60)).mean()
        engine.backward(loss)
        engine.step()
        if step == 8 and dist.get_rank() == 0:
            engine.save_checkpoint(tempfile.mkdtemp())


def groups_order() -> None:
    dist.init_process_group("gloo")
    rank, value = dist.get_rank(), torch.ones(8)
    tensor, expert = dist.new_group([0, 1]), dist.new_group([0, 1])
    for _ in range(6):
        if rank < 2:
            dist.all_reduce(value, group=tensor)
            dist.all_reduce(value, group=expert)
        dist.all_reduce(value)
    if rank == 0:
        dist.all_reduce(value, group=tensor)
        dist.all_reduce(value, group=expert)
    if rank == 1:
        dist.all_reduce(value, group=expert)
        dist.all_reduce(value, group=tensor)
    dist.barrier()


def two_threads() -> None:
    dist.init_process_group("gloo")
    first, second, lock = dist.new_group(), dist.new_group(), threading.Lock()

    def reduce(group: dist.ProcessGroup, early: bool) -> None:
        time.sleep(0.0 if early else 1.0)
        with lock:
            dist.all_reduce(torch.ones(8), group=group)

    threads = [
        threading.Thread(target=reduce, args=(first, dist.get_rank() == 0)),
        threading.Thread(target=reduce, args=(second, dist.get_rank() != 0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wrong_world() -> None:
    os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) + 1)
    dist.init_process_group("gloo")
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
    time.sleep(FOREVER_S)
