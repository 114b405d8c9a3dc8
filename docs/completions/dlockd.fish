complete -c dlockd -l config -d 'Read the configuration from this TOML file' -r -F
complete -c dlockd -l listen -d 'Listen on this IPv4 or IPv6 address [default: 127.0.0.1]' -r
complete -c dlockd -l port -d 'Listen on this TCP port, 0 for any free one [default: 21616]' -r
complete -c dlockd -l ctrl-cpuset -d 'CPUs of the control thread, like 0-3,6' -r
complete -c dlockd -l cmd-cpuset -d 'CPUs of the command thread' -r
complete -c dlockd -l recovery-clients -d 'Clients that have to come back before any client is served' -r
complete -c dlockd -l recovery-deadline -d 'Wait at least so long for the clients that the state file knows [default: 30]' -r
complete -c dlockd -l verbs -d 'Serve over RDMA verbs: auto, on, sealed, one-sided, off [default: auto, on a host with a usable port]' -r
complete -c dlockd -l device -d 'Serve on this RDMA device' -r
complete -c dlockd -l admin-socket -d 'Make the admin endpoint\'s Unix socket here; none: nowhere [default: in the user\'s runtime folder, for each port; `dlock` finds it there]' -r -F
complete -c dlockd -l http -d 'Show metrics and probes over HTTP at this address, like 127.0.0.1:9616' -r
complete -c dlockd -l state-file -d 'Keep the last epoch in this file, and in FILE.clients who the clients are; none: nowhere [default: a file in the user\'s state folder, for each port]' -r -F
complete -c dlockd -l standby-of -d 'Take the place of the primary at this address when it is gone; needs its state file' -r
complete -c dlockd -l standby-silence -d 'The primary may be silent for so long [default: 1000]' -r
complete -c dlockd -l fence-command -d 'A command for sh that makes sure that the primary at $DLOCK_PRIMARY is gone' -r
complete -c dlockd -l tls-ca -d 'Speak TLS, with clients that have a certificate of a CA in this PEM file' -r -F
complete -c dlockd -l tls-crl -d 'Refuse the certificates that the revocation lists in this PEM file name' -r -F
complete -c dlockd -l tls-cert -d 'This primary\'s certificate, and those between it and the CA, in PEM' -r -F
complete -c dlockd -l tls-key -d 'The private key of the certificate, in PEM' -r -F
complete -c dlockd -l tls-key-password-file -d 'The first line of this file is the password of the private key' -r -F
complete -c dlockd -l log-level -d 'What to tell on standard error: off, error, warn, info, debug, trace [default: info]' -r
complete -c dlockd -l log-format -d 'How: text, journal (levels for systemd\'s journal), json (an object for each message), auto (journal where standard error is the journal, else text) [default: auto]' -r
complete -c dlockd -l check-config -d 'Check the configuration, say whether it is valid, and exit'
complete -c dlockd -l sleep-mode -d 'The command thread sleeps soon when there is nothing to do'
complete -c dlockd -l no-shm -d 'Offer no shared memory'
complete -c dlockd -l no-tcp -d 'Offer no command channels over TCP'
complete -c dlockd -l insecure -d 'Listen where strangers can connect although there is no TLS'
complete -c dlockd -s h -l help -d 'Print help'
complete -c dlockd -s V -l version -d 'Print version'
