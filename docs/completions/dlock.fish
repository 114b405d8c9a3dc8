# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dlock_global_optspecs
    string join \n v/verbose tls-ca= tls-cert= tls-key= tls-crl= tls-key-password-file= h/help V/version
end

function __fish_dlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dlock_using_subcommand
    set -l cmd (__fish_dlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dlock -n "__fish_dlock_needs_command" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_needs_command" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_needs_command" -s V -l version -d 'Print version'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "demo" -d 'A guided tour of about 20 seconds: starts a primary and clients as processes of their own, and checks everything it claims. Needs no configuration and no privileges'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "bench" -d 'Measures lock cycles, batches, hand-over and objects, beside the raw baseline'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "status" -d 'Says how a running primary is'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "recover" -d 'Says how far a primary is that recovers what its predecessor\'s clients hold'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "promote" -d 'Has a primary in waiting take the place of the one that it waits for'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "locks" -d 'Lists the locks of a running primary'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "clients" -d 'Lists the clients of a running primary'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "remove" -d 'Removes a client: it is asked to leave, then fenced'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "break" -d 'Breaks a lock: removes the clients that hold it'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "reset" -d 'Removes all clients, or all clients whose connections have ended'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "drain" -d 'Has a primary give no lock any more, and stop when none is held'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "doctor" -d 'Says whether this host can use RDMA, what `auto` chooses, and what to do about problems'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "exec" -d 'Runs a command while holding a lock, and ends with the command\'s exit code'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "hold" -d 'Holds a lock in the background, until dlock release; prints the id of the hold'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "release" -d 'Gives a lock back that dlock hold has got, and says how long it was held'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "certs" -d 'Makes a private CA, certificates for primaries and clients, and the list of revoked ones'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l fabric -d 'How lock operations travel in the tour' -r -f -a "auto\t''
verbs\t''
shm\t''
sealed\t''
tcp\t''"
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand demo" -l fast -d 'Without the pauses that let a person read along'
complete -c dlock -n "__fish_dlock_using_subcommand demo" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand demo" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l only -d 'Only cases whose name contains this' -r
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l c-program -d 'A program built from benches/c/cycle.c, to measure the C API with (make bench does it)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l fabric -d 'Which executors to measure' -r -f -a "auto\t''
verbs\t''
shm\t''
sealed\t''
tcp\t''"
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l quick -d 'Short runs: seconds instead of a minute, and coarser percentiles'
complete -c dlock -n "__fish_dlock_using_subcommand bench" -l json -d 'Print one JSON document instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand bench" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand bench" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand status" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand recover" -l now -d 'Wait no longer for the clients that are missing'
complete -c dlock -n "__fish_dlock_using_subcommand recover" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand recover" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand promote" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand promote" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand promote" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand locks" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand locks" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand locks" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand clients" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand clients" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand clients" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l grace -d 'Seconds in which they may leave, or give the lock back, before they are fenced' -r
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l address -d 'Not at an admin socket, but over TLS at this primary: IP, IP:PORT or HOST:PORT. Needs a certificate to which a rule of the primary gives the right admin' -r
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l now -d 'End their leases at once, too'
complete -c dlock -n "__fish_dlock_using_subcommand remove" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand remove" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand remove" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l client -d 'Only if this client holds it' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l grace -d 'Seconds in which they may leave, or give the lock back, before they are fenced' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l address -d 'Not at an admin socket, but over TLS at this primary: IP, IP:PORT or HOST:PORT. Needs a certificate to which a rule of the primary gives the right admin' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -l now -d 'End their leases at once, too'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l grace -d 'Seconds in which they may leave, or give the lock back, before they are fenced' -r
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l address -d 'Not at an admin socket, but over TLS at this primary: IP, IP:PORT or HOST:PORT. Needs a certificate to which a rule of the primary gives the right admin' -r
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l departed -d 'Clients without a session: what they hold is kept for their return'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l all -d 'All clients'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l now -d 'End their leases at once, too'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand reset" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l socket -d 'The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one primary of this user or of the service]' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l address -d 'Not at an admin socket, but over TLS at this primary: IP, IP:PORT or HOST:PORT. Needs a certificate to which a rule of the primary gives the right admin' -r
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l undo -d 'End the drain: clients get locks again'
complete -c dlock -n "__fish_dlock_using_subcommand drain" -l json -d 'Print JSON, one document, instead of a table'
complete -c dlock -n "__fish_dlock_using_subcommand drain" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand drain" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l device -d 'Whether this RDMA device can be used (a name as in `rdma link`)' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l json -d 'Print one JSON document instead of lines'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l type -d 'Kind of lock. All users of a name must say the same' -r -f -a "atomic\t'One holder, with a lease'
rw\t'One writer or many readers, without a lease'
fair\t'One writer or many readers, with a lease, in order of arrival'"
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l mode -d 'Alone, or together with other readers' -r -f -a "exclusive\t'Alone'
shared\t'With other readers (rw and fair locks)'"
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l lease -d 'Seconds, at least 4, after which others may take the lock if this host does not answer; COMMAND is dead by then' -r
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l wait -d 'Seconds to wait for the lock; 0: try once. Without it: as long as it takes' -r
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l on-lost -d 'When the lock is lost: `kill` ends COMMAND; `warn` says so and lets it run; any other text ends it, and then runs that as a command of the shell, with DLOCK_NAME, DLOCK_TOKEN and DLOCK_REASON' -r
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l outcome -d 'Of dlock hold: run without a terminal, and write here how it ended' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l address -d 'Where the primary is: IP, IP:PORT or HOST:PORT, IPv6 in brackets before a port; with commas between them: where it and its successors are. Without it: what DLOCK_PRIMARIES says, else 127.0.0.1:21616' -r
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l fabric -d 'How lock operations travel; auto: the first of verbs, shm, sealed and tcp that works from here' -r -f -a "auto\t''
verbs\t''
shm\t''
sealed\t''
tcp\t''"
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand exec" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l type -d 'Kind of lock. All users of a name must say the same' -r -f -a "atomic\t'One holder, with a lease'
rw\t'One writer or many readers, without a lease'
fair\t'One writer or many readers, with a lease, in order of arrival'"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l mode -d 'Alone, or together with other readers' -r -f -a "exclusive\t'Alone'
shared\t'With other readers (rw and fair locks)'"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l lease -d 'Seconds, at least 4, after which others may take the lock if this host does not answer' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l wait -d 'Seconds to wait for the lock; 0: try once. Without it: as long as it takes' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l address -d 'Where the primary is: IP, IP:PORT or HOST:PORT, IPv6 in brackets before a port; with commas between them: where it and its successors are. Without it: what DLOCK_PRIMARIES says, else 127.0.0.1:21616' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l fabric -d 'How lock operations travel; auto: the first of verbs, shm, sealed and tcp that works from here' -r -f -a "auto\t''
verbs\t''
shm\t''
sealed\t''
tcp\t''"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l list -d 'List the holds of this user'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l json -d 'With --list: print JSON'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "init" -d 'Makes a CA (ca.crt, ca.key) and its empty list of revoked certificates (ca.crl)'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "server" -d 'Makes certificate and key of a primary: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "client" -d 'Makes certificate and key of a client: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "revoke" -d 'Puts certificates on the list of revoked ones, and issues the list anew'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "list" -d 'Lists the CA, its list and all certificates: until when they are valid, what is revoked'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and not __fish_seen_subcommand_from init server client revoke list help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l dir -d 'The folder of the CA' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l name -d 'The name of the CA; no two CAs of a cluster may have the same. Without it: a new one' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l days -d 'Days for which the CA is valid' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l crl-days -d 'Days for which the list of revoked certificates is valid' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -l force -d 'Replace a CA that is there: all its certificates become worthless'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from init" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l dir -d 'The folder of the CA' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l days -d 'Days for which the certificate is valid; never longer than the CA' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l host -d 'A host name or address of the primary, for clients that check names; several are possible' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -l force -d 'Replace the files if they are there: renew the certificate, with a new key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from server" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l dir -d 'The folder of the CA' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l days -d 'Days for which the certificate is valid; never longer than the CA' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -l force -d 'Replace the files if they are there: renew the certificate, with a new key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from client" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l dir -d 'The folder of the CA' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l crl-days -d 'Days for which the list is valid' -r
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l dir -d 'The folder of the CA' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l tls-ca -d 'Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l tls-cert -d 'This client\'s certificate and its chain (PEM); DLOCK_TLS_CERT' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l tls-key -d 'The private key of the certificate (PEM); DLOCK_TLS_KEY' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l tls-crl -d 'The revocation lists of the CAs (PEM); DLOCK_TLS_CRL' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -l tls-key-password-file -d 'The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Say more on standard error; twice and three times: still more'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "init" -d 'Makes a CA (ca.crt, ca.key) and its empty list of revoked certificates (ca.crl)'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "server" -d 'Makes certificate and key of a primary: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "client" -d 'Makes certificate and key of a client: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Puts certificates on the list of revoked ones, and issues the list anew'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "list" -d 'Lists the CA, its list and all certificates: until when they are valid, what is revoked'
complete -c dlock -n "__fish_dlock_using_subcommand certs; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "demo" -d 'A guided tour of about 20 seconds: starts a primary and clients as processes of their own, and checks everything it claims. Needs no configuration and no privileges'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "bench" -d 'Measures lock cycles, batches, hand-over and objects, beside the raw baseline'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "status" -d 'Says how a running primary is'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "recover" -d 'Says how far a primary is that recovers what its predecessor\'s clients hold'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "promote" -d 'Has a primary in waiting take the place of the one that it waits for'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "locks" -d 'Lists the locks of a running primary'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "clients" -d 'Lists the clients of a running primary'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "remove" -d 'Removes a client: it is asked to leave, then fenced'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "break" -d 'Breaks a lock: removes the clients that hold it'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "reset" -d 'Removes all clients, or all clients whose connections have ended'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "drain" -d 'Has a primary give no lock any more, and stop when none is held'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "doctor" -d 'Says whether this host can use RDMA, what `auto` chooses, and what to do about problems'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "exec" -d 'Runs a command while holding a lock, and ends with the command\'s exit code'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "hold" -d 'Holds a lock in the background, until dlock release; prints the id of the hold'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "release" -d 'Gives a lock back that dlock hold has got, and says how long it was held'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "certs" -d 'Makes a private CA, certificates for primaries and clients, and the list of revoked ones'
complete -c dlock -n "__fish_dlock_using_subcommand help; and not __fish_seen_subcommand_from demo bench status recover promote locks clients remove break reset drain doctor exec hold release certs help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dlock -n "__fish_dlock_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "init" -d 'Makes a CA (ca.crt, ca.key) and its empty list of revoked certificates (ca.crl)'
complete -c dlock -n "__fish_dlock_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "server" -d 'Makes certificate and key of a primary: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "client" -d 'Makes certificate and key of a client: NAME.crt and NAME.key'
complete -c dlock -n "__fish_dlock_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "revoke" -d 'Puts certificates on the list of revoked ones, and issues the list anew'
complete -c dlock -n "__fish_dlock_using_subcommand help; and __fish_seen_subcommand_from certs" -f -a "list" -d 'Lists the CA, its list and all certificates: until when they are valid, what is revoked'
