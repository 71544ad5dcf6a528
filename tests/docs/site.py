#!/usr/bin/env python3
"""Opens the site from the file system in headless Chromium, at the widths of a phone and of a desktop.

    site.py <folder of the site> <repository> [--pages REGEX]

Needs Playwright (pip install playwright) and the system's Chromium. No request goes to a network, none fails, no page is wider than its
window, blocks of a pair stand side by side at 1280 pixels and one below the other at 390; the search finds the page of
`halo_exchange`, and of the sentence of one refusal of each page of docs/errors. Status 77 where Playwright or Chromium is missing.
"""
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import quote, unquote

WIDTHS = (390, 1280)


def sentences(repository):
    """page of docs/errors -> the first whole sentence of its table."""
    for page in sorted((repository / "docs/errors").glob("*.md")):
        if page.stem == "index":
            continue
        for line in page.read_text(encoding="utf-8").split("\n"):
            found = re.search(r"heddle: [A-Za-z][^|`<>\\]{40,160}", line)
            if found:
                yield page.stem, " ".join(found[0].split()[1:9]).strip(".,;:()")
                break


def main(arguments):
    if len(arguments) not in (2, 4):
        print(__doc__)
        return 2
    site, repository = Path(arguments[0]).resolve(), Path(arguments[1]).resolve()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("site.py: needs Playwright: pip install playwright")
        return 77
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        print("site.py: needs Chromium: apt-get install chromium")
        return 77
    if not (site / "README.html").exists():
        print(f"site.py: {site} has no README.html: cmake --build build --target docs")
        return 1
    pages = sorted(p for p in site.rglob("*.html") if "_static" not in p.parts)
    if len(arguments) == 4:
        pages = [p for p in pages if re.search(arguments[3], str(p))]
    wrong = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--allow-file-access-from-files=false"])
        tab = browser.new_page()
        here = {"page": None}

        def outside(request):
            inside = request.url.startswith("file://" + quote(str(site))) or request.url.startswith(("data:", "blob:"))
            if not inside:
                wrong.append(f"{here['page']}: asks for {request.url}")

        tab.on("request", outside)
        tab.on("requestfailed", lambda request: wrong.append(f"{here['page']}: failed: {request.url}"))
        tab.on("pageerror", lambda error: wrong.append(f"{here['page']}: {error}"))
        paired = 0
        for page in pages:
            here["page"] = page.relative_to(site)
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 800})
                if width == WIDTHS[0]:
                    tab.goto("file://" + quote(str(page)), wait_until="load")
                wide = tab.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    wrong.append(f"{here['page']}: {wide} pixels wide in a window of {width}")
                for tops in tab.evaluate("[...document.querySelectorAll('.pair')].map(p => [...p.children].map(c => c.getBoundingClientRect().top))"):
                    paired += 1
                    if len(tops) != 2 or (tops[0] == tops[1]) != (width > 1000):
                        wrong.append(f"{here['page']}: a pair stands at {tops} in a window of {width}")
        print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels, {paired} looks at pairs")

        def search(words):
            here["page"] = f"search for {words}"
            tab.goto("file://" + quote(str(site / "search.html")) + "?q=" + quote(words), wait_until="load")
            tab.wait_for_function("document.querySelectorAll('#search-results li a').length > 0 || /did not match/.test(document.body.innerText)", timeout=60000)
            tab.wait_for_timeout(1500)
            return [unquote(a).split("#")[0].split("?")[0] for a in tab.evaluate("[...document.querySelectorAll('#search-results li a')].map(a => a.href)")]

        looks = [("docs/reference/tensor.html", "halo_exchange")] + [(f"docs/errors/{page}.html", words) for page, words in sentences(repository)]
        for page, words in looks:
            found = search(words)
            where = next((n for n, link in enumerate(found, 1) if link.endswith(page)), None)
            print(f"search for '{words}': {len(found)} pages, {page} is number {where}")
            if where is None:
                wrong.append(f"search for '{words}' does not find {page}")
        browser.close()
    print("\n".join(wrong) if wrong else "site.py: no findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
