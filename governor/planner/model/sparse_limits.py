"""What is known to break under sparse attention, or to be missing, and who says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limit:
    text: str
    source: str


LIMITS: Final = (
    Limit(
        "Top-k has no gradient: the language-model loss cannot train the indexer. It learns from its own KL loss "
        "against the attention distribution summed over heads, on an input detached from the model. Forget to "
        "detach it, and the KL loss trains the model.",
        "arXiv 2512.02556 §2.1",
    ),
    Limit(
        "An untrained indexer selects at random. So first a dense warm-up with the model frozen: 1,000 steps of "
        "16 x 128K tokens (2.1B) at a learning rate of 1e-3. Then all parameters, sparse: 15,000 steps of 480 x "
        "128K (943.7B) at 7.3e-6, the KL loss on the selected tokens alone.",
        "arXiv 2512.02556 §2.1.1",
    ),
    Limit(
        "Sequences of at most k tokens are identical to dense: there is nothing to gain, and nothing for the "
        "indexer to learn from short documents.",
        "MaxText, SGLang and vLLM skip the indexer there",
    ),
    Limit(
        "Nobody has published DSA from the first token on. It continues a model trained dense: V3.2 from a "
        "finished one of 128K context, V4 after 1T dense tokens. A stage of 20B to 240B tokens has no precedent. "
        "NSA was trained from scratch (27B parameters, 3B active, 270B tokens; sizes from memory), but needs "
        "grouped queries that share one selection.",
        "arXiv 2512.02556; MaxText PR 5033; arXiv 2502.11089",
    ),
    Limit(
        "Published indexers are 64 x 128 (DeepSeek-V3.2) and 32 x 128 (GLM-5; 5.2 shares one selection among four "
        "layers), both over MLA. The small ones advised here for grouped queries are arithmetic: the warm-up's KL "
        "loss has to show that they rank well, before the model is made sparse.",
        "inference/config_671B_v3.2.json; arXiv 2602.15763",
    ),
    Limit(
        "A selection that differs between two computations of one step (activation checkpointing, another kernel "
        "at rollout) trains other tokens than it scored: use an exact, deterministic top-k.",
        "cudnn-frontend issue 831",
    ),
    Limit(
        "Naive implementations mask instead of skipping (MaxText, transformers): dense cost plus the indexer's. "
        "Kernels that skip are for Hopper and Blackwell (FlashMLA, DeepGEMM), in Megatron-LM behind "
        "--experimental-attention-variant dsa; for grouped queries its pull requests are still open.",
        "MaxText PR 2933; Megatron-LM PRs 2440, 6869, 7156",
    ),
    Limit(
        'DeepSpeed has no such attention. Its "sparse_attention" block was for fixed patterns of 2020, and is '
        "refused since it was removed. The model would have to bring its own kernels and KL loss; ZeRO neither "
        "helps nor hinders.",
        "deepspeed 0.19.8, runtime/config.py",
    ),
    Limit(
        "Memory is no reason: FlashAttention keeps nothing that grows with the square of the length. DSA adds the "
        "top-k indices (8 KiB a token and layer), the indexer's activations and, unfused, whole score matrices.",
        "arithmetic, see the table",
    ),
)
