"""Files of prices: what accelerators are rented for, by card, cloud and term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, ProfileError, did_you_mean
from kvcalc.plan.planner.prices import Price
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_prices"]

_FIELDS = ("gpu", "usd_per_gpu_hour", "usd_per_node_hour", "gpus_per_node", "cloud", "term", "date", "source")
_TOP = ("prices", "example", "date", "notes")


def read_prices(path: Path) -> dict[str, Price]:
    """Return the prices of a file by the card's name as it is written there; of a card's several the lowest.

    Raises:
        ProfileError: what is wrong, with file and line.
    """
    document = read_yaml_file(path)
    data: Any = document.data
    rows = data.get("prices") if isinstance(data, dict) else None
    unknown = next((key for key in data if key not in _TOP), None) if isinstance(data, dict) else None
    if unknown is not None:
        raise ProfileError(
            f"{unknown!r} is no field of prices", where=document.place(unknown), hint=f"fields: {', '.join(_TOP)}"
        )
    if not isinstance(rows, list) or not rows:
        hint = "prices: [{gpu: h100-sxm, usd_per_gpu_hour: 2.5}]"
        raise ProfileError("the file holds no list of prices", where=str(path), hint=hint)
    prices: dict[str, Price] = {}
    for index, row in enumerate(rows):
        where = document.place(f"prices.{index}")
        name, price = _price(row, where)
        if (
            name not in prices
            or price.of(price.gpus) / price.gpus < prices[name].of(prices[name].gpus) / prices[name].gpus
        ):
            prices[name] = price
    return prices


def _price(row: Any, where: str) -> tuple[str, Price]:
    """Return one row's card and price."""
    if not isinstance(row, dict) or not isinstance(row.get("gpu"), str):
        raise ProfileError("a price names its card", where=where, hint="{gpu: h100-sxm, usd_per_gpu_hour: 2.5}")
    unknown = next((key for key in row if key not in _FIELDS), None)
    if unknown is not None:
        hint = did_you_mean(str(unknown), _FIELDS) or f"fields: {', '.join(_FIELDS)}"
        raise ProfileError(f"{unknown!r} is no field of a price", where=where, hint=hint)
    each, node = row.get("usd_per_gpu_hour"), row.get("usd_per_node_hour")
    amount = each if node is None else node
    if (each is None) == (node is None) or not isinstance(amount, int | float) or isinstance(amount, bool):
        raise ProfileError("a price is usd_per_gpu_hour or usd_per_node_hour", where=where)
    gpus = row.get("gpus_per_node", 8) if node is not None else 1
    text = ", ".join(str(row[key]) for key in ("cloud", "term", "date") if key in row)
    try:
        return row["gpu"], Price(usd_per_hour=float(amount), gpus=int(gpus), text=text)
    except (InputError, TypeError, ValueError) as error:
        raise ProfileError(getattr(error, "message", str(error)), where=where) from None
