"""The trainers of the table by name, in its order."""

from __future__ import annotations

from tests.drills.trainers.harness import Trainer, python, torchrun

_HF = ("torch", "transformers", "accelerate")
_DS = (*_HF, "deepspeed")

_ALL = (
    Trainer("hf-trainer", python("hf_trainer.py"), _HF),
    Trainer("hf-trainer-ddp", torchrun("hf_trainer.py"), _HF),
    Trainer("hf-trainer-zero2", torchrun("hf_trainer.py", "--zero", "2"), _DS),
    Trainer("hf-trainer-zero3", torchrun("hf_trainer.py", "--zero", "3"), _DS),
    Trainer("accelerate", python("accelerate_loop.py"), ("torch", "accelerate")),
    Trainer("accelerate-naming", python("accelerate_loop.py", "--naming"), ("torch", "accelerate")),
    Trainer("trl-sft", python("trl_sft.py"), (*_HF, "trl", "datasets")),
    Trainer("trl-sft-ddp", torchrun("trl_sft.py"), (*_HF, "trl", "datasets")),
    Trainer("lightning", python("lightning_fit.py"), ("torch", "lightning")),
    Trainer("lightning-ddp", torchrun("lightning_fit.py"), ("torch", "lightning")),
    Trainer("plain", python("nanogpt.py")),
    Trainer("nanogpt-ddp", torchrun("nanogpt.py")),
    Trainer("fsdp2", torchrun("fsdp_loop.py")),
    Trainer("fsdp1", torchrun("fsdp_loop.py", "--version", "1")),
    Trainer("deepspeed-zero2", torchrun("deepspeed_loop.py"), ("torch", "deepspeed")),
    Trainer("deepspeed-zero3", torchrun("deepspeed_loop.py", "--zero", "3"), ("torch", "deepspeed")),
    Trainer("deepspeed-pipeline", torchrun("deepspeed_loop.py", "--stages", "2"), ("torch", "deepspeed")),
)
TRAINERS = {trainer.name: trainer for trainer in _ALL}
