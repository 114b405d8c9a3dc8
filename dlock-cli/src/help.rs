// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last part of the help of the tool and of its commands. Its lines are not wrapped.

pub const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    something failed, or a property that was to be shown did not hold;
       doctor: RDMA cannot be used
  2    the command line is wrong
  69   the primary (or its admin socket) cannot be reached, or refuses
  75   exec: the lock was not got within --wait, or lost before COMMAND could
       start; remove, break: there is no such client
  76   exec: the lock was lost while the command ran; release: before that
  126  exec: the command cannot be run;  127: it was not found
  128+N  exec: the command was ended by signal N
  any other  exec: the exit code of the command";

pub const EXAMPLES: &str = "\
Examples:
  dlock demo                                   see what it does, in 20 seconds
  dlock exec backup --wait 0 -- ./backup.sh    run it unless it runs already
  dlock locks --json                           who holds what, for programs
  dlock bench --quick                          how fast it is here";

pub const RECOVER_HELP: &str = "\
A primary whose predecessor died serves no client until each client of the
predecessor has come back and said what it holds, has ended, or has been away
beyond its session horizon and the deadline. A client without a horizon
(DLOCK_HORIZON_S=forever) cannot know that its locks are given to others: it is
waited for without end.
--now gives up those that are not here. Be sure that they have ended, or cannot
reach what the locks protect: what they hold may be given to others at once.";

pub const REMOVE_HELP: &str = "\
A removed client is fenced; its program can connect only as a new client. A hold
without a lease goes to others when the client's session horizon is over, and
one with a lease when that ends. With --now everything goes at once: be sure
that the client does not write any more to what its locks protect, or that
tokens refuse it. Its next call fails, and its log names who has asked; the
primary's log does, too. A client that a recovery waits for may not come back
then; with --now it is given up, as by dlock recover --now.
A failover forgets a removal that is not over: say it again.";

pub const DRAIN_HELP: &str = "\
Acquires and waits end with NOT_READY, releases and extends go on. Clients that
use shared memory or RDMA come back over the network meanwhile, if they find
their primary by themselves; those that do not may still take locks, and are
waited for until they leave. dlockd stops when no lock is held; dlock status
says which one is, and how many clients there are of this kind. A stop ends the
drain.";

pub const PROMOTE_HELP: &str = "\
Be sure that the old primary has ended, or that no client can reach it: two
primaries would give a lock to two clients. It is refused while the old primary
answers. On the same host none of this is needed: a standby sees that the
process has ended.";

pub const DOCTOR_HELP: &str = "\
Exit codes: 0 RDMA can be used (with --device: on that device), 1 it cannot.
dlock works without RDMA, too, so that 1 is no failure where none is wanted.

Without RDMA hardware, any network interface of Linux can play the device
(SoftRoCE):
  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0      as root";

pub const EXEC_HELP: &str = "\
The lock is extended while the command runs and released when it ends. If the
primary is away for longer than the lease, the command is ended with SIGTERM,
then with SIGKILL, in time before the lease is over: SIGTERM comes a sixth of
the lease (1.5 s to 5 s) and another half second before its end. If the primary
says that the lock is lost, SIGKILL comes at once. --on-lost warn lets the
command run on. At a successor of the primary the command runs on: --address
A,B, or DLOCK_PRIMARIES, says where one may be.
SIGINT, SIGTERM and SIGHUP are passed on to the command, unless dlock was
started with the signal ignored (nohup).

Examples:
  dlock exec backup -- ./backup.sh            wait for the lock, then run
  dlock exec backup --wait 0 -- ./backup.sh   exit with 75 if somebody holds it
  dlock exec catalog --type rw --mode shared -- ./read.sh
  dlock exec turn --type fair --wait 60 -- ./step.sh  in order of arrival

Exit codes: the command's; 69 no primary, 75 not got, 76 lost, 126/127 cannot be
run.";

pub const HOLD_HELP: &str = "\
For scripts whose commands run one after the other:
  hold=$(dlock hold backup) || exit
  ./backup.sh
  dlock release \"$hold\" || echo 'it ran without the lock' >&2
A process in the background extends the lock until it is released. When the lock
is lost nothing of the script is ended: release says so, with exit code 76. So
it does when that process was killed, or the machine was restarted: then the
lock goes to others, at the latest when its lease is over. A hold is its
user's; a second release finds none (exit code 1).";

pub const CERTS_HELP: &str = "\
Keep ca.key off the hosts of the cluster: it can issue a certificate for every
name. A host needs ca.crt, ca.crl, and the .crt and .key of its own. Primaries
and clients refuse every peer when ca.crl is out of date: 'dlock certs revoke'
without a NAME issues it anew.

Examples:
  dlock certs init                             a CA in ./certs
  dlock certs server node1 --host node1.example --host 192.0.2.7
  dlock certs client backup
  dlock certs revoke backup                    then copy ca.crl to all hosts";

/// The last part of the help of the whole tool.
pub fn concat_help() -> String {
    format!("{EXAMPLES}\n\n{EXIT_CODES}")
}
