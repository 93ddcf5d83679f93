"""``kvcalc gpus``."""

from __future__ import annotations

from kvcalc.cli.profiles import profiles_app

app = profiles_app("hardware", "List, show and validate accelerator profiles.")
