"""The two commands, ``hurray-pack`` and ``hurray-unpack``: clients of the public API, and the only code that prints.

pack.py      dump of arrays -> snapshot
unpack.py    snapshot -> what is in it, arrays, or an answer (verify, expect, diff, annotate)
console.py   what both share: one-line errors, exit codes, signals, closed pipes, escaped names
choices.py   the values of options: numbers and ranges, key=value
dump.py      reading .safetensors, .npz and folders of .npy
arrays.py    writing them, whole or not at all
naming.py    names of arrays -> a cache as its engine holds it, and back
export.py    a snapshot as arrays: pages, ragged, padded
listing.py   a file as tables, or as JSON
expect.py    the values that a user demands
"""
