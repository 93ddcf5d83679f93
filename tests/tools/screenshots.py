"""Take the pictures of docs/explore.md again: the explorer at three widths, in light and dark.

Needs chromium and `pip install 'kvcalc[explore,browser-test]'`.

    python tests/tools/screenshots.py [PICTURE …]
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explore"
RUN = "model=llama3.1-70b&gpu=h200&gpus=2&batch=16&context=8192"
NARROW, MIDDLE, WIDE = (390, 844), (820, 1000), (1440, 900)
SHOTS = {
    "size-wide": (f"view=size&{RUN}", WIDE, "light"),
    "size-narrow": (f"view=size&{RUN}", NARROW, "light"),
    "speed-wide": (f"view=speed&{RUN}", WIDE, "light"),
    "speed-middle": (f"view=speed&{RUN}", MIDDLE, "dark"),
    "speculate-middle": (f"view=speculate&method=&draft=llama3.1-8b&{RUN}", MIDDLE, "light"),
    "serve-wide": ("view=serve&model=llama3.1-8b&gpu=h100-sxm&rate=8&requests=500", WIDE, "dark"),
    "network-wide": ("view=network&model=qwen3-next-80b-a3b&gpu=h200&gpus=2&batch=16&context=32768", WIDE, "light"),
    "learn-wide": ("view=learn&demo-context=128", WIDE, "light"),
    "learn-narrow": ("view=learn&demo=speculate", NARROW, "dark"),
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def take(browser, address, name, query, size, scheme):
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(f"{address}?{query}")
    page.wait_for_selector("[data-chart][data-drawn] svg", timeout=60_000)
    page.wait_for_timeout(1500)
    if NARROW[0] < width < WIDE[0]:  # the results stand below the controls
        page.evaluate("document.querySelector('main').scrollIntoView()")
    page.screenshot(path=FOLDER / f"{name}.png")
    page.close()
    print(FOLDER / f"{name}.png", (FOLDER / f"{name}.png").stat().st_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=f"all, where left out: {', '.join(SHOTS)}")
    pictures = parser.parse_args().pictures or list(SHOTS)
    if unknown := set(pictures) - set(SHOTS):
        parser.error(f"no picture is named {', '.join(sorted(unknown))}: they are {', '.join(SHOTS)}")
    FOLDER.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "kvcalc", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server, sync_playwright() as started:
        try:
            address = server.stdout.readline().strip()
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for name in pictures:
                take(browser, address, name, *SHOTS[name])
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
