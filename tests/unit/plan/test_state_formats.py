"""The format of recurrent states is the one that the engine keeps, in bytes and in bounds."""

import kvcalc


def test_a_step_reads_the_states_that_vllm_keeps_in_16_bit() -> None:
    own = kvcalc.deployment("mamba2-2.7b", gpu="l4")
    kept = kvcalc.deployment("mamba2-2.7b", gpu="l4", engine="vllm")
    sizes = [kvcalc.size(deployment).kv.state_bytes_per_sequence for deployment in (own, kept)]
    # 64 layers of 80 heads x 64 x 128 elements, 4 bytes each or 2
    assert sizes[0] - sizes[1] == 64 * 80 * 64 * 128 * 2
    slow, fast = (kvcalc.decode(deployment, batches=[64]).rows[0] for deployment in (own, kept))
    assert slow.kv_read_bytes - fast.kv_read_bytes == 64 * (sizes[0] - sizes[1])
    assert fast.tokens_per_s > slow.tokens_per_s


def test_a_model_that_asks_for_32_bit_states_has_them_in_vllm_too() -> None:
    sizes = [kvcalc.size(kvcalc.deployment("nemotron-h-8b", engine=engine)) for engine in ("transformers", "vllm")]
    assert sizes[0].kv.state_bytes_per_sequence == sizes[1].kv.state_bytes_per_sequence
