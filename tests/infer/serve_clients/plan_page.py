"""The page of an explained strategy in headless Chromium: plan_page.py <path of the program plan> [path of Chromium].

At 390 and 1,280 pixels nothing but what scrolls by itself is wider than the window, and all text can be brought into view and is
large enough. The page has no script of its own, so that what is asked here is the browser's. Ends with 77 (skipped) without Chromium.
"""
import base64
import os
import pathlib
import subprocess
import sys
import tempfile

from chat_page import Browser, chromium

PLAN = pathlib.Path(__file__).resolve().parents[3] / "examples" / "plan"
STRATEGIES = ("mesh dp=2,pp=2,tp=8; schedule 1f1b; microbatches 16; recompute full",
              "mesh dp=2,pp=4,tp=4; schedule interleaved:2; microbatches 16; recompute none")
# Elements with words of their own that are too small, or do not come into view where there is room for them, boxes that scroll being
# scrolled to them.
HIDDEN = """(() => {
  const hidden = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest("title, style")) continue;
    e.scrollIntoView({block: "nearest", inline: "nearest"});
    const r = e.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(e).fontSize) * (e instanceof SVGElement ? e.getScreenCTM().a : 1);
    const room = (e.closest(".wide") || document.body).clientWidth;
    if (r.width > 0 && (size < 8.9 || (r.width <= room && (r.left < -1 || r.right > innerWidth + 1))))
      hidden.push(`${e.tagName} '${e.textContent.slice(0, 40)}': ${size} px, from ${r.left} to ${r.right}`);
  }
  return hidden;
})()"""


def read(b, file, width, pictures):
    """Opens the page in a window of a width and says what cannot be read."""
    b.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
    b.call("Page.navigate", url=file.as_uri())
    b.wait("document.readyState === 'complete' && document.querySelectorAll('svg').length >= 3")
    if pictures:
        with open(f"{pictures}/{file.stem}-{width}.png", "wb") as out:
            out.write(base64.b64decode(b.call("Page.captureScreenshot")["data"]))
    found = [] if b.value("innerWidth") == width else [f"the window is {b.value('innerWidth')} wide"]
    wide = b.value("document.documentElement.scrollWidth")
    if wide > width:
        found.append(f"the page is {wide} pixels wide")
    return found + b.value(HIDDEN)


def main(program, browser):
    """Pages of strategies, and of a search, at both widths. Pictures go to the folder that HEDDLE_PICTURES names, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        pages = []
        for number, strategy in enumerate(STRATEGIES):
            pages.append(pathlib.Path(folder) / f"strategy-{number}.html")
            done = subprocess.run([program, "--model", PLAN / "llama2_7b.json", "--cluster", PLAN / "cluster.json", "--batch", "64",
                                   "--strategy", strategy, "--html", pages[-1]], capture_output=True, text=True)
            if not pages[-1].exists() or pages[-1].stat().st_size == 0:
                raise SystemExit(done.stdout + done.stderr)
        b = Browser(browser, folder + "/profile")
        wrong = 0
        try:
            b.call("Page.enable")
            for page in pages:
                for width in (390, 1280):
                    found = read(b, page, width, os.environ.get("HEDDLE_PICTURES"))
                    wrong += len(found)
                    print(f"{page.stem}, {width} pixels: " + ("reads" if not found else "\n  ".join(["does not read:", *found])))
        finally:
            b.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], chromium(sys.argv[2:])))
