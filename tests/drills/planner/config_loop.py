"""Train five steps under each of several DeepSpeed configs, in one process group. Argument: a file of cases by name."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
from family import LENGTH, VOCAB, DeepSpeedMixture, Gated, GatheredMixture, Model

sys.path.insert(0, str(Path(__file__).parents[1] / "shim_engines"))
from tiny import init_deepspeed, write_report

STEPS = 5
deepspeed = init_deepspeed()
from deepspeed.accelerator import get_accelerator  # noqa: E402  After the shared-memory operator was ruled out.
from deepspeed.runtime.activation_checkpointing import checkpointing  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, set_z3_leaf_modules  # noqa: E402


def model_of(case):
    torch.manual_seed(3)
    recompute = checkpointing.checkpoint if case["recompute"] else None
    if not case["is_moe"]:
        return Model(Gated, recompute)
    if case["config"]["zero_optimization"]["stage"] < 3:
        return Model(lambda: DeepSpeedMixture(case["ep"]), recompute)
    model = Model(GatheredMixture, recompute)
    set_z3_leaf_modules(model, [GatheredMixture])
    return model


def train(case):
    config = case["config"]
    if "fp16" in config:
        # DeepSpeed refuses fp16 on CPU although it works there.
        type(get_accelerator()).is_fp16_supported = lambda _: True
    if case["recompute"]:
        checkpointing.configure(None, deepspeed_config=config)
    engine, *_ = deepspeed.initialize(
        model=(model := model_of(case)), model_parameters=list(model.parameters()), config=config
    )
    passes = []
    model.layers[0].attention.register_forward_hook(lambda *_: passes.append(1))
    watched = model.layers[0].attention.q.weight
    before = safe_get_full_fp32_param(watched).clone()
    losses = []
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for start in torch.randint(VOCAB, (STEPS * engine.gradient_accumulation_steps(),), generator=generator):
        ids = (torch.arange(LENGTH + 1) * 3 + start) % VOCAB
        loss = engine(ids[None, :-1], ids[None, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    after = safe_get_full_fp32_param(watched)
    report = {
        "held": engine._config._param_dict,
        "steps": engine.global_steps,
        "skipped": engine.skipped_steps,
        "losses": losses,
        "moved": float((after - before).abs().max()),
        "sum": float(after.double().sum()),
        "passes": len(passes) / len(losses),
        "stage": int(engine.zero_optimization_stage()),
        "lr": engine.get_lr()[0],
        "precision": "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32",
        "buckets": engine.zero_reduce_bucket_size(),
        "overlap": engine.zero_overlap_comm(),
        "clipping": engine.gradient_clipping(),
        "scheduler": type(engine.lr_scheduler).__name__,
    }
    engine.destroy()
    return report


reports = {}
for name, case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
    print("case", name, flush=True)
    reports[name] = train(case)
    gc.collect()
write_report(reports)
