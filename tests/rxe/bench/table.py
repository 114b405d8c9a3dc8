# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of benches/README.md out of the lines `NAME VALUE` of in_turns.sh."""
import statistics
import sys

RELEASE = 'dlock_atomic_acquire+release'
FAIR = 'dlock_fair_exclusive_acquire+release'


def main(path):
    """Prints it."""
    values = {}
    others = []
    with open(path) as lines:
        for line in lines:
            words = line.split()
            try:
                name, value = words
                values.setdefault(name, []).append(float(value))
            except ValueError:
                others.append(line.strip())
    m = {name: statistics.median(found) for name, found in values.items()}
    stopped = 'dlock_atomic_acquire+release_primary_stopped'
    rows = [
        ('acquire, p50, beside raw FAA', m['dlock_atomic_acquire'], m['faa'],
         m['dlock_atomic_acquire'] / m['faa'], '<= 1.10'),
        ('acquire + release, p50, beside raw FAA', m[RELEASE], m['faa'], m[RELEASE] / m['faa'],
         '<= 2.2'),
        ('the same while the primary is stopped', m[stopped], m['faa'], m[stopped] / m['faa'], ''),
        ('acquire, p50, beside raw CAS', m['dlock_atomic_acquire'], m['cas'],
         m['dlock_atomic_acquire'] / m['cas'], ''),
        ('fair exclusive acquire + release beside raw FAA', m[FAIR], m['faa'], m[FAIR] / m['faa'],
         ''),
        ('object FAA, p50, beside raw FAA', m['dlock_object_faa'], m['faa'],
         m['dlock_object_faa'] / m['faa'], ''),
        ('object FAA, thousands a second, beside ib_atomic_bw, depth 1',
         m['dlock_object_faa_rate'] / 1e3, m['faa_rate'] * 1e3,
         m['dlock_object_faa_rate'] / 1e6 / m['faa_rate'], '>= 0.95'),
        ('batch_trylock of 31 beside one trylock', m['dlock_batch_of_31_acquire'],
         m['dlock_batch_of_31_acquire_floor'],
         m['dlock_batch_of_31_acquire'] / m['dlock_batch_of_31_acquire_floor'], '<= 3'),
        ('Redis SET NX + DEL beside acquire + release', m['redis'], m[RELEASE],
         m['redis'] / m[RELEASE], '>= 12'),
    ]
    rounds = len(values['faa'])
    print('Medians of %d rounds, in us where nothing else is said:\n' % rounds)
    print('| what | measured | beside | ratio | goal |')
    print('|---|---|---|---|---|')
    for what, measured, beside, ratio, goal in rows:
        print('| %s | %.1f | %.1f | %.2f | %s |' % (what, measured, beside, ratio, goal))
    print()
    spread = ['%s %.1f to %.1f' % (name, min(values[name]), max(values[name]))
              for name in ('faa', 'dlock_atomic_acquire', RELEASE, 'redis')]
    print('Spread of the medians over the rounds: ' + ', '.join(spread))
    for line in others:
        if line:
            print(line)


main(sys.argv[1])
