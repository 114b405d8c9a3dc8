# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of a hot lock out of the lines of hot.sh: medians over the rounds, and ratios.

CPU, packets and messages are those of one operation. A verb is two packets, with its answer; a
message is a verb.
"""
import statistics
import sys

BASELINE = {'atomic': 'cas', 'rw': 'cas', 'shared': 'cas', 'fair': 'ticket'}
TITLE = {'rate': '{} clients', 'private': '{} clients, a lock for each: a cycle',
         'handover': 'hand-over after a hold of {} us'}
VALUE = {'rate': 'rate', 'private': 'cycle_us', 'handover': 'handover_us'}


def read(path):
    rows = {}
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            words = line.split()
            if len(words) < 6 or words[0] not in TITLE:
                continue
            what, kind, side, number = words[:4]
            values = rows.setdefault((what, int(number)), {}).setdefault((kind, side), {})
            for name, value in zip(words[4::2], words[5::2]):
                values.setdefault(name, []).append(float(value))
    return rows


def main():
    for (what, number), cases in sorted(read(sys.argv[1]).items(), reverse=True):
        is_rate = what == 'rate'
        print('\n' + TITLE[what].format(number))
        print('| lock | version | ' + ('operations/s | of the baseline | least : most |' if is_rate
                                       else 'p50 us | of the baseline | p99 us |')
              + ' CPU us | packets | messages |\n|---|---|---:|---:|---:|---:|---:|---:|')
        mid = {case: {name: statistics.median(all_of) for name, all_of in values.items()}
               for case, values in cases.items()}
        for (kind, side), v in mid.items():
            # alone, each is measured beside the lock that no other client asks for either
            base = mid.get(('cas' if what == 'private' else BASELINE.get(kind, kind), '-'))
            value = v[VALUE[what]]
            ratio = value / base[VALUE[what]] if base else None
            last = f"1 : {v['most'] / max(v['least'], 1):.2f}" if is_rate else f"{v['p99_us']:.1f}"
            print(f"| {kind} | {side} | {f'{value:,.0f}' if is_rate else f'{value:,.1f}'} |"
                  f" {'' if ratio is None else f'{ratio:.2f}'} |"
                  f" {last} | {v['cpu_us']:.0f} | {v['packets']:.1f} | {v['messages']:.2f} |")
            if v.get('violations'):
                print(f'VIOLATIONS: {kind} {side}')
                sys.exit(1)


main()
