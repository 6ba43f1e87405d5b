"""The one table of name patterns: which lane an event belongs to, and which collective it is.

A device interval is communication only when a pattern here says so; everything else that runs on the device computes.
Nothing outside this module looks inside an event's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class Lane(IntEnum):
    """What an interval does; the values are stored in `Timeline.lane`."""

    COMPUTE = 0
    COMM = 1
    COPY = 2
    HOST = 3


class DeviceClass(NamedTuple):
    """Lane of a device interval; `op` is the canonical collective name, empty unless the lane is COMM."""

    lane: Lane
    op: str = ""


# Canonical name ← what libraries call it, lower case without separators. `send_recv` is a grouped point-to-point
# kernel: NCCL runs an all-to-all as one, so it stays undecided until the launching call says which.
_OPS = {
    "all_reduce": ("allreduce", "allreducecoalesced", "allreducesparse", "sparseallreduce"),
    "all_gather": (
        "allgather",
        "allgatherbase",
        "allgatherv",
        "allgathercoalesced",
        "allgatherintotensorcoalesced",
        "allgatherintotensor",
        "allgatherintotensorout",
    ),
    "reduce_scatter": (
        "reducescatter",
        "reducescatterbase",
        "reducescatterv",
        "reducescattertensor",
        "reducescattertensorcoalesced",
    ),
    "all_to_all": ("alltoall", "alltoallv", "alltoallbase", "alltoallsingle", "alltoallvd", "alltoallpivot"),
    "broadcast": ("broadcast", "broadcastoop", "broadcastcoalesced"),
    "reduce": ("reduce", "reduceoop"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "barrier": ("barrier", "monitoredbarrier", "sync"),
    "send": ("send",),
    "recv": ("recv", "recvanysource"),
    "send_recv": ("sendrecv",),
    "unknown": ("generic",),
    "coalesced": ("coalesced", "batchisendirecv", "endcoalescing"),
    "dispatch": ("dispatch", "notifydispatch", "cachednotifydispatch"),
    "combine": ("combine", "cachednotifycombine"),
}
_CANONICAL = {alias: op for op, aliases in _OPS.items() for alias in aliases}

#: Every participant leaves these together, so their ends tie the ranks' clocks to each other.
SYNCHRONISING_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
#: Messages between two ranks whose trace does not say which two: nothing to match them by.
UNMATCHABLE_OPS = frozenset({"send", "recv", "coalesced"})
POINT_TO_POINT = "point_to_point"  #: a send and its receive, once the trace says between whom


class _Kernels(NamedTuple):
    """Device intervals by name. A group named `op` in the pattern holds the collective; `lane` is COMM if not given."""

    library: str
    pattern: re.Pattern[str]
    op: str = ""
    lane: Lane = Lane.COMM


def _kernels(library: str, pattern: str, op: str = "", lane: Lane = Lane.COMM) -> _Kernels:
    return _Kernels(library, re.compile(pattern, re.IGNORECASE), op, lane)


_ANY_OP = r"(?P<op>all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)"
#: Every kernel name that is not compute; the first that matches decides. Names are looked at without their arguments.
KERNELS = (
    _kernels("NCCL, RCCL", r"^(?:void )?nccl(?:Dev)?Kernel_?(?P<op>[A-Za-z]+?)(?:_|<|$)"),
    _kernels("NCCL, RCCL", r"(?<![a-z])(?:nccl|rccl)"),
    _kernels("MSCCL++", rf"mscclpp::.*?{_ANY_OP}"),
    _kernels("MSCCL, MSCCL++", r"(?<![a-z])msccl"),
    _kernels("HCCL (MTIA)", rf"^hccl(?:.*?{_ANY_OP})?"),
    _kernels("MTIA", r"^collective_subgraph_execution"),
    _kernels("DeepEP", r"deep_ep::(?!layout::)\w+::(?:\w*_)?(?P<op>dispatch|combine)"),
    _kernels("DeepEP", r"deep_ep::(?!layout::)"),
    _kernels("NVSHMEM", r"(?P<op>barrier|sync|broadcast|fcollect|alltoall|reducescatter|reduce)\w*_on_stream_kernel"),
    _kernels("NVSHMEM", r"nvshmem"),
    _kernels(
        "symmetric memory", r"symmetric_memory::.*?(?P<op>barrier|all_reduce|all_gather|reduce_scatter|all_to_all)"
    ),
    _kernels("symmetric memory", r"symmetric_memory::\w*(?:put|wait)_signal", op="send_recv"),
    _kernels("symmetric memory", rf"(?:one_shot|two_shot|multimem)_\w*?{_ANY_OP}"),
    _kernels("vLLM, SGLang, AITER", r"cross_device_reduce_\dstage", op="all_reduce"),
    _kernels("TensorRT-LLM, FlashInfer", r"allreduce_fusion_kernel|(?:one|two)ShotAllReduceKernel", op="all_reduce"),
    _kernels("TensorRT-LLM", r"moe_?A2A_?(?P<op>Dispatch|Combine)"),
    _kernels("HIP blit kernels", r"__amd_rocclr_(?:copy|fill)Buffer", lane=Lane.COPY),
    _kernels("MTIA", r"^dma", lane=Lane.COPY),
    _kernels("MTIA: hulls around others", r"^(?:job_exe|packet|pe_exe|cpum_exe_subgraph)", lane=Lane.HOST),
)
_ARGUMENTS = re.compile(r"(?<!operator)\((?!anonymous namespace\)).*", re.DOTALL)
_COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})

DEVICE_CATEGORIES = frozenset({"kernel", "Kernel", "concurrent_kernel", "mtia_ccp_events"}) | _COPY_CATEGORIES
OP_CATEGORIES = frozenset({"cpu_op", "Operator"})
LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "xpu_driver", "privateuse1_runtime",
     "privateuse1_driver"}
)  # fmt: skip
ANNOTATION = "user_annotation"
ANNOTATION_CATEGORIES = frozenset({ANNOTATION})
HOST_CATEGORIES = OP_CATEGORIES | LAUNCH_CATEGORIES | ANNOTATION_CATEGORIES

# Autograd wraps each node's ops in two spans of its own; they compute nothing unless compiled code runs inside.
_CONTAINER = re.compile(
    r"autograd::engine::evaluate_function: (?!Compiled)|(?!Compiled)\w+Backward\d+$|torch::autograd::"
)
_WAIT_OP = re.compile(r"_?c10d_functional::wait_tensor|c10d::wait")
_CALL = re.compile(r"c10d::_?(?P<op>[A-Za-z_]+?)_*$")
_HOST_SPAN = re.compile(r"(?:gloo|mpi|ucc):(?P<op>\w+)")
_LAUNCH_SPAN = re.compile(r"(?:nccl|rccl):_?(?P<op>\w+)")
_DATA_LOADING = re.compile(r"enumerate\((?:DataLoader|DataPipe)|.*DataLoaderIter\.__next__|.*Dataset.*\.__getitem__")
_SYNCHRONISING = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize|cu(?:Ctx|Stream|Event)Synchronize|(?:cuda|hip)Memcpy(?:_v2)?$"
    r"|hipMemcpyWithStream|(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree)$"
)
_STEP = re.compile(r"ProfilerStep#(\d+)")
_MARK = re.compile(
    r"freescale\.(?P<verb>comm|wait|move|link) (?P<op>\S+) "
    r"group=(?P<group>\S+) seq=(?P<seq>\d+)(?: bytes=(?P<bytes>\d+))?(?: late_ns=(?P<late>\d+))?"
)


class Mark(NamedTuple):
    """A range that our own transports write into the trace (`freescale.comm OP group=G seq=N bytes=B`)."""

    verb: str  # comm: the issuing call · wait: blocked on it · move: bytes moving · link: an emulated link holds it up
    op: str
    group: str
    seq: int
    bytes: int  # -1 where the range does not say
    late_ns: int = 0  # link: the link had delivered that long before the range begins


def is_mark(name: str) -> bool:
    """True for our own ranges, which annotate even where the profiler writes them down as operators."""
    return name.startswith("freescale.")


def canonical_op(name: str) -> str:
    """The one name of a collective that libraries spell differently; unknown names come back in lower case."""
    key = re.sub(r"[^a-z]", "", name.lower())
    return _CANONICAL.get(key, name.strip("_").lower())


@lru_cache(maxsize=1 << 16)
def device_class(category: str, name: str) -> DeviceClass:
    """Lane, and collective if any, of an interval on a device. What no pattern knows computes."""
    if category in _COPY_CATEGORIES:
        return DeviceClass(Lane.COPY)
    bare = _ARGUMENTS.sub("", name)
    for known in KERNELS:
        if match := known.pattern.search(bare):
            if known.lane != Lane.COMM:
                return DeviceClass(known.lane)
            return DeviceClass(Lane.COMM, known.op or canonical_op(match.groupdict().get("op") or "unknown"))
    return DeviceClass(Lane.COMPUTE)


NameTest = Callable[[str], bool]


def is_data_loading(name: str) -> bool:
    """True for host spans in which the training thread gets its next batch."""
    return bool(_DATA_LOADING.match(name))


def is_synchronising(name: str) -> bool:
    """True for runtime calls that block the host until the device has caught up."""
    return bool(_SYNCHRONISING.match(name))


def step_number(name: str) -> int | None:
    """N of `ProfilerStep#N`."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def mark(name: str) -> Mark | None:
    """The facts in one of our own range names, or None."""
    match = _MARK.fullmatch(name)
    if not match:
        return None
    numbers = int(match["seq"]), int(match["bytes"] or -1), int(match["late"] or 0)
    return Mark(match["verb"], canonical_op(match["op"]), match["group"], *numbers)


def call_op(name: str) -> str | None:
    """Collective issued by a dispatcher op such as `c10d::alltoall_base_`, or None."""
    match = _CALL.fullmatch(name)
    return canonical_op(match["op"]) if match and not _WAIT_OP.fullmatch(name) else None


def span_op(name: str) -> str | None:
    """Collective of a CPU backend's worker span such as `gloo:all_reduce`, or None."""
    match = _HOST_SPAN.fullmatch(name)
    return canonical_op(match["op"]) if match else None


def launch_op(name: str) -> str | None:
    """Collective of the host span in which a device backend launches it, such as `nccl:all_to_all`, or None."""
    match = _LAUNCH_SPAN.match(name)
    return canonical_op(match["op"]) if match else None


def is_container(name: str) -> bool:
    """True for spans that only hold other ops (autograd's node wrappers)."""
    return bool(_CONTAINER.match(name))


def is_wait_op(name: str) -> bool:
    """True for dispatcher ops that block on a collective."""
    return bool(_WAIT_OP.fullmatch(name))
