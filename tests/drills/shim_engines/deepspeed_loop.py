"""A DeepSpeed loop of six steps. Options as JSON: stage, gas, precision, attached, nan_at, direct_backward."""

import json
import sys

import torch
from tiny import KeptWatch, TinyModel, Toy, init_deepspeed, write_report

from trainer_shim import attach, wrap_loader

STEPS, BATCH = 6, 4
options = {"stage": 2, "gas": 1, "precision": "fp32", "attached": True, "nan_at": 0, "direct_backward": False}
options.update(json.loads(sys.argv[1]))
deepspeed = init_deepspeed()
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": options["gas"],
    "gradient_clipping": 1.0,
    "steps_per_print": 10**9,
    "zero_optimization": {"stage": options["stage"]},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
if options["precision"] == "bf16":
    config["bf16"] = {"enabled": True}
if options["precision"] == "fp16":
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed refuses fp16 on CPU although it works there: the only way to see a dynamic loss scale without a GPU.
    type(get_accelerator()).is_fp16_supported = lambda _: True
    config["fp16"] = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
torch.manual_seed(11)
model = TinyModel()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
sampler = torch.utils.data.DistributedSampler(Toy(), engine.world_size, engine.global_rank, shuffle=True, seed=3)
loader = torch.utils.data.DataLoader(Toy(), batch_size=BATCH, sampler=sampler)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    kept[0].save_at = options.get("save_at")
    return kept[0]


if options.get("unwatched"):
    shim = attach(engine)
    loader = wrap_loader(loader)
    options["attached"] = False  # Nothing is kept that could be reported.
elif options["attached"]:
    shim = attach(engine, checkpoint_dir=options.get("checkpoint_dir"), make_watch=make_watch)
    loader = wrap_loader(loader)
losses, evals = [], 0


def train(micro_steps, into):
    for index, (x, y) in enumerate(loader):
        if index == micro_steps:
            break
        loss = engine(x, y)
        if options["nan_at"] and engine.global_steps + 1 == options["nan_at"] and engine.global_rank == 0:
            loss = loss * float("nan")
        if options["direct_backward"]:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        into.append(loss.item())


train(STEPS * options["gas"], losses)
report = kept[0].report() if options["attached"] else {}
report["losses"] = losses
report["weights"] = [float(p.detach().double().sum()) for p in engine.module.parameters()]
if options.get("evaluate"):
    engine.eval()
    with torch.no_grad():
        x, y = next(iter(torch.utils.data.DataLoader(Toy(), batch_size=BATCH)))
        engine(x, y)
    engine.train()
    train(options["gas"], losses)
    report["phases"] = kept[0].phases
    report["eval_frame"] = kept[0].frames[-1]
if options.get("save_at"):
    report["client_state"] = kept[0].saver.load(options["checkpoint_dir"], KeptWatch.tag)
    kept[0].saver.restore_position(kept[0].position)
    again = []
    train((STEPS - options["save_at"]) * options["gas"], again)
    report["again"] = again
    report["again_frames"] = kept[0].frames[STEPS:]
    report["position"] = {name: kept[0].position[name] for name in ("step", "tokens_total")}
if options.get("own_save"):
    engine.save_checkpoint(options["own_save"], tag="mine")
    report["phases"] = kept[0].phases
    report["hello"] = kept[0].hello
if options["attached"]:
    shim.close()
    report["left_behind"] = [name for name in ("backward", "step", "train", "eval") if name in vars(engine)]
write_report(report)
