"""Headless Chromium, spoken to over a pipe: no package is needed."""
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. Names of methods are those of Chromium's DevTools protocol."""

    def __init__(self, url):
        self.profile = tempfile.mkdtemp()
        to_browser, self.writing = os.pipe()
        self.reading, from_browser = os.pipe()

        def fixed():  # the pipe's ends are descriptors 3 and 4 of the browser
            ends = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ends[0], 3), os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile}", "about:blank"],
            close_fds=False, preexec_fn=fixed, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.numbers, self.rest, self.errors, self.session = itertools.count(1), b"", [], None
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(domain + ".enable")
        self.do("Page.navigate", url=url)

    def do(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"]["exception"].get("description"))
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def next_message(self):
        while b"\0" not in self.rest:
            part = os.read(self.reading, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def js(self, text):
        result = self.do("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(text + ": " + str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, condition, seconds=60):
        end = time.time() + seconds
        while not self.js(condition):
            if time.time() > end:
                raise RuntimeError(f"after {seconds} s this does not hold: {condition}")
            time.sleep(0.05)

    def click(self, selector):
        x, y = self.js(f"(e => (e.scrollIntoView({{block: 'center'}}), e = e.getBoundingClientRect(), [e.x + e.width / 2, e.y + e.height / 2]))"
                       f"(document.querySelector('{selector}'))")
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key, code=0, text="", modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "",
                    modifiers=modifiers)

    def write(self, selector, text):
        """Replaces the text of a field, as a reader would: select all, and type."""
        self.js(f"(e => (e.focus(), e.select()))(document.querySelector('{selector}'))")
        self.do("Input.insertText", text=text)

    def choose(self, selector, value):
        self.js(f"(e => (e.value = '{value}', e.dispatchEvent(new Event('input', {{bubbles: true}}))))(document.querySelector('{selector}'))")

    def size(self, width, height, dark=False):
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path):
        height = min(self.js("document.documentElement.scrollHeight"), 16000)
        width = self.js("innerWidth")
        data = self.do("Page.captureScreenshot", captureBeyondViewport=True,
                       clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.do("Browser.close")
        except RuntimeError:
            pass
        self.process.wait(timeout=20)
        shutil.rmtree(self.profile, ignore_errors=True)
