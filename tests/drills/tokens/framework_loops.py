"""transformers.Trainer, Accelerate and Lightning. argv: which."""

import os
import tempfile

import torch
from eaten import BATCH, EATEN, RANK, STEPS, VOCAB, TinyModel, batch, eat, end, init, make_watch, sample, told, train

from trainer_shim import attach

which, given = told()
init()
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class Rows(torch.utils.data.Dataset):
    """Of every length from 3 to 12."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = sample(index, 3 + index * 7 % 10)[:-1]
        ids[0] = index  # Its name, so to say.
        return {"input_ids": ids.tolist(), "labels": ids.tolist()}


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)

    def fill(key, value):
        return torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])

    ids = fill("input_ids", 0)
    real = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "labels": fill("labels", -100), "attention_mask": real}


def llama(**split):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=64, **SHAPE))
    if not split:
        return model
    from transformers.distributed import DistributedConfig

    place = f"{os.environ['DRILL_RENDEZVOUS']}.model"
    if RANK == 0:
        model.save_pretrained(place)
    torch.distributed.barrier()
    return LlamaForCausalLM.from_pretrained(place, distributed_config=DistributedConfig(**split)).train()


def hf(collate, gas=1, saves=False, **extra):
    from transformers import Trainer, TrainingArguments

    class Watched(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            ids, mask = inputs["input_ids"], inputs.get("attention_mask")
            real = None if mask is None else mask.sum(1).tolist()
            eat(self.state.global_step, [",".join(map(str, row)) for row in ids.tolist()], ids, real=real)
            return super().compute_loss(model, inputs, *args, **kwargs)

    steps = 2 if saves and not os.path.exists("saved/checkpoint-2") else STEPS
    arguments = TrainingArguments(
        output_dir="saved" if saves else tempfile.mkdtemp(dir=os.getcwd()), max_steps=steps,
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=gas, save_strategy="steps" if saves else "no",
        save_steps=2, report_to=[], disable_tqdm=True, use_cpu=True, optim="adamw_torch", seed=3,
        remove_unused_columns=False, **extra,
    )  # fmt: skip
    trainer = Watched(model=llama(), args=arguments, train_dataset=Rows(), data_collator=collate)
    attach(trainer, make_watch=make_watch, **given)
    trainer.train(resume_from_checkpoint=saves and steps == STEPS)


def hf_saved():
    """What the Trainer saves of itself after two steps is gone on from, where it is there."""
    hf(padded, saves=True)


def hf_padded():
    hf(padded)


def hf_accumulated():
    hf(padded, gas=2)


def model_tp():
    """A model that transformers has split at loading, in a loop of one's own."""
    own_loop({"tp_size": 2}, 0)


def model_tp_fsdp():
    """2 x 2."""
    own_loop({"tp_size": 2, "fsdp_size": 2}, RANK // 2)


def own_loop(split, place):
    model = llama(**split)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    attach(model, optimizer=optimizer, make_watch=make_watch, **given)
    for step in range(STEPS):
        ids, labels, names = batch(step, place)
        eat(step, names, ids)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def hf_packed():
    """All rows of a batch in one, told apart by their positions."""
    from transformers import DataCollatorWithFlattening

    hf(DataCollatorWithFlattening(return_tensors="pt"))


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = TinyModel()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    attach(accelerator, make_watch=make_watch, **given)
    train(model, optimizer, RANK)


def lightning():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = TinyModel()

        def training_step(self, pair, index):
            ids, labels = pair
            eat(self.global_step, [row[0] for row in ids.tolist()], ids)
            return self.model(ids, labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    rows = [(sample(number)[:-1], sample(number)[1:]) for number in range(32)]
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=os.getcwd(),
    )  # fmt: skip
    attach(trainer, make_watch=make_watch, **given)
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=BATCH))


globals()[which]()
assert EATEN
end()
