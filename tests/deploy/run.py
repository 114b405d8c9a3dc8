#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Alerts and dashboard of deploy/ with a real Prometheus that scrapes real primaries.

    tests/deploy/run.py FOLDER      FOLDER has the programs dlock and dlockd

Each alert must have a unit test (promtool), and most are caused here: a primary that recovers, is
drained, is full, cannot write its list, has a certificate that ends, is not read, is dead. Each expression of the
dashboard must have a result, and each metric of docs/metrics.md must occur. Exit status 77: there
is no Prometheus (scripts/setup.sh --rdma fetches it).
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The longest that anything may take on a busy machine.
PATIENCE_S = 120
# Alerts that the scene below causes; the others have their unit test alone.
CAUSED = {
    "DlockDown": "dlock-dead",
    "DlockNoPrimary": "dlock-lonely",
    "DlockRecovering": "dlock-recovering",
    "DlockRecoveryEndless": "dlock-lost",
    "DlockDraining": "dlock-drained",
    "DlockRosterFailing": "dlock-unwritable",
    "DlockClientsFull": "dlock-full",
    "DlockTableFull": "dlock-full",
    "DlockRubbish": "dlock-tls",
    "DlockLogLinesLeftOut": "dlock-tls",
    "DlockCertificateEnds": "dlock-tls",
    "DlockCertificateEndsTomorrow": "dlock-tls",
    "DlockStandbyHearsNothing": "dlock-lonely",
    "DlockStandbyCannotServe": "dlock-damaged",
    "DlockFilesFull": "dlock-narrow",
    "DlockLogLinesLost": "dlock-unread",
}
HEALTHY = "dlock-healthy"
LOST = 'dlock_log_lines_lost_total{job="dlock-unread"}'


class Failed(Exception):
    """What has gone wrong, for people."""


def eventually(what, check):
    """The first result of `check` that is true."""
    end = time.monotonic() + PATIENCE_S
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > end:
            raise Failed(f"never: {what}")
        time.sleep(0.1)


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "127.0.0.1:%d" % free.getsockname()[1]


class Scene:
    """The processes, in a folder of their own."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.children = []
        self.targets = {}  # job -> addresses
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("DLOCK_")},
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder),
            "DLOCK_FABRIC": "tcp",
        }

    def path(self, name):
        return str(self.folder / name)

    def spawn(self, command, **options):
        child = subprocess.Popen(command, env=self.environment, **options)
        self.children.append(child)
        return child

    def dlock(self, *arguments):
        subprocess.run(
            [str(self.programs / "dlock"), *arguments],
            env=self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE_S,
        )

    def dlockd(self, job, *options, state=None, files=None, is_read=True):
        """Starts a primary or standby as a target of this job; the child and its address.

        files: its limit of descriptors; is_read: whether its log is read.
        """
        name = f"{job}-{len(self.children)}"
        log = open(self.path(f"{name}.log"), "w+")
        http = "127.0.0.1:0" if is_read else free_address()

        def limit():
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        state = state or self.path(f"{name}.d/epoch")
        if state != "none":
            os.makedirs(os.path.dirname(state), exist_ok=True)
        child = self.spawn(
            [
                str(self.programs / "dlockd"),
                *("--port=0", f"--http={http}", f"--state-file={state}"),
                f"--admin-socket={self.path(name)}.sock",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=log if is_read else subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        line = child.stdout.readline()
        if not line.startswith(("dlockd ready", "dlockd standby")):
            raise Failed(f"{name}: {line!r}: {pathlib.Path(log.name).read_text()}")
        found = re.search(r"listening on (\S+),", line)
        if is_read:
            http = eventually("it says where its metrics are", lambda: self.http(log.name))
        self.targets.setdefault(job, []).append(http)
        child.socket, child.state = f"{self.path(name)}.sock", state
        return child, found and found[1]

    @staticmethod
    def http(log):
        found = re.search(r"http://(\S+)/", pathlib.Path(log).read_text())
        return found and found[1]

    def client(self, address, fabric="tcp"):
        """A client that obeys lines; the function that says one."""
        where = ("--address", address, "--fabric", fabric)
        child = self.spawn(
            [str(self.programs / "dlock"), "role", "client", *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        if not child.stdout.readline().startswith("client "):
            raise Failed(f"{address}: the client is not let in")

        def say(line, answers=True, succeeds=True):
            child.stdin.write(line + "\n")
            child.stdin.flush()
            if answers and ((answer := child.stdout.readline().split()) == ["0"]) != succeeds:
                raise Failed(f"{line}: {answer}")

        return say

    def end(self):
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()


def is_gone(child):
    child.kill()
    child.wait()


def stage(scene):
    """Starts every process, and causes what the alerts are for."""
    healthy, address = scene.dlockd(HEALTHY)
    scene.dlockd(HEALTHY, f"--standby-of={address}", state=healthy.state)
    holder, waiter = scene.client(address), scene.client(address)
    for client in (holder, waiter):
        client("get orders rw")
    holder("lock exclusive 60")
    scene.waiter = waiter
    # over shared memory the clients find out by themselves, and count it for the primary
    holder, loser = scene.client(address, "shm"), scene.client(address, "shm")
    for client in (holder, loser):
        client("get counted atomic")
    holder("try exclusive 600")
    loser("try exclusive 600", succeeds=False)

    scene.dlockd("dlock-recovering", "--recovery-clients=1", state="none")

    before, _ = scene.dlockd("dlock-before")
    scene.targets.pop("dlock-before")
    is_gone(before)
    os.remove(before.state + ".clients")
    scene.dlockd("dlock-lost", state=before.state)

    drained, address = scene.dlockd("dlock-drained")
    holder = scene.client(address)
    holder("get orders rw")
    holder("lock exclusive 60")
    scene.dlock("drain", "--socket", drained.socket)

    config = pathlib.Path(scene.path("full.toml"))
    config.write_text("clients_max = 1\nlocks_max = 1\n")
    _, address = scene.dlockd("dlock-full", f"--config={config}")
    scene.client(address)("get orders rw")

    unwritable, _ = scene.dlockd("dlock-unwritable")
    folder = os.path.dirname(unwritable.state)

    def is_replaced():  # the primary makes the folder again
        shutil.rmtree(folder, ignore_errors=True)
        try:
            pathlib.Path(folder).write_text("no folder")
        except OSError:
            return False
        return True

    eventually("a file is in the place of the folder", is_replaced)

    certs = scene.path("certs")
    scene.dlock("certs", "init", "--dir", certs)
    scene.dlock("certs", "server", "--dir", certs, "--days", "1", "--host", "127.0.0.1", "one")
    files = [("ca", "ca.crt"), ("crl", "ca.crl"), ("cert", "one.crt"), ("key", "one.key")]
    _, address = scene.dlockd("dlock-tls", *(f"--tls-{k}={certs}/{v}" for k, v in files))
    scene.tls = address

    _, scene.unread = scene.dlockd("dlock-unread", "--log-level=trace", is_read=False)

    scene.client(narrow(scene))("get orders rw")

    before, address = scene.dlockd("dlock-damaged-before")
    scene.targets.pop("dlock-damaged-before")
    scene.dlockd("dlock-damaged", f"--standby-of={address}", state=before.state)
    pathlib.Path(before.state + ".clients").write_text("no list")
    is_gone(before)

    dead, address = scene.dlockd("dlock-dead")
    is_gone(dead)
    state = scene.path("lonely.d/epoch")
    scene.dlockd("dlock-lonely", f"--standby-of={address}", state=state)


def narrow(scene):
    """A primary with descriptors for one client; its address."""
    for files in range(64, 256):
        try:
            return scene.dlockd("dlock-narrow", files=files)[1]
        except Failed:
            pass  # there is no room for a client
    raise Failed("255 descriptors are too few for a client")


def send_rubbish(address, count):
    host, port = address.rsplit(":", 1)
    for _ in range(count):
        with socket.create_connection((host, int(port))) as peer:
            peer.settimeout(PATIENCE_S)
            try:
                peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
                peer.recv(64)
            except OSError:
                pass  # it has been closed


class Prometheus:
    """A Prometheus that scrapes the scene."""

    def __init__(self, scene, program):
        self.address = free_address()
        rules = (ROOT / "deploy/alerts.yml").read_text()
        pathlib.Path(scene.path("alerts.yml")).write_text(re.sub(r"for: \w+", "for: 0s", rules))
        jobs = [
            {"job_name": job, "static_configs": [{"targets": targets}]}
            for job, targets in scene.targets.items()
        ]
        often = {"scrape_interval": "500ms", "scrape_timeout": "400ms"}
        config = {
            "global": {**often, "evaluation_interval": "500ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": jobs,
        }
        pathlib.Path(scene.path("prometheus.yml")).write_text(json.dumps(config))
        scene.spawn(
            [
                program,
                f"--config.file={scene.path('prometheus.yml')}",
                f"--storage.tsdb.path={scene.path('tsdb')}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
        )

    def ask(self, path, **query):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Failed(f"{query}: {error.read().decode()}") from error

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def is_there(self):
        try:
            return self.query("1") is not None
        except (OSError, Failed):  # it does not listen yet, or is still starting
            return False


def check_unit_tests(promtool):
    rules = ROOT / "deploy/alerts.yml"
    tests = ROOT / "tests/deploy/alerts_test.yml"
    for command in (["check", "rules", rules], ["test", "rules", tests]):
        subprocess.run([promtool, *map(str, command)], check=True, timeout=PATIENCE_S)
    alerts = re.findall(r"- alert: (\w+)", rules.read_text())
    untested = [alert for alert in alerts if f"name: {alert}\n" not in tests.read_text()]
    unknown = CAUSED.keys() - set(alerts)
    if untested or unknown:
        raise Failed(f"without a test: {untested}; no alerts: {unknown}")


def check_alerts(prometheus):
    def firing():
        alerts = prometheus.ask("alerts")["alerts"]
        return [alert for alert in alerts if alert["state"] == "firing"]

    for name, job in CAUSED.items():
        labels = {"alertname": name, "job": job}

        def is_fired():
            return [a for a in firing() if labels.items() <= a["labels"].items()]

        alert = eventually(f"{name} of {job} fires", is_fired)[0]
        texts = list(alert["annotations"].values())
        if len(texts) != 2 or any("{{" in text or "<error" in text for text in texts):
            raise Failed(f"{name}: {texts}")
        print(f"progress: {name}: {alert['annotations']['summary']}", flush=True)
    eventually(
        "no alert of the healthy primary fires",
        lambda: not [a for a in firing() if a["labels"].get("job") == HEALTHY],
    )


def check_values(prometheus):
    for what in (
        f'dlock_events_total{{job="{HEALTHY}",event="atomic_trylock_fail"}} == 1',
        f'max_over_time(dlock_lock_waiters{{job="{HEALTHY}"}}[5m]) == 1',
        f'max_over_time(dlock_waited_locks{{job="{HEALTHY}"}}[5m]) == 1',
        f'dlock_channels{{job="{HEALTHY}",fabric="shm"}} == 2',
        f'dlock_command_step_seconds_count{{job="{HEALTHY}"}} > 0',
        f'max by (job) (dlock_snapshot_age_seconds{{job="{HEALTHY}"}}) < 60',
    ):
        eventually(what, lambda: prometheus.query(what))


def check_dashboard(prometheus):
    dashboard = json.loads((ROOT / "deploy/dashboard.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    for expression in expressions:
        filled = expression.replace("$__rate_interval", "1m")
        filled = filled.replace("$job", ".*").replace("$instance", ".*")
        eventually(f"a result of {filled}", lambda: prometheus.query(filled))
    for variable in dashboard["templating"]["list"][1:]:
        metric = re.match(r"label_values\((\w+)", variable["query"])[1]
        if not prometheus.query(metric):
            raise Failed(f"no values of {variable['name']}")
    print(f"progress: {len(expressions)} expressions of the dashboard have results", flush=True)


def check_document(prometheus):
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram|info) \|", text, re.M)
    for name, kind in rows:
        sample = name + "_bucket" if kind == "histogram" else name
        eventually(f"{name} occurs", lambda: prometheus.query(sample))
    shown = prometheus.query('count by (__name__) ({__name__=~"(dlock|process)_.+"})')
    shown = {re.sub("_(bucket|sum|count)$", "", one["metric"]["__name__"]) for one in shown}
    if missing := shown - {name for name, _ in rows}:
        raise Failed(f"not in docs/metrics.md: {missing}")
    print(f"progress: {len(rows)} metrics occur", flush=True)


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    fetched = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "prometheus/usr/bin")
    search = os.pathsep.join([os.environ.get("PATH", ""), str(fetched)])
    promtool, program = (shutil.which(name, path=search) for name in ("promtool", "prometheus"))
    if not promtool or not program:
        print("skipped: no prometheus and promtool: scripts/setup.sh --rdma fetches them")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="dlock-deploy-") as folder:
        scene = Scene(programs, pathlib.Path(folder))
        try:
            check_unit_tests(promtool)
            stage(scene)
            prometheus = Prometheus(scene, program)
            eventually("Prometheus is there", prometheus.is_there)
            counted = 'dlock_events_total{job="dlock-tls",event="bad_request"}'
            eventually("the first scrape", lambda: prometheus.query(counted))
            eventually("another", lambda: prometheus.query(LOST))
            send_rubbish(scene.tls, 500)
            send_rubbish(scene.unread, 3000)
            check_alerts(prometheus)
            scene.waiter("lock exclusive 60", answers=False)
            check_values(prometheus)
            check_dashboard(prometheus)
            check_document(prometheus)
        except Failed as failed:
            print(f"FAILED: {failed}")
            return 1
        finally:
            scene.end()
    print("5 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
