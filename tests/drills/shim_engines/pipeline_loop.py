"""Two pipeline stages of a tiny model, six batches. Options as JSON: attached, zero, gas, evaluate, save_at."""

import json
import sys

import torch
from tiny import LENGTH, VOCAB, WIDTH, KeptWatch, Toy, init_deepspeed, write_report
from torch import nn
from torch.nn import functional

from trainer_shim import attach, wrap_loader

STEPS, BATCH = 6, 4
options = {"attached": True, "zero": 0, "gas": 4}
options.update(json.loads(sys.argv[1]))
deepspeed = init_deepspeed()
from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: E402  After the shared-memory operator was ruled out.
from deepspeed.utils import RepeatingLoader  # noqa: E402


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits.float().view(-1, VOCAB), labels.reshape(-1))


torch.manual_seed(5)
layers = [
    LayerSpec(nn.Embedding, VOCAB, WIDTH),
    LayerSpec(nn.Linear, WIDTH, WIDTH),
    LayerSpec(nn.Tanh),
    LayerSpec(nn.Linear, WIDTH, VOCAB),
]
module = PipelineModule(layers=layers, num_stages=2, loss_fn=cross_entropy, partition_method="uniform")
engine, *_ = deepspeed.initialize(
    model=module,
    model_parameters=[p for p in module.parameters() if p.requires_grad],
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": options["gas"],
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": options["zero"]},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    },
)
loader = torch.utils.data.DataLoader(Toy(), batch_size=BATCH)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = options.get("save_at")
    return kept[0]


if options["attached"]:
    shim = attach(engine, checkpoint_dir=options.get("checkpoint_dir"), make_watch=make_watch)
    loader = wrap_loader(loader)
batches = iter(RepeatingLoader(loader))
losses = [float(engine.train_batch(data_iter=batches)) for _ in range(STEPS)]
report = kept[0].report() if options["attached"] else {}
report["losses"] = losses
report["weights"] = [float(p.detach().double().sum()) for p in engine.module.parameters()]
if options.get("evaluate"):
    engine.eval_batch(data_iter=iter(RepeatingLoader(torch.utils.data.DataLoader(Toy(), batch_size=BATCH))))
    engine.train_batch(data_iter=batches)
    report["phases"] = kept[0].phases
    report["frames"] = kept[0].frames
if options.get("save_at"):
    kept[0].saver.load(options["checkpoint_dir"], KeptWatch.tag)
    kept[0].saver.restore_position(kept[0].position)
    report["again"] = [float(engine.train_batch(data_iter=batches)) for _ in range(STEPS - options["save_at"])]
if options["attached"]:
    shim.close()
    report["left_behind"] = [name for name in ("_INSTRUCTION_MAP", "train_batch") if name in vars(engine)]
assert LENGTH == 16
write_report(report)
