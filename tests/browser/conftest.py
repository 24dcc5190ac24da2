"""A real browser, and pages in it.

Debian's Chromium and its driver are used as they are (packages chromium and chromium-driver); no
driver and no browser is fetched. Where there is none, tests are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.browser.jobs import RunningJobs
from tests.browser.looking import Browser
from tests.browser.made_up_site import MadeUpSite
from tests.dashboard.made_up import MadeUpJob
from tests.process_tree import Process, command_of, family, running_below
from tests.waiting import until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # Tests may run as root, whom Chromium's sandbox refuses.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests: it takes seconds to start."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs a browser: install the packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (make test)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    before = family().running
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    started = family().running - before
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    yield Browser(driver)
    started |= running_below(started)
    driver.quit()
    until(lambda: not started & family().running, lambda: _told(started & family().running))


def _told(processes: set[Process]) -> str:
    """What the browser left behind, which is killed."""
    words = [command_of(one.pid) for one in processes]
    for one in processes:
        os.kill(one.pid, signal.SIGKILL)
    return f"the end of the browser's own: {words}"


@pytest.fixture
def made_up() -> Iterator[Callable[[MadeUpJob], MadeUpSite]]:
    """Serve a job that exists only in what it answers."""
    opened: list[MadeUpSite] = []

    def serve(job: MadeUpJob) -> MadeUpSite:
        opened.append(MadeUpSite(job))
        return opened[-1]

    yield serve
    for site in opened:
        site.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[RunningJobs]:
    """Real jobs, ended with the test."""
    running = RunningJobs(tmp_path)
    yield running
    running.close()
