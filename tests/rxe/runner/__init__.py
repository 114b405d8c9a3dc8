# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runner behind `tests/rxe/vm`.

    main      options, signals, the run's folder, exit status
    options   the command line and its help
    packages  what the machine lacks: apt, the cache
    kernel    a kernel image and an initramfs out of a kernel package
    machine   one qemu process: its command line, its sockets, its console
    session   the loop that connects one or two machines with stdout, stderr and the clock

A run that cannot be made here at all ends by `Skip` (status 77), one whose virtual machine fails
by `Broken` (status 125). Everything else is the command's own status.
"""
import sys

STATUS_SKIP = 77
STATUS_TIMEOUT = 124
STATUS_BROKEN = 125


class Skip(Exception):
    """This machine cannot run the virtual machine; the text is the reason, with a remedy."""


class Broken(Exception):
    """The virtual machine could not be used."""


def log(text):
    """One line of the runner itself, among what the command writes to stderr."""
    print('rxe-vm:', text, file=sys.stderr, flush=True)
