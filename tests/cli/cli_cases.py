"""A small cache with known content, dumps of it by writers of the tests' own, and ways to run the commands."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from hurray_wire.cli import pack as pack_module
from hurray_wire.cli import unpack as unpack_module

PAGE, HEADS, DIM, PAGES = 4, 2, 3, 7
TABLES = [[5, 2, -1], [5, 6, 1]]  # the first page is shared; pages 0, 3 and 4 belong to nobody
LENS = [6, 11]
LAYERS = (0, 1, 2)
STALE = 0xDEAD  # bits in slots that no sequence uses
STALE_BYTES = struct.pack("<4H", *[STALE] * 4)

ROOT = Path(__file__).parents[2]


def pool(layer, role):
    """The bits of one pool, [PAGES, PAGE, HEADS, DIM] uint16: distinct in all slots in use, STALE elsewhere."""
    size = PAGES * PAGE * HEADS * DIM
    first = 0x3F80 + 1000 * layer + (500 if role == "value" else 0)
    bits = (np.arange(size) + first).astype(np.uint16).reshape(PAGES, PAGE, HEADS, DIM)
    for page in (0, 3, 4):
        bits[page] = STALE
    bits[2, 2:] = STALE  # sequence 0 has 2 tokens in its second page
    bits[1, 3:] = STALE  # sequence 1 has 3 tokens in its third page
    return bits


def tokens(bits, seq):
    """The tokens of one sequence by the formula of the format, one by one: [length, HEADS, DIM]."""
    return np.array([bits[TABLES[seq][t // PAGE], t % PAGE] for t in range(LENS[seq])])


def cache(layers=LAYERS):
    """The arrays of a dump by name: bits of pools, tables, lengths."""
    arrays = {f"layers.{layer}.{role}": pool(layer, role) for layer in layers for role in ("key", "value")}
    return {**arrays, "block_tables": np.array(TABLES, np.int32), "seq_lens": np.array(LENS, np.int32)}


def write_safetensors(path, arrays, types=None, metadata=None):
    """A .safetensors file, byte by byte. ``types`` names the types of arrays that are bits; pools are BF16."""
    names = {"int32": "I32", "float32": "F32", "uint8": "U8", "float16": "F16", "int64": "I64"}
    header = {} if metadata is None else {"__metadata__": metadata}
    at, data = 0, b""
    for name, array in arrays.items():
        kind = (types or {}).get(name) or ("BF16" if array.dtype == np.uint16 else names[array.dtype.name])
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        data += array.tobytes()
        at += array.nbytes
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


def write_npz(path, arrays, dtypes=None):
    """An .npz file by NumPy. ``dtypes`` maps names to element types; without it pools are bfloat16."""
    if dtypes is None:
        dtypes = {name: "bfloat16" for name, array in arrays.items() if array.dtype == np.uint16}
    np.savez(path, **arrays, dtypes=np.array(json.dumps(dtypes)))
    return str(path)


def write_folder(path, arrays):
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    dtypes = {name: "bfloat16" for name, array in arrays.items() if array.dtype == np.uint16}
    np.save(path / "dtypes.npy", np.array(json.dumps(dtypes)))
    return str(path)


def pack(*arguments):
    return pack_module.main([str(argument) for argument in arguments])


def unpack(*arguments):
    return unpack_module.main([str(argument) for argument in arguments])


def packed(folder, *arguments, layers=LAYERS):
    """A snapshot of the cache."""
    source = write_safetensors(folder / "source.safetensors", cache(layers))
    target = folder / "cache.hrry"
    assert pack(source, "-o", target, "--quiet", *arguments) == 0
    return target


# Becomes another program, for which signals mean what they mean by themselves but for those that are ignored, and some
# of the standard streams are closed. (What is ignored stays so in a child, as SIGHUP does under nohup.)
BECOME = """
import os, signal, sys
ignored, closed, *program = sys.argv[1:]
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if str(int(number)) in ignored.split() else signal.SIG_DFL)
for number in closed.split():
    os.close(int(number))
os.execv(program[0], program)
"""


def process(command, *arguments, ignored=(), closed=(), **options):
    """The command in a process of its own; its environment may be changed by ``env``.

    ``ignored`` are signals that it ignores, whatever this process ignores, ``closed`` numbers of standard streams.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    told = [" ".join(str(int(number)) for number in numbers) for numbers in (ignored, closed)]
    program = [sys.executable, "-m", f"hurray_wire.cli.{command}", *map(str, arguments)]
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", BECOME, *told, *program], env=environment, **options)


def finished(command, *arguments, **options):
    """The same, waited for: exit code, standard output and standard error as bytes."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    running = process(command, *arguments, **options)
    out, err = running.communicate(timeout=60)
    return running.returncode, out, err


def one_error(capsys, program):
    """The one line on standard error; nothing on standard output."""
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    prefix = f"{program}: error: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def check_summary(printed, output):
    """What ``--json`` says of the whole ``cache()`` in ``output``."""
    summary = json.loads(printed)
    assert summary.pop("seconds") >= 0
    assert summary == {
        "output": str(output),
        "layers": [0, 1, 2],
        "sequences": 2,
        "tokens": 17,
        "pages_in_pool": 7,
        "pages_written": 4,
        "bytes": output.stat().st_size,
    }
