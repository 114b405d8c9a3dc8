# SPDX-License-Identifier: MIT OR Apache-2.0
"""The loop between the machines, stdout, stderr, stdin and the clock.

One poll over: the sockets of every machine, descriptors 0, 1 and 2. A reader of stdout that is
slow stops the guest's stdout (BACKLOG_BYTES_MAX), not the clock. A machine is

    starting -> ready -(all are: go)-> running -> done     status, all output, files synced
         \\________________\\______________\\____-> gone     qemu has ended without that
"""
import os
import selectors
import time

from . import STATUS_TIMEOUT, Broken, log
from .machine import read_text

BACKLOG_BYTES_MAX = 1 << 20
# poll says "writable" when this much fits into a pipe without blocking.
PIPE_BUF = 4096
READ_BYTES = 65536
TICK_S = 0.2
CONTROL_LINE_MAX = 4096


class Sink:
    """Bytes on their way to a descriptor that may be slow, or closed at its other end."""

    def __init__(self, fd):
        self.fd, self.pending, self.closed = fd, bytearray(), False

    def full(self):
        """Should nothing more be read for it?"""
        return len(self.pending) >= BACKLOG_BYTES_MAX

    def put(self, data):
        """Takes the data; drops it if nobody is there to read."""
        if not self.closed:
            self.pending += data

    def ready(self):
        """Writes what fits now."""
        try:
            del self.pending[:os.write(self.fd, self.pending[:PIPE_BUF])]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.closed = True
            self.pending.clear()


class Stream:
    """stdout or stderr of a machine: finds the mark that ends it, sets [N] before lines."""

    def __init__(self, mark, prefix, sink):
        self.mark, self.prefix, self.sink = mark, prefix, sink
        self.held, self.line, self.ended = b'', b'', False

    def put(self, data):
        """Passes on what cannot be part of the mark."""
        data = self.held + data
        at = data.find(self.mark)
        if at >= 0:
            self.ended = True
        else:
            # The mark holds one \0, its first byte: only from the last \0 on can it begin.
            at = data.rfind(b'\0', max(0, len(data) - len(self.mark)))
            if at < 0 or not self.mark.startswith(data[at:]):
                at = len(data)
        self.held = b'' if self.ended else data[at:]
        self.emit(data[:at])

    def emit(self, data):
        """To the sink, by whole lines if there is a prefix."""
        if self.prefix:
            lines = (self.line + data).split(b'\n')
            self.line = lines.pop()
            data = b''.join(self.prefix + line + b'\n' for line in lines)
        self.sink.put(data)

    def finish(self):
        """What has been held back, at the end."""
        self.emit(self.held)
        self.held = b''
        if self.line:
            self.emit(b'\n')


class Guest:
    """A machine as the loop sees it."""

    def __init__(self, machine, nodes, sinks):
        self.machine, self.number = machine, machine.number
        self.ready = self.synced = False
        self.status, self.broken = None, None
        self.control, self.control_line = None, b''
        self.input, self.input_socket = None, None
        self.open = 0                      # connections that may still bring something
        prefix = b'[%d] ' % self.number if nodes == 2 else b''
        self.streams = {'out': Stream(machine.mark, prefix, sinks[1]),
                        'err': Stream(machine.mark, prefix, sinks[2])}

    def hear(self, data):
        """Lines of the control port."""
        lines = (self.control_line + data).split(b'\n')
        self.control_line = lines.pop()[:CONTROL_LINE_MAX]
        for line in lines:
            word, _, rest = line.decode('utf-8', 'replace').partition(' ')
            if word == 'boot':
                self.machine.reached('started')
            elif word == 'ready':
                self.ready = True
                self.machine.reached('ready')
            elif word == 'exit':
                self.status = int(rest)
                self.machine.reached('command ended')
            elif word == 'end':
                self.synced = True
            elif word == 'broken':
                self.broken = rest

    def done(self):
        """Has everything of it come?"""
        return self.status is not None and self.synced and \
            all(s.ended for s in self.streams.values())

    def gone(self):
        """Has qemu ended, and has what it sent been read?"""
        return not self.machine.running() and not self.open


class Session:
    """A run of one command in one or two machines that have been started."""

    def __init__(self, o, machines):
        self.o = o
        self.sinks = {1: Sink(1), 2: Sink(2)}
        self.guests = [Guest(m, o.nodes, self.sinks) for m in machines]
        self.poll = selectors.PollSelector()
        self.sources = {}                  # file -> (sink that holds it back, callback)
        self.told_to_go = False
        self.console_read = [0] * len(machines)
        for guest in self.guests:
            for name, listener in guest.machine.listeners.items():
                self.sources[listener] = (None, self.acceptor(guest, name, listener))

    def run(self):
        """The exit status of the run."""
        start = time.monotonic()
        deadline, boot_deadline = start + self.o.timeout, start + self.o.boot_timeout
        while not self.finished():
            if time.monotonic() > deadline:
                return self.out_of_time('time limit of %g s reached' % self.o.timeout)
            if not self.told_to_go and time.monotonic() > boot_deadline:
                return self.out_of_time('not ready after %g s' % self.o.boot_timeout)
            self.turn()
            self.check()
        for guest in self.guests:
            for stream in guest.streams.values():
                stream.finish()
        while any(s.pending for s in self.sinks.values()):
            if time.monotonic() > deadline:
                return self.out_of_time('time limit of %g s reached: nobody reads the output'
                                        % self.o.timeout)
            self.turn()
        return self.result()

    # ------------------------------------------------------------------------- one turn of it

    def turn(self):
        """Waits for something and handles it."""
        wanted = {}
        for file, (sink, callback) in self.sources.items():
            if sink is None or not sink.full():
                wanted[file] = (selectors.EVENT_READ, callback)
        sinks = list(self.sinks.values()) + [g.input for g in self.guests if g.input]
        for sink in sinks:
            if sink.pending:
                wanted[sink.fd] = (selectors.EVENT_WRITE, sink.ready)
        current = {key.fileobj: key for key in self.poll.get_map().values()}
        for file in current.keys() - wanted.keys():
            self.poll.unregister(file)
        for file, (events, callback) in wanted.items():
            if file not in current:
                self.poll.register(file, events, callback)
        for key, _ in self.poll.select(TICK_S):
            key.data()
        if self.o.console:
            self.show_consoles()

    def forget(self, file):
        """Closes a connection or a listener."""
        del self.sources[file]
        if file in {key.fileobj for key in self.poll.get_map().values()}:
            self.poll.unregister(file)
        file.close()

    def acceptor(self, guest, name, listener):
        """What to do when qemu connects to a listener."""
        def accept():
            connection, _ = listener.accept()
            connection.setblocking(False)
            self.forget(listener)
            if name == 'in':
                guest.input = Sink(connection.fileno())
                guest.input_socket = connection
                return
            if name == 'ctl':
                guest.control = connection
            guest.open += 1
            stream = guest.streams.get(name)
            self.sources[connection] = (stream.sink if stream else None,
                                        self.reader(guest, connection, stream or guest))
        return accept

    def reader(self, guest, connection, target):
        """What to do when a connection has data: to a Stream, or the Guest's control port."""
        take = target.put if isinstance(target, Stream) else target.hear

        def read():
            try:
                data = connection.recv(READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b''
            if data:
                take(data)
                return
            guest.open -= 1
            self.forget(connection)
        return read

    def check(self):
        """Starts the commands once all machines are up; stops if one never will be."""
        if not self.told_to_go and all(g.ready for g in self.guests):
            self.told_to_go = True
            for guest in self.guests:
                try:
                    guest.control.send(b'go\n')
                except OSError:
                    pass                   # gone: the check below says so
            if self.o.stdin and self.guests[0].input:
                self.sources[0] = (self.guests[0].input, self.read_stdin)
        for guest in self.guests:
            if guest.broken:
                raise Broken(self.why(guest, guest.broken))
            if guest.gone() and not self.told_to_go:
                raise Broken(self.why(guest, 'qemu ended before the command started'))

    def read_stdin(self):
        """Passes it on, as init.sh wants it: a length, a chunk; 0 at the end."""
        data = os.read(0, READ_BYTES)
        self.guests[0].input.put(b'%d\n' % len(data) + data)
        if not data:
            del self.sources[0]
            self.poll.unregister(0)

    def show_consoles(self):
        """What the kernels have said since the last time."""
        for guest in self.guests:
            text = read_text(guest.machine.console)
            at = self.console_read[guest.number]
            self.sinks[2].put(text[at:].encode())
            self.console_read[guest.number] = len(text)

    # --------------------------------------------------------------------------------- the end

    def may_vanish(self, guest):
        """Is its end without a status permitted?"""
        return guest.number in self.o.may_crash

    def finished(self):
        """Is there nothing to wait for any more?"""
        ends = [g.done() or g.gone() for g in self.guests]
        return all(ends) or (self.o.until_first and any(ends))

    def result(self):
        """The first status that is not 0; Broken if one is missing that must not be."""
        for guest in self.guests:
            if guest.gone() and not guest.done() and not self.may_vanish(guest):
                raise Broken(self.why(guest, 'ended without a status (a crash of its kernel, or '
                                             'the command switched it off)'))
        statuses = [g.status for g in self.guests if g.done()]
        return next((s for s in statuses if s), 0)

    def out_of_time(self, text):
        """Says where it was."""
        log(text)
        for guest in self.guests:
            if not guest.ready:
                log(self.why(guest, 'not up yet'))
        return STATUS_TIMEOUT

    def why(self, guest, text):
        """A reason with the end of the console."""
        where = 'node %d: ' % guest.number if len(self.guests) == 2 else ''
        return '%s%s\n%s' % (where, text, guest.machine.last_words())
