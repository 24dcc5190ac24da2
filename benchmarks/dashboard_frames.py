"""How smooth the dashboard is: the time between two pictures, in a real browser.

    python -m benchmarks.dashboard_frames 10000

A job of so many workers, eight on each node, answers as a real one would, each worker differently
each time it is asked. The page is shown by Chromium, which paints with the processor here. It notes
for ten seconds when it may paint, while the reader moves over the grid.
"""

from __future__ import annotations

import sys
import tempfile
import time

from tests.browser.conftest import CHROMIUM, DRIVER, FLAGS
from tests.browser.looking import Browser
from tests.browser.made_up_site import MadeUpSite
from tests.dashboard.made_up import MadeUpJob

SLOTS = 8
SECONDS = 10
NOTE_FRAMES = """
window.frames_ms = []; window.updates = 0; let last = performance.now();
const note = (now) => { frames_ms.push(now - last); last = now; requestAnimationFrame(note); };
requestAnimationFrame(note);
const grid = document.querySelector('[data-test=grid]'); let x = 0;
setInterval(() => { x = (x + 37) % grid.clientWidth; const at = grid.getBoundingClientRect();
  const point = {clientX: at.left + x, clientY: at.top + 50, bubbles: true};
  grid.dispatchEvent(new PointerEvent('pointermove', point));
}, 100);
"""


def measure(ranks: int) -> list[float]:
    """The times between pictures, in milliseconds, sorted."""
    from selenium import webdriver

    site = MadeUpSite(MadeUpJob(nodes=max(1, ranks // SLOTS), slots=min(ranks, SLOTS)))
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or "chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER or ""))
        try:
            browser = Browser(driver)
            browser.open(site.link)
            browser.until_text("[data-test=legend]", f"{ranks:,} running")
            browser.run(NOTE_FRAMES)
            time.sleep(SECONDS)
            return sorted(browser.run("return frames_ms.slice(1)"))
        finally:
            driver.quit()
            site.close()


def main() -> None:
    for ranks in map(int, sys.argv[1:] or ["8", "10000"]):
        frames = measure(ranks)
        at = [frames[int(len(frames) * share)] for share in (0.5, 0.95, 0.99)]
        print(
            f"{ranks:,} workers: {len(frames) / SECONDS:.0f} pictures a second; between two "
            f"{at[0]:.1f} ms in the middle, {at[1]:.1f} ms at 95 %, {at[2]:.1f} ms at 99 %, "
            f"{frames[-1]:.1f} ms at the most",
            flush=True,
        )


if __name__ == "__main__":
    main()
