"""The two commands, ``hurray-pack`` and ``hurray-unpack``: clients of the public API, and the only code that prints.

    pack.py      a dump of arrays -> a snapshot
    again.py     a snapshot -> a snapshot
    summary.py   what pack.py says of what it wrote
    unpack.py    a snapshot -> what is in it, its arrays, or an answer (verify, expect, diff, annotate)
    console.py   what both share: one-line errors, exit codes, signals, closed pipes, escaped names
    standard.py  standard streams that are closed
    inputs.py    what a command is given to read, and how it begins
    spooling.py  what comes through a pipe and is needed whole
    choices.py   the values of options: numbers and ranges, key=value
    formats.py   what array files call element types
    dump.py      reading .safetensors, .npz and folders of .npy
    batch.py     what of a dump is packed: pools with tables, or a cache without pages
    naming.py    names of arrays -> a cache as its engine holds it, and back
    opening.py   Hurray files, URLs of them and streams, told apart
    export.py    a snapshot as arrays: pages, ragged, padded
    arrays.py    writing arrays, whole or not at all
    folders.py   a folder that appears when it is whole, and what killed runs left of one
    listing.py   a file as a table, or as JSON
    expect.py    the values that a user demands

Comparing snapshots (``diff.py``) and telling bytes apart (``annotate.py``) are the library's.
"""
