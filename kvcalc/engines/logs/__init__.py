"""Start-up logs of vLLM, SGLang and llama.cpp (also ollama and llama-server): what they say and print.

`read_log` finds the start-ups in a text: the engine, its version, the model, the options and the printed numbers. Lines
that are not known are passed over; nothing is computed here.
"""

from kvcalc.engines.logs.names import model_names
from kvcalc.engines.logs.reader import read_log
from kvcalc.engines.logs.records import BreakdownLine, CacheLine, Printed, RefusalLine, StartUp, StateLine
from kvcalc.engines.logs.text import decoded

__all__ = [
    "BreakdownLine",
    "CacheLine",
    "Printed",
    "RefusalLine",
    "StartUp",
    "StateLine",
    "decoded",
    "model_names",
    "read_log",
]
