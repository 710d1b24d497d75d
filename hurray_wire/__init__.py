"""Portable snapshots of paged KV caches, in the Hurray tensor format.

    import hurray_wire as hw

    hw.save_snapshot("cache.hrry", [(k, v), ...], block_tables=block_tables, seq_lens=seq_lens)
    with hw.load_snapshot("cache.hrry") as snapshot:
        batch = snapshot.gather(layer=5)          # {"keys", "values", "mask"}

The byte path, which is the order of the packages: ``model`` (what things are), ``wire`` (bytes to objects),
``arrays`` and ``gather`` (buffers to arrays), ``tensors``, ``store`` (files and streams), ``snapshot``, ``cli``.
Everything public is importable from here; ``hurray_wire.jax`` and ``hurray_wire.torch`` are optional.
"""

from ._version import __version__
from .addressing import element_offset
from .composites import CompositeTensor
from .errors import (
    BufferSizeError,
    ChecksumError,
    HurrayError,
    IncompatibleError,
    InvalidDescriptorError,
    InvalidFileError,
    LimitError,
    StreamError,
    TruncatedError,
    UnsupportedError,
)
from .export import export_merged
from .exported import Exported
from .gather import Gathered, gather_kv
from .limits import Limits
from .model.block_paged import BlockPagedLayout
from .model.descriptor import TensorDescriptor
from .model.element_types import (
    ElementType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float4_e2m1,
    float6_e2m3,
    float6_e3m2,
    float8_e4m3,
    float8_e5m2,
    float8_e8m0,
    float16,
    float32,
    float64,
    float128,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .model.layouts import (
    ColMajorLayout,
    CompositeLayout,
    CooLayout,
    CscLayout,
    CsfLayout,
    CsrLayout,
    HilbertLayout,
    Layout,
    MortonLayout,
    PrivateExtensionLayout,
    RowMajorLayout,
    StridedLayout,
    TiledLayout,
    UnknownLayout,
)
from .model.quantization import Mxfp, Nf4, PerBlockAffine, PerChannelAffine, PerTensorAffine, Quantization
from .model.sections import BufferHandle, CompositeMember, ExtensionType, Shard, Statistics
from .paged_tensor import PagedTensor
from .saving import save_snapshot
from .snapshot import File, Layer, Snapshot, load_snapshot
from .snapshot import open_file as open
from .store.reader import Report
from .store.stream import StreamDecoder, StreamReader, StreamWriter
from .store.writer import Chunked, Writer, create
from .tensors import Tensor
from .transfer import SnapshotDecoder, receive_snapshot, receive_snapshots, send_snapshot
from .wire import descriptors as _descriptors  # noqa: F401 -- gives TensorDescriptor its encode and decode

bool = bool_

__all__ = [
    "BlockPagedLayout",
    "BufferHandle",
    "BufferSizeError",
    "ChecksumError",
    "Chunked",
    "ColMajorLayout",
    "CompositeLayout",
    "CompositeMember",
    "CompositeTensor",
    "CooLayout",
    "CscLayout",
    "CsfLayout",
    "CsrLayout",
    "ElementType",
    "Exported",
    "ExtensionType",
    "File",
    "Gathered",
    "HilbertLayout",
    "HurrayError",
    "IncompatibleError",
    "InvalidDescriptorError",
    "InvalidFileError",
    "Layer",
    "Layout",
    "LimitError",
    "Limits",
    "MortonLayout",
    "Mxfp",
    "Nf4",
    "PagedTensor",
    "PerBlockAffine",
    "PerChannelAffine",
    "PerTensorAffine",
    "PrivateExtensionLayout",
    "Quantization",
    "Report",
    "RowMajorLayout",
    "Shard",
    "Snapshot",
    "SnapshotDecoder",
    "Statistics",
    "StreamDecoder",
    "StreamError",
    "StreamReader",
    "StreamWriter",
    "StridedLayout",
    "Tensor",
    "TensorDescriptor",
    "TiledLayout",
    "TruncatedError",
    "UnknownLayout",
    "UnsupportedError",
    "Writer",
    "__version__",
    "bfloat16",
    "bool",
    "bool_",
    "complex128",
    "complex64",
    "create",
    "element_offset",
    "export_merged",
    "float128",
    "float16",
    "float32",
    "float4_e2m1",
    "float64",
    "float6_e2m3",
    "float6_e3m2",
    "float8_e4m3",
    "float8_e5m2",
    "float8_e8m0",
    "gather_kv",
    "int16",
    "int2",
    "int32",
    "int4",
    "int64",
    "int8",
    "load_snapshot",
    "open",
    "receive_snapshot",
    "receive_snapshots",
    "save_snapshot",
    "send_snapshot",
    "uint16",
    "uint2",
    "uint32",
    "uint4",
    "uint64",
    "uint8",
]
