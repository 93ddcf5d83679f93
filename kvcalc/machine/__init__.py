"""This machine as its own tools describe it: accelerators, memory, and how fast the memory is.

`found_machine` asks the tools that are there (`tools`) and reads their answers (`outputs`, which is pure). A tool that
is missing, fails or hangs leaves out what it would have said; nothing here raises for it.
"""

from kvcalc.machine.found import found_machine
from kvcalc.machine.tools import System

__all__ = ["System", "found_machine"]
