"""The server's chat page in headless Chromium: chat_page.py <path of the program serve> [path of Chromium].

Types a key and a message, sends it, and waits for the answer. Speaks the DevTools protocol over the pipe that
--remote-debugging-pipe gives, so that it needs nothing but Python and Chromium. Ends with 77 (skipped) without Chromium.
"""
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


def main(program, chromium):
    """A refused message, an answered one, and text that looks like HTML."""
    with served(program) as address, tempfile.TemporaryDirectory() as profile:
        b = Browser(chromium, profile)
        try:
            b.call("Page.enable")
            b.call("Page.navigate", url=address + "/")
            b.wait("document.readyState === 'complete' && !!document.getElementById('send')")
            b.wait("document.getElementById('model').textContent.includes('golden')")
            b.write("text", "Hello")
            b.value("document.getElementById('send').click()")
            b.wait("document.querySelectorAll('.error').length === 1")  # no key
            assert "key" in b.value("document.querySelector('.error').textContent")
            b.write("key", KEY)
            b.write("most", "12")
            hostile = "<img src=x onerror='document.title=1'>"
            b.write("text", hostile)
            b.value("document.getElementById('send').click()")
            b.wait("document.querySelectorAll('.assistant').length === 1 && document.getElementById('stop').disabled")
            users = b.value("[...document.querySelectorAll('.user')].map(p => p.textContent)")
            assert users[-1] == hostile, users
            assert b.value("document.querySelectorAll('#log img').length") == 0
            assert b.value("document.title") == "heddle"
            assert b.value("document.querySelectorAll('.error').length") == 1
            text = b.value("document.querySelector('.assistant').textContent")
            assert text, "the answer is empty"
            version = b.call("Browser.getVersion")["product"] if not b.session else chromium
            print(f"{version}: refused without a key, answered with {len(text)} characters, nothing of it was HTML")
        finally:
            b.close()


if __name__ == "__main__":
    found = sys.argv[2] if len(sys.argv) > 2 else shutil.which("chromium") or shutil.which("chromium-browser") or \
        shutil.which("google-chrome")
    if not found:
        print("skipped: there is no Chromium (apt-get install chromium)")
        sys.exit(77)
    main(sys.argv[1], found)
