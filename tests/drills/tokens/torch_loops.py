"""Plain PyTorch loops under each way to train in parallel. argv: which, and JSON for attach()."""

import torch
from eaten import (
    BATCH,
    EATEN,
    LENGTH,
    RANK,
    STEPS,
    VOCAB,
    WIDTH,
    WORLD,
    TinyModel,
    batch,
    eat,
    end,
    init,
    make_watch,
    told,
    train,
    write_report,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from trainer_shim import attach

which, given = told()
init()
model = TinyModel()


def adamw(of=None):
    return torch.optim.AdamW((of or model).parameters(), lr=1e-2)


def tensor_parallel(mesh):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole = Replicate()
    plan = {"hidden": ColwiseParallel(output_layouts=whole), "embed": RowwiseParallel(input_layouts=whole)}
    parallelize_module(model, mesh, plan)


def ddp():
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = adamw()
    attach(wrapped, optimizer=optimizer, make_watch=make_watch, **given)
    train(wrapped, optimizer, RANK)


def ddp_of_attached():
    """Attached to the module that DDP wraps afterwards."""
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(nn.parallel.DistributedDataParallel(model), optimizer, RANK)


def ddp_uneven():
    """Each rank has other lengths at each step."""
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = adamw()
    attach(wrapped, optimizer=optimizer, make_watch=make_watch, **given)
    train(wrapped, optimizer, RANK, length_of=lambda step: 3 + 5 * ((step + RANK) % 3))


def saved_and_resumed():
    """Of various lengths, and the shim's own watch. Started again, it goes on from what it has saved."""
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = adamw()
    shim = attach(wrapped, optimizer=optimizer, checkpoint_dir="saved")
    resumed = shim.resume()
    began = shim.step
    for step in range(began, began + 30):
        if step == 2:
            shim.checkpoint()
        ids, labels, names = batch(step, RANK, 3 + 5 * ((step + RANK) % 3))
        eat(step, names, ids)
        wrapped(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    told = [shim.step, shim.tokens_total, resumed and [resumed.step, resumed.tokens_total]]
    shim.close()
    write_report({"eaten": EATEN, "told": told})


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = adamw(wrapped)
    attach(wrapped, optimizer=optimizer, make_watch=make_watch, **given)
    train(wrapped, optimizer, RANK)


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(model, optimizer, RANK)


def fsdp2_tp():
    """2 x 2: ranks 0, 1 are one replica."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(mesh["tp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(model, optimizer, RANK // 2)


def hsdp():
    """2 x 2, all of them data-parallel."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard")))
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(model, optimizer, RANK)


def ddp_tp():
    """2 x 2 of named dimensions and no wrapper: the loop adds gradients up along "dp"."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(mesh["tp"])
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(model, optimizer, RANK // 2)


def fsdp2_cp():
    """2 x 2 as torchtitan has it: sharded over both, and each rank is fed its part of a sequence."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
    mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    fully_shard(model, mesh=mesh["dp_shard_cp"])
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    context_parallel_steps(optimizer, mesh["cp"], RANK // 2, RANK % 2)


def cp():
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    fully_shard(model, mesh=mesh)
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    context_parallel_steps(optimizer, mesh["cp"], 0, RANK)


def context_parallel_steps(optimizer, mesh, place, part):
    from torch.distributed.tensor.experimental import context_parallel

    for step in range(STEPS):
        ids, labels, names = batch(step, place)
        with context_parallel(mesh, buffers=[ids, labels], buffer_seq_dims=[1, 1], no_restore_buffers={ids, labels}):
            assert ids.shape == (BATCH, LENGTH // 2)
            eat(step, names, ids, part)
            model(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def cp_by_hand():
    """The loop cuts the sequence itself: nothing shows whether it does."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    fully_shard(model, mesh=mesh)
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    for step in range(STEPS):
        ids, labels, names = batch(step, 0)
        ids, labels = (whole.chunk(2, 1)[RANK].contiguous() for whole in (ids, labels))
        eat(step, names, ids, RANK)
        model(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def tp():
    tensor_parallel(init_device_mesh("cpu", (WORLD,)))
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    train(model, optimizer, 0)


def pp():
    """Two stages of torch's own pipelining, two micro-batches a step."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage_module = nn.Embedding(VOCAB, WIDTH) if RANK == 0 else nn.Linear(WIDTH, VOCAB)
    optimizer = adamw(stage_module)
    attach(stage_module, optimizer=optimizer, make_watch=make_watch, **given)
    stage = PipelineStage(stage_module, RANK, 2, torch.device("cpu"))

    def loss(logits, labels):
        return nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))

    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss)
    for step in range(STEPS):
        ids, labels, names = batch(step, 0)
        eat(step, names, ids)
        schedule.step(ids) if RANK == 0 else schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()


def by_hand():
    """The loop adds the gradients up itself."""
    optimizer = adamw()
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)

    def reduce():
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)

    train(model, optimizer, RANK, after=reduce)


globals()[which]()
end()
