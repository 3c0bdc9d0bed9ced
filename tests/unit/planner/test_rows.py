"""What a row of a table says of its model and its software, and what it has to say."""

import pytest

from governor.planner.model.memory import memory_of
from governor.planner.model.setup import Framework, Kernel, Setup
from governor.planner.model.step_time import step_time_of
from governor.planner.table import UnreadableRowError, read

ROW = {
    "model": "Llama3-8B", "gpu": "H100-SXM-80GB", "gpus": "8", "seq_len": "8192", "micro_bs": "1", "zero_stage": "3",
    "act_ckpt": "full", "framework": "DeepSpeed", "precision": "bf16", "grad_accum": "1",
}  # fmt: skip


def setup(**cells: str) -> Setup:
    return read(ROW | cells).setup


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("NeMo AutoModel (FSDP2)", Framework.FSDP2),
        ("NeMo AutoModel", Framework.FSDP2),
        ("NeMo/Megatron-Core", Framework.MEGATRON),
        ("NeMo 25.04.rc2", Framework.MEGATRON),
        ("torchtitan (FSDP2)", Framework.FSDP2),
        ("Megatron-LM", Framework.MEGATRON),
    ],
)
def test_a_framework_is_known_by_its_most_telling_word(name: str, framework: Framework) -> None:
    assert setup(framework=name).framework is framework


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"model": "Zork-Large"}, "no model named 'Zork-Large' in the catalogue: state hidden and layers, or params_b"),
        ({"model": "Zork-Large", "ep": "64"}, "model 'Zork-Large': a mixture beyond the catalogue: state n_experts"),
        ({"model": "Zork-30B-A3B"}, "a mixture beyond the catalogue"),
        ({"model": "Zork-8x7B", "hidden": "4096", "layers": "32"}, "a mixture beyond the catalogue"),
        ({"gpus": "0"}, "gpus = '0': at least 1, or blank if it is unknown"),
        ({"seq_len": "0"}, "seq_len = '0'"),
        ({"micro_bs": "0.5"}, "micro_bs = '0.5'"),
    ],
)
def test_what_cannot_be_guessed_is_refused_by_name(cells: dict[str, str], words: str) -> None:
    with pytest.raises(UnreadableRowError) as error:
        read(ROW | cells)
    assert words in str(error.value)


def test_an_unknown_model_whose_size_is_stated_is_read() -> None:
    assert read(ROW | {"model": "Zork-13B"}).setup.shape.params == pytest.approx(13e9, rel=0.1)
    sizes = {"model": "Zork", "hidden": "4096", "layers": "32", "n_experts": "8", "topk": "2", "moe_ffn": "14336"}
    assert read(ROW | sizes).setup.shape.is_moe


@pytest.mark.parametrize(
    "notes", ["Liger kernels", "fused cross entropy", "cut-cross-entropy", "fused linear cross-entropy", "chunked CE"]
)
def test_a_loss_without_whole_logits_is_read(notes: str) -> None:
    fused, whole = setup(notes=notes), setup()
    assert fused.fused_loss
    assert memory_of(fused).logits == 0 < memory_of(whole).logits


@pytest.mark.parametrize("notes", ["", "no Liger", "unfused cross entropy", "without fused cross entropy"])
def test_a_loss_is_not_fused_unless_the_row_says_so(notes: str) -> None:
    assert not setup(notes=notes).fused_loss
    # Megatron's fusion joins the loss's kernels and keeps its logits.
    assert not setup(notes="fused cross entropy", framework="Megatron-Core").fused_loss


def test_the_attention_kernel_is_read_and_counts_where_the_gpu_has_units_for_it() -> None:
    def speed(attention: str, **cells: str) -> float:
        return step_time_of(setup(attention=attention, seq_len="65536", **cells)).tokens_per_gpu_s

    assert setup(attention="FA3").kernel is setup(attention="flash_attention_3").kernel is Kernel.FLASH_3
    assert speed("FA3") == speed("cuDNN") > 1.2 * speed("FA2")
    assert speed("FA2") == speed("SDPA flash") == speed("")
    assert speed("FA3", gpu="A100-SXM-80GB") == speed("FA2", gpu="A100-SXM-80GB")
    assert (
        speed("FA2", framework="Megatron-Core")
        < speed("", framework="Megatron-Core")
        == speed("cuDNN", framework="Megatron-Core")
    )
