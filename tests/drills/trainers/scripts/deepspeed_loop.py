"""DeepSpeed's own loop: ZeRO, or with --stages n a PipelineModule."""

import torch
from common import VOCABULARY, Sequences, arguments, break_at, report

told = arguments(zero={"type": int, "default": 2}, stages={"type": int, "default": 0}, local_rank={"type": int})
import deepspeed.ops  # noqa: E402

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute.
import deepspeed  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: E402
from deepspeed.utils import RepeatingLoader  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from trainer_shim import attach  # noqa: E402

BATCH, WIDTH = 4, 32
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 2 if told.stages else 1,
    "gradient_clipping": 1.0,
    "steps_per_print": 10**9,
    "zero_optimization": {"stage": 0 if told.stages else told.zero},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_max_lr": 1e-3}},
}


def loss_of(logits, ids):
    return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return loss_of(self.head(torch.tanh(self.hidden(self.drop(self.embed(ids))))), ids)


class Pairs(Sequences):
    """(inputs, labels), as a PipelineModule takes them."""

    def __getitem__(self, index):
        ids = super().__getitem__(index)
        return ids, ids


deepspeed.init_distributed("gloo", verbose=False)
torch.manual_seed(3)
if told.stages:
    layers = [
        LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, WIDTH), LayerSpec(nn.Tanh),
        LayerSpec(nn.Linear, WIDTH, VOCABULARY),
    ]  # fmt: skip
    model = PipelineModule(layers, num_stages=told.stages, loss_fn=loss_of, partition_method="uniform")
    data = Pairs(BATCH * CONFIG["gradient_accumulation_steps"])
else:
    model = Model()
    data = Sequences(BATCH)
break_at(model, CONFIG["gradient_accumulation_steps"])
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), training_data=data, config=CONFIG
)
shim = attach(engine, checkpoint_dir=told.out + "/checkpoints", total_steps=told.steps)
loader = shim.wrap_loader(loader)
shim.resume()

batches = iter(RepeatingLoader(loader))
while shim.step < told.steps:
    if told.stages:
        loss = engine.train_batch(data_iter=batches)
    else:
        loss = engine(next(batches))
        engine.backward(loss)
        engine.step()
    report(shim.step, loss.item())
    if shim.step % 10 == 0:
        shim.checkpoint()
