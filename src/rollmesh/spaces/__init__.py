"""Values: spaces, codecs, conformance and metadata (layer 2).

    space.py        frozen descriptions of spaces
    codec.py        values ↔ leaves, one row or many
    leaf_codec.py   what a leaf is, and what all leaf codecs can do
    leaves.py       fixed leaves; discrete.py: the one of a Discrete
    ragged.py       leaves whose rows differ in length; nested.py and inner.py: those that hold
                    inner batches
    reading.py      odd inputs to arrays
    conformance.py  what happens to values that do not fit
    recycling.py    memory of large arrays, used again
    checks.py       what a space checks about itself
    metadata.py     infos and options
    gymnasium.py    conversion from and to Gymnasium's spaces

It knows no env, model, runtime or transport.
"""
