"""How smooth the dashboard is: the time between two pictures, in a real browser.

    python -m benchmarks.dashboard_frames 10000

A job of so many workers, eight on each node, answers as a real one would, each worker differently
each time it is asked. The page is shown by Chromium, which paints with the processor here. It notes
when it may paint, while the reader moves over the grid: first while all workers step, then while
the round ends, nobody runs, and all begin anew.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial

from tests.browser.conftest import CHROMIUM, DRIVER, FLAGS
from tests.browser.looking import Browser
from tests.browser.made_up_site import MadeUpSite
from tests.dashboard.made_up import MadeUpJob

from holdfast.dashboard.source import interval_s

SLOTS = 8
STEPPING_S = 10
ENDING = ("stopping", "waiting", "running", "stopping", "waiting", "running")
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

TAKE_FRAMES = "return frames_ms.splice(0).slice(1)"


def measure(ranks: int) -> dict[str, list[float]]:
    """The times between pictures, in milliseconds, sorted: while all step, while all restart."""
    from selenium import webdriver

    job = MadeUpJob(nodes=max(1, ranks // SLOTS), slots=min(ranks, SLOTS))
    site = MadeUpSite(job)
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
            time.sleep(STEPPING_S)
            stepping = browser.run(TAKE_FRAMES)
            for stage in ENDING:
                site.call(partial(restart, job, stage))
                time.sleep(interval_s(job.nodes) + 0.5)
            return {"all step": sorted(stepping), "a restart": sorted(browser.run(TAKE_FRAMES))}
        finally:
            driver.quit()
            site.close()


def restart(job: MadeUpJob, stage: str) -> None:
    """The round goes on to its end, to the pause between two, or to the next one."""
    job.stage = stage
    if stage == "running":
        job.round += 1
        job.began = time.monotonic()


def main() -> None:
    for ranks in map(int, sys.argv[1:] or ["8", "10000"]):
        for what, frames in measure(ranks).items():
            at = [frames[int(len(frames) * share)] for share in (0.5, 0.95, 0.99)]
            print(
                f"{ranks:,} workers, {what}: {1000 * len(frames) / sum(frames):.0f} pictures a "
                f"second; between two {at[0]:.1f} ms in the middle, {at[1]:.1f} ms at 95 %, "
                f"{at[2]:.1f} ms at 99 %, {frames[-1]:.1f} ms at the most",
                flush=True,
            )


if __name__ == "__main__":
    main()
