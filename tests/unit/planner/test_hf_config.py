"""A config.json of Hugging Face is read as the architecture that the catalogue has under the model's name."""

import json
from pathlib import Path

import pytest

from governor.planner.catalog import model_named
from governor.planner.model.shape import Shape
from governor.planner.shape import UnreadableConfigError, shape_of, shape_of_file

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50304}
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 129280,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_attention_heads": 40, "num_hidden_layers": 48, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202048,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "Llama3-8B"),
        (GPT2, "GPT2-1558M"),
        (MIXTRAL, "Mixtral-8x7B"),
        (QWEN3_MOE, "Qwen3-30B-A3B"),
        (DEEPSEEK, "DeepSeek-V3"),
        (LLAMA4, "Llama4-Maverick-400B"),
    ],
)
def test_a_public_config_has_the_parameters_that_were_published(config: dict[str, object], name: str) -> None:
    read, known = shape_of(config, "x"), model_named(name)

    def total(shape: Shape) -> float:
        return shape.dense_params + shape.routed_params + shape.embedding_params

    assert total(read) == pytest.approx(known.params, rel=0.005)
    assert read.matmul_params == pytest.approx(known.matmul_params, rel=0.005)


def test_what_a_file_leaves_to_its_family_is_the_familys() -> None:
    bloom = {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880}
    assert shape_of(bloom, "x").params == pytest.approx(176.2e9, rel=0.001)  # four times as wide an MLP, tied
    starcoder2 = {
        "model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432, "num_attention_heads": 36,
        "num_hidden_layers": 32, "num_key_value_heads": 4, "vocab_size": 49152,
    }  # fmt: skip
    assert shape_of(starcoder2, "x").params == pytest.approx(7.17e9, rel=0.001)


def test_the_language_model_of_a_multimodal_one_is_read() -> None:
    assert shape_of({"model_type": "llava", "text_config": LLAMA}, "x") == shape_of(LLAMA, "x")


def test_the_name_is_that_of_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    assert shape_of_file(path).name == "my-model"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"hidden_size": 64}', "states none of num_attention_heads"),
        (json.dumps(LLAMA | {"hidden_size": "4096"}), "hidden_size must be a size, not 4096"),
        (json.dumps(LLAMA | {"is_encoder_decoder": True}), "the planner knows decoders"),
        (json.dumps(LLAMA | {"ssm_state_size": 128}), "by name from the catalogue"),
        (json.dumps(LLAMA | {"hidden_size": 4097}), "32 heads do not divide hidden_size 4097: 1 or 17 or 241 do"),
        (json.dumps(LLAMA | {"intermediate_size": None}), "states none of intermediate_size"),
        (json.dumps(QWEN3_MOE | {"mlp_only_layers": 3}), "mlp_only_layers must be a list of layers, not 3"),
        (json.dumps(QWEN3_MOE | {"moe_intermediate_size": 0, "intermediate_size": 0}), "states none of intermediate_"),
        (json.dumps(GPT2 | {"expansion_ratio": "x"}), "expansion_ratio must be a number to 64, not x"),
        (json.dumps(GPT2 | {"expansion_ratio": float("nan")}), "expansion_ratio must be a number to 64, not nan"),
        (json.dumps(DEEPSEEK | {"v_head_dim": None}), "has a kv_lora_rank, and not all of qk_rope_head_dim"),
        (" " * 1_000_001, "too large"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UnreadableConfigError, match=words) as raised:
        shape_of_file(path)
    assert str(raised.value).startswith(f"{path}: ")
    with pytest.raises(UnreadableConfigError, match="No such file"):
        shape_of_file(tmp_path / "none.json")
