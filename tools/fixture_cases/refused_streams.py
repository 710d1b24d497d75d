"""Streams that break one rule each: when they are read to their end, or when a snapshot is received from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import contents as c
from . import descriptors as d
from . import pieces as p
from . import streams as s
from .cases import Case, by_name
from .emit import Content, Descriptor
from .files import LENGTHS
from .refused_files import Options

Row = tuple[Any, ...]  # rule[--variant], accepted sibling, words, then changes, a subject, an edit or options


def cases() -> list[Case]:
    accepted = by_name(s.cases())
    bare = [_case(accepted, *row) for row in _rows()]
    return bare + [replace(_case(accepted, *row), when="snapshot") for row in _snapshots()]


def _case(accepted: dict[str, Case], name: str, of: str, words: str, *breaks: Any) -> Case:
    sibling = accepted[of]
    case = replace(
        sibling, name=name, description=words, options={},
        rule=name.partition("--")[0], when="stream", keeps=sibling.file,
    )  # fmt: skip
    for change in breaks:
        if isinstance(change, Options):
            case = replace(case, options=dict(change))
        elif isinstance(change, dict):
            case = replace(case, changes=change)
        elif isinstance(change, tuple):
            case = replace(case, subject=change)
        else:
            case = replace(case, edit=change)
    return case


def _rows() -> Iterator[Row]:
    of = "stream-worked-example"
    yield (
        "stream.truncated--header",
        of,
        "the second descriptor ends within its first 20 bytes",
        lambda b: b[: 797 + 10],
    )
    yield "stream.truncated--descriptor", of, "the second descriptor ends early", lambda b: b[: 797 + 100]
    yield "stream.truncated--before-buffer", of, "the last buffer is missing", lambda b: b[:-8]
    yield "stream.truncated--buffer", of, "the last byte is missing", lambda b: b[:-1]
    yield "descriptor.magic--stream", of, "a byte stands between two tensors", lambda b: b[:797] + b"\0" + b[797:]
    yield "descriptor.magic--stream-tail", of, "20 bytes of something else follow", lambda b: b + bytes(20)
    yield "descriptor.magic--stream-file", of, "the magic of the first tensor is HRRX", {"tensors[0].magic": b"HRRX"}
    yield "block-paged.kv-role--stream", of, "the second tensor has kv_role 3", {"tensors[1].kv_role": 3}
    yield "layout.tag--stream", of, "an unknown layout, whose end nobody knows", {"tensors[1].layout_tag": 0x7B}
    yield (
        "limit.descriptor-bytes--stream",
        of,
        "a descriptor of 2^32 - 1 bytes",
        {"tensors[1].descriptor_length": 0xFFFFFFFF},
    )
    yield "limit.buffer-bytes", of, "a page pool of 2^62 bytes", {"tensors[1].buffer_handles[0].byte_size": 1 << 62}
    yield (
        "stream.sync-mode",
        of,
        "a buffer that is synced by an event, from another machine",
        (c.dense("t", replace(d.PLAIN, handles=((24, 64, 1, 1, 0),))),),
        Options(cross_machine=True),
    )
    of = "stream-partition"
    yield "composite.torn--no-member", of, "a head and nothing else", c.partition()[:1]
    yield "composite.torn--last-member", of, "the last of three members is missing", c.partition()[:3]
    yield "composite.torn--snapshot", "stream-snapshot", "a snapshot without its last tensor", s.snapshot()[:-1]
    yield "composite.torn--nested", "stream-nested", "the inner partition lacks a member", c.nested()[:-1]
    deep: tuple[Content, ...] = (c.small("t", 1),)
    for _ in range(8):
        deep = c.group(deep)
    yield "composite.depth", "stream-nested", "a group within a group, 9 deep", c.group(deep)
    yield (
        "limit.members",
        "stream-group-empty",
        "a group of 2^32 - 2",
        (Content("g", Descriptor(p.U8, (), **p.composite(p.GROUP, 0xFFFFFFFE))),),
    )


def _snapshots() -> Iterator[Row]:
    of = "stream-snapshot"
    yield "stream.empty", of, "no byte at all", ()
    yield "snapshot.stream-group--partition", of, "a partition is no snapshot", c.partition()
    yield (
        "snapshot.stream-group--nested",
        of,
        "a group within the group",
        c.group((s.snapshot()[1], *c.group(s.TENSORS))),
    )
    yield (
        "snapshot.stream-metadata--type",
        of,
        "the first member is the lengths",
        c.group((c.seq_lens(*LENGTHS), *s.TENSORS)),
    )
    metadata = s.snapshot()[1]
    size = len(metadata.buffers[0])
    yield (
        "snapshot.stream-metadata--rank",
        of,
        "the metadata have rank 2",
        c.group((replace(metadata, descriptor=replace(metadata.descriptor, shape=(1, size))), *s.snapshot()[2:])),
    )
    yield (
        "metadata.truncated--stream",
        of,
        "the metadata end early",
        c.group((c.small("metadata", *metadata.buffers[0][:-1]), *s.snapshot()[2:])),
    )
    yield "snapshot.stream-names--count", of, "four names for five members", s.snapshot(["a", "b", "c", "d"])
    yield "snapshot.stream-names--twice", of, "two members named a", s.snapshot(["seq_lens", "a", "b", "a", "c"])
    yield "snapshot.stream-names--bare", of, "two bare tensors for one layer and role", (s.TENSORS[0], s.TENSORS[0])
