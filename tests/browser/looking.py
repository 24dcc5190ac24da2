"""Looking at a page, and using it, as a person would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


class Browser:
    """One tab."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, link: str, tab: str = "", width: int = 1440, height: int = 900) -> None:
        """Open a page afresh, and wait until it shows something."""
        self.size(width, height)
        self.driver.get("about:blank")
        self.driver.get(link)
        until(lambda: self.find("main section, main.lock"), "the page shows nothing")
        if tab:
            self.driver.execute_script(f"location.hash = {tab!r}")

    def size(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """What people can read there; nothing where it is not."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')"
        )
        return " ".join(str(self.run(script, selector)).split())

    def until_text(self, selector: str, words: str) -> None:
        until(
            lambda: words in self.text(selector),
            lambda: f"{words!r} in {selector}, which says {self.text(selector)[:2000]!r}",
        )

    def click(self, selector: str) -> None:
        until(lambda: self.find(selector), f"{selector} to click at")
        self.run("document.querySelector(arguments[0]).click()", selector)

    def write(self, selector: str, text: str) -> None:
        until(lambda: self.find(selector), f"{selector} to write into")
        element = self.find(selector)[0]
        element.clear()
        element.send_keys(text)

    def choose(self, selector: str, *files: Path) -> None:
        """In the dialog for files, which no test can see."""
        until(lambda: self.find(selector), f"{selector} to choose files with")
        self.find(selector)[0].send_keys("\n".join(map(str, files)))

    def press(self, *keys: str) -> None:
        """Keys go to what has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def complaints(self) -> list[str]:
        """What the console has of errors since this was last asked; lost lines are none."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [one for one in found if "Content Security Policy" in one or "Uncaught" in one]

    def hosts(self) -> set[str]:
        """Where all that was loaded came from."""
        script = (
            "return performance.getEntriesByType('resource').map(e => new URL(e.name).protocol "
            "=== 'data:' ? 'data' : new URL(e.name).host)"
        )
        return set(self.run(script)) - {"data"}
