"""What the project does, shown on a real KV cache: pack it, look at it, prove that it is whole, gather from it.

Run by ``make demo``. Every command is run as it is printed, in a temporary folder; every result is checked against the
dump itself, read here without any help of the library. Exits with 1 if anything is off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import hurray_wire as hw

DUMP = Path(__file__).parents[1] / "fixtures" / "smollm2_layers_0_1.safetensors"
SHOWN = "fixtures/smollm2_layers_0_1.safetensors"


class Off(Exception):  # noqa: N818 -- it is no fault of this program
    """Something is not as it should be."""


def title(words: str) -> None:
    print(f"\n--- {words}")


def shell(folder: str, command: str, *, code: int = 0) -> str:
    """Print a command, run it with the commands of this environment, print what it says."""
    print(f"$ {command}", flush=True)
    beside = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}", "COLUMNS": "100"}
    done = subprocess.run(
        ["sh", "-c", command.replace(SHOWN, f"'{DUMP}'")],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != code:
        raise Off(f"the command ended with {done.returncode} instead of {code}")
    return done.stdout


def check(holds: bool, words: str) -> None:
    if not holds:
        raise Off(f"not so: {words}")
    print(words)


def arrays_of_dump() -> dict[str, np.ndarray]:
    """The arrays of the dump, pools as the 16 bits of their elements: a length, a JSON header, the data."""
    data = DUMP.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    types = {"BF16": "<u2", "I32": "<i4"}
    return {
        name: np.frombuffer(data[start + first : start + last], types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        for first, last in [entry["data_offsets"]]
    }


def gather(path: Path) -> None:
    """Gather every layer, and compare each token with the one that the block table of the dump leads to."""
    print('>>> with hw.load_snapshot("cache.hrry") as snapshot:')
    print("...     batch = snapshot.gather(layer=1)")
    dump = arrays_of_dump()
    lengths, tables = dump["seq_lens"].tolist(), dump["block_tables"]
    compared = 0
    with hw.load_snapshot(path) as snapshot:
        batch = snapshot.gather(layer=1)
        for name, array in batch.items():
            print(f"batch[{name!r}]: {array.dtype} {list(array.shape)}")
        for layer in snapshot.layers:
            batch = snapshot.gather(layer)
            for role in ("key", "value"):
                pool = dump[f"layers.{layer}.{role}"]
                page_size = pool.shape[1]
                values = batch[f"{role}s"].view(np.uint16)
                for seq, length in enumerate(lengths):
                    for token in range(length):
                        expected = pool[tables[seq, token // page_size], token % page_size]
                        if not np.array_equal(values[seq, token], expected):
                            raise Off(f"token {token} of sequence {seq}, layer {layer}, {role} is another one")
                        compared += 1
                    if values[seq, length:].any():
                        raise Off(f"there is something behind the end of sequence {seq}")
    print(f"{compared} tokens, in all layers, keys and values: each is the one of the dump, bit for bit")


def flip(path: Path) -> None:
    """Change one bit of the second page of the last sequence, found in the file by its content."""
    dump = arrays_of_dump()
    page = dump["layers.1.value"][dump["block_tables"][-1, 1]].tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(page) + len(page) // 2] ^= 1
    path.write_bytes(data)


def main() -> int:
    print(f"The paged KV cache of a real model: {SHOWN}")
    with tempfile.TemporaryDirectory(prefix="hurray-demo-") as folder:
        try:
            title("Pack: only the pages in use, nothing that another request left in them")
            shell(folder, f"hurray-pack {SHOWN} -o cache.hrry --model-id SmolLM2-135M-Instruct")
            title("Look: any reader of the format sees the same")
            shell(folder, "hurray-unpack cache.hrry")
            title("Prove: every checksum, all padding, every table; and that it is the right model's")
            shell(folder, "hurray-unpack cache.hrry --verify --expect model.id=SmolLM2-135M-Instruct,page_size=16")
            title("Gather: the keys and values of every sequence, from a file that is mapped and not loaded")
            gather(Path(folder) / "cache.hrry")
            title("Compress, and compare by what the sequences hold")
            shell(folder, f"hurray-pack {SHOWN} -o small.hrry.zst --planes --quiet")
            shell(folder, "hurray-unpack small.hrry.zst --diff cache.hrry")
            sizes = [(Path(folder) / name).stat().st_size for name in ("cache.hrry", "small.hrry.zst")]
            check(sizes[1] < sizes[0], f"{sizes[0]:,} bytes became {sizes[1]:,}")
            title("Send: the same over a pipe")
            shell(folder, f"hurray-pack {SHOWN} -o - --quiet | hurray-unpack - --diff cache.hrry")
            title("Damage: one bit of a page is flipped, and found")
            flip(Path(folder) / "cache.hrry")
            shell(folder, "hurray-unpack cache.hrry --verify", code=1)
        except (Off, OSError, hw.HurrayError) as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    print("\nAll of it as it should be.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
