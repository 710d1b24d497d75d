"""Do with some bytes all that can be done with a descriptor, a file or a stream, and let only our own errors pass.

Whatever else comes out, a KeyError, an IndexError, a MemoryError, is for the caller to see. What is valid must also
hold: a descriptor encodes to what decodes to itself, and reads as text.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import hurray_wire as hw

# A valid file may ask for much; what is tested here is that an invalid one does not.
LIMITS = hw.Limits(max_dense_bytes=1 << 22)
SPARSE = ("coo", "csr", "csc", "csf")


def descriptor(data: Any, **options: Any) -> bool:
    """Decode; True if the bytes are a valid descriptor."""
    try:
        found = hw.TensorDescriptor.decode(data, **options)
    except hw.HurrayError as error:
        judged(error)
        return False
    encoded = found.encode()
    if hw.TensorDescriptor.decode(encoded, **options).encode() != encoded or not repr(found):
        raise ValueError("what was decoded does not come back")
    return True


def file(data: Any, **options: Any) -> bool:
    """Open, and use all of it; True if it opens and verifies."""
    try:
        opened = hw.open(data, limits=LIMITS, **options)
    except hw.HurrayError as error:
        judged(error)
        return False
    with opened:
        good = [allowed(lambda: opened.metadata), allowed(opened.snapshot)]
        for name in opened.names:
            good.append(allowed(lambda name=name: opened[name]))  # type: ignore[misc]
            if good[-1]:
                tensor(opened[name])
        return allowed(opened.verify)


def stream(data: bytes, **options: Any) -> bool:
    """Read to the end, and use every tensor; True if the end is clean."""

    def read() -> None:
        for found in hw.StreamReader(io.BytesIO(data), limits=LIMITS, **options):
            tensor(found)

    allowed(lambda: hw.receive_snapshot(io.BytesIO(data), limits=LIMITS))
    return allowed(read)


def tensor(found: hw.Tensor) -> None:
    """Ask a tensor for everything that it may hold."""
    repr(found)
    if isinstance(found, hw.PagedTensor):
        for use in (lambda: found.block_table, lambda: found.seq_lens, lambda: found.page_pool, found.ragged):
            allowed(use)
        for dequantize in (False, True):
            allowed(lambda dequantize=dequantize: found.gather(dequantize=dequantize))  # type: ignore[misc]
    elif found.descriptor.layout.name in SPARSE:
        allowed(lambda: found.sparse().to_dense(limits=LIMITS))
    else:
        for dequantize in (False, True):
            allowed(lambda dequantize=dequantize: found.numpy(dequantize=dequantize))  # type: ignore[misc]
    allowed(found.check_payload)


def allowed(use: Callable[[], Any]) -> bool:
    """True if it works, False if it raises one of our errors."""
    try:
        use()
    except hw.HurrayError as error:
        judged(error)
        return False
    return True


_forbidden: set[str] = set()


def refuse_to_lack_memory() -> None:
    """From now on, an error that says there is no memory is no excuse."""
    _forbidden.add("limit.memory")


def judged(error: hw.HurrayError) -> None:
    """An error of ours says which rule is broken, in one line."""
    if error.rule is None or error.rule in _forbidden or "\n" in str(error):
        raise ValueError(f"an error that should not be: {error}") from error


KINDS: dict[str, Callable[..., bool]] = {"descriptor": descriptor, "file": file, "compressed": file, "stream": stream}
