"""DeepSpeed under each of its ways to train in parallel. argv: which."""

import torch
from eaten import BATCH, LENGTH, RANK, STEPS, VOCAB, WIDTH, TinyModel, batch, eat, end, make_watch, told
from tiny import init_deepspeed
from torch import nn

from trainer_shim import attach

which, given = told()
deepspeed = init_deepspeed()
torch.manual_seed(1)
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 10**9,
    "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}


def engine_of(model, parameters=None, mpu=None, **config):
    parameters = parameters or list(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, mpu=mpu, config={**CONFIG, **config})
    attach(engine, make_watch=make_watch, **given)
    return engine


def steps(engine, place, part=None, parts=1):
    for step in range(STEPS):
        ids, labels, names = batch(step, place)
        if part is not None:
            ids, labels = (whole.chunk(parts, 1)[part].contiguous() for whole in (ids, labels))
        eat(step, names, ids, part or 0)
        engine.backward(engine(ids, labels))
        engine.step()


def zero():
    stage = given.pop("stage")
    steps(engine_of(TinyModel(), zero_optimization={"stage": stage}), RANK)


def accumulated():
    engine = engine_of(TinyModel(), gradient_accumulation_steps=2, zero_optimization={"stage": 1})
    for step in range(STEPS):
        for half in range(2):
            ids, labels, names = batch(2 * step + half, RANK)
            eat(step, names, ids)
            engine.backward(engine(ids, labels))
            engine.step()


def experts():
    """Two experts over two ranks: each rank has samples of its own."""
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    class Sparse(TinyModel):
        def __init__(self):
            super().__init__()
            self.hidden = MoE(WIDTH, nn.Linear(WIDTH, WIDTH), num_experts=2, ep_size=2, k=1)

        def forward(self, input_ids, labels):
            logits = self.head(self.hidden(self.embed(input_ids))[0])
            return nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))

    model = Sparse()
    groups = split({"params": list(model.parameters()), "name": "all"})
    steps(engine_of(model, groups, zero_optimization={"stage": 1}), RANK)


def ulysses():
    """Sequence parallel: each rank is fed its part, as DeepSpeed's loaders cut it."""
    sizes = {"data_parallel_size": 1, "sequence_parallel_size": 2}
    steps(engine_of(TinyModel(), **sizes), 0, RANK, 2)


def ulysses_of_transformers():
    """As UlyssesSPAttentionHF sets it up: its groups know no data parallelism."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size=2)
    steps(engine_of(TinyModel(), mpu=parallel_state_sp), 0, RANK, 2)


def autotp():
    """Tensor parallel by DeepSpeed."""
    split = (("hidden", "column"), ("head", "row"))
    layers = {"layer_specs": [{"patterns": [rf".*{name}\.weight$"], "partition_type": kind} for name, kind in split]}
    model = TinyModel()
    steps(engine_of(model, tensor_parallel={"autotp_size": 2, "partition_config": layers}), 0)


def pipeline():
    from deepspeed.pipe import LayerSpec, PipelineModule

    def cross_entropy(logits, labels):
        return nn.functional.cross_entropy(logits.float().view(-1, VOCAB), labels.reshape(-1))

    layers = [LayerSpec(nn.Embedding, VOCAB, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCAB)]
    module = PipelineModule(layers=layers, num_stages=2, loss_fn=cross_entropy, partition_method="uniform")
    engine = engine_of(module, gradient_accumulation_steps=2)
    for step in range(STEPS):
        halves = [batch(2 * step + half, 0) for half in range(2)]
        for ids, _, names in halves:
            eat(step, names, ids)
        engine.train_batch(data_iter=iter([(ids, labels) for ids, labels, _ in halves]))


assert LENGTH % 2 == 0
globals()[which]()
end()
