"""Names as libraries write them, and what the one table makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_text import MAIN, TraceText

from analyzer import analyze, read_trace
from analyzer.lanes import KERNELS, Lane, call_op, canonical_op, device_class, launch_op, mark, span_op
from analyzer.timeline import Flag

COMMUNICATION = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "broadcast",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "void ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_Sum_f32": "unknown",
    "rcclGenericKernel<4, false>(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": "unknown",
    "void mscclpp::collective::allreducePacket<(mscclpp::ReduceOp)0, __half>(__half*)": "all_reduce",
    "void mscclpp::collective::allgatherFullmesh2<true>(void*)": "all_gather",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)": "dispatch",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": "combine",
    "void deep_ep::intranode::barrier<8>(int**, int)": "unknown",
    "barrier_on_stream_kernel_threadgroup(int, int)": "barrier",
    "void nvshmemi_proxy_quiet<1>(bool)": "unknown",
    "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int)": "barrier",
    "void multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*, unsigned long)": "all_reduce",
    "void fbgemm_gpu::one_shot_all_reduce<8, false>(int, int, int)": "all_reduce",
    "void aiter::cross_device_reduce_2stage<bf16, 8, false>(RankData*)": "all_reduce",
    "void tensorrt_llm::kernels::moe_a2a_dispatch<7168>(void*)": "dispatch",
    "hccl_allreduce_kernel": "all_reduce",
}
COMPUTE = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, FillFunctor)",
    "triton_poi_fused_add_all_reduce_wait_tensor_0",
    "flash_fwd_mla_combine_kernel",
    "void my_attention_kernel<float>(ncclComm*, float*)",  # takes a communicator, but its name says attention
    "Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1",
    "moe_dispatch_scatter_kernel",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",  # counts tokens, talks to nobody
    "void (anonymous namespace)::hstu_forward<64>(float*)",
    "occlusion_kernel",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication_kernels_are_known_by_name(name: str) -> None:
    found = device_class("kernel", name)
    assert found.lane == Lane.COMM
    assert found.op == COMMUNICATION[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_what_no_pattern_knows_computes(name: str) -> None:
    assert device_class("kernel", name).lane == Lane.COMPUTE


@pytest.mark.parametrize(
    ("category", "name", "lane"),
    [
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", Lane.COPY),
        ("gpu_memset", "Memset (Device)", Lane.COPY),
        ("kernel", "__amd_rocclr_copyBuffer.kd", Lane.COPY),
        ("mtia_ccp_events", "dma_in", Lane.COPY),
        ("mtia_ccp_events", "job_exe", Lane.HOST),
        ("mtia_ccp_events", "fused_linear", Lane.COMPUTE),
        ("Kernel", "gemm", Lane.COMPUTE),
        ("Memcpy", "Memcpy HtoD", Lane.COPY),
    ],
)
def test_copies_and_hulls_of_all_vendors(category: str, name: str, lane: Lane) -> None:
    assert device_class(category, name).lane == lane


def test_every_pattern_of_the_table_is_used_by_some_name_here() -> None:
    names = [name.split("(")[0] if "anonymous" not in name else name for name in COMMUNICATION]
    names += ["void c10d::symmetric_memory::put_signal_kernel", "flashinfer::allreduce_fusion_kernel_oneshot", "dma",
              "__amd_rocclr_copyBuffer", "job_exe", "collective_subgraph_execution"]  # fmt: skip
    unused = [known for known in KERNELS if not any(known.pattern.search(name) for name in names)]
    assert not unused


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::barrier", "barrier"),
        ("c10d::recv_any_source_", "recv"),
        ("aten::all", None),
        ("_c10d_functional::wait_tensor", None),
    ],
)
def test_dispatcher_calls_give_the_collective(name: str, op: str | None) -> None:
    assert call_op(name) == op


def test_one_name_for_what_libraries_spell_differently() -> None:
    assert {canonical_op(name) for name in ("allreduce", "AllReduce", "all_reduce", "ALLREDUCE")} == {"all_reduce"}
    assert {canonical_op(name) for name in ("alltoallv", "all_to_allv", "AllToAll", "alltoall_base")} == {"all_to_all"}
    assert [span_op(name) for name in ("gloo:all_to_all", "mpi:all_reduce", "nccl:x")] == [
        "all_to_all",
        "all_reduce",
        None,
    ]
    assert launch_op("nccl:_all_gather_base") == "all_gather"


def test_our_own_ranges_say_everything() -> None:
    found = mark("freescale.comm all_to_all group=embedding seq=12 bytes=1048576")
    assert found is not None
    assert (found.verb, found.op, found.group, found.seq, found.bytes) == (
        "comm",
        "all_to_all",
        "embedding",
        12,
        1048576,
    )
    wait = mark("freescale.wait all_to_all group=embedding seq=12")
    assert wait is not None
    assert (wait.verb, wait.bytes) == ("wait", -1)
    assert mark("freescale.comm all_to_all group=x") is None


T0 = 1_700_000_000_000_000_000
US = 1_000


@pytest.mark.parametrize("span", ["nccl:all_gather", "freescale.comm all_gather group=dense seq=3 bytes=64"])
def test_copies_inside_a_collective_are_communication_that_is_sm_free(tmp_path: Path, span: str) -> None:
    text = TraceText(world_size=1)
    text.step(1, T0, T0 + 100 * US)
    text.kernel("gemm", T0 + 10 * US, T0 + 20 * US)
    text.mark(span, T0 + 12 * US, T0 + 16 * US, tid=MAIN)
    text.kernel("Memcpy PtoP", T0 + 20 * US, T0 + 50 * US, 30, T0 + 14 * US, cat="gpu_memcpy")
    text.kernel("Memcpy HtoD", T0 + 50 * US, T0 + 60 * US, 31, T0 + 18 * US, cat="gpu_memcpy")
    text.kernel("gemm", T0 + 60 * US, T0 + 70 * US)
    timeline = read_trace(text.write(tmp_path / "rank0.json"))
    rows = timeline.collectives
    assert len(rows) == 1
    assert timeline.flags[rows[0]] & Flag.SM_FREE
    assert timeline.ops[timeline.op[rows[0]]] == "all_gather"
    bubble = analyze(tmp_path / "rank0.json").arm().tables.bubbles.iloc[0]
    assert (bubble["exposed_comm_ns"], bubble["exposed_copy_ns"]) == (30 * US, 10 * US)


def test_sends_and_receives_are_matched_in_order_between_their_two_ranks(tmp_path: Path) -> None:
    for rank, role in ((0, "send"), (1, "recv"), (2, "idle")):
        text = TraceText(rank, 3, host_name="box")
        text.step(1, T0, T0 + 900 * US)
        text.kernel("gemm", T0 + 10 * US, T0 + 20 * US)
        if role != "idle":
            for message in (0, 1):
                begin = T0 + (100 + 200 * message + 50 * rank) * US
                args = {"Collective name": role, "Process Group Name": "pp", "Src Rank": 0, "Dst Rank": 1,
                        "Seq": message + 10 * rank, "In msg nelems": 8, "dtype": "Float"}  # fmt: skip
                text.kernel(
                    "ncclDevKernel_SendRecv(x)", begin, T0 + (200 + 200 * message) * US, 30, T0 + 11 * US, args=args
                )
        text.kernel("gemm", T0 + 500 * US, T0 + 600 * US, launched=T0 + 12 * US)
        text.write(tmp_path / f"rank{rank}.json")
    tables = analyze(tmp_path).arm().tables
    assert set(tables.collectives["op"]) == {"point_to_point"}
    assert set(tables.collectives["group"]) == {"pp 0→1"}
    assert tables.collectives["matched"].all()
    assert tables.collectives["last_rank"].tolist() == [1, 1, 1, 1]
    assert tables.blame_ns.tolist() == [[0, 2 * 50 * US, 0], [0, 0, 0], [0, 0, 0]]
