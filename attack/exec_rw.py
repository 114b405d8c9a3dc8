#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two COMMANDs of `dlock exec --type rw` run at a time: the network of the first one is away for
longer than its session's horizon (10 s), and shorter than --lease. usage: exec_rw.py [LEASE] [AWAY]"""
import os, socket, subprocess, sys, threading, time
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + '/target/release/'
lease = sys.argv[1] if len(sys.argv) > 1 else '60'
away = float(sys.argv[2]) if len(sys.argv) > 2 else 20
d = subprocess.Popen([root + 'dlockd', '--port', '0', '--log-level', 'warn'], stdout=subprocess.PIPE, text=True)
line = d.stdout.readline(); port = int(line.split('listening on ')[1].split(',')[0].rsplit(':', 1)[1])
stopped = threading.Event()
def pump(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data: break
            while stopped.is_set(): time.sleep(.02)
            b.sendall(data)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(2)
        except OSError: pass
ls = socket.socket(); ls.bind(('127.0.0.1', 0)); ls.listen(64); pp = ls.getsockname()[1]
def serve():
    while True:
        a, _ = ls.accept(); b = socket.create_connection(('127.0.0.1', port))
        threading.Thread(target=pump, args=(a, b), daemon=True).start()
        threading.Thread(target=pump, args=(b, a), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
env = dict(os.environ, DLOCK_FABRIC='tcp')
out = {1: [], 2: []}
def run(n, p):
    c = subprocess.Popen([root + 'dlock', 'exec', '--type', 'rw', '--lease', lease, '--address', f'127.0.0.1:{p}', 'thing', '--',
        'sh', '-c', 'while :; do date +%s.%N; sleep 0.2; done'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    def read():
        for l in c.stdout: out[n].append(float(l))
    def err():
        for l in c.stderr: print(f'[{n}] {time.time()-t0:.1f}', l, end='')
    threading.Thread(target=read, daemon=True).start(); threading.Thread(target=err, daemon=True).start(); return c
t0 = time.time()
one = run(1, pp); time.sleep(3); assert out[1], 'the first one does not run'
print(f'{time.time()-t0:.1f} first runs; its network is away'); stopped.set()
two = run(2, port); t1 = time.time(); seen = None
while time.time() < t1 + away + 15:
    time.sleep(.2)
    if stopped.is_set() and time.time() > t1 + away: stopped.clear(); print(f'{time.time()-t0:.1f} network is back')
    if out[2] and out[1][-1] > out[2][0] + .3 and not seen:
        seen = time.time() - t0; print(f'{seen:.1f} BOTH RUN')
both = sum(1 for t in out[1] if out[2] and t > out[2][0])
print('second began', out[2] and round(out[2][0] - t0, 1), '; first ran until', round(out[1][-1] - t0, 1), '; overlapping ticks of the first', both)
for c in (one, two): c.terminate()
time.sleep(1); d.terminate(); d.wait()
sys.exit(bool(both))
