# SPDX-License-Identifier: MIT OR Apache-2.0
# Takes symbols and lines out of an installed library, into a file of their own that it names.
#   OBJCOPY    the program
#   LIBRARY    the file's name
#   FROM, TO   folders of the library as it was linked, and of the installed one
file(MAKE_DIRECTORY "${TO}/.debug")
set(debug "${TO}/.debug/${LIBRARY}.debug")
foreach(step
    "--only-keep-debug;${FROM}/${LIBRARY};${debug}"
    "--strip-all;--add-gnu-debuglink=${debug};${FROM}/${LIBRARY};${TO}/${LIBRARY}")
  execute_process(COMMAND "${OBJCOPY}" ${step} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${TO}/${LIBRARY} cannot be stripped: set -DDLOCK_STRIP=OFF")
  endif()
endforeach()
