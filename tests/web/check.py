#!/usr/bin/env python3
"""check.py --native PROGRAM [--page INDEX.HTML] [--pictures FOLDER]: the page of web/.

Without --page: the native program (native.cpp) answers the page's requests, and the hashes that the page shows as native are those of this
program, under every strategy. With --page: a reader in headless Chromium uses the five sections, with pointer and keyboard, and the page's
trainings end with the native bits. Exit code 77: emscripten, the page or Chromium is missing."""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

from browser import Browser, chromium

root = pathlib.Path(__file__).resolve().parents[2]


def skip(message):
    print("skipped:", message)
    sys.exit(77)


def holds(condition, message):
    if not condition:
        sys.exit("WRONG: " + message)


class Native:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def hashes_of(native):
    found = {}
    for strategy in native.ask(do="about")["strategies"]:
        native.ask(do="new", strategy=strategy, lr=1e-3)
        native.ask(do="steps", count=200)
        found[strategy] = native.ask(do="hash")["hash"]
    return found


def check_native(native):
    hashes = hashes_of(native)
    shown = dict(re.findall(r"'([a-z0-9-]+)': '([0-9a-f]{16})'", (root / "web/page.js").read_text()))
    holds(hashes == shown, f"page.js has other native hashes. Write these: {hashes}")
    a = native.ask(do="round", format="bf16", x=0.1)
    holds(a["result"]["text"] == "0.100097656" and a["bits"] == ["0", "01111011", "1001101"], f"0.1 in bf16 is {a}")
    holds(native.ask(do="round", format="e4m3", x=1000)["result"]["text"] == "448", "e4m3 saturates at 448")
    holds(native.ask(do="round", format="f16", x=1e-8)["result"]["text"] == "0", "1e-8 is 0 in f16")
    native.ask(do="new", strategy="amp-fp16", scale=2**-24, lr=1e-3)
    losses = native.ask(do="steps", count=200)["losses"]
    holds(min(losses) > 2, f"with gradients 2^24 times smaller and no loss scale, f16 learns nothing: {losses[-1]}")
    zero = native.ask(do="look")["underflow"]["scaled"]["zero"]["value"]
    holds(zero is None, f"all of these gradients are 0 in f16: {zero}")
    holds("no format" in native.ask(do="round", format="e99m1", x=1)["error"], "an unknown format is an error")
    paths = {p["strategy"]: p for p in native.ask(do="update", w=1, g=-1, lr=0.003)["paths"]}
    holds(paths["full-bf16"]["moves"] == 0 and paths["full-bf16-kahan"]["moves"] > 20, "bf16 stands still, Kahan moves")
    native.ask(do="new", id=1, strategy="o2-bf16")
    a = native.ask(do="look", id=1)
    holds(sum(a["bytes"].values()) == a["total"], "the bytes add up")
    a = native.ask(do="policy", text='{"halftone_policy": 1, "name": "t", "extends": "amp-bf61"}')
    holds('Did you mean "amp-bf16"?' in a["error"], f"the library's error: {a}")
    print("native: 12 hashes are those of page.js")


def seconds(page, text):
    """Time from an event to the end of the layout that it causes, in ms."""
    return page.js(f"(() => {{ const t = performance.now(); {text}; document.body.offsetHeight; return performance.now() - t; }})()")


def check_page(page, native):
    said = lambda part: page.js(f"document.getElementById('{part}').textContent")
    page.wait("document.documentElement.dataset.ready === 'yes'")

    # 1. A number
    page.choose("#n-format", "f16")
    page.write("#n-x", "1e-8")
    holds("becomes 0 in f16" in said("n-says"), said("n-says"))
    page.click('[data-try="0.1 bf16"]')
    holds("0.100097656" in said("n-says"), said("n-says"))
    page.click('[data-try="1e-8 f16"]')
    holds("Under a loss scale of 65,536 it is" in said("n-says"), said("n-says"))
    page.write("#n-own", "e5m6")
    page.write("#n-x", "0.1")
    wanted = native.ask(do="round", format="e5m6", x=0.1)["result"]["text"]
    holds(wanted in said("n-says"), f"{wanted} in: {said('n-says')}")
    page.write("#n-x", "one")
    holds("is not a number" in said("n-says"), said("n-says"))
    page.choose("#n-format", "mxfp4")
    page.write("#n-x", "300")
    holds("of 32 numbers become 0" in said("n-says") and not page.js("document.getElementById('n-block').hidden"), said("n-says"))

    # 2. An update
    page.write("#u-lr", "0.003")
    holds("never moves" in said("u-says"), said("u-says"))
    page.write("#u-lr", "0.1")
    holds("the bf16 weight moves" in said("u-says"), said("u-says"))

    # 3. A training: two strategies at a time, all twelve
    strategies = list(page.js("[...document.querySelector('.strategy').options].map(o => o.value)"))
    shown, rates = {}, []
    for pair in zip(strategies[::2], strategies[1::2]):
        for i, strategy in enumerate(pair):
            page.choose(f"#t-runs > div:nth-child({i + 1}) .strategy", strategy)
        page.click("#t-run")
        page.wait("document.querySelectorAll('[data-hash]').length === 2", 120)
        shown.update(page.js("Object.fromEntries([...document.querySelectorAll('[data-hash]')].map(e => [e.dataset.hash, e.textContent]))"))
        holds(page.js("[...document.querySelectorAll('[data-is=hash]')].every(e => e.textContent.includes('the same bits'))"), f"other bits: {shown}")
        if "fp32" in pair:
            rates.append(int(page.js("document.querySelectorAll('[data-is=rate]')[1].textContent.replace(',', '')")))
        adds = page.js("[...document.querySelectorAll('.key')].every(k => { const n = [...k.children].map(l => Number(l.textContent.match(/[\\d,]+$/)[0]"
                       ".replace(/,/g, ''))); const all = n.pop(); return all === n.reduce((a, b) => a + b) && all > 0; })")
        holds(adds, "the bar adds up")
    holds(shown == hashes_of(native), f"hashes {shown}")
    page.choose("#t-runs > div:nth-child(1) .strategy", "amp-fp16")
    page.choose("#t-runs > div:nth-child(1) .scale", "1073741824")
    page.click("#t-run")
    page.wait("document.getElementById('t-run').textContent === 'Go on'", 120)
    skipped = page.js("Number(document.querySelector('[data-is=facts]').textContent.match(/(\\d+) steps skipped/)[1])")
    holds(skipped > 3, f"{skipped} steps were skipped under a scale of 2^30")
    page.choose("#t-runs > div:nth-child(2) .strategy", "o3-fp16")
    page.wait("document.querySelectorAll('.scale')[1].parentElement.hidden", 20)
    page.choose("#t-runs > div:nth-child(2) .strategy", "split-bf16")
    page.choose("#t-runs > div:nth-child(1) .scale", "5.960464477539063e-8")  # as JavaScript writes 2 ** -24
    page.click("#t-run")
    page.wait("document.getElementById('t-run').textContent === 'Go on'", 120)
    holds("amp-fp16 has learned less" in said("t-says"), said("t-says"))
    casts = "[...document.querySelectorAll('#t-runs > div:nth-child(1) .list tbody tr')].find(r => r.textContent.startsWith('linear')).children"
    before = page.js(casts + "[2].textContent")
    page.choose("[data-op=linear]", "full_precision")
    holds(before == "f16" and page.js(casts + "[2].textContent") == "f32", "a changed list changes the operation's dtype")
    holds(page.js("runs[0].losses.length === runs[1].losses.length"), "both trainings are at the same step")
    holds("unchanged list" in page.js("document.querySelector('[data-is=hash]').textContent"), "a changed list has no native hash")

    # 4. A policy
    page.write("#p-text", '{"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [{"match": {"op": "sofmax"}, "input": "e4m3"}]}')
    page.wait("document.getElementById('p-says').textContent.includes('Did you mean \"softmax\"?')", 5)
    page.choose("#p-shipped", "mxfp8")
    holds("tensors" in said("p-says") and "mxfp8" in said("p-table"), said("p-says"))

    # 5. A task, by keyboard alone: Tab from the text to the button
    page.click("#k-run")
    holds("FAILED" in said("k-says") and "expected  0x3f82" in said("k-says"), said("k-says"))
    page.write("#k-text", "if ((bits & 0x7fffffff) > 0x7f800000) return bits >>> 16 | 0x40; return (bits + 0x7fff + (bits >>> 16 & 1)) >>> 16")
    page.key("Tab", 9)
    page.key("Enter", 13, "\r")
    holds("passed" in said("k-says"), said("k-says"))

    # Every control has a name, is reached by Tab, and the order is the page's.
    unnamed = page.js("[...document.querySelectorAll('input, select, textarea, button')].filter(e => !e.textContent.trim() && !e.labels?.length && "
                      "!e.getAttribute('aria-label')).map(e => e.outerHTML)")
    holds(not unnamed, f"controls without a label: {unnamed}")
    page.js("document.activeElement.blur(), scrollTo(0, 0)")
    reached = set()
    for _ in range(80):
        page.key("Tab", 9)
        reached.add(page.js("document.activeElement.id || document.activeElement.className || document.activeElement.dataset.op"))
    missing = {"n-x", "n-slide", "n-format", "u-w", "u-slide", "t-run", "strategy", "scale", "linear", "p-shipped", "p-text", "k-text", "k-run"} - reached
    holds(not missing, f"Tab does not reach {missing}")

    # Time from an event to the new layout, the median of 15; the longest part of a training is a turn of its timer.
    page.js("document.querySelector('#n-own').value = ''")
    times = {}
    for name, event in {
            "a number": "document.getElementById('n-x').value = 0.1 + i / 1000; document.getElementById('n-format').value = 'bf16'; document.getElementById('n-x').oninput()",
            "a block": "document.getElementById('n-format').value = 'nvfp4'; document.getElementById('n-x').oninput()",
            "an update": "document.getElementById('u-lr').value = 0.003 + i / 1000; document.getElementById('u-lr').oninput()",
            "a new training": "document.getElementById('t-new').onclick()",
            "a changed list": "document.querySelector('[data-op]').oninput()",
            "a policy": "showPolicy()"}.items():
        times[name] = sorted(seconds(page, event.replace("i /", f"{i} /")) for i in range(15))[7]
    page.js("window.longest = []; new PerformanceObserver(l => longest.push(...l.getEntries().map(e => e.duration))).observe({type: 'longtask'})")
    page.click("#t-new")
    page.click("#t-run")
    page.wait("document.getElementById('t-run').textContent === 'Go on'", 120)
    memory = page.js("library.wasmMemory.buffer.byteLength / 1048576")
    heap = page.js("performance.memory ? performance.memory.usedJSHeapSize / 1048576 : 0")
    print("milliseconds:", {k: round(v, 1) for k, v in times.items()}, "tasks of a training above 50 ms:", [round(x) for x in page.js("longest")])
    print(f"fp32: {rates[0]} steps a second; memory: {memory:.1f} MiB of the library, {heap:.1f} MiB of JavaScript")
    holds(memory + heap < 200, "more than 200 MiB")
    holds(not page.errors, f"errors of the page: {page.errors}")


def check_widths(page, folder):
    for width in (400, 1400):
        for dark in (False, True):
            page.size(width, 1000, dark)
            time.sleep(0.3)
            wide = page.js("document.documentElement.scrollWidth")
            holds(wide == width, f"in a window of {width} the page is {wide} wide")
            if folder:
                page.picture(f"{folder}/web_{width}_{'dark' if dark else 'light'}.png")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--native", required=True)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--pictures")
    arguments = parser.parse_args()
    native = Native(arguments.native)
    check_native(native)
    if not arguments.page:
        return
    if shutil.which("em++"):
        made = subprocess.run([root / "scripts/web.sh"], capture_output=True, text=True)
        if "emscripten is" in made.stderr or "is missing" in made.stderr:
            skip(made.stderr.strip())
        holds(made.returncode == 0, made.stderr)
    if not arguments.page.exists():
        skip(f"there is no {arguments.page}. Install emscripten, or build it with scripts/web.sh --root DIR")
    for name in ("index.html", "page.js"):
        if (arguments.page.parent / name).read_text() != (root / "web" / name).read_text():
            skip(f"{name} of the built page is older than web/{name}. Run scripts/web.sh again")
    if not chromium():
        skip("Chromium is not installed (Debian's package chromium)")
    page = Browser(arguments.page.resolve().as_uri())
    try:
        page.size(1400, 1000)
        check_page(page, native)
        check_widths(page, arguments.pictures)
    finally:
        page.close()
    print("as it should be")


main()
