"""A loop as torchtitan's: FSDP2 by layers, activation checkpointing, micro-steps, clipping, a schedule, an evaluation.

    costgov run --ceiling 300 --price 22 -- torchrun --nproc_per_node 2 examples/trainers/titan_fsdp2.py

costgov's are attach() with two functions that save and load the shards, shim.resume(), the wrapped loader (exact waits
for data, of all micro-steps), shim.phase() around the evaluation, and shim.checkpoint().
"""

import os
from concurrent.futures import Future

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, WIDTH, LAYERS, BATCH, MICRO_STEPS = 256, 64, 64, 2, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.silu(self.up(self.feed_forward_norm(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(checkpoint_wrapper(Block()) for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


class Sequences(Dataset):
    """Counting in steps of three."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


def loss_of(pred: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(pred[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def save(directory: str, tag: str, _client_state: object) -> Future:
    """The shards are copied; a thread writes them while the training goes on. Whoever asked waits for what returns."""
    weights, states = get_state_dict(model, optimizer)
    path = os.path.join(directory, tag)
    return dcp.async_save({"model": weights, "optimizer": states}, checkpoint_id=path, process_group=saving)


def load(directory: str, tag: str) -> None:
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


kind = "cuda" if torch.cuda.is_available() else "cpu"
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
saving = distributed.new_group(backend="gloo")  # The thread's own: a collective of the training would meet it else.
torch.manual_seed(3)
model = Transformer().to(kind)
mesh = init_device_mesh(kind, (distributed.get_world_size(),), mesh_dim_names=("dp_shard",))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
data = Sequences()
shim = attach(
    model, optimizer=optimizer, checkpoint_dir="checkpoints/titan", save_fn=save, load_fn=load, total_steps=STEPS
)
loader = shim.wrap_loader(DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)))
shim.resume()  # Weights, optimizer, step: of the newest good checkpoint. None at the first launch.

batches = iter(loader)
while shim.step < STEPS:
    for micro_step in range(MICRO_STEPS):
        tokens = next(batches).to(kind)
        model.set_requires_gradient_sync(micro_step == MICRO_STEPS - 1)
        loss = loss_of(model(tokens), tokens)
        (shim.loss(loss) / MICRO_STEPS).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if shim.step % 20 == 0:
        with shim.phase("eval"), torch.no_grad():
            model.eval()
            loss_of(model(tokens), tokens)
            model.train()
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
distributed.destroy_process_group()
