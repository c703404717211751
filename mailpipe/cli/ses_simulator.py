"""`mailpipe ses-simulator`: the stand-in's own command, under our name."""

from mailpipe.simulator.__main__ import command

__all__ = ["command"]
