# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of benches/README.md out of the lines `NAME VALUE` of in_turns.sh."""
import statistics
import sys

ACQUIRE = 'dlock_atomic_acquire'
RELEASE = 'dlock_atomic_acquire+release'
STOPPED = RELEASE + '_primary_stopped'
FAIR = 'dlock_fair_exclusive_acquire+release'
OBJECT = 'dlock_object_faa'
BATCH = 'dlock_batch_of_31_acquire'

# What, measured, beside what, the unit of both, the goal.
ROWS = [
    ('acquire, p50, beside `ib_atomic_lat`', ACQUIRE, 'faa', 'us', '<= 1.10'),
    ('acquire, p50, beside a bare FAA in turns', ACQUIRE, ACQUIRE + '_floor', 'us', '<= 1.10'),
    ('acquire + release, p50, beside `ib_atomic_lat`', RELEASE, 'faa', 'us', '<= 2.2'),
    ('acquire + release, p50, beside a bare FAA in turns', RELEASE, RELEASE + '_floor', 'us',
     '<= 2.2'),
    ('that bare FAA beside `ib_atomic_lat`', ACQUIRE + '_floor', 'faa', 'us', ''),
    ('the same while the primary is stopped', STOPPED, 'faa', 'us', ''),
    ('acquire, p50, beside its CAS', ACQUIRE, 'cas', 'us', ''),
    ('fair exclusive acquire + release beside `ib_atomic_lat`', FAIR, 'faa', 'us', ''),
    ('object FAA, p50, beside `ib_atomic_lat`', OBJECT, 'faa', 'us', ''),
    ('object FAA, p50, beside a bare FAA in turns', OBJECT, OBJECT + '_floor', 'us', ''),
    ('object FAA beside `ib_atomic_bw`, depth 1', OBJECT + '_rate', 'faa_rate', 'a second',
     '>= 0.95'),
    ('batch_trylock of 31 beside one trylock', BATCH, BATCH + '_floor', 'us', '<= 3'),
    ('its locks beside CAS of `ib_atomic_bw`, depth 31', BATCH + '_locks', 'cas_rate_31',
     'a second', ''),
    ('Redis SET NX + DEL beside acquire + release', 'redis', RELEASE, 'us', '>= 12'),
]


def by_round(values, rounds):
    """One value a round: the mean of those that a round has several of."""
    per_round = len(values) // rounds
    return [statistics.mean(values[i * per_round:(i + 1) * per_round]) for i in range(rounds)]


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
    rounds = len(values['cas'])
    values = {name: by_round(found, rounds) for name, found in values.items()}
    for name in ('faa_rate', 'cas_rate_31'):  # perftest counts millions
        values[name] = [value * 1e6 for value in values[name]]
    values[BATCH + '_locks'] = [31e6 / us for us in values[BATCH]]
    print('Medians over %d rounds; the ratio is the median of the rounds\' ratios.\n' % rounds)
    print('| what | measured | beside | ratio | goal |')
    print('|---|---|---|---|---|')
    for what, measured, beside, unit, goal in ROWS:
        ratios = [m / b for m, b in zip(values[measured], values[beside])]
        shown = ['{:,.{}f} {}'.format(statistics.median(values[name]), 1 if unit == 'us' else 0, unit)
                 for name in (measured, beside)]
        print('| %s | %s | %s | %.2f (%.2f to %.2f) | %s |'
              % (what, *shown, statistics.median(ratios), min(ratios), max(ratios), goal))
    print()
    for line in others:
        if line:
            print(line)


main(sys.argv[1])
