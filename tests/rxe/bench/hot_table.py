# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of a hot lock out of the lines of hot.sh: medians over the rounds, and ratios."""
import statistics
import sys

BASELINE = {'atomic': 'cas', 'rw': 'cas', 'shared': 'cas', 'fair': 'ticket', 'apart': 'ticket'}


def read(path):
    rows = {}
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            words = line.split()
            if len(words) < 6 or words[0] not in ('rate', 'handover'):
                continue
            what, kind, side, number = words[:4]
            values = rows.setdefault((what, int(number)), {}).setdefault((kind, side), {})
            for name, value in zip(words[4::2], words[5::2]):
                values.setdefault(name, []).append(float(value))
    return rows


def main():
    for (what, number), cases in sorted(read(sys.argv[1]).items(), reverse=True):
        is_rate = what == 'rate'
        print(f'\n{number} clients' if is_rate else f'\nhand-over after a hold of {number} us')
        print('| lock | version | ' + ('operations/s | of the baseline | least : most |' if is_rate
                                       else 'p50 us | of the baseline | p99 us |')
              + ' CPU us | packets |\n|---|---|---:|---:|---:|---:|---:|')
        mid = {case: {name: statistics.median(all_of) for name, all_of in values.items()}
               for case, values in cases.items()}
        for (kind, side), v in mid.items():
            base = mid.get((BASELINE.get(kind, kind), '-'))
            value = v['rate'] if is_rate else v['handover_us']
            ratio = value / (base['rate'] if is_rate else base['handover_us']) if base else None
            last = f"1 : {v['most'] / max(v['least'], 1):.2f}" if is_rate else f"{v['p99_us']:.0f}"
            print(f"| {kind} | {side} | {value:,.0f} | {'' if ratio is None else f'{ratio:.2f}'} |"
                  f" {last} | {v['cpu_us']:.0f} | {v['packets']:.1f} |")
            if v.get('violations'):
                print(f'VIOLATIONS: {kind} {side}')
                sys.exit(1)


main()
