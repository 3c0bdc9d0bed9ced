"""The trainers of the table by name, in its order."""

from __future__ import annotations

from tests.drills.trainers.harness import Trainer

_HF = ("torch", "transformers", "accelerate")
_DS = (*_HF, "deepspeed")

_ALL = (
    Trainer("hf-trainer", ("hf_trainer.py",), 1, _HF),
    Trainer("hf-trainer-ddp", ("hf_trainer.py",), 2, _HF),
    Trainer("hf-trainer-zero2", ("hf_trainer.py", "--zero", "2"), 2, _DS),
    Trainer("hf-trainer-zero3", ("hf_trainer.py", "--zero", "3"), 2, _DS),
    Trainer("accelerate", ("accelerate_loop.py",), 1, ("torch", "accelerate")),
    Trainer("accelerate-naming", ("accelerate_loop.py", "--naming"), 1, ("torch", "accelerate")),
    Trainer("trl-sft", ("trl_sft.py",), 1, (*_HF, "trl", "datasets")),
    Trainer("trl-sft-ddp", ("trl_sft.py",), 2, (*_HF, "trl", "datasets")),
    Trainer("lightning", ("lightning_fit.py",), 1, ("torch", "lightning")),
    Trainer("lightning-ddp", ("lightning_fit.py",), 2, ("torch", "lightning")),
    Trainer("plain", ("nanogpt.py",)),
    Trainer("nanogpt-ddp", ("nanogpt.py",), 2),
    Trainer("fsdp2", ("fsdp_loop.py",), 2),
    Trainer("fsdp1", ("fsdp_loop.py", "--version", "1"), 2),
    Trainer("deepspeed-zero2", ("deepspeed_loop.py",), 2, ("torch", "deepspeed")),
    Trainer("deepspeed-zero3", ("deepspeed_loop.py", "--zero", "3"), 2, ("torch", "deepspeed")),
    Trainer("deepspeed-pipeline", ("deepspeed_loop.py", "--stages", "2"), 2, ("torch", "deepspeed")),
)
TRAINERS = {trainer.name: trainer for trainer in _ALL}
