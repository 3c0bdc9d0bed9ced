"""Two gloo ranks of a small GPT of megatron-core's, with and without the shim. argv: JSON."""

import json
import os
import sys

import megatron_rig
import torch

megatron_rig.install()

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import p2p_communication, schedules  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from tiny import KeptWatch, write_report  # noqa: E402

from trainer_shim import attach  # noqa: E402

told = json.loads(sys.argv[1])
tp, pp, half = told.get("tp", 1), told.get("pp", 1), told.get("half", False)
STEPS, MICRO_BATCHES, BATCH, LENGTH, VOCABULARY = 6, 2, 4, 16, 64

torch.set_num_threads(1)
torch.distributed.init_process_group(
    "nccl",
    init_method="file://" + os.environ["DRILL_RENDEZVOUS"],
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
parallel_state.initialize_model_parallel(tp, pp)
torch.manual_seed(7)
tensor_parallel.model_parallel_cuda_manual_seed(7)
config = TransformerConfig(
    num_layers=2,
    hidden_size=16,
    num_attention_heads=4,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    pipeline_dtype=torch.float16 if half else torch.float32,
    params_dtype=torch.float16 if half else torch.float32,
    fp16=half,
    deallocate_pipeline_outputs=told.get("deallocates", False),
    use_cpu_initialization=True,
    gradient_accumulation_fusion=False,
    masked_softmax_fusion=False,
    bias_dropout_fusion=False,
)
is_first, is_last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
model = GPTModel(
    config,
    get_gpt_layer_local_spec(),
    vocab_size=VOCABULARY,
    max_sequence_length=LENGTH,
    pre_process=is_first,
    post_process=is_last,
)
if half:
    model = Float16Module(config, model)
shards = told.get("shards", False)
model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=shards), model)
settings = OptimizerConfig(
    optimizer="adam",
    lr=1e-2,
    clip_grad=told.get("clip", 1.0),
    fp16=half,
    params_dtype=torch.float16 if half else torch.float32,
    initial_loss_scale=float(told.get("scale", 2**10)),
    hysteresis=1,
    use_distributed_optimizer=shards,
)
optimizer = get_megatron_optimizer(settings, [model])
if told.get("unchained"):
    (optimizer,) = optimizer.chained_optimizers
config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
HOOKED = {
    "step": optimizer,
    "zero_grad": optimizer,
    "forward_step_calc_loss": schedules,
    "custom_backward": schedules,
    "backward": torch.autograd,
    "recv_forward": p2p_communication.P2PCommunicator,
}
before = {name: vars(owner).get(name) for name, owner in HOOKED.items()}
kept, saved, losses, results = [], [], [], []


def save(directory, tag, client_state):
    """Every rank is here at the same step, and they may talk to each other."""
    states = [None, None]
    torch.distributed.all_gather_object(states, [optimizer.state_dict() is not None, tag, len(schedule)])
    saved.append(states)


def load(directory, tag):
    """Nothing is loaded here."""


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = None if told.get("bare") else 4
    return kept[0]


def batches():
    place = parallel_state.get_data_parallel_rank()
    while True:
        for number in range(place, 64, parallel_state.get_data_parallel_world_size()):
            yield (torch.arange(BATCH * (LENGTH + 1)).view(BATCH, -1) * 3 + number) % VOCABULARY


def loss_of(output):
    loss = output.float().mean()
    losses.append(loss.item())
    if told.get("told") and loss.requires_grad:  # The schedule evaluates by the same function.
        loss = shim.loss(loss)
    if told.get("sums"):
        return loss * 64, torch.tensor(64), {"lm loss": loss.detach()}
    return loss, {"lm loss": loss.detach()}


def forward_step(data, fed):
    """As Megatron-LM's: the stages between get no batch, and the last one gets the labels alone."""
    tokens = next(data) if is_first or is_last else None
    ids, labels = (tokens[:, :-1], tokens[:, 1:]) if tokens is not None else (None, None)
    places = torch.arange(LENGTH).expand(BATCH, LENGTH) if is_first else None
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return fed(ids if is_first else None, places, mask, labels=labels if is_last else None), loss_of


def train(forward_only=False):
    return schedules.get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=data,
        model=[model],
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        decoder_seq_length=LENGTH,
        forward_only=forward_only,
    )


schedule, data = [], batches()
if told["attached"]:
    given = {} if told.get("bare") else {"save_fn": save, "load_fn": load}
    shim = attach(model, optimizer=optimizer, checkpoint_dir=told["directory"], make_watch=make_watch, **given)
    assert shim.watching
    assert attach(model, optimizer=optimizer, make_watch=make_watch) is shim
for step in range(STEPS):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    train()
    applied, norm, _ = optimizer.step()
    results.append([applied, None if norm is None else float(norm)])
    schedule.append(step)  # What a loop does behind step() belongs to the checkpoint, too.
    if step == 2:
        model.eval()
        with torch.no_grad():
            train(forward_only=True)
        model.train()
        del losses[-MICRO_BATCHES if is_last else len(losses) :]
optimizer.zero_grad()
report = {
    "losses": [sum(losses[at : at + MICRO_BATCHES]) / MICRO_BATCHES for at in range(0, len(losses), MICRO_BATCHES)],
    "results": results,
    "saved": saved,
    "weights": [float(p.double().sum()) for p in model.parameters()],
    "is_last": is_last,
}
if told["attached"]:
    report["harmed"] = [kept[0].saver.harmed()]
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = float("nan")
    report["harmed"].append(kept[0].saver.harmed())
    shim.close()
    report |= kept[0].report()
    report["left"] = [name for name, owner in HOOKED.items() if vars(owner).get(name) is not before[name]]
    optimizer.zero_grad()
    train()
    optimizer.step()
    report["frames_after"] = len(kept[0].frames)
write_report(report)
