"""``local``: processes of this machine, watched, and gone with the controller."""

from areal_lit_launchers.local.launcher import Local

__all__ = ["Local"]
