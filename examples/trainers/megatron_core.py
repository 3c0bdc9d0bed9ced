"""A small GPT of megatron-core's, trained by its own schedules, gradients' buffers and optimizer.

    costgov run --ceiling 300 --price 22 -- torchrun --nproc_per_node 2 examples/trainers/megatron_core.py

TP=2 splits its layers over ranks, PP=2 makes stages of them. costgov's are attach() with two functions that save and
load each rank's part, shim.resume(), the wrapped loader, shim.phase() around the evaluation, and shim.checkpoint().
"""

import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
TP, PP = int(os.environ.get("TP", "1")), int(os.environ.get("PP", "1"))
VOCABULARY, LENGTH, WIDTH, LAYERS, BATCH, MICRO_BATCHES = 256, 64, 64, 2, 4, 2


class Sequences(Dataset):
    """Counting in steps of three."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH + 1) * 3 + index) % VOCABULARY


def path_of(directory: str, tag: str) -> str:
    """Each rank has a part of its own. megatron.core.dist_checkpointing.save() would write one for any layout."""
    return os.path.join(directory, tag, f"part_{distributed.get_rank():05d}.pt")


def save(directory: str, tag: str, _client_state: object) -> None:
    path = path_of(directory, tag)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def load(directory: str, tag: str) -> None:
    state = torch.load(path_of(directory, tag), weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(batches, stage):
    """One micro-batch: the first stage is fed token ids, the last one labels."""
    batch = next(batches).cuda() if is_first or is_last else None
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, LENGTH)
    hidden = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    tokens, labels = (batch[:, :-1] if is_first else None), (batch[:, 1:] if is_last else None)
    return stage(tokens, positions if is_first else None, hidden, labels=labels), loss_of


def run_schedule(batches, forward_only: bool = False):
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=[model],
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=forward_only,
    )


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(TP, PP)
is_first, is_last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
torch.manual_seed(3)
model_parallel_cuda_manual_seed(3)
config = TransformerConfig(
    num_layers=LAYERS,
    hidden_size=WIDTH,
    num_attention_heads=4,
    tensor_model_parallel_size=TP,
    pipeline_model_parallel_size=PP,
    pipeline_dtype=torch.float32,
    use_cpu_initialization=True,
    gradient_accumulation_fusion=False,  # Of apex.
    masked_softmax_fusion=False,
)
model = GPTModel(
    config,
    get_gpt_layer_local_spec(),
    vocab_size=VOCABULARY,
    max_sequence_length=LENGTH,
    pre_process=is_first,
    post_process=is_last,
).cuda()
model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), [model])
config.finalize_model_grads_func = finalize_model_grads

shim = attach(
    model, optimizer=optimizer, checkpoint_dir="checkpoints/megatron", save_fn=save, load_fn=load, total_steps=STEPS
)
data = Sequences()
replicas, place = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
loader = shim.wrap_loader(DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, replicas, place)))
shim.resume()  # Weights, optimizer, step: of the newest good checkpoint. None at the first launch.

batches = iter(loader)
while shim.step < STEPS:
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run_schedule(batches)
    optimizer.step()
    if shim.step % 20 == 0:
        with shim.phase("eval"), torch.no_grad():
            model.eval()
            run_schedule(iter(DataLoader(data, batch_size=BATCH)), forward_only=True)
            model.train()
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
distributed.destroy_process_group()
