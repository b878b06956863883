"""The report: one self-contained page about one run or several.

`data` is what a page is made of, `page` lays it out, `charts` draw, `style` holds the looks.
"""
