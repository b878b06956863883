"""A run in progress: counted by a hooks object, shown by a thread of its own.

`tally` counts, `painter` calls a screen now and then, and the screens are a `board` on a terminal,
plain `lines` elsewhere, and `json_lines` for machines.
"""
