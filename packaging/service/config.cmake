# SPDX-License-Identifier: MIT OR Apache-2.0
# The configuration of the service from the commented example: IN OUT. Its state and its admin socket
# are in the folders that systemd makes.
file(READ "${IN}" text)
foreach(key "state_file = \"/var/lib/dlock/epoch\"" "admin_socket = \"/run/dlock/dlockd.sock\"")
  string(FIND "${text}" "\n#${key}\n" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${IN} does not show: #${key}")
  endif()
  string(REPLACE "\n#${key}\n" "\n${key}\n" text "${text}")
endforeach()
file(WRITE "${OUT}" "${text}")
