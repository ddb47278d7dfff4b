from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from pdwatch.exporters import RulesInvalid
from pdwatch.exporters.profile import OTHER, KernelRules, read_rules

DATA = Path(__file__).parents[1] / "data" / "traces"

# as torch.profiler shows them, template arguments shortened; from SGLang 0.5.23 and the packages it calls
NAMES = {
    "moe": [
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 1u, 128u, (deep_gemm::GemmType)1, float>(float*)",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 64u, 128u, (deep_gemm::GemmType)2, float>(float*)",
        "fused_moe_kernel",
        "void moe_align_block_size_kernel<int>(int const*, int*, int*)",
        "void moe_fused_gate_kernel<float, 8, 32>",
        "kimi_k2_moe_fused_gate_kernel_small_token",
        "void topkGatingSoftmax<__nv_bfloat16, 8, 256, 4, 16>",
        "_moe_sum_reduce_kernel",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>",
        "routingMainKernel<moe::dev::routing::routingDeepSeek::KernelParams>",
        "moe::dev::finalize::finalizeKernel",
        "moe_hash_topk_fused",
        "_hash_topk_triton_kernel",
        "_silu_and_mul_masked_post_quant_kernel",
        "_fwd_kernel_ep_scatter_1",
        "_fwd_kernel_ep_gather",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16>",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_bA32_routeAct_swiGlu",
    ],
    "attention": [
        "void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<64>",
        "void flash::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, float, int, 512>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>",
        "flashmla_sched_meta_kernel",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>",
        "fmhaSm100fKernel_QkvE4m3OBfloat16H576HV512",
        "_fwd_grouped_kernel_stage1",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128",
        "void set_mla_kv_buffer_kernel<2>",
        "fused_store_flashmla_cache",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<...>",
        "flash_c128_online_decode_v2",
        "plan_compress_decode_kernel",
        "concat_mla_absorb_q_kernel",
        "_quant_k_cache_fused_kernel_of_kv_cache",
    ],
    "indexer": [
        "void deep_gemm::sm90_fp8_paged_mqa_logits<64u, 128u, 64u, true>",
        "void deep_gemm::smxx_paged_mqa_logits_metadata<128u, 256u>",
        "void deep_gemm::sm90_fp8_mqa_logits<32u, 128u>",
        "void (anonymous namespace)::topk_transform_decode_kernel<2048>",
        "fast_topk_kernel",
        "void fast_hadamard_transform_kernel<fast_hadamard_transform_kernel_traits<128>>",
        "fused_store_indexer_cache",
        "_quantize_fp4_indexer_kernel",
        "flash_index_k_split_kernel",
        "index_k_kernel",
        "_fp4_index_logits_paged_kernel",
        "_finish_paged_indexer_topk_kernel",
        "_get_k_and_s_triton_kernel",
        "kpool_topk_transform_kernel",
    ],
    "all_reduce": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>",
        "all_reduce_push_res_kernel",
        "void deep_ep::internode_ll::dispatch<true, 3, 10>",
        "void deep_ep::intranode::combine<__nv_bfloat16>",
        "inkling_multimem_one_shot_fused_kernel",
        "reduce_scatter_pull_kernel",
    ],
    "gemm": [
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 1536u, 7168u, 1u, 128u, (deep_gemm::GemmType)0, float>(float*)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
        "fused_a_gemm_kernel",
        "_batched_gemm_bf16_split_k_partial_kernel",
        "_fp8_scaled_mm_kernel",
    ],
    "sampling": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, ...>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float, float, float, ...>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
        "void at::native::radixSortKVInPlace<2, -1, 32, 4, float, long, unsigned int>",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, ...>",
        "VerifyTreeGreedy",
        "TreeSpeculativeSamplingTargetOnly",
        "_argmax_partial_kernel",
        "apply_token_bitmask_inplace_kernel",
    ],
    "copies": [
        "memcpy32_post",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul>>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>",
        "hicache_page_unified_relayout_kernel",
    ],
    "elementwise": [
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>",
        "fused_qknorm_warp",
        "void per_token_group_quant_8bit_kernel<...>",
        "void act_and_mul_kernel<__nv_bfloat16, silu>",
        "void at::native::vectorized_elementwise_kernel<8, at::native::silu_kernel(at::TensorIteratorBase&)>",
        "triton_poi_fused_add_mul_0",
        "triton_red_fused_mean_pow_1",
        "_hc_split_sinkhorn_triton_kernel",
        "void at::native::index_elementwise_kernel<128, 4, ...>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>",
    ],
    OTHER: ["dummy_probe_kernel", ""],
}


@pytest.fixture(scope="module")
def rules() -> KernelRules:
    return read_rules()


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in NAMES.items() for name in names])
def test_real_names_find_their_group(rules: KernelRules, group: str, name: str) -> None:
    assert rules.group(name, "kernel") == group


@pytest.mark.parametrize("kind", ["memcpy", "memset"])
def test_a_copy_is_a_copy_whatever_its_name(rules: KernelRules, kind: str) -> None:
    assert rules.group("Memcpy DtoD (flash moe gemm)", kind) == "copies"  # type: ignore[arg-type]  # parametrised


def test_every_group_has_a_name_here_and_a_help(rules: KernelRules) -> None:
    assert set(NAMES) == set(rules.names)
    assert all(group.help.endswith(".") for group in rules.groups)


def test_no_kernel_of_the_recorded_step_is_left_over(rules: KernelRules) -> None:
    events = json.loads(gzip.decompress((DATA / "h200_captured.json.gz").read_bytes()))["traceEvents"]
    groups = Counter(rules.group(event["name"], "kernel") for event in events if event.get("cat") == "kernel")
    assert set(groups) == {"gemm", "attention", "sampling", "copies", "elementwise"}


GROUP = '[[groups]]\nname = "a"\nhelp = "A."\n'
WRONG = {
    "no_toml": ("format = ", "cannot be read"),
    "no_format": (GROUP + '[[rules]]\ngroup = "a"\n', "at format"),
    "unknown_group": (f'format = 1\n{GROUP}[[rules]]\ngroup = "b"\n', "group `b` is not described"),
    "no_rule": (f'format = 1\n{GROUP}[[groups]]\nname = "b"\nhelp = "B."\n[[rules]]\ngroup = "a"\n', "`b` has no rule"),
    "twice": (f'format = 1\n{GROUP}{GROUP}[[rules]]\ngroup = "a"\n', "described twice"),
    "reserved": (
        'format = 1\n[[groups]]\nname = "gaps"\nhelp = "A."\n[[rules]]\ngroup = "gaps"\n',
        "`gaps` is not for",
    ),
    "pattern": (f'format = 1\n{GROUP}[[rules]]\ngroup = "a"\nmatch = ["("]\n', "no regular expression"),
    "extra": (f'format = 1\n{GROUP}[[rules]]\ngroup = "a"\nregex = ["x"]\n', "rules.0.regex"),
    "kind": (f'format = 1\n{GROUP}[[rules]]\ngroup = "a"\nkinds = ["kernels"]\n', "rules.0.kinds"),
    "label": ('format = 1\n[[groups]]\nname = "A b"\nhelp = "A."\n[[rules]]\ngroup = "A b"\n', "groups.0.name"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_are_no_rules_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesInvalid, match=message):
        read_rules(path)


def test_the_first_rule_decides(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    groups = GROUP + GROUP.replace('"a"', '"b"')
    path.write_text(
        f'format = 1\n{groups}[[rules]]\ngroup = "a"\nmatch = ["x"]\n[[rules]]\ngroup = "b"\nmatch = ["X|y"]\n'
    )
    rules = read_rules(path)
    assert [rules.group(name, "kernel") for name in ("xy", "Y", "z")] == ["a", "b", OTHER]
    with pytest.raises(RulesInvalid, match="cannot be read"):
        read_rules(tmp_path / "none.toml")
