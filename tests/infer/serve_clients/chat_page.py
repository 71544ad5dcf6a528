"""The server's chat page in headless Chromium: chat_page.py <path of the program serve> [path of Chromium].

Talks to the model as a user does, on a phone and on a desk, light and dark; what the small model cannot show (a long answer, one that
is loading) comes from a `fetch` of its own. Speaks the DevTools protocol over the pipe that
--remote-debugging-pipe gives, so that it needs nothing but Python and Chromium. Ends with 77 (skipped) without Chromium.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from example_server import KEY, served


class Browser:
    """Chromium without a window, and its DevTools."""

    def __init__(self, program, profile):
        from_us, to_us = os.pipe(), os.pipe()
        self.out, self.back, self.rest, self.last = from_us[1], to_us[0], b"", 0
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]

        def ends():  # Chromium reads from 3 and writes to 4
            read_end, write_end = os.dup(from_us[0]), os.dup(to_us[1])
            os.dup2(read_end, 3)
            os.dup2(write_end, 4)

        keep = sorted({3, 4, from_us[0], to_us[1]})
        self.process = subprocess.Popen(command, pass_fds=keep, preexec_fn=ends, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(from_us[0])
        os.close(to_us[1])
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]

    session = None

    def call(self, method, **parameters):
        """The result of a command; events that come meanwhile are passed over."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.back, 65536)
                if not more:
                    raise SystemExit("Chromium ended")
                self.rest += more
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Waits until an expression is true."""
        until = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > until:
                raise SystemExit(f"after {seconds:g} s this still does not hold: {expression}\n" +
                                 str(self.value("document.body && document.body.innerText")))
            time.sleep(0.05)

    def write(self, field, text):
        """Types into a field, as a user does."""
        self.value(f"document.getElementById('{field}').select()")
        self.value(f"document.getElementById('{field}').focus()")
        self.call("Input.insertText", text=text)

    def close(self):
        """Ends Chromium."""
        self.process.terminate()
        self.process.wait(30)


# Before the page's own script: the model is loading when it is asked first, and where `words` is set the answer has so many, slowly.
FETCH = """
const real = fetch;
window.asked = [], window.failed = [], window.loading = 3, window.words = 0;
addEventListener("error", e => failed.push(e.message));
addEventListener("unhandledrejection", e => failed.push(String(e.reason)));
window.fetch = async (to, how) => {
  if (!how && loading-- > 0) return new Response('{"error": {"message": "loading"}}', { status: 503 });
  if (how) asked.push(JSON.parse(how.body).messages);
  if (!how || !words) return real(to, how);
  const bytes = new TextEncoder();
  let left = words;
  return new Response(new ReadableStream({ async pull(to) {
    await new Promise(resolve => setTimeout(resolve, 5));
    if (how.signal.aborted) return to.error(new DOMException("", "AbortError"));
    to.enqueue(bytes.encode(left-- > 0 ? 'data: {"choices": [{"delta": {"content": "word word word word "}}]}\\n\\n' : "data: [DONE]\\n\\n"));
    if (left < 0) to.close();
  } }));
};
"""
IDLE = "document.getElementById('stop').disabled"


def opened(b, address, width, height, theme):
    """Opens the page in a window of a size, and waits for the model's name, which does not come at once."""
    b.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
    b.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    b.call("Page.navigate", url=address + "/")
    b.wait("document.readyState === 'complete' && !!document.getElementById('send')")
    b.wait("document.getElementById('state').textContent === 'is loading'")
    b.wait("document.getElementById('model').textContent === 'golden' && document.getElementById('state').textContent === ''")


def in_view(b, name):
    """Whether an element is within the window."""
    return b.value(f"(r => r.width > 0 && r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth)"
                   f"(document.getElementById('{name}').getBoundingClientRect())")


def enter(b, code=13):
    """Presses Enter; 229 is what input methods make of a key."""
    b.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=code)
    b.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)


def equal(got, expected):
    """Ends the program where two values differ."""
    if got != expected:
        raise SystemExit(f"expected {expected!r}, got {got!r}")


def refused_then_answered(b):
    """A refused message comes back, an answered one stays, and text that looks like HTML is text."""
    b.write("text", "Hello")
    enter(b)
    b.wait("document.querySelectorAll('.error').length === 1")  # no key
    assert "key" in b.value("document.querySelector('.error').textContent")
    equal(b.value("document.getElementById('text').value"), "Hello")
    equal(b.value("document.querySelectorAll('.user').length"), 0)
    assert b.value("document.getElementById('settings').open")
    b.write("key", KEY)
    b.write("most", "12")
    b.write("system", "Be brief.")
    b.write("temperature", "9")  # the server refuses it, and the page's own check is left out
    hostile = "<img src=x onerror='document.title=1'>"
    b.write("text", hostile)
    b.value("document.getElementById('form').noValidate = true")
    enter(b)
    b.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('temperature')")
    equal(b.value("document.getElementById('text').value"), hostile)
    b.write("temperature", "1")
    b.value("document.getElementById('send').click()")
    b.wait("document.querySelectorAll('.assistant').length === 1 && " + IDLE)
    equal(b.value("[...document.querySelectorAll('.user')].map(p => p.textContent)"), [hostile])
    equal(b.value("document.querySelectorAll('#log img').length"), 0)
    equal(b.value("document.title"), "heddle")
    equal(b.value("document.querySelectorAll('.error').length"), 0)
    equal(b.value("[...document.querySelectorAll('h2')].map(h => h.textContent)"), ["You", "Model"])
    equal(b.value("asked[asked.length - 1]"), [{"role": "system", "content": "Be brief."}, {"role": "user", "content": hostile}])
    text = b.value("document.querySelector('.assistant').textContent")
    assert text, "the answer is empty"
    return text


def composed(b):
    """Enter within a composition, and the one that ends it, send nothing."""
    before = b.value("asked.length")
    b.write("text", "")
    b.call("Input.imeSetComposition", text="nihon", selectionStart=5, selectionEnd=5)
    enter(b)
    b.call("Input.insertText", text="\u65e5\u672c")
    enter(b, 229)
    equal(b.value("asked.length"), before)
    equal(b.value("document.getElementById('text').value"), "\u65e5\u672c")


def followed(b):
    """A long answer stays in view, and so does Stop; who scrolls up is left alone; what was stopped is kept."""
    b.value("words = 2000")
    b.write("text", "a long one")
    enter(b)
    b.wait("document.getElementById('log').scrollHeight > 3 * innerHeight")
    assert in_view(b, "stop") and in_view(b, "text")
    equal(b.value("document.documentElement.scrollHeight <= innerHeight && document.documentElement.scrollWidth <= innerWidth"), True)
    b.wait("(l => l.scrollHeight - l.scrollTop - l.clientHeight < 48)(document.getElementById('log'))", 2)
    b.value("document.getElementById('log').scrollTop = 10")
    length = b.value("document.getElementById('log').scrollHeight")
    b.wait(f"document.getElementById('log').scrollHeight > {length} + 200")
    equal(b.value("document.getElementById('log').scrollTop"), 10)
    b.value("document.getElementById('stop').click()")
    b.wait(IDLE)
    equal(b.value("[...document.querySelectorAll('.note')].pop().textContent"), "Stopped.")
    b.value("words = 0")


def kept(b, address, window):
    """What was said is there after the page is loaded again, and gone in a new chat; the system prompt stays."""
    said = "JSON.stringify([...document.querySelectorAll('.user, .assistant')].map(p => p.textContent))"
    before = b.value(said)
    opened(b, address, *window)
    equal(b.value(said), before)
    equal(b.value("document.getElementById('key').value"), KEY)
    b.value("document.execCommand = what => { window.executed = what; return true; }, window.copied = [],"
            "navigator.clipboard && (navigator.clipboard.writeText = async text => { copied.push(text); })")
    b.value("document.querySelector('.copy').click()")
    b.wait("document.querySelector('.copy').textContent === 'Copied'")
    equal(b.value("copied"), [json.loads(before)[1]])
    b.value("document.getElementById('new').click()")
    equal(b.value(said), "[]")
    opened(b, address, *window)
    equal(b.value(said), "[]")
    equal(b.value("document.getElementById('system').value"), "Be brief.")


def main(program, browser):
    """Each of these at both widths, light and dark. Pictures go to the folder that HEDDLE_PICTURES names, if there is one."""
    pictures = os.environ.get("HEDDLE_PICTURES")
    with served(program) as address, tempfile.TemporaryDirectory() as profile:
        b = Browser(browser, profile)
        try:
            b.call("Page.enable")
            b.call("Page.addScriptToEvaluateOnNewDocument", source=FETCH)
            for window in ((375, 667, "light"), (1280, 800, "dark"), (375, 667, "dark"), (1280, 800, "light")):
                opened(b, address, *window)
                b.value("localStorage.clear(), sessionStorage.clear()")
                b.value("for (const id of ['key', 'most', 'system', 'temperature']) document.getElementById(id).value = ''")
                light = b.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
                equal(light, window[2] == "light")
                text = refused_then_answered(b)
                composed(b)
                followed(b)
                if pictures:
                    shot = b.call("Page.captureScreenshot")["data"]
                    with open(f"{pictures}/chat-{window[0]}-{window[2]}.png", "wb") as file:
                        file.write(base64.b64decode(shot))
                kept(b, address, window)
                equal(b.value("failed"), [])
            equal(b.value("document.querySelector('link[rel=icon]').href.startsWith('data:')"), True)
            print(f"{browser}: refused, answered with {len(text)} characters, followed, kept and cleared at both widths, light and dark")
        finally:
            b.close()


def chromium(given):
    """The path of Chromium, where it is given or installed; otherwise the program ends."""
    found = given[0] if given else shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        print("skipped: there is no Chromium (apt-get install chromium)")
        sys.exit(77)
    return found


if __name__ == "__main__":
    main(sys.argv[1], chromium(sys.argv[2:]))
