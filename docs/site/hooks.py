"""Links of the documents that leave docs/ lead to the repository, where the site has no page for them."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return a page's text with links to files beside docs/ as addresses of the repository."""
    return _OUTSIDE.sub(lambda link: f"]({config['repo_url']}/blob/main/{link[1]}{link[2] or ''})", markdown)
