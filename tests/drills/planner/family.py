"""Tiny models of the stages' two families: a dense one as Llama's, and the same with DeepSpeed's mixtures."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCAB, HIDDEN, HEADS, KV_HEADS, LAYERS, LENGTH = 1024, 64, 4, 2, 2, 16
FFN, EXPERTS, TOPK = 128, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = HIDDEN // HEADS
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.kv = nn.Linear(HIDDEN, 2 * KV_HEADS * self.size, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, KV_HEADS, self.size).permute(2, 0, 3, 1, 4)
        k, v = (one.repeat_interleave(HEADS // KV_HEADS, dim=1) for one in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width=FFN):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, width, bias=False)
        self.up = nn.Linear(HIDDEN, width, bias=False)
        self.down = nn.Linear(width, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class GatheredMixture(nn.Module):
    """Top-k routing over experts that every rank has: what ZeRO-3 shards, as a leaf of its own."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Gated(FFN // 2) for _ in range(EXPERTS))

    def forward(self, x):
        weights, chosen = self.router(x).float().softmax(-1).topk(TOPK, dim=-1)
        scale = torch.zeros(*x.shape[:-1], EXPERTS).scatter(-1, chosen, weights).to(x.dtype)
        return sum(expert(x) * scale[..., index : index + 1] for index, expert in enumerate(self.experts))


class DeepSpeedMixture(nn.Module):
    """DeepSpeed's own, with experts over `ep` ranks."""

    def __init__(self, ep):
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.moe = MoE(HIDDEN, Gated(FFN // 2), EXPERTS, ep_size=ep, k=TOPK, use_rts=False)

    def forward(self, x):
        mixed, self.balance, _ = self.moe(x)
        return mixed


class Layer(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.before_attention, self.attention = nn.RMSNorm(HIDDEN), Attention()
        self.before_mlp, self.mlp = nn.RMSNorm(HIDDEN), mlp

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    """(ids, labels) -> loss."""

    def __init__(self, make_mlp, recompute):
        """`recompute`: what runs a layer once more in the backward pass, called with the layer and its input."""
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer(make_mlp()) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = self.recompute(layer, x) if self.recompute else layer(x)
        loss = functional.cross_entropy(self.head(self.norm(x)).float().view(-1, VOCAB), labels.reshape(-1))
        balance = [layer.mlp.balance for layer in self.layers if hasattr(layer.mlp, "balance")]
        return loss + 0.01 * sum(balance) if balance else loss
